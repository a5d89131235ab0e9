"""What drives the gradients of proxy losses: MPA's eq. 5, 8, 9, 11, 14 and 18, and its Table 1.

With the unit vectors for proxies and nothing normalized, an embedding's entries are its similarities S(x, c), and the
gradient with respect to it is ∂L/∂S.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

import jdml

ALPHA, DELTA, SCALE = 3.0, 0.1, 4.0
LABELS = np.array([0, 0, 1, 2, 1])
SIZE, CLASSES = len(LABELS), 4  # the last class has no sample
S = np.random.default_rng(0).uniform(-0.8, 0.8, (SIZE, CLASSES))
POSITIVE = np.arange(CLASSES)[None] == LABELS[:, None]
FAMILY = {"alpha": ALPHA, "delta": DELTA}
LOSSES: dict[str, Callable[..., jax.Array]] = {
    "ProxyNCA": functools.partial(jdml.proxy_nca_loss, scale=1.0),
    "ProxyAnchor": functools.partial(jdml.proxy_anchor_loss, **FAMILY),
    "SoftTriple": functools.partial(jdml.soft_triple_loss, scale=SCALE, margin=DELTA),
    "MPA": functools.partial(jdml.multi_proxy_anchor_loss, **FAMILY),
    "MPA-DW": functools.partial(jdml.multi_proxy_anchor_dw_loss, **FAMILY),
    "MPA-AP": functools.partial(jdml.multi_proxy_anchor_ap_loss, **FAMILY),
}


@functools.cache
def slope(name: str) -> Callable[[jax.Array], jax.Array]:
    """∂L/∂S as a function of many S ``[M, B, C]``."""

    def loss(similarities: jax.Array) -> jax.Array:
        return LOSSES[name](similarities, jnp.asarray(LABELS), jnp.eye(CLASSES), normalize=None)

    return jax.jit(jax.vmap(jax.grad(loss)))


def gradient(name: str, *changed: np.ndarray) -> np.ndarray:
    slopes = slope(name)(jnp.asarray(np.stack([S, *changed]), jnp.float32))
    return np.asarray(slopes if changed else slopes[0])


def test_class_wise_gradient() -> None:
    """Eq. 8 and 9: by the similarity itself and by those of the class's other samples, positive and negative apart."""
    expected = np.zeros((SIZE, CLASSES))
    present = len(set(LABELS))
    for x in range(SIZE):
        for c in range(CLASSES):
            same = POSITIVE[:, c] == POSITIVE[x, c]
            sign = -1 if POSITIVE[x, c] else 1
            own = np.exp(-sign * ALPHA * (S[x, c] + sign * DELTA))
            relative = np.exp(sign * ALPHA * (S[same, c] - S[x, c])).sum()
            share = 1 / (present if POSITIVE[x, c] else CLASSES)
            expected[x, c] = sign * share * ALPHA / (own + relative)
    for name in ("MPA", "ProxyAnchor"):
        np.testing.assert_allclose(gradient(name), expected, rtol=1e-4)


def test_data_wise_gradient() -> None:
    """Eq. 14: the positive one by its similarity alone, the negative ones by those of the same sample's others."""
    expected = np.zeros((SIZE, CLASSES))
    for x in range(SIZE):
        others = ~POSITIVE[x]
        for c in range(CLASSES):
            if POSITIVE[x, c]:
                expected[x, c] = -ALPHA / SIZE / (np.exp(-ALPHA * (DELTA - S[x, c])) + 1)
            else:
                own = np.exp(-ALPHA * (S[x, c] + DELTA))
                relative = np.exp(ALPHA * (S[x, others] - S[x, c])).sum()
                expected[x, c] = ALPHA / SIZE / (own + relative)
    np.testing.assert_allclose(gradient("MPA-DW"), expected, rtol=1e-4)


def test_all_pairs_gradient() -> None:
    """Eq. 18, with eq. 11's soft-plus of a sum: all of a sample's similarities are compared with each other."""
    with_margin = np.where(POSITIVE, DELTA - S, S + DELTA)
    total = np.log1p(np.exp(logsumexp(ALPHA * with_margin, axis=1, keepdims=True)))
    expected = np.where(POSITIVE, -1, 1) * ALPHA / SIZE * np.exp(ALPHA * with_margin - total)
    np.testing.assert_allclose(gradient("MPA-AP"), expected, rtol=1e-4)


def test_soft_triple_gradient() -> None:
    """Eq. 5, with the signs that its loss has: softmax minus the true class."""
    logits = SCALE * (S - DELTA * POSITIVE)
    softmax = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
    expected = SCALE / SIZE * (softmax - POSITIVE)
    np.testing.assert_allclose(gradient("SoftTriple"), expected, rtol=1e-3, atol=1e-6)


TABLE = {  # stability, similarity, P-P, N-N, P-N
    "ProxyNCA": (True, False, False, True, False),
    "ProxyAnchor": (False, True, True, True, False),
    "SoftTriple": (True, False, False, True, True),
    "MPA": (False, True, True, True, False),
    "MPA-DW": (True, True, False, True, False),
    "MPA-AP": (True, True, False, True, True),
}


@pytest.mark.parametrize("name", TABLE)
def test_table_1(name: str) -> None:
    """Each tick: whether a gradient changes when a similarity of that kind changes."""
    places = list(np.ndindex(SIZE, CLASSES))
    shifted = [S + 0.2, *(S + 0.2 * np.eye(1, S.size, i).reshape(S.shape) for i in range(S.size))]
    still, together, *one_by_one = gradient(name, *shifted)
    moves = {
        (at, by): abs(one_by_one[i][at] - still[at]) > 1e-5
        for i, by in enumerate(places)
        for at in places
        if at != by
    }

    def some(at_positive: bool, by_positive: bool) -> bool:
        return any(
            moved
            for (at, by), moved in moves.items()
            if (POSITIVE[at], POSITIVE[by]) == (at_positive, by_positive)
        )

    stable = not any(moved for (at, by), moved in moves.items() if at[0] != by[0])
    itself = bool((np.abs(together - still) > 1e-5).any())
    relations = (some(True, True), some(False, False), some(True, False))
    assert (stable, itself, *relations) == TABLE[name]
