"""Greedy k-center against a plain loop, covering radii, and the state machine on random metrics."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import ccp, objectives

RNG = np.random.default_rng(0)


def plain_k_center(pool: np.ndarray, centers: np.ndarray, k: int, free: list[int]) -> list[int]:
    """Algorithm 2, restated."""
    picked: list[int] = []
    while len(picked) < min(k, len(free)):
        covering = [*centers, *(pool[i] for i in picked)]
        best, farthest = -1, -1.0
        for i in free:
            if i in picked:
                continue
            nearest = min((float(np.sum((pool[i] - c) ** 2)) for c in covering), default=np.inf)
            if nearest > farthest:
                best, farthest = i, nearest
        picked.append(best)
    return [picked[i % len(picked)] for i in range(k)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("centers", [0, 1, 4])
def test_greedy_k_center(seed: int, centers: int) -> None:
    rng = np.random.default_rng(seed)
    pool, old = rng.normal(size=(9, 3)), rng.normal(size=(centers, 3))
    where, old_where = rng.random(9) < 0.6, rng.random(centers) < 0.7
    where[0] = True
    with jax.enable_x64(True):
        chosen = ccp.greedy_k_center(jnp.asarray(pool), jnp.asarray(old), 4)
        masked = ccp.greedy_k_center(
            jnp.asarray(pool), jnp.asarray(old), 7, where=where, centers_where=old_where
        )
    assert chosen.tolist() == plain_k_center(pool, old, 4, list(range(9)))
    free = np.flatnonzero(where).tolist()
    assert masked.tolist() == plain_k_center(pool, old[old_where], 7, free)
    assert chosen.dtype == jnp.int32


def test_identical_points_are_selected_once_each() -> None:
    chosen = ccp.greedy_k_center(jnp.ones((4, 2)), jnp.ones((1, 2)), 4)
    assert sorted(chosen.tolist()) == [0, 1, 2, 3]
    assert ccp.greedy_k_center(jnp.ones((2, 2)), jnp.ones((1, 2)), 5).tolist() == [0, 1, 0, 1, 0]


def test_points_far_from_zero_are_distinguished() -> None:
    pool = jnp.array([[1000.0], [1000.1], [1000.2]])
    assert ccp.greedy_k_center(pool, pool[:1], 3).tolist() == [2, 1, 0]
    huge = 1e25 * jnp.array([[1.0], [2.0], [4.0]])
    assert ccp.greedy_k_center(huge, huge[:1], 2).tolist() == [2, 1]
    assert not ccp.greedy_covering_radii(jnp.full((3, 2), 0.1)).any()


def test_checked_names_the_point_that_is_not_finite() -> None:
    pool = jnp.array([[0.0], [jnp.nan], [5.0]])
    with pytest.raises(ValueError, match=r"^pool\[1\]"):
        jdml.checked(ccp.greedy_k_center)(pool, pool[:1], 2)


def test_select_proxies_equals_k_center_per_class() -> None:
    pool = jnp.asarray(RNG.normal(size=(5, 6, 3)), jnp.float32)
    old = jnp.asarray(RNG.normal(size=(5, 2, 3)), jnp.float32)
    where = jnp.asarray(np.arange(6) < np.array([[6], [3], [1], [2], [6]]))
    proxies = jax.jit(lambda p, o, w: ccp.select_proxies(p, o, 3, where=w))(pool, old, where)
    for c in range(5):
        picked = ccp.greedy_k_center(pool[c], old[c], 3, where=where[c])
        np.testing.assert_array_equal(proxies[c], pool[c][picked])
    assert (proxies[2] == pool[2, :1]).all()  # one sample only: repeated
    first = ccp.select_proxies(pool, old, 1, proxies_where=jnp.zeros((5, 2), bool))
    np.testing.assert_array_equal(first[:, 0], pool[:, 0])


def test_covering_radius_falls_with_more_centres() -> None:
    points = RNG.normal(size=(20, 3)).astype(np.float32)
    radii = np.asarray(ccp.greedy_covering_radii(points))
    assert (np.diff(radii) <= 0).all()
    assert radii[-1] == 0
    picked = ccp.greedy_k_center(points, points[:1], 19)
    for k in (1, 2, 7, 19):
        centres = points[np.append(0, picked)[:k]]
        np.testing.assert_allclose(radii[k - 1], ccp.covering_radius(points, centres), rtol=1e-4)
    where = np.arange(20) % 2 == 1
    kept = ccp.greedy_covering_radii(points, where=where)
    np.testing.assert_allclose(kept[:10], ccp.greedy_covering_radii(points[where]), rtol=1e-5)
    assert not kept[10:].any()


ONES = jnp.ones((3, 2))
REFUSED = [
    (lambda: ccp.greedy_k_center(ONES, ONES[:1], 0), "k"),
    (lambda: ccp.greedy_k_center(ONES[:0], ONES[:1], 1), "pool"),
    (lambda: ccp.greedy_k_center(ONES, jnp.ones((1, 3)), 1), "centers"),
    (lambda: ccp.select_proxies(jnp.ones((3, 2, 2)), jnp.ones((2, 1, 2)), 1), "proxies"),
    (lambda: ccp.select_proxies(ONES, jnp.ones((2, 1, 2)), 1), "pool"),
    (lambda: ccp.AlternatingProjections(patience=0).init(), "patience"),
]


@pytest.mark.parametrize(("call", "name"), REFUSED)
def test_refusals(call: Any, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        call()


def reference_machine(
    metrics: list[float], patience: int, run_patience: int
) -> list[tuple[bool, ...]]:
    """The transition table, restated."""
    best = run_best = -np.inf
    waited = run_waited = 0
    ended, decisions = False, []
    for metric in metrics:
        if ended:
            decisions.append((False, False, False, True))
            continue
        improved, run_improved = metric > best + 1e-5, metric > run_best + 1e-5
        waited = 0 if improved else waited + 1
        run_waited = 0 if run_improved else run_waited + 1
        best, run_best = (metric if improved else best), (metric if run_improved else run_best)
        ended = run_waited >= run_patience
        end_problem = not ended and waited >= patience
        if end_problem:
            best, waited = -np.inf, 0
        decisions.append((bool(improved), bool(run_improved), end_problem, ended))
    return decisions


@jax.jit
def follow(machine: ccp.AlternatingProjections, state: Any, metrics: jax.Array) -> Any:
    def update(state: Any, metric: jax.Array) -> Any:
        state, decision = machine.update(state, metric)
        return state, (state.problem, decision)

    return jax.lax.scan(update, state, metrics)[1]


@pytest.mark.parametrize("seed", range(40))
def test_state_machine_equals_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    patience, run_patience = int(rng.integers(1, 4)), int(rng.integers(3, 12))
    metrics = np.round(rng.random(40), 1).astype(np.float32).tolist()
    metrics[int(rng.integers(40))] = float("nan")
    machine = ccp.AlternatingProjections(patience, run_patience)
    problems, decisions = follow(machine, machine.init(), jnp.asarray(metrics))
    rows = [tuple(row) for row in np.stack(decisions, axis=1).tolist()]
    assert rows == reference_machine(metrics, patience, run_patience)
    np.testing.assert_array_equal(problems, np.cumsum(decisions.end_problem))


@pytest.mark.parametrize(
    "loss", [jdml.contrastive_loss, jdml.multi_similarity_loss, jdml.triplet_loss]
)
def test_pair_loss_as_proxy_loss_compares_with_proxies(loss: Any) -> None:
    objective = objectives.as_proxy_objective(loss, 3, 4, 2, in_batch_weight=0.1)
    params = objective.init(jax.random.key(0))
    x, y = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32), jnp.arange(9) % 3
    step = jax.jit(jax.value_and_grad(lambda p: objective.loss(p, x, y), has_aux=True))
    (value, metrics), gradients = step(params)
    proxies = params["proxies"].reshape(6, 4)
    owners = np.array([0, 0, 1, 1, 2, 2])
    expected = loss(x, y, references=proxies, reference_labels=owners, normalize=jdml.ball)
    np.testing.assert_allclose(metrics["proxy_loss"], expected, rtol=1e-6)
    expected += 0.1 * loss(x, y, normalize=jdml.ball)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    chex.assert_tree_all_finite(gradients)


def test_random_miner_uses_the_key() -> None:
    objective = objectives.as_proxy_objective(
        jdml.triplet_loss, 3, 4, 2, mine=jdml.mining.random_negative()
    )
    params = objective.init(jax.random.key(0))
    x, y = jnp.ones((6, 4)), jnp.arange(6) % 3
    with pytest.raises(ValueError, match=r"^key\b"):
        objective.loss(params, x, y)
    assert jnp.isfinite(objective.loss(params, x, y, key=jax.random.key(1))[0])


def test_masked_points_equal_removed_points() -> None:
    for hidden in (1e30, np.nan):
        points, where = jnp.array([[0.0], [1.0], [5.0], [hidden]]), np.array([1, 1, 1, 0], bool)
        centres = jnp.array([[0.0], [4.0]])
        assert ccp.covering_radius(points, centres, where=where) == 1
        assert ccp.greedy_covering_radii(points, where=where).tolist() == [5, 1, 0, 0]
        assert ccp.greedy_k_center(points, centres, 2, where=where).tolist() == [1, 2]


def test_class_without_samples_keeps_its_proxies() -> None:
    pool, old = jnp.array([[[np.nan]], [[2.0]]]), jnp.array([[[1.0]], [[3.0]]])
    proxies = ccp.select_proxies(pool, old, 2, where=jnp.array([[False], [True]]))
    assert proxies[..., 0].tolist() == [[1, 1], [2, 2]]


def test_labels_out_of_range_are_ignored() -> None:
    objective = objectives.as_proxy_objective(jdml.contrastive_loss, 2, 2)
    proxies = {"proxies": jnp.array([[[0.8, 0.6]], [[-0.6, 0.8]]])}
    x = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    expected, _ = objective.loss(proxies, x[:2], jnp.array([0, 1]))
    for label in (7, -1):
        actual, _ = objective.loss(proxies, x, jnp.array([0, 1, label]))
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"^labels\[2\] is 7"):
        jdml.checked(jax.jit(objective.loss))(proxies, x, jnp.array([0, 1, 7]))
