"""``anchor_block``: the same loss and gradients, in memory that does not grow with the batch squared."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses.registry import REGISTRY, loss

import jdml
from jdml.mining import chain, distance_weighted_negative, easy_positive, random_positive
from jdml.ops.blocks import AT_ONCE, block_size
from jdml.testing.case import assert_close

pytestmark = pytest.mark.slow

B, R, D = 11, 7, 5
RNG = np.random.default_rng(4)
X, REFERENCES = RNG.normal(size=(B, D)), RNG.normal(size=(R, D))
Y, REFERENCE_LABELS = np.arange(B) % 3, np.arange(R) % 4
WHERE, WEIGHTS = np.arange(B) != 4, RNG.uniform(0.5, 2.0, size=B)
PAIR = [name for name, spec in REGISTRY.items() if spec.kind == "pair"]


def value_and_grads(name: str, anchor_block: Any, **more: Any) -> Any:
    """The sum of what the loss gives, and its gradients by anchors and references."""
    settings = {
        **REGISTRY[name].settings,
        "where": jnp.asarray(WHERE),
        "anchor_block": anchor_block,
    }

    def value(x: jax.Array, r: jax.Array) -> jax.Array:
        given = {n: r if v is REFERENCES else v for n, v in more.items()}
        return loss(name)(x, jnp.asarray(Y), **{**settings, **given}).sum()

    with jax.enable_x64(True):
        return jax.jit(jax.value_and_grad(value, (0, 1)))(jnp.asarray(X), jnp.asarray(REFERENCES))


DRAWN = {
    "mine": chain(random_positive(), distance_weighted_negative(dim=D)),
    "key": jax.random.key(5),
}


WEIGHTED = {"weights": jnp.asarray(WEIGHTS, jnp.float32)}
AGAINST = {"references": REFERENCES, "reference_labels": jnp.asarray(REFERENCE_LABELS)}


@pytest.mark.parametrize("name", PAIR)
def test_blocks_change_nothing(name: str) -> None:
    """The batch against itself, with weights and a mask."""
    dense = value_and_grads(name, None, **WEIGHTED)
    assert_close(value_and_grads(name, 4, **WEIGHTED), dense, 1e-9, "blocks of 4")


@pytest.mark.parametrize("name", ["contrastive_loss", "lifted_structure_loss", "smooth_ap_loss"])
def test_references_and_miners_in_blocks(name: str) -> None:
    """References of another number, and miners, one of which draws."""
    more = {**AGAINST, **DRAWN, "ids": jnp.arange(B) % 4, "reference_ids": jnp.arange(R) % 5}
    dense = value_and_grads(name, None, **more)
    assert_close(value_and_grads(name, 4, **more), dense, 1e-9, "blocks of 4")


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
@pytest.mark.parametrize("name", ["contrastive_loss", "multi_similarity_loss"])
def test_blocks_draw_the_same_pairs_by_keys_of_every_implementation(name: str, impl: str) -> None:
    drawn = {**DRAWN, "key": jax.random.key(0, impl=impl)}
    dense = value_and_grads(name, None, reduce_fn=jdml.total, **drawn)
    blocked = value_and_grads(name, 4, reduce_fn=jdml.total, **drawn)
    assert_close(blocked, dense, 1e-9, "blocks of 4")


@pytest.mark.parametrize("reduce_fn", [jdml.total, jdml.trimmed_mean(0.3), None])
@pytest.mark.parametrize("name", ["triplet_loss", "margin_loss"])
def test_reductions_in_blocks(name: str, reduce_fn: Any) -> None:
    dense = value_and_grads(name, None, reduce_fn=reduce_fn, mine=easy_positive())
    blocked = value_and_grads(name, 3, reduce_fn=reduce_fn, mine=easy_positive())
    assert_close(blocked, dense, 1e-12, "blocks of 3")


def test_a_miner_of_ones_own_sees_the_whole_batch() -> None:
    seen = []

    def near(key: Any, distances: jax.Array, pairs: jdml.Pairs) -> jdml.Pairs:
        seen.append(distances.shape)
        return pairs._replace(negative=pairs.negative & (distances < distances.mean()))

    dense = value_and_grads("contrastive_loss", None, mine=near)
    assert_close(value_and_grads("contrastive_loss", 4, mine=near), dense, 1e-12, "blocks of 4")
    assert set(seen) == {(B, B)}


@pytest.mark.parametrize(
    "name", ["contrastive_loss", "triplet_loss", "lifted_structure_loss", "info_nce_loss"]
)
def test_memory_of_large_batches(name: str) -> None:
    """At most 4 arrays of the embeddings and 128 MiB, with a miner and with references of another size."""
    rows, columns, dim = 32_768, 16_384, 128
    shapes = [(rows, dim), (columns, dim)]
    x, r = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    y, z = (jax.ShapeDtypeStruct(shape[:1], jnp.int32) for shape in shapes)

    def value(x: Any, y: Any, r: Any, z: Any) -> jax.Array:
        mine = easy_positive()
        return loss(name)(x, y, references=r, reference_labels=z, mine=mine) + loss(name)(x, y)

    compiled = jax.jit(jax.value_and_grad(value)).lower(x, y, r, z).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * (4 * 4 * rows * dim + 128 * 2**20)


def test_info_nce_in_64_mebibytes() -> None:
    x = jax.ShapeDtypeStruct((8192, 256), jnp.float32)

    def value(q: Any, n: Any) -> jax.Array:
        return jdml.info_nce_loss(q, references=n)

    compiled = jax.jit(jax.value_and_grad(value, (0, 1))).lower(x, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= 64 * 2**20


def test_few_anchors_are_compared_at_once() -> None:
    side = int(AT_ONCE**0.5)
    assert block_size("auto", side, side) is None
    assert block_size("auto", 4 * side, 4 * side) == 176
    assert block_size("auto", 10**6, 10**6) == 8
    assert block_size("auto", 5, 10**9) is None
    assert block_size(None, 10**6, 10**6) is None


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        (0, ValueError, "anchor_block must be >= 1, got 0"),
        (2.0, TypeError, "anchor_block must be a Python integer >= 1, got 2.0"),
        ("all", ValueError, "anchor_block must be an integer >= 1, \"auto\" or None, got 'all'"),
    ],
)
def test_what_is_no_block(block: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jdml.triplet_loss(X, Y, anchor_block=block)
