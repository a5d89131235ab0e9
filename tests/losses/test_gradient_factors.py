"""Gradients of proxy losses: MPA's eq. 5, 8, 9, 11, 14 and 18, its Tables 1 and 2.

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
    """Return ∂L/∂S as a function of many S ``[M, B, C]``."""

    def loss(similarities: jax.Array) -> jax.Array:
        return LOSSES[name](similarities, jnp.asarray(LABELS), jnp.eye(CLASSES), normalize=None)

    return jax.jit(jax.vmap(jax.grad(loss)))


def gradient(name: str, *changed: np.ndarray) -> np.ndarray:
    slopes = slope(name)(jnp.asarray(np.stack([S, *changed]), jnp.float32))
    return np.asarray(slopes if changed else slopes[0])


def test_class_wise_gradient() -> None:
    """Eq. 8 and 9: it depends on the similarity and those of the class's other samples of the same sign."""
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
    """Eq. 14: the positive depends on its similarity only, a negative on those of the sample's other negatives."""
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
    """Eq. 18, with eq. 11's softplus of a sum: all of a sample's similarities are compared with each other."""
    with_margin = np.where(POSITIVE, DELTA - S, S + DELTA)
    total = np.log1p(np.exp(logsumexp(ALPHA * with_margin, axis=1, keepdims=True)))
    expected = np.where(POSITIVE, -1, 1) * ALPHA / SIZE * np.exp(ALPHA * with_margin - total)
    np.testing.assert_allclose(gradient("MPA-AP"), expected, rtol=1e-4)


def test_soft_triple_gradient() -> None:
    """The gradient of eq. 2 is the softmax minus the true class, as reciprocals of sums of exponentials."""
    logits = SCALE * (S - DELTA * POSITIVE)
    softmax = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
    expected = SCALE / SIZE * (softmax - POSITIVE)
    np.testing.assert_allclose(gradient("SoftTriple"), expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(of_equation_5(mended=True) / SIZE, expected, rtol=1e-6)


def of_equation_5(*, mended: bool) -> np.ndarray:
    """Return eq. 5 as printed, or with its signs and its relative terms reversed inside the sums."""
    values = np.zeros((SIZE, CLASSES))
    sign = -1 if mended else 1
    for x, own in enumerate(LABELS):
        others = [c for c in range(CLASSES) if c != own]

        def above(first: int, second: int, margin: float = 0.0, x: int = x) -> float:
            return np.exp(SCALE * (S[x, first] - S[x, second] - margin))

        relative = [above(own, c, DELTA) for c in others]
        whole = 1 / sum(1 / term for term in relative) if mended else sum(relative)
        values[x, own] = sign * SCALE / (whole + 1)
        for c in others:
            pairs = [above(other, c) if mended else above(c, other) for other in others]
            values[x, c] = -sign * SCALE / (above(own, c, DELTA) + sum(pairs))
    return values


def test_printed_equation_5_differs_from_the_gradient() -> None:
    """Reversing its signs does not suffice: with more than two classes it should sum reciprocals."""
    true, printed = of_equation_5(mended=True), of_equation_5(mended=False)
    assert (np.sign(printed) == -np.sign(true)).all()
    assert np.abs(-printed - true).max() > 0.1
    np.testing.assert_allclose(
        true.sum(1), 0, atol=1e-12
    )  # a softmax's gradients sum to 0, the printed ones do not
    assert np.abs(printed.sum(1)).min() > 1e-3


def operations(name: str, samples: int, classes: int | None = None, proxies: int = 1) -> float:
    """Return the operations of value and gradient without the regularizer, as the compiler counts them."""
    rows = (
        jax.ShapeDtypeStruct((samples, 16), jnp.float32),
        jax.ShapeDtypeStruct((samples,), jnp.int32),
    )
    shape = (classes, 16) if proxies == 1 else (classes, proxies, 16)
    centres = () if classes is None else (jax.ShapeDtypeStruct(shape, jnp.float32),)
    settings = {} if proxies == 1 else {"tau": None}
    loss = functools.partial(getattr(jdml, f"{name}_loss"), **settings)
    step = jax.jit(jax.value_and_grad(loss))
    return step.lower(*rows, *centres).cost_analysis()["flops"]


@pytest.mark.slow  # compiles for two batch sizes
@pytest.mark.parametrize("name", ["contrastive", "triplet", "multi_similarity"])
def test_table_2_complexity_of_pair_losses(name: str) -> None:
    """O(M²), also for the triplet loss: triplets are counted, not listed, which avoids O(M³)."""
    assert 3.8 < operations(name, 256) / operations(name, 128) < 4.2


@pytest.mark.slow  # compiles for two batch sizes
@pytest.mark.parametrize(
    ("name", "proxies"),
    [
        ("proxy_nca", 1),
        ("proxy_anchor", 1),
        ("soft_triple", 4),
        ("multi_proxy_anchor", 4),
        ("multi_proxy_anchor_dw", 4),
        ("multi_proxy_anchor_ap", 4),
    ],
)
def test_table_2_complexity_of_proxy_losses(name: str, proxies: int) -> None:
    """O(MC), and O(MCP) with P proxies per class; the table allows P²."""
    once = operations(name, 128, 64, proxies)
    assert 3.7 < operations(name, 256, 128, proxies) / once < 4.1
    if proxies > 1:
        assert 1.9 < operations(name, 128, 64, 2 * proxies) / once < 2.3


TABLE = {  # stability, similarity, P-P, N-N, P-N
    "ProxyNCA": (True, False, False, True, False),
    "ProxyAnchor": (False, True, True, True, False),
    "SoftTriple": (True, False, False, True, True),
    "MPA": (False, True, True, True, False),
    "MPA-DW": (True, True, False, True, False),
    "MPA-AP": (True, True, False, True, True),
}


@pytest.mark.parametrize("name", TABLE)
def test_table_1_gradient_dependencies(name: str) -> None:
    """Each tick of the table says whether a gradient changes with a similarity of that kind."""
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
