"""Miners equal their oracles, sample from the right distribution, and have the public properties."""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

import jdml
from jdml import mining
from jdml.mining import Pairs
from jdml.registry import MINERS
from jdml.testing import check_miner
from oracles import mining as oracles

RNG = np.random.default_rng(11)
B, R, D = 9, 15, 4
POINTS = RNG.normal(size=(B + R, D))
POINTS /= np.linalg.norm(POINTS, axis=1, keepdims=True)
DISTANCES = np.linalg.norm(POINTS[:B, None] - POINTS[None, B:], axis=-1).astype(np.float32)
KIND = RNG.integers(0, 3, size=(B, R))  # positive, negative, no pair
KIND[0], KIND[1], KIND[2] = 1, 0, 2  # no positive, no negative, neither
POSITIVE, NEGATIVE = KIND == 0, KIND == 1
PAIRS = Pairs(jnp.asarray(POSITIVE), jnp.asarray(NEGATIVE))
KEY = jax.random.key(3)
DRAWS = 4000

# Every miner with a record is included; these are combinations.
BUILDERS: dict[str, Any] = {
    **{miner.builder: partial(miner.build, D) for miner in reversed(MINERS.values())},
    "chain": lambda: mining.chain(
        mining.easy_positive(), mining.multi_similarity_pairs(mine_positives=False)
    ),
    "chain of draws": lambda: mining.chain(mining.random_positive(), mining.semi_hard_negative()),
}
# Random miners without an oracle are compared with their distribution.
DETERMINISTIC = [name for name in BUILDERS if hasattr(oracles, name)]
RANDOM = [name for name in BUILDERS if name not in DETERMINISTIC and name != "chain"]


def draws(miner: Any, distances: np.ndarray, pairs: Pairs) -> Pairs:
    """Return the pairs that the miner keeps with many keys."""
    keys = jax.random.split(KEY, DRAWS)
    mined = jax.jit(jax.vmap(miner, in_axes=(0, None, None)))(keys, jnp.asarray(distances), pairs)
    return jax.tree.map(np.asarray, mined)


def assert_frequencies(masks: np.ndarray, probabilities: np.ndarray) -> None:
    """Check that each row with candidates has one entry, with the given frequency to 5 standard errors."""
    assert (masks.sum(axis=2) == probabilities.any(axis=1)).all()
    error = 5 * np.sqrt(probabilities * (1 - probabilities) / len(masks)) + 1e-9
    assert (np.abs(masks.mean(axis=0) - probabilities) <= error).all()


def uniform(mask: np.ndarray) -> np.ndarray:
    """Return equal probabilities in every row with candidates."""
    return mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)


@pytest.mark.parametrize("name", BUILDERS)
def test_properties(name: str) -> None:
    check_miner(BUILDERS[name]())


class Variants(chex.TestCase):
    """The oracle's pairs, compiled or not, with distances in NumPy or on a device."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.named_parameters(*((name, name) for name in BUILDERS))
    def test_property(self, name: str) -> None:
        miner = BUILDERS[name]()
        key = None if name in DETERMINISTIC else KEY
        mined = self.variant(lambda *arrays: miner(*arrays))(
            key, DISTANCES, Pairs(POSITIVE, NEGATIVE)
        )
        chex.assert_trees_all_equal_shapes_and_dtypes(mined, PAIRS)
        expected = miner(key, jnp.asarray(DISTANCES), PAIRS)
        chex.assert_trees_all_equal(mined, expected)
        if name in DETERMINISTIC:
            positive, negative = getattr(oracles, name)(DISTANCES, POSITIVE, NEGATIVE)
            np.testing.assert_array_equal(mined.positive, positive)
            np.testing.assert_array_equal(mined.negative, negative)


@pytest.mark.parametrize("mine_positives", [True, False])
@pytest.mark.parametrize("epsilon", [-0.2, 0.0, 0.1, 0.5])
def test_multi_similarity_pairs(epsilon: float, mine_positives: bool) -> None:
    miner = mining.multi_similarity_pairs(epsilon, mine_positives=mine_positives)
    mined = miner(None, jnp.asarray(DISTANCES), PAIRS)
    both = POSITIVE.any(axis=1) & NEGATIVE.any(axis=1)  # other rows contribute nothing
    positive, negative = oracles.multi_similarity_pairs(
        DISTANCES, POSITIVE, NEGATIVE, epsilon, mine_positives
    )
    np.testing.assert_array_equal(np.asarray(mined.positive)[both], positive[both])
    np.testing.assert_array_equal(np.asarray(mined.negative)[both], negative[both])


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_trusted_negatives_exclude_likely_positives(margin: float) -> None:
    """With the batch's own distances, and with a teacher's."""
    distances = DISTANCES.astype(np.float64)
    expected = oracles.trusted_negative(distances, POSITIVE, NEGATIVE, margin)
    mined = mining.trusted_negative(margin)(None, jnp.asarray(DISTANCES), PAIRS)
    x, references = (some.astype(np.float32) * 3 for some in (POINTS[:B], POINTS[B:]))
    guided = mining.trusted_negative(margin, embeddings=x, references=references)
    for kept in (mined, guided(None, jnp.ones((B, R)), PAIRS)):
        np.testing.assert_array_equal(kept.positive, expected[0])
        np.testing.assert_array_equal(kept.negative, expected[1])
    assert NEGATIVE.sum() > expected[1].sum() > 0
    with pytest.raises(ValueError, match=r"\bembeddings\b"):
        guided(None, jnp.ones((5, R)), Pairs(PAIRS.positive[:5], PAIRS.negative[:5]))


def test_custom_miner_is_not_differentiated() -> None:
    @jax.custom_jvp
    def watched(distances: jax.Array) -> jax.Array:
        return distances

    @watched.defjvp
    def slope(primals: tuple, tangents: tuple) -> tuple:
        raise AssertionError("a miner was differentiated")

    def mine(key: jax.Array | None, distances: jax.Array, pairs: Pairs) -> Pairs:
        return Pairs(pairs.positive & (watched(distances) >= 0), pairs.negative)

    x, labels = jnp.asarray(POINTS[:B], jnp.float32), jnp.arange(B) % 3
    gradient = jax.grad(jdml.contrastive_loss)(x, labels, mine=mine)
    assert jnp.isfinite(gradient).all()


def test_teacher_embeddings_are_checked() -> None:
    @jdml.checked
    @jax.jit
    def negatives(teacher: jax.Array, references: jax.Array) -> jax.Array:
        guided = mining.trusted_negative(embeddings=teacher, references=references)
        return guided(None, jnp.ones((B, R)), PAIRS).negative

    x, references = POINTS[:B].astype(np.float32), POINTS[B:].astype(np.float32)
    spoiled, others = x.copy(), references.copy()
    spoiled[2, 0] = others[3, 0] = np.inf
    with pytest.raises(ValueError, match=r"^embeddings\[2\] is not finite"):
        negatives(spoiled, references)
    with pytest.raises(ValueError, match=r"^references\[3\] is not finite"):
        negatives(x, others)


def test_teacher_in_a_two_tower_loss() -> None:
    """A document that the teacher ranks above the answer is not a negative; under jit, in both directions."""
    queries, documents = (
        jnp.asarray(some, jnp.float32) for some in (POINTS[:B], POINTS[B : 2 * B - 3])
    )
    documents = jnp.concatenate([documents, queries[:3]])  # rows 6 to 8 answer queries 0 to 2

    @jax.jit
    def loss(teacher: jax.Array) -> jax.Array:
        mine = mining.trusted_negative(embeddings=teacher, references=documents)
        return jdml.info_nce_loss(queries, references=documents, mine=mine)

    similarity = np.asarray(queries @ documents.T, np.float64)
    exponents = np.exp(similarity / 0.07)
    kept = similarity <= np.diagonal(similarity)[:, None]
    expected = -np.log(np.diagonal(exponents) / np.where(kept, exponents, 0).sum(1))
    some = kept.sum(1) > 1  # an anchor without a negative contributes nothing
    np.testing.assert_allclose(loss(queries), expected[some].mean(), rtol=1e-4)


def test_random_positive_and_negative_are_uniform() -> None:
    drawn = draws(mining.random_positive(), DISTANCES, PAIRS)
    assert_frequencies(drawn.positive, uniform(POSITIVE))
    assert (drawn.negative == NEGATIVE).all()
    drawn = draws(mining.random_negative(), DISTANCES, PAIRS)
    assert_frequencies(drawn.negative, uniform(NEGATIVE))
    assert (drawn.positive == POSITIVE).all()


@pytest.mark.parametrize("margin", [0.01, 0.15])
def test_semi_hard_negatives(margin: float) -> None:
    """Uniform among negatives within the margin beyond the nearest positive, or among all if there is none."""
    probabilities = np.zeros((B, R))
    for i in range(B):
        if not POSITIVE[i].any():
            continue
        nearest = DISTANCES[i, POSITIVE[i]].min()
        band = NEGATIVE[i] & (DISTANCES[i] > nearest) & (DISTANCES[i] < nearest + margin)
        candidates = band if band.any() else NEGATIVE[i]
        probabilities[i] = candidates / max(candidates.sum(), 1)
    drawn = draws(mining.semi_hard_negative(margin=margin), DISTANCES, PAIRS)
    assert_frequencies(drawn.negative, probabilities)
    assert (drawn.positive == POSITIVE).all()


def test_soft_hard_pairs() -> None:
    """Positives beyond the nearest negative and negatives within the farthest positive, or any if there is none."""
    probabilities = np.zeros((2, B, R))
    for i in range(B):
        nearest = DISTANCES[i, NEGATIVE[i]].min(initial=np.inf)
        farthest = DISTANCES[i, POSITIVE[i]].max(initial=-np.inf)
        for side, (all_of_them, hard) in enumerate(
            (
                (POSITIVE[i], POSITIVE[i] & (DISTANCES[i] > nearest)),
                (NEGATIVE[i], NEGATIVE[i] & (DISTANCES[i] < farthest)),
            )
        ):
            candidates = hard if hard.any() else all_of_them
            probabilities[side, i] = candidates / max(candidates.sum(), 1)
    drawn = draws(mining.soft_hard_pairs(), DISTANCES, PAIRS)
    assert_frequencies(drawn.positive, probabilities[0])
    assert_frequencies(drawn.negative, probabilities[1])


@pytest.mark.parametrize("dim", [3, 4, 16])
def test_distance_weighted_negatives(dim: int) -> None:
    """Probability ∝ 1/q(d); distances beyond 1.4 only in rows without smaller ones."""
    distances = DISTANCES.copy()
    distances[4] = np.linspace(1.45, 1.99, R)
    distances[5, :3] = (0.0, 0.3, 0.5)
    pairs = Pairs(PAIRS.positive, jnp.asarray(NEGATIVE).at[4:6].set(True))
    weights = oracles.distance_weights(distances, np.asarray(pairs.negative), dim=dim)
    assert_frequencies(
        draws(mining.distance_weighted_negative(dim=dim), distances, pairs).negative, weights
    )


def test_distance_weighted_negatives_at_distance_two() -> None:
    """1 − d²/4 is 0 there: the released programs sample from NaN."""
    pairs = Pairs(jnp.zeros((2, 3), bool), jnp.ones((2, 3), bool))
    distances = jnp.array([[2.0, 2.0, 2.0], [2.0, 1.0, 2.0]])
    for dim in (2, 3, 128):
        mined = mining.distance_weighted_negative(dim=dim)(KEY, distances, pairs)
        assert np.asarray(mined.negative).sum(axis=1).tolist() == [1, 1]
        assert mined.negative[1, 1]


def test_chain_runs_in_order() -> None:
    easy, similar = mining.easy_positive(), mining.multi_similarity_pairs()
    first = similar(None, jnp.asarray(DISTANCES), easy(None, jnp.asarray(DISTANCES), PAIRS))
    chained = mining.chain(easy, similar)(None, jnp.asarray(DISTANCES), PAIRS)
    for side in ("positive", "negative"):
        np.testing.assert_array_equal(getattr(chained, side), getattr(first, side))
    nothing = mining.chain()(None, jnp.asarray(DISTANCES), PAIRS)
    np.testing.assert_array_equal(nothing.positive, POSITIVE)


def test_chain_gives_every_miner_its_own_key() -> None:
    """Positive and negative draws of one chain are independent."""
    size = 4
    pairs = Pairs(jnp.ones((1, 2 * size), bool).at[0, size:].set(False), None)
    pairs = pairs._replace(negative=~pairs.positive)
    miner = mining.chain(mining.random_positive(), mining.random_negative())
    drawn = draws(miner, np.ones((1, 2 * size), np.float32), pairs)
    joint = np.zeros((size, size))
    np.add.at(
        joint, (drawn.positive[:, 0, :size].argmax(1), drawn.negative[:, 0, size:].argmax(1)), 1
    )
    assert np.abs(joint / DRAWS - 1 / 16).max() < 5 * np.sqrt(1 / 16 / DRAWS)
    seen = []

    def spy(key: jax.Array, distances: jax.Array, pairs: Pairs) -> Pairs:
        seen.append(tuple(jax.random.key_data(key).tolist()))
        return pairs

    mining.chain(spy, spy, spy)(KEY, jnp.asarray(DISTANCES), PAIRS)
    assert len(set(seen)) == 3


LABELS = np.array([0, 1, -1, 0, 2, 1, 0])
OTHERS = np.array([1, 0, 0, -4, 3, 2])
ALL_PAIRS: list[dict[str, Any]] = [
    {},
    {"where": np.arange(7) != 3},
    {"reference_labels": OTHERS},
    {"reference_labels": OTHERS, "where": np.arange(7) > 0, "reference_where": np.arange(6) != 1},
]


@pytest.mark.parametrize("options", ALL_PAIRS)
def test_all_pairs(options: dict[str, Any]) -> None:
    given = jax.tree.map(jnp.asarray, options)
    others = given.pop("reference_labels", None)
    pairs = jdml.all_pairs(jnp.asarray(LABELS), others, **given)
    positive, negative = oracles.all_pairs(LABELS, **options)
    np.testing.assert_array_equal(pairs.positive, positive)
    np.testing.assert_array_equal(pairs.negative, negative)


@pytest.mark.parametrize("name", RANDOM)
def test_random_miners_require_a_key(name: str) -> None:
    with pytest.raises(ValueError, match=r"^key\b"):
        BUILDERS[name]()(None, jnp.asarray(DISTANCES), PAIRS)
    x = jnp.asarray(POINTS[:8], jnp.float32)
    with pytest.raises(ValueError, match=r"^key\b"):
        jdml.triplet_loss(x, np.arange(8) % 2, mine=BUILDERS[name]())


@pytest.mark.parametrize("name", BUILDERS)
def test_miners_compare_by_value(name: str) -> None:
    assert BUILDERS[name]() == BUILDERS[name]()
    assert mining.semi_hard_negative(margin=0.1) != mining.semi_hard_negative(margin=0.3)


def test_miner_gets_distances_of_normalized_vectors() -> None:
    seen = []

    def spy(key: jax.Array | None, distances: jax.Array, pairs: Pairs) -> Pairs:
        jax.debug.callback(lambda d: seen.append(np.asarray(d)), distances)
        return pairs

    x = jnp.asarray(5 * POINTS[:6], jnp.float32)
    jdml.triplet_loss(x, np.arange(6) % 2, mine=spy).block_until_ready()
    jax.effects_barrier()
    expected = np.linalg.norm(POINTS[:6, None] - POINTS[None, :6], axis=-1)
    np.testing.assert_allclose(seen[0], expected, atol=1e-3)


REFUSED = [
    (lambda: mining.semi_hard_negative(margin=-0.1), ValueError, "margin"),
    (lambda: mining.distance_weighted_negative(dim=0), ValueError, "dim"),
    (lambda: mining.distance_weighted_negative(dim=8, cutoff=0.0), ValueError, "cutoff"),
    (lambda: mining.distance_weighted_negative(dim=8, max_distance=-1.0), ValueError, "max_dist"),
    (lambda: mining.multi_similarity_pairs(epsilon=float("nan")), ValueError, "epsilon"),
    (lambda: mining.trusted_negative(references=jnp.asarray(POINTS)), ValueError, "references"),
    (lambda: mining.chain(mining.easy_positive(), "hard"), TypeError, "miner"),
    (lambda: mining.chain(mining.easy_positive, mining.hard_negative()), TypeError, "miner"),
]


@pytest.mark.parametrize(("build", "error", "argument"), REFUSED)
def test_wrong_settings_are_refused(build: Any, error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=rf"\b{argument}"):
        build()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("name", RANDOM)
def test_rows_draw_independently_of_other_rows(name: str, impl: str) -> None:
    key, distances, miner = jax.random.key(0, impl=impl), jnp.asarray(DISTANCES), BUILDERS[name]()
    keys = mining.row_keys(key, jnp.arange(B))
    together = miner(key, distances, PAIRS)
    some = slice(3, 7)
    apart = miner(keys[some], distances[some], jax.tree.map(lambda mask: mask[some], PAIRS))
    for side in Pairs._fields:
        np.testing.assert_array_equal(getattr(apart, side), getattr(together, side)[some])
    many = jax.random.split(jax.random.key(1, impl=impl), 3)
    mapped = jax.vmap(miner, in_axes=(0, None, None))(many, distances, PAIRS)
    for i in range(3):
        alone = miner(many[i], distances, PAIRS)
        for side in Pairs._fields:
            np.testing.assert_array_equal(getattr(mapped, side)[i], getattr(alone, side))


def test_seeds_give_different_draws_with_every_key_type() -> None:
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        keys = [mining.row_keys(jax.random.key(seed, impl=impl), jnp.arange(9)) for seed in (0, 1)]
        words = {tuple(row) for key in keys for row in np.asarray(jax.random.key_data(key))}
        assert len(words) == 18
    old = jax.random.PRNGKey(3)  # a raw key
    np.testing.assert_array_equal(
        jax.random.key_data(mining.row_keys(old, jnp.arange(4))),
        jax.random.key_data(mining.row_keys(jax.random.key(3), jnp.arange(4))),
    )
