"""Every loss on generated batches: finite, masked rows ignored, value and gradient equal to the oracle's."""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hunt import loss_cases
from hunt.generated import CASES, generated
from hunt.loss_cases import CALLS, PLAIN, Arrays, Case, cases, run
from hypothesis import strategies as st
from losses.registry import REGISTRY

SPOILED = (np.nan, np.inf, -np.inf, 1e30, 3e38)
FAR = ("plain",) * 5 + ("huge",)
FAILED_BEFORE = {
    # The product of gradient and vector overflows, though the gradient by it does not: embeddings, and proxies.
    "info_nce_loss": [Case(rows=FAR, labels=(0, 0, 0, 0, 0, 1), edge=6)],
    "proxy_nca_margin_loss": [
        Case(rows=FAR, edge=19),
        Case(others=("huge", "plain", "plain", "plain"), edge=19),
    ],
}

Value = Callable[[Arrays], float]
"""A value as a function of the vectors."""


def assert_same(left: Value, right: Value, vectors: Arrays) -> None:
    """Assert equality to 1e-6, or to the change that rounding of the vectors makes to either side, if it is larger."""
    one, other = left(vectors), right(vectors)
    allowed = 1e-6 * max(1.0, abs(other))
    random = np.random.default_rng(0)
    for _ in range(4):
        if abs(one - other) <= allowed:
            return
        shaken = {
            n: v + 1e-12 * np.linalg.norm(v, axis=-1, keepdims=True) * random.normal(size=v.shape)
            for n, v in vectors.items()
        }
        changes = abs(left(shaken) - one), abs(right(shaken) - other)
        allowed = max(allowed, 20.0 * max(changes))
    assert abs(one - other) <= allowed, f"{one}, not {other} (allowed {allowed})"


def check(name: str, case: Case, *, only_finite: bool = False) -> None:
    """Check all properties of a loss for this case, or only that it is finite, which is quick."""
    call = CALLS[REGISTRY[name].kind][case.call]
    arrays = loss_cases.vectors_of(name, case, call), loss_cases.others_of(case, call)
    numbers, moderate = loss_cases.hyper_parameters(name, case)
    check_finite(name, case, *arrays, numbers)
    if call.dtype is None and moderate and not only_finite and loss_cases.has_oracle(name, case):
        check_oracle(name, case, *arrays, numbers)
    if call.like and not only_finite and not (call.ties and set(case.rows) != {"plain"}):
        check_equivalent_call(name, case, arrays[0], numbers)


def check_finite(name: str, case: Case, vectors: Any, others: Any, numbers: Any) -> None:
    """Check in float32 or less that the loss is finite and that masked rows with any content contribute nothing."""
    call = CALLS[REGISTRY[name].kind][case.call]
    dtype = call.dtype or jnp.float32
    value, gradients = run(name, case.call, vectors, others, numbers, dtype)
    assert np.isfinite(value), f"the loss is {value}"
    for of, gradient in gradients.items():
        assert np.isfinite(gradient).all(), f"the gradient by {of} is {gradient}"
    masked = ~case.valid
    if not case.valid.any():
        assert value == 0, f"no row is valid, the loss is {value}"
    if masked.any():
        random = np.random.default_rng(case.seed)
        spoiled = {n: v.copy() for n, v in vectors.items()}
        spoiled["embeddings"][masked] = random.choice(SPOILED, spoiled["embeddings"][masked].shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # beyond float16
            again = run(name, case.call, spoiled, others, numbers, dtype)
        assert again[0] == value, f"masked rows count: {again[0]}, not {value}"
        for of in gradients:
            np.testing.assert_array_equal(again[1][of], gradients[of], f"masked rows, by {of}")
        assert not again[1]["embeddings"][masked].any(), "masked rows have a gradient"
    if call.dtype is not None:
        rounded = {n: v.astype(dtype).astype(np.float64) for n, v in vectors.items()}
        wide = run(name, "plain", rounded, others, numbers, jnp.float32)[0]
        assert abs(value - wide) <= 1e-5 * max(1.0, abs(wide)), f"{value}, in float32 {wide}"


def check_equivalent_call(name: str, case: Case, vectors: Any, numbers: Any) -> None:
    """Check in float64 that an equivalent call, such as one without blocks, has the same value and gradient."""
    calls = CALLS[REGISTRY[name].kind]
    random = np.random.default_rng(case.seed)
    along = {n: random.normal(size=v.shape) for n, v in vectors.items()}

    def of(by: str, part: int) -> Value:
        def at(vectors: Arrays) -> float:
            others = loss_cases.others_of(case, calls[by])
            value, gradients = run(name, by, vectors, others, numbers, jnp.float64)
            lengths = {n: np.linalg.norm(v, axis=-1, keepdims=True) for n, v in vectors.items()}
            slopes = [float(np.sum(g * along[n] * lengths[n])) for n, g in gradients.items()]
            return (value, sum(slopes))[part]

        return at

    for part in (0, 1):
        assert_same(of(case.call, part), of(calls[case.call].like, part), vectors)


def check_oracle(name: str, case: Case, vectors: Any, others: Any, numbers: Any) -> None:
    """Check in float64 that the value is the oracle's, and the gradient its derivative."""
    spec = REGISTRY[name]
    call = CALLS[spec.kind][case.call]

    def expected_at(at: Arrays) -> float:
        return loss_cases.oracle_value(name, call, at, others, numbers)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            expected = expected_at(vectors)
        except (ArithmeticError, ValueError):  # beyond the range of Python's floats
            return
        if not abs(expected) < 1e150:  # a potential that steep is flat
            return

        def value_at(at: Arrays) -> float:
            return run(name, case.call, at, others, numbers, jnp.float64)[0]

        assert_same(value_at, expected_at, vectors)
        gradients = run(name, case.call, vectors, others, numbers, jnp.float64)[1]
        if "gradients" in spec.skip:
            return
        random, step = np.random.default_rng(case.seed), 1e-6
        along = {
            n: random.normal(size=v.shape) * np.linalg.norm(v, axis=-1, keepdims=True)
            for n, v in vectors.items()
        }
        along["embeddings"][~case.valid] = 0.0
        slope = sum(float(np.sum(gradients[n] * along[n])) for n in vectors)
        ahead, behind = (
            (expected_at({n: v + s * step * along[n] for n, v in vectors.items()}) - expected)
            / (s * step)
            for s in (1, -1)
        )
        size = max(1.0, abs(slope), abs(expected))
        if np.isfinite(ahead - behind) and abs(ahead - behind) <= 1e-4 * size:  # no kink
            middle = (ahead + behind) / 2
            assert abs(slope - middle) <= 1e-3 * size, f"a gradient of {slope}, not {middle}"


SOME = [
    *("triplet_loss", "margin_loss", "multi_similarity_loss", "lifted_structure_loss"),
    *("info_nce_loss", "smooth_ap_loss", "proxy_nca_loss", "proxy_anchor_loss", "arcface_loss"),
    *("soft_triple_loss", "multi_proxy_anchor_loss", "potential_field_loss"),
]
"""A loss of each construction. A hunt tries all; tests/losses compares all with their oracles on one batch."""

NAMES = sorted(REGISTRY, key=lambda name: name not in SOME)


@pytest.mark.slow  # generated batches of all kinds of losses
class TestLosses:
    @pytest.mark.parametrize("name", NAMES if CASES else NAMES[: len(SOME)], scope="class")
    @generated(few=12, share=0.72 / len(REGISTRY), data=st.data())
    def test_generated_batches(self, name: str, data: Any) -> None:
        check(name, data.draw(cases(name, () if CASES else ("plain",))))

    @pytest.mark.parametrize("name", ["triplet_loss", "proxy_anchor_loss"])
    def test_calls_in_blocks(self, name: str) -> None:
        """A hunt does this for all losses, also with masks, miners and keys."""
        rows = ("plain", "copy", "plain", "opposite", "plain", "plain")
        check(name, Case("in blocks", rows=rows, where=(True, True, False, True, True, True)))

    @pytest.mark.parametrize("name", NAMES, scope="class")
    def test_extreme_settings(self, name: str) -> None:
        """The loss is finite at any sharpness, also for rows that are equal, opposite or zero."""
        for case in FAILED_BEFORE.get(name, []):
            check(name, case)
        for edge in range(1, loss_cases.edges(name) + 1):
            for rows in (PLAIN, ("copy", "copy", "plain", "opposite", "copy", "zero")):
                check(name, Case(rows=rows, edge=edge), only_finite=True)
