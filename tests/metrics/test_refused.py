"""What retrieval's metrics refuse: arrays, labels and cut-offs that are none, traced arrays; in a sentence."""

import jax
import numpy as np
import pytest

from jdml.metrics import evaluate_retrieval

X, Y = np.zeros((6, 3), np.float32), np.arange(6) % 2
BAD = X.copy()
BAD[4, 1] = np.nan


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: evaluate_retrieval(X[0], Y), ValueError, r"queries must have shape \[N, D\]"),
        (lambda: evaluate_retrieval(X.astype(int), Y), TypeError, "queries must be floating"),
        (lambda: evaluate_retrieval(X, Y[:5]), ValueError, r"query_labels .* \[6\], got \[5\]"),
        (lambda: evaluate_retrieval(X, Y * 1.0), TypeError, "query_labels must be integers"),
        (lambda: evaluate_retrieval(X, Y, X), ValueError, "gallery_labels must be given together"),
        (lambda: evaluate_retrieval(X, Y, None, Y), ValueError, "must be given together"),
        (lambda: evaluate_retrieval(X, Y, X[:, :2], Y), ValueError, "gallery must have the dim"),
        (lambda: evaluate_retrieval(X, Y, X, Y[:3]), ValueError, "gallery_labels must have shape"),
        (lambda: evaluate_retrieval(BAD, Y), ValueError, "queries must be finite.* row 4 is not"),
        (lambda: evaluate_retrieval(X, Y, BAD, Y), ValueError, "gallery must be finite.* row 4"),
        (lambda: evaluate_retrieval(X, Y, X, Y, self_index=Y * 1.0), TypeError, "self_index must"),
        (lambda: evaluate_retrieval(X, Y, X, Y, self_index=Y[:3]), ValueError, "self_index must"),
        (
            lambda: evaluate_retrieval(X, Y, X, Y, self_index=Y * 6),
            ValueError,
            r"self_index\[1\] is 6, expected a row of the gallery, 0…5, or -1 for none",
        ),
        (lambda: evaluate_retrieval(X, Y, X, Y, self_index=-2 * Y), ValueError, r"\[1\] is -2"),
        (lambda: evaluate_retrieval(X, Y, ignore=Y), TypeError, "ignore must be a boolean array"),
        (lambda: evaluate_retrieval(X, Y, ignore=X > 0), ValueError, r"ignore must .* \[6, 6\]"),
        (lambda: evaluate_retrieval(X, Y, ignore=(Y,)), ValueError, "ignore must .* got 1 of them"),
        (lambda: evaluate_retrieval(X, Y, ignore=(Y, Y[:2])), ValueError, r"ignore\[1\] .* \[6\]"),
        (
            lambda: evaluate_retrieval(X, Y, ignore=(Y, Y / 2)),
            TypeError,
            r"ignore\[1\] must be int",
        ),
        (
            lambda: evaluate_retrieval(X, Y, ignore=([*"ab", None, *"cde"], [*"abcdef"])),
            ValueError,
            r"ignore\[0\] has no group for row 2, None: give each row without one a group of its own",
        ),
        (
            lambda: evaluate_retrieval(X, Y, ignore=(Y, np.array([1, np.nan] * 3, object))),
            ValueError,
            r"ignore\[1\] has no group for row 1, nan",
        ),
        (
            lambda: evaluate_retrieval(X, Y, ignore=(["a", float("nan"), *"bcde"], [*"abcdef"])),
            ValueError,
            r"ignore\[0\] has no group for row 1, nan",
        ),
        (
            lambda: evaluate_retrieval(X, Y, ignore=(Y, Y.astype(str))),
            TypeError,
            "must both be integers or both be names",
        ),
        (
            lambda: evaluate_retrieval(X, np.stack([Y, Y], 1), X, Y),
            ValueError,
            r"same levels, got shapes \[6, 2\] and \[6\]",
        ),
        (
            lambda: evaluate_retrieval(X, np.zeros((5, 2), int)),
            ValueError,
            r"query_labels must have shape \[6\], got \[5\]",
        ),
        (lambda: evaluate_retrieval(np.full((6, 3), 1e300), Y), ValueError, "row 0 is not"),
        (lambda: evaluate_retrieval(X, Y, recall_at=(1, 0)), ValueError, r"recall_at\[1\] must be"),
        (lambda: evaluate_retrieval(X, Y, ndcg_at=8), TypeError, "ndcg_at must be a sequence"),
        (lambda: evaluate_retrieval(X, Y, map_at=(1.5,)), TypeError, r"map_at\[0\] must be"),
        (lambda: evaluate_retrieval(X, Y, block_size=0), ValueError, "block_size must be >= 1"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("traced", ["queries", "ignore", "distances"])
def test_traced_arrays_are_refused_in_words(traced):
    given = {"queries": X, "query_labels": Y}
    with pytest.raises(TypeError, match="evaluate_retrieval runs on the host and cannot be traced"):
        jax.jit(
            lambda x, y: evaluate_retrieval(
                **given | {traced: {"queries": x, "ignore": (y, y), "distances": x}[traced]}
            )
        )(X, Y)
