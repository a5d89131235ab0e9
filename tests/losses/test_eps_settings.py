"""EPS's settings (squared distances, β per class and sample) and its claims 3 and 4."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import mining
from oracles import pair_losses

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(9, 4)), jnp.float32)
Y = jnp.asarray(np.arange(9) % 3)


def distances() -> tuple[np.ndarray, np.ndarray]:
    """Return the distances of all pairs, and whether the two are of one class."""
    x = np.asarray(X, np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return np.linalg.norm(x[:, None] - x[None], axis=-1), np.equal.outer(*2 * [np.asarray(Y)])


def test_contrastive_on_squared_distances() -> None:
    d, same = distances()
    other = ~np.eye(9, dtype=bool)
    pull, push = np.maximum(d**2 - 0.1, 0), np.maximum(1.5 - d**2, 0)
    expected = pull[same & other & (pull > 0)].mean() + push[~same & (push > 0)].mean()
    actual = jdml.contrastive_loss(X, Y, positive_margin=0.1, negative_margin=1.5, squared=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("beta", [1.2, np.array([1.0, 1.2, 1.4])])
def test_margin_on_squared_distances(beta: object) -> None:
    """EPS's preliminaries: D is the squared norm."""
    with jax.enable_x64(True):
        x = jnp.asarray(RNG.normal(size=(9, 4)))
        settings = {"beta": jnp.asarray(beta), "alpha": 0.3}
        for squared in (False, True):
            expected = pair_losses.margin(
                np.asarray(x), np.asarray(Y), beta=beta, alpha=0.3, squared=squared
            )
            actual = jdml.margin_loss(x, Y, squared=squared, **settings)
            np.testing.assert_allclose(actual, expected, rtol=1e-10)
    # On a line: the positive at 1.5, negatives at 0.9 and 0.6 of both; g(z₁, z₂) = (z₁ − z₂ + α)₊.
    line, labels = jnp.array([[0.0], [1.5], [0.9]]), jnp.array([0, 0, 1])
    loss = functools.partial(jdml.margin_loss, line, labels, normalize=None, reduce_fn=jdml.total)
    pull, push = 1.5 - 1.2 + 0.2, (1.2 - 0.9 + 0.2) + (1.2 - 0.6 + 0.2)
    np.testing.assert_allclose(loss(), 2 * (pull + push), rtol=1e-6)
    pull, push = 2.25 - 1.2 + 0.2, (1.2 - 0.81 + 0.2) + (1.2 - 0.36 + 0.2)
    np.testing.assert_allclose(loss(squared=True), 2 * (pull + push), rtol=1e-6)


@pytest.mark.parametrize("anchor_block", [None, 4])
def test_margin_with_beta_per_class_and_sample(anchor_block: int | None) -> None:
    d, same = distances()
    of_class, of_sample = np.array([1.0, 1.2, 1.4]), RNG.normal(size=9) / 5
    beta = (of_class[np.asarray(Y)] + of_sample)[:, None]
    terms = np.where(same, np.maximum(d - beta + 0.2, 0), np.maximum(beta - d + 0.2, 0))
    np.fill_diagonal(terms, 0)
    expected = terms.sum() / (terms > 0).sum()
    loss = functools.partial(jdml.margin_loss, X, Y, anchor_block=anchor_block)
    actual = loss(beta=jnp.asarray(of_class, jnp.float32), sample_beta=jnp.asarray(of_sample))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    slope = jax.grad(lambda b: loss(beta=1.2, sample_beta=b, reduce_fn=jdml.total))(jnp.zeros(9))
    active = (np.where(same, d - 1.2, 1.2 - d) + 0.2 > 0) & ~np.eye(9, dtype=bool)
    np.testing.assert_allclose(slope, (active * np.where(same, -1, 1)).sum(1), atol=1e-5)


def test_margin_with_beta_per_sample_and_given_pairs() -> None:
    beta, (_, same) = jnp.linspace(0.8, 1.4, 9), distances()
    masked = jdml.margin_loss(X, positive=jnp.asarray(same), sample_beta=beta)
    np.testing.assert_allclose(masked, jdml.margin_loss(X, Y, sample_beta=beta), rtol=1e-6)


def line(positions: np.ndarray) -> jax.Array:
    return jnp.asarray(positions, jnp.float32)[:, None]


def labellings(size: int, correct: float) -> tuple[np.ndarray, np.ndarray]:
    """Return all labellings of ``size`` points of one true class, and their probabilities."""
    every = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    right = (every == 0).sum(1)
    return every, correct**right * (1 - correct) ** (size - right)


def expected_terms(positions: np.ndarray, correct: float, terms: object) -> float:
    """Return the expected sum, over the labels, of the terms between the first point and the others."""
    every, chances = labellings(len(positions), correct)
    values = jax.jit(jax.vmap(lambda y: terms(line(positions), y)))(jnp.asarray(every))  # type: ignore[operator]
    return float(chances @ np.asarray(values, np.float64))


@pytest.mark.slow  # searches a grid
def test_claim_3_a_far_sample_is_best_at_the_outer_edge_of_the_margin() -> None:
    """With EPS the margin loss between an anchor and a far neighbour is least at β + α: it is pushed away."""
    beta, alpha, number = 1.0, 0.4, 8
    near = np.linspace(0.0, 0.1, number - 1)

    def term(x: jax.Array, y: jax.Array) -> jax.Array:
        pairs = jdml.margin_loss(
            x,
            y,
            beta=beta,
            alpha=alpha,
            mine=mining.easy_positive(),
            normalize=None,
            reduce_fn=None,
        )
        return pairs[0, -1]

    places = np.linspace(beta - alpha, beta + alpha, 9)
    values = [expected_terms(np.append(near, place), 0.8, term) for place in places]
    assert (np.diff(values) < 0).all()
    assert expected_terms(np.append(near, beta + alpha + 0.1), 0.8, term) >= values[-1] - 1e-6


@pytest.mark.slow  # searches a grid
def test_claim_4_a_far_sample_is_best_a_margin_beyond_a_near_one() -> None:
    """The two triplets of an anchor, a near and a far sample are least where they are a margin apart."""
    margin, number = 0.4, 8
    near = np.linspace(0.0, 0.1, number - 1)

    def terms(x: jax.Array, y: jax.Array) -> jax.Array:
        def only(pairs: mining.Pairs) -> mining.Pairs:
            kept = jnp.zeros((number, number), bool).at[0, jnp.array([1, number - 1])].set(True)
            return pairs._replace(positive=pairs.positive & kept, negative=pairs.negative & kept)

        def mine(key: object, d: jax.Array, pairs: mining.Pairs) -> mining.Pairs:
            return only(mining.easy_positive()(None, d, pairs))

        return jdml.triplet_loss(
            x, y, margin=margin, mine=mine, normalize=None, reduce_fn=jdml.total
        )

    places = near[1] + np.linspace(0.1, margin, 7)
    values = [expected_terms(np.append(near, place), 0.8, terms) for place in places]
    assert (np.diff(values) < 0).all()
    assert expected_terms(np.append(near, near[1] + margin + 0.2), 0.8, terms) >= values[-1] - 1e-6


def test_clean_labels_allow_two_modes_if_other_classes_are_far() -> None:
    """§4.1 with plain distances: diam(A) + 2α ≤ ‖A − B‖ suffices; the printed diam(A) < 2α + ‖A − B‖ does not."""
    alpha, labels = 0.5, jnp.array([0, 0, 0, 0, 1, 1])
    far = line(np.array([0.0, 0.0, 1.0, 1.0, 3.0, 3.0]))  # diameter 1, distance 2
    near = line(np.array([0.0, 0.0, 1.0, 1.0, 1.2, 1.2]))  # 1 < 2 · 0.5 + 0.2
    triplet = functools.partial(jdml.triplet_loss, labels=labels, margin=alpha, normalize=None)
    assert triplet(far) == 0
    assert triplet(near) > 0.1
    # Likewise of the margin loss: β = α, as printed, costs a positive pair its whole distance.
    margin = functools.partial(jdml.margin_loss, far, labels, alpha=alpha, normalize=None)
    assert margin(beta=1.0 + alpha) < 1e-6
    pulled = margin(beta=alpha, reduce_fn=jdml.total)
    np.testing.assert_allclose(pulled, 8 * 1.0, rtol=1e-6)  # eight ordered pairs across the modes


@pytest.mark.parametrize("mine", [None, mining.easy_positive()])
def test_eps_is_zero_for_collapsed_and_split_classes_with_clean_labels(mine: object) -> None:
    """Without noise EPS is 0 for one mode and for two; the loss of all pairs is positive for the split class."""
    corners = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, np.sqrt(3.0)]])
    collapsed, split = corners[[0] * 8 + [2] * 8], corners[[0] * 4 + [1] * 4 + [2] * 8]
    labels = jnp.asarray(np.repeat([0, 1], 8))
    for name, settings in (
        ("triplet_loss", {"margin": 1.0}),
        ("margin_loss", {"beta": 1.0, "alpha": 1.0}),
    ):
        loss = functools.partial(getattr(jdml, name), mine=mine, normalize=None, **settings)
        assert loss(jnp.asarray(collapsed, jnp.float32), labels) < 1e-6
        value = loss(jnp.asarray(split, jnp.float32), labels)
        assert (value < 1e-6) == (mine is not None), name
