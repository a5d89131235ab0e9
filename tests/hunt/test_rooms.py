"""Miners, the memory, metrics, flows and NIR on generated cases, beside loops that anybody can read."""

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hunt.counting import CASES, hunted
from hypothesis import strategies as st

from jdml import flows, losses, memory, metrics, mining
from jdml.mining import Pairs
from jdml.registry.miners import MINERS
from oracles import metrics as metric_oracles
from oracles import mining as mining_oracles

SEEDS = st.integers(0, 1 << 20)

# Miners: rows without a positive or a negative, ties, copies, antipodes; keys of every implementation.

ROWS, COLUMNS = 5, 7
GRIDS = (None, (0.0, 1.0), (0.0, 0.5, 1.0, 1.5, 2.0), (2.0,), (0.0,))
KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


@dataclass(frozen=True)
class Mined:
    """Distances of a grid (None: all different), and how many of three kinds of pairs there are."""

    seed: int
    grid: tuple[float, ...] | None
    kinds: tuple[int, ...]
    key: str


MINED = st.builds(
    Mined,
    SEEDS,
    st.sampled_from(GRIDS),
    st.sampled_from(((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))),
    st.sampled_from(KEYS if CASES else KEYS[1:2]),
)


@functools.cache
def mined_by(word: str) -> Any:
    """The miner, of all rows and of the last three alone."""
    miner = MINERS[word].build(dim=4)

    def both(key: jax.Array, distances: jax.Array, pairs: Pairs) -> tuple[Pairs, Pairs]:
        keys = mining.row_keys(key, jnp.arange(ROWS))
        some = jax.tree.map(lambda mask: mask[2:], pairs)
        return miner(key, distances, pairs), miner(keys[2:], distances[2:], some)

    return jax.jit(both)


@pytest.mark.parametrize("word", MINERS)
@hunted(MINED, share=10, part=0.06 / len(MINERS))
def test_miners(word: str, case: Mined) -> None:
    draw = np.random.default_rng(case.seed)
    shape = (ROWS, COLUMNS)
    distances = draw.uniform(0, 2, shape) if case.grid is None else draw.choice(case.grid, shape)
    distances = distances.astype(np.float32)
    kinds = draw.choice(case.kinds, shape)
    kinds[draw.integers(ROWS)] = draw.choice(3)
    positive, negative = kinds == 0, kinds == 1
    spoiled = np.where(kinds == 2, np.nan, distances)
    key = jax.random.key(case.seed, impl=case.key)
    told = jax.device_get(mined_by(word)(key, spoiled, Pairs(positive, negative)))
    kept, alone = (tuple(np.asarray(mask) for mask in pairs) for pairs in told)
    for side, given in ((0, positive), (1, negative)):
        assert not (kept[side] & ~given).any(), "pairs that were not given"
        np.testing.assert_array_equal(alone[side], kept[side][2:], "rows alone")
    builder, wide = MINERS[word].builder, distances.astype(float)
    if hasattr(mining_oracles, builder):
        some = np.ones(ROWS, bool)
        if builder == "multi_similarity_pairs":
            some = positive.any(1) & negative.any(1)  # others contribute nothing anyway
        expected = getattr(mining_oracles, builder)(
            wide, positive, negative, **MINERS[word].settings
        )
        for side in (0, 1):
            np.testing.assert_array_equal(kept[side][some], expected[side][some])
        return
    allowed = candidates(builder, wide, positive, negative)
    for side, given in ((0, positive), (1, negative)):
        if allowed[side] is None:
            np.testing.assert_array_equal(kept[side], given)
        else:
            np.testing.assert_array_equal(kept[side].sum(1), allowed[side].any(1), "one of each")
            assert not (kept[side] & ~allowed[side]).any(), "none of those to be drawn from"


def candidates(
    builder: str, distances: np.ndarray, positive: np.ndarray, negative: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """What a miner draws from, row by row; None where it keeps all."""
    hard = positive.copy(), negative.copy()
    for i, row in enumerate(distances):
        near, far = row[positive[i]].min(initial=np.inf), row[positive[i]].max(initial=-np.inf)
        other = row[negative[i]].min(initial=np.inf)
        some_positive, some_negative = positive[i], negative[i]
        if builder == "semi_hard_negative":
            some_negative = negative[i] & (row > near) & (row < np.float32(near) + np.float32(0.2))
            hard[1][i] &= np.isfinite(near)
        elif builder == "soft_hard_pairs":
            some_positive, some_negative = positive[i] & (row > other), negative[i] & (row < far)
        elif builder == "distance_weighted_negative":
            some_negative = negative[i] & (row <= np.float32(1.4))
        for side, some in ((0, some_positive), (1, some_negative)):
            if some.any():
                hard[side][i] &= some
    sides = {"random_positive": (0,), "soft_hard_pairs": (0, 1)}.get(builder, (1,))
    return (hard[0] if 0 in sides else None), (hard[1] if 1 in sides else None)


@jax.jit
def all_pairs(labels: Any, others: Any, where: Any, their_where: Any) -> Any:
    return (
        mining.all_pairs(labels, where=where),
        mining.all_pairs(labels, others, where=where, reference_where=their_where),
    )


@hunted(SEEDS, share=10, part=0.01)
def test_all_pairs(case: int) -> None:
    draw = np.random.default_rng(case)
    labels, others = (draw.integers(-1, 3, n).astype(np.int32) for n in (ROWS, COLUMNS))
    where, theirs = draw.random(ROWS) < 0.7, draw.random(COLUMNS) < 0.7
    own, apart = jax.device_get(all_pairs(labels, others, where, theirs))
    for told, expected in (
        (own, mining_oracles.all_pairs(labels, where=where)),
        (apart, mining_oracles.all_pairs(labels, others, where, theirs)),
    ):
        np.testing.assert_array_equal(told.positive, expected[0])
        np.testing.assert_array_equal(told.negative, expected[1])


# The memory beside a list.

CAPACITY = 5


@jax.jit
def push(state: Any, x: Any, labels: Any, where: Any, ids: Any) -> Any:
    return memory.push(state, x, labels, where, ids=ids), memory.slots(state, labels, where)


@hunted(st.tuples(SEEDS, st.integers(1, 9)), share=10, part=0.02)
def test_memory(case: tuple[int, int]) -> None:
    draw, state = np.random.default_rng(case[0]), memory.init(CAPACITY, 2)
    rows: list[Any] = [None] * CAPACITY
    place = 0
    for _ in range(case[1]):
        x = draw.normal(size=(3, 2)).astype(np.float32)
        labels, ids = (draw.integers(-2, 4, 3).astype(np.int32) for _ in range(2))
        where = draw.random(3) < 0.7
        x[~where] = np.nan
        state, slots = push(state, x, labels, where, ids)
        for i in range(3):
            stored = where[i] and labels[i] >= 0
            assert slots[i] == (place if stored else -1)
            if stored:
                rows[place] = (x[i], labels[i], ids[i])
                place = (place + 1) % CAPACITY
    for slot, row in enumerate(rows):
        x, label, index = ((0.0, 0.0), -1, -1) if row is None else row
        np.testing.assert_array_equal(state.embeddings[slot], x)
        assert (state.labels[slot], state.ids[slot]) == (label, index)
        assert bool(state.valid[slot]) == (row is not None)


# Metrics: on whole numbers, so that ties are ties, at every scale that floats have.

SCALES = (0, 0, 0, 30, 55, 100, -30, -60, -100)


@dataclass(frozen=True)
class Searched:
    """Queries and perhaps a gallery, whole numbers up to `spread` times a power of two."""

    seed: int
    spread: int
    scale: int
    classes: int
    gallery: bool
    extra: str


SEARCHED = st.builds(
    Searched,
    SEEDS,
    st.sampled_from((0, 1, 2, 8)),
    st.sampled_from(SCALES),
    st.sampled_from((1, 2, 3, 6)),
    st.booleans(),
    st.sampled_from(("", "self", "groups", "pairs")),
)


def searched(case: Searched) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Arrays and options."""
    draw = np.random.default_rng(case.seed)
    sizes = (6, 8) if case.gallery else (6,)
    arrays: list[np.ndarray] = []
    for size in sizes:
        vectors = draw.integers(-case.spread, case.spread + 1, (size, 3)) * 2.0**case.scale
        arrays += [vectors.astype(np.float32), draw.integers(-1, case.classes, size)]
    options: dict[str, Any] = {}
    columns = sizes[-1]
    if case.extra == "self" and case.gallery:
        options["self_index"] = np.where(draw.random(6) < 0.5, draw.integers(0, columns, 6), -1)
    elif case.extra == "groups":
        groups = draw.integers(0, 2, 6)
        options["ignore"] = (groups, draw.integers(0, 2, columns) if case.gallery else groups)
    elif case.extra == "pairs":
        options["ignore"] = draw.random((6, columns)) < 0.3
    return arrays, options


RANKS = {"recall_at": (1, 3), "precision_at": (2,), "found_at": (3,), "ndcg_at": (4,)}


@hunted(SEARCHED, share=10, part=0.06)
def test_retrieval(case: Searched) -> None:
    arrays, options = searched(case)
    block = {} if case.seed % 2 else {"block_size": 4}
    ranks = RANKS | {"map_at": (5,)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of twins, and of nothing to measure
        told = metrics.evaluate_retrieval(*arrays, per_query=True, **ranks, **options, **block)
    expected = metric_oracles.per_query(*arrays, **ranks, **options)
    for name, values in expected.items():
        np.testing.assert_allclose(told[name], values, rtol=1e-5, err_msg=name)
    assert told["queries"] == sum(np.isfinite(v).sum() for n, v in expected.items() if n == "P@1")


@hunted(SEARCHED, share=10, part=0.02)
def test_verification(case: Searched) -> None:
    arrays, options = searched(case)
    apart, same = metric_oracles.couples(*arrays, **options)
    far = (0.3, 0.0)
    if not len(same) or same.all() or not same.any():
        with pytest.raises(ValueError, match="couple"):
            metrics.verification(*arrays, far=far, **options)
        return
    told = metrics.verification(*arrays, far=far, **options)
    for name, value in metric_oracles.verification(*arrays, far, **options).items():
        np.testing.assert_allclose(told[name], value, rtol=1e-5, err_msg=name)
    assert np.isfinite(apart).all()


@hunted(SEARCHED, share=5, part=0.01)
def test_nearest(case: Searched) -> None:
    (queries, _, *rest), _ = searched(case)
    gallery = rest[0] if rest else queries
    distances, indices = metrics.nearest(queries, gallery, 3, exclude_self=not rest)
    for i, query in enumerate(queries):
        expected = metric_oracles.ranked(query, gallery, () if rest else (i,))[:3]
        assert len(set(indices[i].tolist())) == 3
        for rows in (indices[i], expected):  # whose distances may be equal but for rounding
            apart = np.linalg.norm(gallery[rows].astype(float) - query.astype(float), axis=1)
            np.testing.assert_allclose(distances[i], apart, rtol=1e-6)


@hunted(SEARCHED, share=5, part=0.02)
def test_structure(case: Searched) -> None:
    """Finite, in any order, and as loops have it."""
    (x, labels, *_), _ = searched(case)
    order = np.random.default_rng(case.seed).permutation(len(x))
    labels = np.abs(labels)
    for function, arrays in (
        (metrics.uniformity, (x,)),
        (metrics.class_density, (x, labels)),
        (metrics.concentration_variance, (x, labels)),
        (metrics.covering_radius, (x, x[:2])),
    ):
        value = float(function(*arrays))
        assert np.isfinite(value), function.__name__
        moved = float(function(*(a[order] if len(a) == 6 else a for a in arrays)))
        np.testing.assert_allclose(moved, value, rtol=1e-4, atol=1e-6, err_msg=function.__name__)
    apart = np.linalg.norm(x[:, None].astype(float) - x[None, :2].astype(float), axis=-1)
    radius = float(metrics.covering_radius(x, x[:2]))
    np.testing.assert_allclose(radius, apart.min(1).max(), rtol=1e-3)


@hunted(st.tuples(SEEDS, st.integers(1, 6), st.integers(1, 6)), share=5, part=0.01)
def test_agreement(case: tuple[int, int, int]) -> None:
    draw = np.random.default_rng(case[0])
    classes, clusters = draw.integers(0, case[1], 5), draw.integers(0, case[2], 5)
    told = metrics.adjusted_mutual_information(classes, clusters)
    assert math.isfinite(told)
    with np.errstate(all="ignore"):
        try:
            expected = metric_oracles.adjusted_mutual_information(classes, clusters)
        except ZeroDivisionError:
            return
    if abs(expected) < 1e6:  # where the best is not chance
        np.testing.assert_allclose(told, expected, atol=1e-6)


RANKINGS: dict[str, Any] = {
    "recall_at_k": lambda hits, r, k: metric_oracles.recall(hits, k),
    "precision_at_k": lambda hits, r, k: sum(hits[:k]) / k,
    "found_at_k": lambda hits, r, k: sum(hits[:k]) / r,
    "map_at_k": metric_oracles.map_at_k,
    "ndcg_at_k": metric_oracles.ndcg,
    "r_precision": lambda hits, r, k: metric_oracles.r_precision(hits, r),
    "map_at_r": lambda hits, r, k: metric_oracles.map_at_r(hits, r),
}


@hunted(st.tuples(SEEDS, st.sampled_from((1, 3, 9))), share=5, part=0.01)
def test_ranked(case: tuple[int, int]) -> None:
    seed, k = case
    draw = np.random.default_rng(seed)
    hits = draw.random((4, 5)) < draw.random()
    relevant = hits.sum(1) + draw.integers(0, 3, 4)
    for name, oracle in RANKINGS.items():
        function = getattr(metrics, name)
        told = function(hits, relevant, **({"k": k} if name.endswith("_k") else {}))
        expected = [oracle(row.tolist(), int(r), k) if r else 0.0 for row, r in zip(hits, relevant)]  # noqa: B905
        np.testing.assert_allclose(told, expected, rtol=1e-5, err_msg=name)


# Flows: back where they came from, with the volume of their Jacobian; in float64, with weights of any size.

FLOWS = [
    {"dim": dim, "coupling": coupling, "mixing": mixing}
    for dim in (2, 5)
    for coupling in ("glow", "realnvp")
    for mixing in ("permutation", "linear")
]


@functools.cache
def flow_of(kind: int) -> Any:
    settings = {"actnorm": kind % 3 == 0, "num_blocks": 2, "hidden": 4, "depth": 2}
    flow = flows.ConditionalFlow(condition_dim=3, **settings, **FLOWS[kind])
    zeros = jnp.zeros((1, flow.dim)), jnp.zeros((1, 3))
    start = flow.init(jax.random.key(0), *zeros)

    @jax.jit
    def told(params: Any, x: jax.Array, condition: jax.Array) -> Any:
        def one(x: jax.Array, c: jax.Array) -> jax.Array:
            return flow.apply(params, x[None], c[None])[0][0]

        latents, log_det = flow.apply(params, x, condition)
        back = flow.apply(params, latents, condition, method="inverse")
        return latents, log_det, back, jax.vmap(jax.jacobian(one))(x, condition)

    return jax.device_get(start), told


@hunted(
    st.tuples(
        st.integers(0, len(FLOWS) - 1) if CASES else st.just(3),
        SEEDS,
        st.sampled_from((0.0, 0.1, 1.0, 3.0)),
        st.sampled_from((0.0, 1.0, 1.0, 1e-30, 1e6, 1e15)),
    ),
    share=5,
    part=0.02,
)
def test_flows(case: tuple[int, int, float, float]) -> None:
    kind, seed, weights, length = case
    start, told = flow_of(kind)
    draw = np.random.default_rng(seed)
    params = jax.tree.map(lambda p: p + 0.3 * weights * draw.normal(size=p.shape), start)
    x, c = length * draw.normal(size=(3, FLOWS[kind]["dim"])), draw.normal(size=(3, 3))
    with jax.enable_x64(True):
        latents, log_det, (back, log_det_back), jacobians = jax.device_get(told(params, x, c))
    assert all(np.isfinite(some).all() for some in (latents, log_det, back, log_det_back))
    steep = np.linalg.norm(np.linalg.inv(jacobians), axis=(1, 2)) * np.abs(latents).max()
    np.testing.assert_allclose(back, x, atol=1e-9 * max(1.0, length) + 1e-15 * steep.max())
    np.testing.assert_allclose(log_det_back, -log_det, atol=1e-8)
    np.testing.assert_allclose(np.linalg.slogdet(jacobians)[1], log_det, atol=1e-6)


# NIR.


@functools.cache
def nir_of(shape: str, per_dimension: bool) -> Any:
    def value(latents: Any, log_dets: Any, where: Any, weights: Any, temperature: Any) -> Any:
        told = {"where": where, "weights": weights, "temperature": temperature}
        return losses.nir_loss(latents, log_dets, shape=shape, per_dimension=per_dimension, **told)

    return jax.jit(jax.value_and_grad(value, (0, 1)))


def nir(
    shape: str, rows: Sequence[np.ndarray], dim: int, temperature: float, per_dimension: bool
) -> float:
    """The mean over the valid rows."""
    terms = []
    for latent, log_det, valid, weight in zip(*rows, strict=True):
        u = temperature * (0.5 * sum(z * z for z in latent) - log_det)
        u = u / dim if per_dimension else u
        f = {"exp": math.exp, "softplus": lambda u: math.log1p(math.exp(u)), "identity": float}
        if valid:
            terms.append(f[shape](u) * weight)
    return sum(terms) / len(terms) if terms else 0.0


@hunted(
    st.tuples(
        SEEDS,
        st.sampled_from(("exp", "softplus", "identity") if CASES else ("exp",)),
        st.sampled_from((1.0, 0.3, 3.0, 1e-30, 1e9, 3e38)),
        st.sampled_from((1.0, 0.0, 1e-20, 1e4, 1e15, 3e38)),
        st.booleans() if CASES else st.just(False),
    ),
    share=10,
    part=0.02,
)
def test_nir(case: tuple[int, str, float, float, bool]) -> None:
    seed, shape, temperature, length, per_dimension = case
    draw = np.random.default_rng(seed)
    latents, log_dets = np.clip(length * draw.normal(size=(4, 3)), -3e38, 3e38), draw.normal(size=4)
    where, weights = draw.random(4) < 0.7, draw.choice((1.0, 2.0, 0.0, -1.0), 4)
    step = nir_of(shape, per_dimension)

    def run(latents: np.ndarray, log_dets: np.ndarray, dtype: Any) -> Any:
        with jax.enable_x64(dtype == np.float64):
            numbers = (jnp.asarray(a, dtype) for a in (latents, log_dets))
            told = step(*numbers, where, weights.astype(dtype), dtype(temperature))
            return jax.device_get(told)

    value, gradients = run(latents, log_dets, np.float32)
    assert all(np.isfinite(leaf).all() for leaf in (value, *gradients))
    spoiled = np.where(where[:, None], latents, np.nan), np.where(where, log_dets, np.inf)
    again, others = run(*spoiled, np.float32)
    assert again == value
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_array_equal(gradient, other)
        assert not gradient[~where].any()
    if length <= 1.0 and temperature <= 3.0:
        expected = nir(shape, (latents, log_dets, where, weights), 3, temperature, per_dimension)
        wide = run(latents, log_dets, np.float64)[0]
        np.testing.assert_allclose(wide, expected, rtol=1e-9, atol=1e-12)
