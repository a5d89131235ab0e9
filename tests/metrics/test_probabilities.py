"""Probabilities: of violated constraints (CCP), and of classes under a von Mises–Fisher mixture."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import jdml
from jdml import metrics
from jdml.metrics import vmf_mixture_likelihood
from jdml.metrics.proxies import _log_bessel

# Violation of chance constraints: plain loops, Markov's bound, lemma 4.4, propositions 4.1 and 4.2.

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 3)).astype(np.float32), np.arange(30) % 3
CLASSES = X + 4.0 * np.eye(3, dtype=np.float32)[Y]


def contrastive(anchors, owners, x, y, beta, alpha):
    """Return the distances of all anchors and samples, and their hinges, which are 1-Lipschitz."""
    apart = cdist(anchors, x)
    return apart, np.maximum(0, np.where(owners[:, None] == y, 1, -1) * (apart - beta) + alpha)


def plain(x, y, anchors, owners, beta, alpha, own):
    """Return the fraction of violating pairs, the bound, and the largest fraction of an anchor."""
    _, hinges = contrastive(anchors, owners, x, y, beta, alpha)
    if own:
        hinges = hinges[~np.eye(len(x), dtype=bool)].reshape(len(x), -1)
    wrong = hinges >= alpha
    return wrong.mean(), hinges.mean() / alpha, wrong.mean(axis=1).max()


@pytest.mark.parametrize(("beta", "alpha"), [(1.0, 0.3), (3.0, 3.0), (2.5, 0.01)])
def test_probability_bound_and_worst_anchor_equal_loops(beta: float, alpha: float) -> None:
    violation = metrics.violation_probability(X, Y, beta=beta, alpha=alpha)
    np.testing.assert_allclose(violation, plain(X, Y, X, Y, beta, alpha, True), rtol=1e-4)
    proxies, owners = RNG.normal(size=(5, 3)).astype(np.float32), np.array([0, 1, 2, 0, 1])
    violation = metrics.violation_probability(X, Y, proxies, owners, beta=beta, alpha=alpha)
    np.testing.assert_allclose(
        violation, plain(X, Y, proxies, owners, beta, alpha, False), rtol=1e-4
    )


@pytest.mark.parametrize("alpha", [0.05, 0.5, 2.0])
def test_markovs_bound_holds_and_is_the_contrastive_loss(alpha: float) -> None:
    """Eq. 4.2: the loss with margins β − α and β + α over all pairs, divided by α."""
    violation = metrics.violation_probability(CLASSES, Y, beta=2.0, alpha=alpha)
    assert violation.probability <= violation.bound
    assert violation.probability <= violation.worst
    loss = jdml.margin_loss(CLASSES, Y, beta=2.0, alpha=alpha, normalize=None, reduce_fn=jdml.mean)
    np.testing.assert_allclose(violation.bound, float(loss) / alpha, rtol=1e-4)


def network(kernels, dense):
    """Return an L-layer CNN: convolutions with ReLU and disjoint max-pooling, a mean over space, a dense layer."""

    def embed(images):
        for kernel in kernels:
            images = jax.lax.conv_general_dilated(
                images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            images = flax.linen.max_pool(jax.nn.relu(images), (2, 2), strides=(2, 2))
        return images.mean((1, 2)) @ dense

    return embed


def weight_sums(kernel):
    """Return the largest absolute sum of the weights into a neuron, and of those out of one."""
    sizes = np.abs(np.asarray(kernel)).reshape(-1, *kernel.shape[-2:])
    return sizes.sum((0, 1)).max(), sizes.sum((0, 2)).max()


@pytest.mark.parametrize(("same", "normalize"), [(True, None), (False, jdml.ball)])
def test_loss_of_a_cnn_is_lipschitz(same: bool, normalize: object) -> None:
    """Lemma 4.4: √2 ω^L, with ω the largest sum of the weights into a neuron *and* out of one."""
    rng = np.random.default_rng(7)
    with jax.enable_x64(True):
        kernels = [jnp.asarray(0.3 * rng.normal(size=(3, 3, *io))) for io in ((2, 4), (4, 3))]
        dense = jnp.asarray(0.5 * rng.normal(size=(3, 5)))
        omega = max(max(weight_sums(layer)) for layer in (*kernels, dense))
        embed, y = network(kernels, dense), jnp.array([0, 0 if same else 1])

        def loss(pair):  # both orders of the pair: half of their sum is ℓ(z_i, z_j)
            return 0.5 * jdml.margin_loss(
                embed(pair), y, beta=0.6, alpha=0.5, normalize=normalize, reduce_fn=jdml.total
            )

        pairs = jnp.asarray(rng.normal(size=(60, 2, 10, 10, 2)))
        values, slopes = jax.jit(jax.vmap(jax.value_and_grad(loss)))(pairs)
        steepest = jnp.sqrt(jnp.square(slopes).sum((1, 2, 3, 4))).max()
        bound = np.sqrt(2) * omega ** (len(kernels) + 1)
        assert 0 < steepest <= bound
        apart = jnp.sqrt(jnp.square(pairs[1:] - pairs[:-1]).sum((1, 2, 3, 4)))
        assert (jnp.abs(jnp.diff(values)) <= bound * apart).all()


def test_incoming_weights_alone_do_not_bound_the_slope() -> None:
    """Lemma 4.4 as printed: nine neurons that copy one input have ω = 1, but the distance grows threefold."""
    copies, single = jnp.ones((1, 9)), jnp.ones((9, 1))
    assert weight_sums(copies) == (1, 9)
    near, far = jnp.array([[0.0], [1.0]]) @ copies
    assert jnp.linalg.norm(far - near) == 3 > np.sqrt(2)
    assert weight_sums(single) == (9, 1)  # nor do outgoing weights alone, which the proof uses
    assert jnp.linalg.norm(jnp.ones(9) @ single) == 9 > np.sqrt(2) * jnp.linalg.norm(jnp.ones(9))


def test_loss_of_random_anchors_approaches_that_of_all() -> None:
    """Proposition 4.1: all but a fraction γ of the draws are within ζ δ_S + L √(log(1/γ) / m), falling as 1/√m."""
    rng = np.random.default_rng(3)
    x, y, beta, alpha, gamma = rng.uniform(size=(300, 2)), rng.integers(0, 3, 300), 0.5, 0.3, 0.05
    apart, losses = contrastive(x, y, x, y, beta, alpha)
    spread = []
    for m in (12, 48, 192):
        gaps, within = [], []
        for _ in range(200):
            anchors = rng.integers(0, 300, m)  # independent draws
            to_own = np.where(y[:, None] == y[anchors], apart[:, anchors], np.inf)
            gap, radius = abs(losses.mean() - losses[anchors].mean()), to_own.min(1).max()
            gaps.append(gap)
            within.append(gap <= radius + losses.max() * np.sqrt(np.log(1 / gamma) / m))
        assert np.mean(within) >= 1 - gamma
        assert np.quantile(gaps, 1 - gamma) <= losses.max() * np.sqrt(np.log(1 / gamma) / m)
        spread.append(np.sqrt(m) * np.mean(gaps))
    assert max(spread) < 1.3 * min(spread)


@pytest.mark.parametrize("seed", range(2))
def test_gap_of_few_samples_is_bounded_by_their_covering_radius(seed: int) -> None:
    """Proposition 4.2 for a 1-Lipschitz loss: the gap is at most the covering radius plus the training error."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(24, 2)) + 1.5 * rng.normal(size=(3, 2))[np.arange(24) % 3]
    y = np.arange(24) % 3
    apart, losses = contrastive(x, y, x, y, beta=1.0, alpha=0.4)
    radii, gaps = [], []
    for k in range(1, 9):
        chosen = []
        for of_class in range(3):
            own = np.flatnonzero(y == of_class)
            points = jnp.asarray(x[own], jnp.float32)
            picked = jdml.ccp.greedy_k_center(points, points[:1], k - 1) if k > 1 else []
            chosen += [own[0], *own[np.asarray(picked, int)]]
        cell = np.array(
            [min((c for c in chosen if y[c] == y[i]), key=lambda c: apart[i, c]) for i in range(24)]
        )
        radius = apart[np.arange(24), cell].max()
        of_all, of_cells = losses.mean(), losses[cell].mean()
        assert abs(of_all - of_cells) <= radius + 1e-9
        gap, error = abs(of_all - losses[chosen].mean()), losses[chosen].mean(1).max()
        assert gap <= radius + error
        radii.append(radius)
        gaps.append(abs(of_all - of_cells))
    assert all(np.diff(radii) <= 1e-9)
    assert radii[-1] < 1e-6
    assert gaps[-1] < 1e-9


def test_negative_labels_are_ignored_and_names_are_labels() -> None:
    x, y = np.eye(3, dtype=np.float32), np.array([0, 0, 1])
    expected = metrics.violation_probability(x, y, beta=0.5, alpha=0.5)
    padded = np.concatenate([x, x]), np.concatenate([y, np.full(3, -1)])
    assert metrics.violation_probability(*padded, beta=0.5, alpha=0.5) == expected
    among = metrics.violation_probability(x, y, *padded, beta=0.5, alpha=0.5)
    assert among == metrics.violation_probability(x, y, x, y, beta=0.5, alpha=0.5)
    names = np.array(["b", "b", "a"])
    assert metrics.violation_probability(x, names, x, names, beta=0.5, alpha=0.5) == among


# A von Mises–Fisher mixture: its densities, its posterior, and ProxyNCA++ as a special case.

POINTS, PROXIES = (RNG.normal(size=(rows, 3)).astype(np.float32) for rows in (12, 4))
OF_POINTS = np.arange(12) % 4


def test_mixture_with_one_concentration_is_proxy_nca_pp() -> None:
    """Eq. 4: squared distances of unit vectors are 2 − 2s."""
    loss = jdml.proxy_nca_pp_loss(POINTS, OF_POINTS, PROXIES, temperature=0.2)
    likelihood = vmf_mixture_likelihood(POINTS, OF_POINTS, PROXIES, concentrations=2 / 0.2)
    np.testing.assert_allclose(likelihood, -float(loss), rtol=1e-5)


def test_mixture_with_concentrations_and_weights_per_class() -> None:
    kappas, weights = np.array([0.1, 4.0, 50.0, 2.0]), np.array([0.1, 0.2, 0.3, 0.4])
    unit, centres = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (POINTS, PROXIES))
    normalizers = kappas / (4 * np.pi * np.sinh(kappas))  # C_3
    parts = weights * normalizers * np.exp(kappas * (unit @ centres.T))
    expected = np.log(parts[np.arange(12), OF_POINTS] / parts.sum(1)).mean()
    actual = vmf_mixture_likelihood(
        POINTS, OF_POINTS, PROXIES, concentrations=kappas, weights=weights
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    hidden = np.where(np.arange(12) < 6, OF_POINTS, -1)
    half = vmf_mixture_likelihood(POINTS, hidden, PROXIES)
    expected = vmf_mixture_likelihood(POINTS[:6], OF_POINTS[:6], PROXIES)
    np.testing.assert_allclose(half, expected, rtol=1e-6)


def test_bessel_functions_of_large_orders_and_small_arguments() -> None:
    """Uniform expansion, Abramowitz & Stegun 9.7.7; small arguments: log I_v(2x) − log I_v(x) = v log 2."""
    for order, z in ((255.0, np.array([0.01, 0.1, 1, 10])), (1023.0, np.array([0.1, 0.3, 1]))):
        t = 1 / np.sqrt(1 + z**2)
        series = 1 + (3 * t - 5 * t**3) / 24 / order
        series += (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152 / order**2
        exponent = order * (1 / t + np.log(z / (1 + 1 / t)))
        expected = exponent - 0.5 * np.log(2 * np.pi * order / t) + np.log(series)
        np.testing.assert_allclose(_log_bessel(order, order * z), expected, rtol=1e-8)
    for order in (3.0, 29.0):
        x = np.array([1e-12, 1e-100, 1e-200])
        value = _log_bessel(order, 2 * x) - _log_bessel(order, x)
        np.testing.assert_allclose(value, order * np.log(2), rtol=1e-9)
    wide = np.concatenate([POINTS, np.zeros((12, 509), np.float32)], axis=1)
    value = vmf_mixture_likelihood(wide, OF_POINTS, wide[:4], concentrations=1e-12)
    np.testing.assert_allclose(value, -np.log(4), rtol=1e-6)  # all classes are equally likely
