"""Checks of metrics on eight devices; `eight_devices.py` runs them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes.checks import (
    AUTO,
    EXPLICIT,
    PROXIES,
    RNG,
    Checks,
    X,
    Y,
    assert_same,
    mesh,
    put,
)

import jdml

CHECKS = Checks()
check = CHECKS.add


@check
def nearest_and_retrieval_with_a_sharded_gallery() -> None:
    gallery = RNG.integers(-2, 3, (32, 3)).astype(np.float32)  # many ties
    labels = RNG.integers(0, 6, 32)
    queries, few = gallery[:10] + 0.25, (gallery[:8] + 0.25, labels[:8])
    evaluate, nearest = jdml.evaluate_retrieval, jdml.nearest
    own = np.where(np.arange(32) % 3, np.arange(32)[::-1], -1)
    some = functools.partial(evaluate, gallery[::-1].copy(), labels[::-1], self_index=own)
    groups, pairs = (np.arange(32) % 3,) * 2, np.arange(32 * 32).reshape(32, 32) % 5 < 2
    calls = (
        lambda x, y: evaluate(x, y),
        lambda x, y: evaluate(x, y, mrr=True),
        lambda x, y: evaluate(x, None, relevant=pairs, mrr=True),
        lambda x, y: evaluate(queries, labels[:10], x, y, map_at=(9,)),
        lambda x, y: evaluate(*few, x, y),
        lambda x, y: some(x, y),
        lambda x, y: some(x, y, ignore=groups),
        lambda x, y: some(x, y, ignore=pairs),
        lambda x, y: nearest(queries, x, 9),
        lambda x, y: nearest(x, x, k=5, exclude_self=True),
    )
    for kind in (EXPLICIT, AUTO):
        there, there_labels = put(mesh(kind, 8), (gallery, labels), [P("data")] * 2)
        for call in calls:
            assert_same(call(there, labels), call(gallery, labels))
        sharded = put(mesh(kind, 8), few, [P("data")] * 2)
        for arrays in ((gallery, labels), (there, labels), (there, there_labels)):
            assert evaluate(*sharded, *arrays) == evaluate(*few, gallery, labels)
    grid = mesh(EXPLICIT, 8)
    rows = NamedSharding(grid, P("data"))
    there, expected = jax.device_put(gallery, rows), evaluate(gallery, labels)
    apart = jax.device_put(np.square(gallery[:, None] - gallery).sum(axis=-1), rows)
    assert evaluate(there, labels, distances=apart) == expected
    with pytest.warns(UserWarning, match="^32 of 32 "):
        evaluate(gallery, labels, there, labels)
    broken = np.arange(32)[:, None] == 17
    with pytest.raises(ValueError, match=r"^gallery .*row 17\b"):
        nearest(queries, jax.device_put(np.where(broken, np.nan, gallery), rows), 2)
    with jax.set_mesh(grid):
        there = jax.device_put(gallery, rows)
        assert evaluate(there, labels) == pytest.approx(expected, rel=1e-6)
        assert_same(nearest(queries, there, 3), nearest(queries, gallery, 3))
        uniformity = jdml.metrics.uniformity(there)
    assert_same(uniformity, jdml.metrics.uniformity(jnp.asarray(gallery)))


@check
def verification_and_open_set_with_a_sharded_gallery() -> None:
    verification, open_set = jdml.metrics.verification, jdml.metrics.open_set
    gallery = RNG.normal(size=(32, 3)).astype(np.float32)
    labels = RNG.integers(0, 6, 32)
    queries, asked = gallery[:10] + 0.25, np.where(np.arange(10) % 3, labels[:10], 9)
    groups = np.arange(10) % 3, np.arange(32) % 3
    for kind in (EXPLICIT, AUTO):
        there = put(mesh(kind, 8), (gallery, labels), [P("data")] * 2)
        for ignore in (None, groups):
            for function in (verification, open_set):
                measure = functools.partial(function, queries, asked, far=(0.2,), ignore=ignore)
                assert measure(*there) == measure(gallery, labels)
        for measure in (verification, jdml.metrics.rejection_threshold):
            assert measure(*there) == measure(gallery, labels)


@check
def many_pairs_in_histogram_bins_with_a_sharded_gallery() -> None:
    """Millions of distances, none of which is stored; queries come in two blocks."""
    gallery = RNG.normal(size=(2912, 3)).astype(np.float32)
    labels = RNG.integers(0, 6, 2912)
    queries, groups = gallery[:1450] + 0.25, (np.arange(1450) % 3, np.arange(2912) % 3)
    among = functools.partial(jdml.metrics.verification, queries, labels[:1450], ignore=groups)
    for kind, measure in ((EXPLICIT, among), (AUTO, jdml.metrics.verification)):
        there = put(mesh(kind, 8), (gallery, labels), [P("data")] * 2)
        assert_same(measure(*there), measure(gallery, labels))


@check
def query_expansion_with_a_sharded_gallery() -> None:
    expand, augment = jdml.metrics.expand_queries, jdml.metrics.augment_gallery
    x = RNG.normal(size=(32, 3)).astype(np.float32)
    for kind in (EXPLICIT, AUTO):
        (there,) = put(mesh(kind, 8), [x], [P("data")])
        assert_same(expand(there, there, k=3), expand(x, x, k=3))
        moved = augment(there, k=3)
        assert moved.sharding == there.sharding
        assert_same(moved, augment(x, k=3))


@check
def structural_metrics() -> None:
    metrics = (
        jdml.metrics.class_density,
        lambda x, y: jdml.metrics.uniformity(x),
        lambda x, y: jdml.metrics.spectral_decay(x),
        lambda x, y: jdml.metrics.covering_radius(x, jnp.asarray(PROXIES[:, 0])),
        jdml.metrics.concentration_variance,
        jdml.metrics.class_covering,
        lambda x, y: jdml.metrics.violation_probability(x, y, beta=1.0, alpha=0.5),
        lambda x, y: jdml.metrics.vmf_mixture_likelihood(x, y, PROXIES[:, 0]),
        lambda x, y: jdml.metrics.ndcg_at_k(x > 0, y + 1, 3),
    )
    for kind, some in ((EXPLICIT, metrics), (AUTO, metrics[:2])):
        there = put(mesh(kind, 8), (X, Y), (P("data"),) * 2)
        for metric in some:
            assert_same(metric(*there), metric(jnp.asarray(X), jnp.asarray(Y)))
