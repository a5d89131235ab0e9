"""Why easy positives: with noisy labels the usual losses prefer a collapsed class, EPS does not.

EPS §4.2 and appendix B. Two classes of n/2 points, each point's label right with probability p > ½
independently. Embedding one puts each class on a point; embedding two splits the first class in
two points. All distances that are not 0 are `distance`. The expectation over the labels is exact:
every labelling of the n points, weighted with its probability.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml

pytestmark = pytest.mark.slow

EPS = jdml.mining.easy_positive()


def labellings(size: int) -> np.ndarray:
    """All 2ⁿ labellings of n points."""
    return np.array(list(itertools.product((0, 1), repeat=size)), np.int32)


def likelihood(size: int, correct: float) -> np.ndarray:
    """Probability of each labelling when a label is right with probability `correct`."""
    right = np.sum(labellings(size) == np.arange(size) // (size // 2), axis=1)
    return correct**right * (1 - correct) ** (size - right)


def embedding(size: int, distance: float, modes: int) -> np.ndarray:
    """Corners of a triangle: the first class on one or two of them, the second on the third."""
    corners = distance * np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    per_mode = size // 4
    first = [0] * per_mode + [modes - 1] * per_mode
    return corners[first + [2] * (size // 2)]


def expected_loss(name: str, size: int, correct: float, modes: int, mine: object) -> float:
    """Exact expectation of the summed loss over all labellings."""
    settings, distance = {
        "triplet_loss": ({"margin": 1.0}, 1.0),
        "margin_loss": ({"beta": 1.0, "alpha": 1.0}, 2.0),
    }[name]
    points = jnp.asarray(embedding(size, distance, modes))

    def loss(labels: jax.Array) -> jax.Array:
        return getattr(jdml, name)(
            points, labels, mine=mine, normalize=None, reduce_fn=jdml.total, **settings
        )

    values = jax.jit(jax.vmap(loss))(jnp.asarray(labellings(size)))
    return float(likelihood(size, correct) @ np.asarray(values, np.float64))


@pytest.mark.parametrize("name", ["triplet_loss", "margin_loss"])
def test_label_noise_collapses_a_class_and_easy_positives_do_not(name: str) -> None:
    for correct in (0.6, 0.9):
        collapsed = expected_loss(name, 12, correct, modes=1, mine=None)
        split = expected_loss(name, 12, correct, modes=2, mine=None)
        assert collapsed < split * 0.995
        collapsed = expected_loss(name, 12, correct, modes=1, mine=EPS)
        split = expected_loss(name, 12, correct, modes=2, mine=EPS)
        assert split < collapsed * 0.98


def test_triplets_need_enough_points_for_the_reversal() -> None:
    collapsed = expected_loss("triplet_loss", 8, 0.8, modes=1, mine=EPS)
    assert collapsed < expected_loss("triplet_loss", 8, 0.8, modes=2, mine=EPS)


def test_expectation_equals_the_closed_form() -> None:
    """Collapsed triplets by hand: whose true class positive and negative are of, times chances."""
    size, p = 8, 0.8
    half, total = size // 2, 0.0
    for far_positive, far_negative in itertools.product((0, 1), repeat=2):  # 1: of the other class
        positives = half if far_positive else half - 1
        negatives = (half if far_negative else half - 1) - (far_positive == far_negative)
        chance = 0.0
        for label in (0, 1):  # of an anchor whose true class is 0
            chance += (
                (p if label == 0 else 1 - p)
                * (p if label == far_positive else 1 - p)
                * (p if label != far_negative else 1 - p)
            )
        hinge = max(0.0, far_positive - far_negative + 1.0)
        total += size * positives * negatives * chance * hinge
    assert expected_loss("triplet_loss", size, p, 1, None) == pytest.approx(total, rel=1e-5)
