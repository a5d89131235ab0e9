"""Checks on eight devices, as a script, because a process cannot change its number of devices.

    JAX_NUM_CPU_DEVICES=8 PYTHONPATH=tests python tests/meshes/eight_devices.py RESULTS.json 0/1 [WORD …]

runs part 0 of 1 of the checks, or those whose names contain a word, and writes one entry per check: its error, or the
empty string. `test_meshes.py` runs all.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from losses.registry import REGISTRY, loss
from meshes import metrics_on_devices, objectives_on_devices
from meshes.checks import (
    AUTO,
    EXPLICIT,
    PROXIES,
    RNG,
    WHERE,
    B,
    Case,
    Checks,
    D,
    X,
    Y,
    assert_same,
    check_on_eight,
    collected,
    mapped,
    mesh,
    operations,
    put,
)
from mining.test_miners import BUILDERS, RANDOM

import jdml
from jdml.mining import chain, easy_positive, random_positive, semi_hard_negative
from jdml.ops.meshes import as_axis

ROWS = P("data")
CHECKS = Checks(objectives_on_devices.CHECKS | metrics_on_devices.CHECKS)
check = CHECKS.add


def register(name: str, case: Case, *ways: str) -> None:
    """Add checks of a loss: on both types of axes, with sharded arrays, a context and the user's shard_map."""
    both = case.rows(P("model"))  # rows and classes are sharded
    checks = {
        "explicit axes": lambda: case.on(mesh(EXPLICIT, 4, 2), both),  # rows are gathered
        "auto axes": lambda: case.on(mesh(AUTO, 4, 2), both),  # only the rows are divided
        "set_mesh": lambda: case.in_context(2),
        "shard_map": lambda: case.inside(8, check_vma=True),
        "shard_map without check_vma": lambda: case.inside(4, check_vma=False),
        "one device": lambda: case.on(mesh(EXPLICIT, 1), case.rows()),
        "auto axes, eight devices": lambda: case.on(mesh(AUTO, 8), case.rows()),
        "set_mesh, four devices": lambda: case.in_context(4),
        "shard_map without check_vma, eight devices": lambda: case.inside(8, check_vma=False),
    }
    CHECKS.update({f"{way}, {name}": checks[way] for way in ways or checks})


WAYS = ("explicit axes", "auto axes", "shard_map")
EVERY_WAY = ("triplet_loss", "proxy_anchor_loss", "potential_field_loss")
for name in REGISTRY:
    register(name, Case(name), *(() if name in EVERY_WAY else WAYS))
DRAWN = chain(random_positive(), semi_hard_negative(0.4))
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "miners that draw": ("triplet_loss", {"mine": DRAWN, "key": jax.random.key(3)}),
    "blocks": ("multi_similarity_loss", {"anchor_block": 1, "mine": easy_positive()}),
    "a miner of one's own": (
        "contrastive_loss",
        {
            "mine": lambda key, distances, pairs: pairs._replace(
                negative=pairs.negative & (distances < distances.mean())
            )
        },
    ),
    "trimmed means": ("margin_loss", {"reduce_fn": jdml.trimmed_mean(0.3)}),
    "no attraction between proxies": ("potential_field_loss", {"proxy_attraction": False}),
    "class blocks": ("soft_triple_loss", {"class_block": 3}),
}
for name, (function, settings) in OPTIONS.items():
    register(name, Case(function, **settings), "explicit axes", "shard_map without check_vma")


@check
def classes_sharded_over_all_devices() -> None:
    for kind in (EXPLICIT, AUTO):
        Case("normalized_softmax_loss").on(mesh(kind, 4), [P()] * 4 + [ROWS])


@check
def smaller_of_batch_and_proxies_is_gathered() -> None:
    """Value and gradient gather and sum no array as large as the larger one, on either type of axes."""
    step = jax.jit(jax.value_and_grad(jdml.multi_proxy_anchor_loss, (0, 2)))
    for rows, classes in ((64, 128), (128, 24)):
        for kind in (EXPLICIT, AUTO):
            at = NamedSharding(mesh(kind, 8), ROWS)
            shapes = ((rows, 256), np.float32), ((rows,), np.int32), ((classes, 2, 256), np.float32)
            arrays = [jax.ShapeDtypeStruct(*shape, sharding=at) for shape in shapes]
            sent = collected(step.lower(*arrays).compile().as_text())
            assert 4 * 256 * min(rows, 2 * classes) in sent, (kind, rows, sent)
            assert max(sent) < 4 * 256 * max(rows, 2 * classes), (kind, rows, sent)


@check
def towers_are_matched_across_devices() -> None:
    """Global row i belongs to global reference i."""
    other = RNG.normal(size=(B, D)).astype(np.float32)

    def value(q: Any, n: Any, **more: Any) -> Any:
        return jdml.both_ways(jdml.info_nce_loss)(q, n, **more)

    check_on_eight(jax.value_and_grad(value, (0, 1)), (X, other), (ROWS,) * 2, (P(), ROWS))


@check
def unreduced_terms_are_global_on_a_mesh_and_local_in_a_shard_map() -> None:
    p = jnp.asarray(PROXIES)
    for function, of_classes in (
        (lambda x, y, **o: jdml.nca_loss(x, y, reduce_fn=None, **o), False),
        (lambda x, y, **o: jdml.contrastive_loss(x, y, reduce_fn=None, **o), False),
        (lambda x, y, **o: jdml.arcface_loss(x, y, p, reduce_fn=None, **o), False),
        (lambda x, y, **o: jdml.proxy_anchor_loss(x, y, p, reduce_fn=None, **o), True),
    ):
        check_on_eight(function, (X, Y), (ROWS,) * 2, P() if of_classes else ROWS)


@check
def nir_on_a_mesh() -> None:
    volumes = RNG.normal(size=B).astype(np.float32)
    step = jax.value_and_grad(jdml.nir_loss, (0, 1))
    check_on_eight(step, (X, volumes), (ROWS,) * 2, (P(), ROWS))


@check
def learned_hyper_parameters() -> None:
    """Gradients by replicated parameters are complete, and counted once; samples' own are sharded with their rows."""
    beta = np.linspace(0.8, 1.3, 5).astype(np.float32)
    own = (RNG.normal(size=B) / 10).astype(np.float32)

    def star(x: Any, y: Any, b: Any, **more: Any) -> Any:
        return jdml.proxy_nca_margin_loss(x, y, jnp.asarray(PROXIES), alpha=b[0] + 3.0, **more)

    for function, learned, spec in (
        (lambda x, y, b, **more: jdml.margin_loss(x, y, beta=b, **more), beta, P()),
        (star, beta, P()),
        (lambda x, y, b, **more: jdml.margin_loss(x, y, sample_beta=b, **more), own, ROWS),
    ):
        step = jax.value_and_grad(function, (0, 2))
        check_on_eight(step, (X, Y, learned), (ROWS, ROWS, spec), (P(), (ROWS, spec)))


@check
def miners_and_pairs_without_a_loss() -> None:
    """Every miner, also a random one, selects the same pairs."""

    @jax.jit
    def mined(y: Any, distances: Any) -> Any:
        pairs, key = jdml.all_pairs(y), jax.random.key(1)
        return pairs, [build()(key, distances, pairs) for build in BUILDERS.values()]

    distances = jdml.ops.distances(jnp.asarray(X), jnp.asarray(X))
    expected = mined(jnp.asarray(Y), distances)
    for grid in (mesh(EXPLICIT, 8), mesh(AUTO, 8)):
        placed = jax.device_put((Y, distances), NamedSharding(grid, ROWS))
        assert_same(mined(*placed), expected)
    rows = NamedSharding(mesh(EXPLICIT, 8), ROWS)
    pairs = jdml.all_pairs(jax.device_put(Y, rows))  # outside jit
    assert_same(pairs, expected[0])
    draw = BUILDERS["chain of draws"]()
    assert_same(draw(jax.random.key(1), jax.device_put(distances, rows), pairs), expected[1][-1])


@check
def random_draws_with_every_key_type() -> None:
    """Also the key types that are common on TPUs: miners without a loss, and in a loss in blocks."""
    distances = jdml.ops.distances(jnp.asarray(X), jnp.asarray(X))
    for impl, grid in (("rbg", mesh(EXPLICIT, 2)), ("unsafe_rbg", mesh(AUTO, 8))):
        key = jax.random.key(0, impl=impl)

        @jax.jit
        def drawn(x: Any, y: Any, distances: Any, key: Any = key) -> Any:
            pairs = jdml.all_pairs(y)
            mined = [BUILDERS[name]()(key, distances, pairs) for name in RANDOM]
            return mined, jdml.contrastive_loss(x, y, mine=DRAWN, key=key, anchor_block=1)

        expected = drawn(*map(jnp.asarray, (X, Y, distances)))
        placed = jax.device_put((X, Y, distances), NamedSharding(grid, ROWS))
        assert_same(drawn(*placed), expected)


@check
def sampled_classes_with_every_key_type() -> None:
    """The classes depend on the number of devices, not on the type of axes."""
    objective = jdml.objectives.proxy(jdml.normalized_softmax_loss, 40, D, sampled_classes=32)
    params = {"proxies": RNG.normal(size=(40, 1, D)).astype(np.float32)}
    for impl in ("threefry2x32", "unsafe_rbg"):
        key = jax.random.key(0, impl=impl)
        step = jax.jit(lambda x, y, key=key: objective.loss(params, x, y, key=key)[0])
        values = [step(*put(mesh(k, 2), (X, Y), [ROWS] * 2)) for k in (EXPLICIT, AUTO)]
        assert_same(values[0], values[1])


def gravity(r: jax.Array, same: jax.Array, strength: Any) -> jax.Array:
    """A custom potential."""
    return jnp.where(same, -strength / (1.0 + r), 0.0)


@check
def custom_potential_in_a_shard_map() -> None:
    """The devices divide the tiles; each computes the gradient of its own rows."""

    def step(x: Any, y: Any, axis_name: str | None = None) -> Any:
        axis = as_axis(axis_name)

        def value(x: Any) -> Any:
            felt = jdml.fields.superpose(gravity, axis.gather(x), axis.rows(y), (2.0,), axis=axis)
            return jnp.square(felt).sum()

        return jax.value_and_grad(value)(x)

    grid = mesh(EXPLICIT, 8)
    actual = mapped(step, grid, ROWS, (P(), ROWS))(*put(grid, (X, Y), (ROWS, ROWS)))
    assert_same(jax.device_get(actual), jax.device_get(step(jnp.asarray(X), jnp.asarray(Y))))


@check
def fields_without_a_loss() -> None:
    classes = np.where(Y == 4, -1, Y)

    def value(x: Any, points: Any, y: Any) -> Any:
        potentials = jdml.fields.superpose(jdml.fields.decaying, x, y, (0.5, 1.0, 4.0))
        own = jdml.fields.superpose(gravity, x, y, (2.0,))
        fields = [jdml.fields.class_field(points, j, x, y) for j in (0, 2)]
        fields.append(jdml.fields.class_field(points, 1, x, y, potential=gravity, strength=2.0))
        whole = potentials.sum() + own.sum() + sum(jnp.sum(f * f) for f in fields)
        return whole, (potentials, own, fields)

    step = jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))
    points = RNG.normal(size=(24, D)).astype(np.float32)
    expected = jax.device_get(step(X, points, classes))
    for grid in (mesh(EXPLICIT, 8), mesh(AUTO, 4)):
        placed = put(grid, (X, points, classes), (ROWS,) * 3)
        assert_same(jax.device_get(step(*placed)), expected)


@check
def run_time_checks_under_explicit_axes() -> None:
    placed = put(mesh(EXPLICIT, 8), (X, np.where(WHERE, Y, 77)), (ROWS,) * 2)
    with pytest.raises(ValueError, match=r"^labels\[0\] is 77\b"):
        jdml.checked(jdml.proxy_anchor_loss)(*placed, jnp.asarray(PROXIES))


OF_A_BATCH = {"lifted_structure_loss": 0.34}
"""At most 0.19 of one device's operations where it holds a batch against itself: it takes two products then, of the
three that rows against others take; lifted structure two of five."""


BLOCKED = {*EVERY_WAY, "multi_similarity_loss", "smooth_ap_loss", "soft_triple_loss"}


@check
def each_device_does_an_eighth_of_the_work() -> None:
    """Value and gradient take at most 0.15 of one device's operations, loops included."""
    rows, dim, classes = 512, 64, 256
    shapes = [((rows, dim), np.float32), ((rows,), np.int32), ((classes, 2, dim), np.float32)]
    too_much = {}
    for name, spec in REGISTRY.items():
        number = 2 if spec.kind == "pair" else 3
        for block in (None, 16):
            keyword = "anchor_block" if number == 2 else "class_block"
            if block and ("K" in spec.shape or name not in BLOCKED):
                continue  # fields have tiles of their own; losses share their blocks
            chosen = {} if "K" in spec.shape else {keyword: block}
            blocked = functools.partial(loss(name), **chosen)
            step = jax.value_and_grad(blocked, (0,) if number == 2 else (0, 2))
            counts = []
            both = block is None and name in EVERY_WAY
            kinds_of_axes = (EXPLICIT, AUTO) if both else (EXPLICIT,)
            for on in (None, *(mesh(kind, 8) for kind in kinds_of_axes)):
                specs = [ROWS, ROWS, P()]
                kinds = [
                    jax.ShapeDtypeStruct(
                        *shape, **({"sharding": NamedSharding(on, spec)} if on else {})
                    )
                    for shape, spec in zip(shapes[:number], specs, strict=False)
                ]
                counts.append(operations(jax.jit(step).trace(*kinds).jaxpr))
            share = max(counts[1:]) / counts[0]
            most = 0.15 if number == 3 or block else OF_A_BATCH.get(name, 0.19)
            if share > most:
                too_much[f"{name}, {keyword} {block}"] = round(share, 3)
    assert not too_much, too_much


if __name__ == "__main__":
    CHECKS.main()
