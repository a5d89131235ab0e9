"""Theorems of papers: easy positives by EPS, potential fields by PFML."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jdml
from jdml import fields, metrics, optim

pytestmark = pytest.mark.slow  # sums over all labellings

# With noisy labels the usual losses prefer a collapsed class, EPS does not.
#
# EPS §4.2 and appendix B. Two classes of n/2 points, each point's label right with probability p > ½
# independently. Embedding one puts each class on a point; embedding two splits the first class in
# two points. All distances that are not 0 are `distance`. The expectation over the labels is exact:
# every labelling of the n points, weighted with its probability.

EPS = jdml.mining.easy_positive()


def labellings(size: int) -> np.ndarray:
    """Return all 2ⁿ labellings of n points."""
    return np.array(list(itertools.product((0, 1), repeat=size)), np.int32)


def likelihood(size: int, correct: float) -> np.ndarray:
    """Return the probability of each labelling when a label is right with probability `correct`."""
    right = np.sum(labellings(size) == np.arange(size) // (size // 2), axis=1)
    return correct**right * (1 - correct) ** (size - right)


def embedding(size: int, distance: float, modes: int) -> np.ndarray:
    """Return corners of a triangle: the first class on one or two of them, the second on the third."""
    corners = distance * np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    per_mode = size // 4
    first = [0] * per_mode + [modes - 1] * per_mode
    return corners[first + [2] * (size // 2)]


@functools.cache
def losses_of_labellings(name: str, size: int, modes: int, easy: bool) -> np.ndarray:
    """Return the summed loss under every labelling."""
    settings, distance = {
        "triplet_loss": ({"margin": 1.0}, 1.0),
        "margin_loss": ({"beta": 1.0, "alpha": 1.0}, 2.0),
    }[name]
    points, mine = jnp.asarray(embedding(size, distance, modes)), EPS if easy else None

    def loss(labels: jax.Array) -> jax.Array:
        return getattr(jdml, name)(
            points, labels, mine=mine, normalize=None, reduce_fn=jdml.total, **settings
        )

    return np.asarray(jax.jit(jax.vmap(loss))(jnp.asarray(labellings(size))), np.float64)


def expected_loss(name: str, size: int, correct: float, modes: int, easy: bool) -> float:
    """Return the exact expectation of the summed loss over all labellings."""
    return float(likelihood(size, correct) @ losses_of_labellings(name, size, modes, easy))


@pytest.mark.parametrize("name", ["triplet_loss", "margin_loss"])
def test_label_noise_favours_collapse_except_with_easy_positives(name: str) -> None:
    for correct in (0.6, 0.9):
        collapsed = expected_loss(name, 12, correct, modes=1, easy=False)
        split = expected_loss(name, 12, correct, modes=2, easy=False)
        assert collapsed < split * 0.995
        collapsed = expected_loss(name, 12, correct, modes=1, easy=True)
        split = expected_loss(name, 12, correct, modes=2, easy=True)
        assert split < collapsed * 0.98


def test_easy_triplets_favour_collapse_with_few_points() -> None:
    collapsed = expected_loss("triplet_loss", 8, 0.8, modes=1, easy=True)
    assert collapsed < expected_loss("triplet_loss", 8, 0.8, modes=2, easy=True)


def expectation(
    name: str, owners: np.ndarray, correct: float, points: jax.Array, beta: jax.Array | float = 1.0
) -> jax.Array:
    """Sum the expected triplet loss (α = 1) or margin loss over points of t classes, in closed form.

    A label is right with probability `correct`; every wrong one has the probability `(1 − correct) / (t − 1)`.
    """
    classes, size = owners.max() + 1, len(owners)
    right = owners[:, None] == np.arange(classes)
    label = np.where(right, correct, (1 - correct) / (classes - 1))
    same, distinct = label @ label.T, ~np.eye(size, dtype=bool)
    squares = jnp.sum(jnp.square(points[:, None] - points[None]), axis=-1)
    distances = jnp.sqrt(squares + 1e-16)
    if name == "margin_loss":
        pull, push = jax.nn.relu(distances - beta + 1), jax.nn.relu(beta - distances + 1)
        return jnp.sum(distinct * (same * pull + (1 - same) * push))
    chances = np.einsum("ic,jc,kc->ijk", label, label, 1 - label)
    chances *= distinct[:, :, None] & distinct[:, None] & distinct
    return jnp.sum(chances * jax.nn.relu(distances[:, :, None] - distances[:, None, :] + 1))


@pytest.mark.parametrize("name", ["triplet_loss", "margin_loss"])
@pytest.mark.parametrize("modes", [1, 2])
def test_expectation_equals_the_closed_form(name: str, modes: int) -> None:
    distance = {"triplet_loss": 1.0, "margin_loss": 2.0}[name]
    points = jnp.asarray(embedding(8, distance, modes))
    closed = expectation(name, np.repeat([0, 1], 4), 0.8, points)
    assert expected_loss(name, 8, 0.8, modes, False) == pytest.approx(float(closed), rel=1e-5)


@pytest.mark.parametrize(("classes", "per_class"), [(2, 5), (3, 4)])
@pytest.mark.parametrize("name", ["triplet_loss", "margin_loss"])
def test_every_minimum_in_the_plane_collapses_all_classes(
    name: str, classes: int, per_class: int
) -> None:
    """Theorems 1 and 2: the best of many descents of the expected loss; a boundary β_i for each point."""
    owners = np.repeat(np.arange(classes), per_class)
    optimizer = optax.adam(optax.exponential_decay(0.1, 500, 0.3))

    def loss(x: jax.Array) -> jax.Array:
        return expectation(name, owners, 0.8, x[:, :2], x[:, 2:]) / len(owners) ** 2

    def descend(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(carried: tuple[jax.Array, Any], _: None) -> tuple[tuple[jax.Array, Any], None]:
            x, state = carried
            updates, state = optimizer.update(jax.grad(loss)(x), state)
            return (optax.apply_updates(x, updates), state), None

        x, _ = jax.lax.scan(step, (x, optimizer.init(x)), length=3000)[0]
        return x, loss(x)

    starts = jax.random.normal(jax.random.key(0), (32, len(owners), 3))
    ends, values = jax.jit(jax.vmap(descend))(starts)
    best = np.asarray(ends[values.argmin()][:, :2])
    apart = np.linalg.norm(best[:, None] - best, axis=-1)
    alike = owners[:, None] == owners
    assert apart[alike].max() < 1e-3
    between = {"triplet_loss": 1.0, "margin_loss": 2.0}[name]
    np.testing.assert_allclose(apart[~alike], between, atol=1e-3)


# PFML's proposition 1 and corollary 1; they do not hold for CPML, whose forces grow with distance.

ALPHA = 4.0
SAMPLES = np.array([[0.9, 0.1], [0.1, 0.8], [-0.7, 0.3], [-0.4, -0.8], [0.6, -0.6]])
NUMBER = len(SAMPLES)
CLOSEST = min(np.linalg.norm(a - b) for i, a in enumerate(SAMPLES) for b in SAMPLES[:i])
DELTA = 0.25 * CLOSEST / (2 * (1 + 1 / NUMBER))
"""Well below the proposition's bound on δ."""
POTENTIALS = {
    "pfml": functools.partial(fields.potential, alpha=ALPHA),
    "cpml": fields.contrastive_potential,
}


def attraction(name: str, points: jax.Array) -> jax.Array:
    """Return the field of the samples, all of one class, at given points."""
    return fields.class_field(
        points,
        0,
        jnp.asarray(SAMPLES, jnp.float32),
        jnp.zeros(NUMBER, int),
        potential=POTENTIALS[name],
        delta=DELTA,
    )


def rays(reach: float, directions: int = 8, steps: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Return distances ``[steps]``, and points ``[samples, directions, steps, 2]`` at them around each sample."""
    angles = 2 * np.pi * np.arange(directions) / directions
    away = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    distances = np.linspace(0, reach, steps)
    points = SAMPLES[:, None, None] + distances[:, None] * away[None, :, None]
    return distances, points


def test_pfml_has_a_minimum_within_delta_of_every_sample() -> None:
    """Proposition 1, first half: on every line from a sample the field is lowest within δ and rises beyond."""
    distances, points = rays(1.5 * DELTA)
    values = np.asarray(attraction("pfml", jnp.asarray(points.reshape(-1, 2), jnp.float32)))
    values = values.reshape(points.shape[:-1])
    inside = distances <= DELTA
    assert (values[..., inside].min(-1) < values[..., ~inside].min(-1)).all()
    rising = np.diff(values[..., distances > 1.05 * DELTA], axis=-1)
    assert (rising > 0).all()


def test_cpml_has_a_minimum_near_one_sample_only() -> None:
    """Proposition 1, second half: far samples dominate, so four of five have no minimum within δ."""
    _, points = rays(0.999 * DELTA)
    slope = jax.jit(jax.vmap(jax.grad(lambda x: attraction("cpml", x[None])[0])))
    forces = np.linalg.norm(slope(jnp.asarray(points.reshape(-1, 2), jnp.float32)), axis=1)
    weakest = forces.reshape(NUMBER, -1).min(1)
    assert (np.sort(weakest)[1:] > 0.1).all()


@pytest.mark.parametrize("name", ["pfml", "cpml"])
def test_proxies_settle_near_samples_with_pfml_only(name: str) -> None:
    """Corollary 1: at equilibrium PFML's proxies are within δ of the samples they represent, CPML's are not."""
    samples = jdml.sphere(jnp.asarray(np.random.default_rng(3).normal(size=(8, 6)), jnp.float32))
    owners, delta = jnp.zeros(8, int), 0.2
    field = functools.partial(
        fields.class_field, charges=samples, labels=owners, potential=POTENTIALS[name], delta=delta
    )
    step = optax.chain(
        optax.normalize_by_update_norm(),
        optax.sgd(lambda i: 0.1 * 0.99**i),
        optim.retract_to_sphere(),
    )

    @jax.jit
    def settle(proxies: jax.Array) -> jax.Array:
        def move(carried, _):
            proxies, state = carried
            slope = jax.grad(lambda p: field(jdml.sphere(p), 0).sum())(proxies)
            updates, state = step.update(slope, state, proxies)
            return (optax.apply_updates(proxies, updates), state), None

        return jax.lax.scan(move, (proxies, step.init(proxies)), length=600)[0][0]

    # Each starts nearest to another sample: the paper omits that two may go to one.
    pushed = 0.5 * np.random.default_rng(4).normal(size=(4, 6)) / np.sqrt(6)
    proxies = settle(jdml.sphere(samples[:4] + jnp.asarray(pushed, jnp.float32)))
    apart = metrics.proxy_distance(proxies[None], samples, owners)
    assert (apart <= delta + 1e-3) == (name == "pfml")


def test_proxy_attraction_false_skips_pairs_of_proxies() -> None:
    rng = np.random.default_rng(0)
    x, p = rng.normal(size=(5, 3)), rng.normal(size=(2, 4, 3))
    y, delta, alpha = np.array([0, 1, 1, 0, 0]), 0.5, 2.0
    points = np.concatenate([x, p.reshape(-1, 3)])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labels, is_proxy = np.concatenate([y, np.repeat([0, 1], 4)]), np.arange(13) >= 5
    expected = np.zeros(13)
    for i in range(13):
        for j in range(13):
            r = np.linalg.norm(points[i] - points[j])
            if i == j or (labels[i] == labels[j] and is_proxy[i] and is_proxy[j]):
                continue
            same = labels[i] == labels[j]
            expected[i] += -1 / max(r, delta) ** alpha if same else 1 / min(r, delta) ** alpha
    actual = jdml.potential_field_loss(
        jnp.asarray(x, jnp.float32),
        jnp.asarray(y),
        jnp.asarray(p, jnp.float32),
        delta=delta,
        alpha=alpha,
        proxy_attraction=False,
        reduce_fn=None,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    alone = {"delta": delta, "alpha": alpha}
    x32, y32 = jnp.asarray(x, jnp.float32), jnp.asarray(y)
    without = jdml.potential_field_loss(x32, y32, proxy_attraction=False, **alone)
    assert without == jdml.potential_field_loss(x32, y32, **alone)


@pytest.mark.parametrize("repulsion", ["contrastive", "mirrored", "decaying"])
def test_contrastive_potential_with_every_repulsion(repulsion: str) -> None:
    x = jnp.array([[1.0, 0.0], [0.6, 0.8], [0.96, 0.28]])
    y, delta, alpha = jnp.array([0, 0, 1]), 0.9, 1.5
    r = np.linalg.norm(np.asarray(x)[:, None] - np.asarray(x)[None], axis=-1)
    push = {
        "contrastive": lambda r: max(delta - r, 0) ** 2,
        "mirrored": lambda r: -(min(r, delta) ** 2),
        "decaying": lambda r: 1 / min(r, delta) ** alpha,
    }[repulsion]
    pull = max(r[0, 1], delta) ** 2
    expected = [pull + push(r[0, 2]), pull + push(r[1, 2]), push(r[0, 2]) + push(r[1, 2])]
    settings = {"delta": delta, "alpha": alpha, "repulsion": repulsion}
    actual = jdml.contrastive_potential_loss(x, y, **settings, reduce_fn=None)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    slope = jax.grad(lambda x: jdml.contrastive_potential_loss(x, y, **settings))(jnp.ones((3, 2)))
    assert np.isfinite(slope).all()
