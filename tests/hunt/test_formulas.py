"""Miners and metrics on generated cases, compared with plain loops."""

import functools
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hunt.generated import CASES, generated
from hypothesis import strategies as st

from jdml import metrics, mining
from jdml.mining import Pairs
from jdml.registry.losses import MINERS
from oracles import metrics as metric_oracles
from oracles import mining as mining_oracles

SEEDS = st.integers(0, 1 << 20)

# Miners: rows without a positive or a negative, ties, copies, antipodes; keys of every type.

ROWS, COLUMNS = 5, 7
GRIDS = (None, (0.0, 1.0), (0.0, 0.5, 1.0, 1.5, 2.0), (2.0,), (0.0,))
KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


MINED = st.builds(
    SimpleNamespace,
    seed=SEEDS,
    grid=st.sampled_from(GRIDS),
    kinds=st.sampled_from(((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))),
    key=st.sampled_from(KEYS if CASES else KEYS[1:2]),
)
"""Distances on a grid (None: all different), and the numbers of three kinds of pairs."""


@functools.cache
def mined_by(word: str) -> Any:
    """Return a function that applies the miner to all rows and to the last three only."""
    miner = MINERS[word].build(dim=4)

    def both(key: jax.Array, distances: jax.Array, pairs: Pairs) -> tuple[Pairs, Pairs]:
        keys = mining.row_keys(key, jnp.arange(ROWS))
        some = jax.tree.map(lambda mask: mask[2:], pairs)
        return miner(key, distances, pairs), miner(keys[2:], distances[2:], some)

    return jax.jit(both)


@pytest.mark.parametrize("word", MINERS)
@generated(few=8, share=0.06 / len(MINERS), case=MINED)
def test_miners(word: str, case: Any) -> None:
    draw = np.random.default_rng(case.seed)
    shape = (ROWS, COLUMNS)
    distances = draw.uniform(0, 2, shape) if case.grid is None else draw.choice(case.grid, shape)
    distances = distances.astype(np.float32)
    kinds = draw.choice(case.kinds, shape)
    kinds[draw.integers(ROWS)] = draw.choice(3)
    positive, negative = kinds == 0, kinds == 1
    spoiled = np.where(kinds == 2, np.nan, distances)
    key = jax.random.key(case.seed, impl=case.key)
    both = jax.device_get(mined_by(word)(key, spoiled, Pairs(positive, negative)))
    chosen, alone = (tuple(np.asarray(mask) for mask in pairs) for pairs in both)
    for side, given in ((0, positive), (1, negative)):
        assert not (chosen[side] & ~given).any(), "pairs that were not given"
        np.testing.assert_array_equal(alone[side], chosen[side][2:], "rows alone")
    builder, wide = MINERS[word].builder, distances.astype(float)
    if hasattr(mining_oracles, builder):
        some = np.ones(ROWS, bool)
        if builder == "multi_similarity_pairs":
            some = positive.any(1) & negative.any(1)  # other rows contribute nothing
        oracle, settings = getattr(mining_oracles, builder), MINERS[word].settings
        expected = oracle(wide, positive, negative, **settings)
        for side in (0, 1):
            np.testing.assert_array_equal(chosen[side][some], expected[side][some])


# Metrics: on whole numbers, so that ties are exact, at every scale of floats.

SCALES = (0, 0, 0, 30, 55, 100, -30, -60, -100)


SEARCHED = st.builds(
    SimpleNamespace,
    seed=SEEDS,
    spread=st.sampled_from((0, 1, 2, 8)),
    scale=st.sampled_from(SCALES),
    classes=st.sampled_from((1, 2, 3, 6)),
    gallery=st.booleans(),
    extra=st.sampled_from(("", "self", "groups", "pairs")),
)
"""Queries and perhaps a gallery, whole numbers up to `spread` times a power of two."""


def searched(case: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return arrays and options."""
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


RANKS = {"recall_at": (1, 3), "precision_at": (2,), "true_recall_at": (3,), "ndcg_at": (4,)}


@generated(few=10, share=0.06, case=SEARCHED)
def test_retrieval(case: Any) -> None:
    arrays, options = searched(case)
    block = {} if case.seed % 2 else {"block_size": 4}
    ranks = RANKS | {"map_at": (5,)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # equal rows, and queries without a match
        scores = metrics.evaluate_retrieval(*arrays, per_query=True, **ranks, **options, **block)
    expected = metric_oracles.per_query(*arrays, **ranks, **options)
    for name, values in expected.items():
        np.testing.assert_allclose(scores[name], values, rtol=1e-5, err_msg=name)
    assert scores["queries"] == sum(np.isfinite(v).sum() for n, v in expected.items() if n == "P@1")
