"""Losses in blocks and over devices: the same loss and gradients as computed at once."""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from losses.registry import FIRST, REGISTRY, each, loss

import jdml
from jdml.mining import chain, distance_weighted_negative, easy_positive, random_positive
from jdml.ops.chunking import AT_ONCE, block_size
from jdml.testing.case import assert_close

# ``class_block``: the same loss and gradients, with memory that does not grow with the number of classes.

B, C, K, D = 9, 7, 3, 5
RNG = np.random.default_rng(3)
X, PROXIES = RNG.normal(size=(B, D)), RNG.normal(size=(C, K, D))
Y = np.array([0, 1, 6, 6, 3, 3, 0, 9, -1])  # two rows that are not valid
WEIGHTS = RNG.uniform(0.5, 2.0, size=B)
MOVED = np.cos(np.arange(X.size)).reshape(X.shape), np.sin(np.arange(PROXIES.size)).reshape(C, K, D)
BLOCKED = [
    name for name, spec in REGISTRY.items() if spec.kind == "proxy" and "K" not in spec.shape
]


def value_and_grads(name: str, class_block: Any, *moved: np.ndarray, **more: Any) -> Any:
    """Return the loss and its gradients by rows and proxies; with ``moved`` also its forward-mode derivative."""

    def value(x: jax.Array, p: jax.Array) -> jax.Array:
        settings = {**REGISTRY[name].settings, "weights": jnp.asarray(WEIGHTS), **more}
        return loss(name)(x, jnp.asarray(Y), p, class_block=class_block, **settings).sum()

    def computed(*at: jax.Array) -> Any:
        both = jax.value_and_grad(value, (0, 1))(*at)
        return (both, jax.jvp(value, at, tuple(map(jnp.asarray, moved)))[1]) if moved else both

    with jax.enable_x64(True):
        return jax.jit(computed)(jnp.asarray(X), jnp.asarray(PROXIES))


@pytest.mark.parametrize("name", each(BLOCKED))
def test_class_blocks_change_nothing(name: str) -> None:
    whole = value_and_grads(name, None)
    if name not in FIRST:
        assert_close(value_and_grads(name, 3), whole, 1e-12, "blocks of 3")
        return
    blocked, slope = value_and_grads(name, 3, *MOVED)
    assert_close(blocked, whole, 1e-12, "blocks of 3")
    assert_close(slope, sum(map(np.vdot, whole[1], MOVED)), 1e-10, "the slope in blocks of 3")


@pytest.mark.parametrize("name", ["proxy_anchor_loss", "soft_triple_loss"])
def test_blocks_of_terms_change_nothing(name: str) -> None:
    """For a loss with terms per class and one with terms per row."""
    terms = value_and_grads(name, None, reduce_fn=None)
    for block in (2, "auto"):
        blocked = value_and_grads(name, block, reduce_fn=None)
        assert_close(blocked, terms, 1e-12, f"unreduced, blocks of {block}")


# ``anchor_block``: the same loss and gradients, in memory that does not grow with the batch squared.

A, R = 11, 7
DRAWS = np.random.default_rng(4)
ANCHORS, REFERENCES = DRAWS.normal(size=(A, D)), DRAWS.normal(size=(R, D))
ANCHOR_LABELS, REFERENCE_LABELS = np.arange(A) % 3, np.arange(R) % 4
WHERE, ANCHOR_WEIGHTS = np.arange(A) != 4, DRAWS.uniform(0.5, 2.0, size=A)
PAIR = [name for name, spec in REGISTRY.items() if spec.kind == "pair"]


def value_and_grads_of_anchors(name: str, anchor_block: Any, **more: Any) -> Any:
    """Return the sum of the loss's terms and its gradients by anchors and references."""
    settings = {
        **REGISTRY[name].settings,
        "where": jnp.asarray(WHERE),
        "anchor_block": anchor_block,
    }

    def value(x: jax.Array, r: jax.Array) -> jax.Array:
        given = {n: r if v is REFERENCES else v for n, v in more.items()}
        return loss(name)(x, jnp.asarray(ANCHOR_LABELS), **{**settings, **given}).sum()

    with jax.enable_x64(True):
        return jax.jit(jax.value_and_grad(value, (0, 1)))(
            jnp.asarray(ANCHORS), jnp.asarray(REFERENCES)
        )


DRAWN = {
    "mine": chain(random_positive(), distance_weighted_negative(dim=D)),
    "key": jax.random.key(5),
}


WEIGHTED = {"weights": jnp.asarray(ANCHOR_WEIGHTS, jnp.float32)}
AGAINST = {"references": REFERENCES, "reference_labels": jnp.asarray(REFERENCE_LABELS)}


@pytest.mark.parametrize("name", each(PAIR))
def test_anchor_blocks_change_nothing(name: str) -> None:
    """The batch is compared with itself, with weights and a mask."""
    dense = value_and_grads_of_anchors(name, None, **WEIGHTED)
    assert_close(value_and_grads_of_anchors(name, 4, **WEIGHTED), dense, 1e-9, "blocks of 4")


@pytest.mark.slow  # programs of further settings
@pytest.mark.parametrize("name", ["contrastive_loss", "lifted_structure_loss", "smooth_ap_loss"])
def test_references_and_miners_in_blocks(name: str) -> None:
    """Another number of references than anchors, and miners, one of them random."""
    more = {**AGAINST, **DRAWN, "ids": jnp.arange(A) % 4, "reference_ids": jnp.arange(R) % 5}
    dense = value_and_grads_of_anchors(name, None, **more)
    assert_close(value_and_grads_of_anchors(name, 4, **more), dense, 1e-9, "blocks of 4")


@pytest.mark.slow  # programs of further settings
@pytest.mark.parametrize(
    ("name", "reduce_fn"),
    [("triplet_loss", jdml.trimmed_mean(0.3)), ("margin_loss", jdml.total), ("margin_loss", None)],
)
def test_reductions_in_blocks(name: str, reduce_fn: Any) -> None:
    dense = value_and_grads_of_anchors(name, None, reduce_fn=reduce_fn, mine=easy_positive())
    blocked = value_and_grads_of_anchors(name, 3, reduce_fn=reduce_fn, mine=easy_positive())
    assert_close(blocked, dense, 1e-12, "blocks of 3")


def test_custom_miner_gets_the_whole_batch() -> None:
    seen = []

    def near(key: Any, distances: jax.Array, pairs: jdml.Pairs) -> jdml.Pairs:
        seen.append(distances.shape)
        return pairs._replace(negative=pairs.negative & (distances < distances.mean()))

    dense = value_and_grads_of_anchors("contrastive_loss", None, mine=near)
    assert_close(
        value_and_grads_of_anchors("contrastive_loss", 4, mine=near), dense, 1e-12, "blocks of 4"
    )
    assert set(seen) == {(A, A)}


def test_auto_block_size() -> None:
    side = int(AT_ONCE**0.5)
    assert block_size("auto", side, side) is None
    assert block_size("auto", 4 * side, 4 * side) == 176
    assert block_size("auto", 10**6, 10**6) == 8
    assert block_size("auto", 5, 10**9) is None
    assert block_size(None, 10**6, 10**6) is None


# Scaling is JAX's: a batch or proxies sharded over two devices give the loss and gradients of one.

GENERATOR = np.random.default_rng(0)
BATCH = jnp.asarray(GENERATOR.normal(size=(8, 4)), jnp.float32)
BATCH_LABELS = jnp.arange(8) // 2
FOUR_PROXIES = jnp.asarray(GENERATOR.normal(size=(4, 4)), jnp.float32)


def mesh() -> jax.sharding.Mesh:
    if jax.device_count() < 2:
        pytest.skip("needs two devices (tests/conftest.py asks for two CPU devices)")
    return jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])


@pytest.mark.parametrize("name", ["contrastive_loss", "triplet_loss", "proxy_anchor_loss"])
def test_sharded_rows_or_proxies_give_the_same_loss_and_gradient(name: str) -> None:
    """On two devices; tests/meshes tests all losses on eight."""
    arrays = [BATCH, BATCH_LABELS] if name in PAIR else [BATCH, BATCH_LABELS, FOUR_PROXIES]
    step = jax.jit(jax.value_and_grad(loss(name), tuple(range(0, len(arrays), 2))))
    rows = NamedSharding(mesh(), P("data"))
    shared = range(2) if name in PAIR else [2]
    placed = [jax.device_put(a, rows) if i in shared else a for i, a in enumerate(arrays)]
    chex.assert_trees_all_close(
        jax.device_get(step(*placed)), jax.device_get(step(*arrays)), rtol=1e-5, atol=1e-6
    )


def test_losses_run_inside_shard_map() -> None:
    """The average over the devices' own batches is the mean of their losses."""
    grid = mesh()

    def local(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.pmean(jdml.multi_similarity_loss(x, y), "data")

    rows = P("data")
    sharded = jax.shard_map(local, mesh=grid, in_specs=(rows, rows), out_specs=P())(
        BATCH, BATCH_LABELS
    )
    halves = [jdml.multi_similarity_loss(BATCH[i : i + 4], BATCH_LABELS[i : i + 4]) for i in (0, 4)]
    np.testing.assert_allclose(sharded, np.mean(halves), rtol=1e-6)


# bfloat16 embeddings on a GPU or TPU are multiplied without conversion.

HALVES, OTHERS = (jnp.asarray(RNG.normal(size=(n, 6)), jnp.bfloat16) for n in (11, 7))
HALF_LABELS = jnp.arange(11) % 4


def derivatives(value: Any, x: jax.Array) -> Any:
    """Return value and gradient, and their derivatives along one direction."""
    moved = jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype)
    return jax.jvp(jax.value_and_grad(value), (x,), (moved,))


@pytest.mark.slow  # second derivatives in five ways
@pytest.mark.parametrize("name", each(["contrastive_loss", "multi_similarity_loss"]))
def test_16_bit_products_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    ways: dict[str, dict[str, Any]] = {
        "at once": {},
        "in blocks": {"anchor_block": 4},
        "on a mesh": {"axis_name": "data"},
        "with references": {"references": OTHERS, "reference_labels": HALF_LABELS[:7]},
        "mined": {"mine": easy_positive()},
    }
    for way, settings in ways.items():

        def value(x: jax.Array, settings: dict[str, Any] = settings) -> jax.Array:
            halves = {k: v.astype(x.dtype) for k, v in settings.items() if k == "references"}
            return loss(name)(x, HALF_LABELS, **{**settings, **halves})

        whole = value
        if "axis_name" in settings:
            whole = jax.shard_map(value, mesh=mesh, in_specs=P("data"), out_specs=P())
        turned = way in ("at once", "with references")
        step = jax.jit(partial(derivatives, whole) if turned else jax.value_and_grad(whole))
        if way not in ("in blocks", "on a mesh"):  # in float32 these equal the whole computation
            wide = step(HALVES.astype(jnp.float32))
            (expected, slopes), (_, turn) = wide if turned else (wide, (None, None))
        half = step(HALVES)
        (got, gradient), (_, turned_half) = half if turned else (half, (None, None))
        np.testing.assert_allclose(got, expected, rtol=2e-6, err_msg=way)
        assert gradient.dtype == jnp.bfloat16
        scale = np.abs(slopes).max()
        np.testing.assert_allclose(gradient.astype(float), slopes, atol=4e-3 * scale, err_msg=way)
        if turned:
            error = np.linalg.norm(turned_half.astype(float) - turn)
            assert error < 4e-3 * np.linalg.norm(turn), way
