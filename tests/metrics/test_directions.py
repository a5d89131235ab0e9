"""A mixture of von Mises–Fisher distributions: its densities, its posterior, and ProxyNCA++ as a special case."""

import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml.metrics import vmf_mixture_likelihood
from jdml.metrics.directions import _log_bessel, _log_normalizer

RNG = np.random.default_rng(0)
X, P = RNG.normal(size=(12, 3)).astype(np.float32), RNG.normal(size=(4, 3)).astype(np.float32)
Y = np.arange(12) % 4


def test_with_one_concentration_it_is_proxy_nca_pp() -> None:
    """Eq. 4: squared distances of unit vectors are 2 − 2s."""
    loss = jdml.proxy_nca_pp_loss(jnp.asarray(X), jnp.asarray(Y), jnp.asarray(P), temperature=0.2)
    likelihood = vmf_mixture_likelihood(X, Y, P, concentrations=2 / 0.2)
    np.testing.assert_allclose(likelihood, -float(loss), rtol=1e-5)


def test_densities_integrate_to_one() -> None:
    """On the sphere of R³ by a fine grid of angles to the direction."""
    angles = (np.arange(20_000) + 0.5) * np.pi / 20_000
    for kappa in (0.1, 3.0, 50.0):
        density = np.exp(_log_normalizer(np.array([kappa]), 3) + kappa * np.cos(angles))
        total = (density * 2 * np.pi * np.sin(angles)).sum() * np.pi / 20_000
        np.testing.assert_allclose(total, 1, rtol=1e-5)


def test_concentrations_and_weights_of_each_class() -> None:
    kappas, weights = np.array([1.0, 4.0, 9.0, 2.0]), np.array([0.1, 0.2, 0.3, 0.4])
    unit, centres = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (X, P))
    normalizers = kappas / (4 * np.pi * np.sinh(kappas))  # C_3
    parts = weights * normalizers * np.exp(kappas * (unit @ centres.T))
    expected = np.log(parts[np.arange(12), Y] / parts.sum(1)).mean()
    actual = vmf_mixture_likelihood(X, Y, P, concentrations=kappas, weights=weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    hidden = np.where(np.arange(12) < 6, Y, -1)
    half = vmf_mixture_likelihood(X, hidden, P)
    np.testing.assert_allclose(half, vmf_mixture_likelihood(X[:6], Y[:6], P), rtol=1e-6)


def test_bessel_functions_of_large_orders() -> None:
    from scipy.special import ive

    x = np.array([0.5, 5.0, 40.0, 300.0])
    for order in (31.0, 63.0):
        with np.errstate(divide="ignore"):
            exact = np.log(ive(order, x)) + x
        np.testing.assert_allclose(_log_bessel(order, x), exact, rtol=1e-8)
    assert np.isfinite(_log_bessel(255.0, np.array([0.01]))).all()  # where SciPy's underflows
    wide = np.concatenate([X, np.zeros((12, 509), np.float32)], axis=1)
    assert np.isfinite(
        vmf_mixture_likelihood(wide, Y, wide[:4], concentrations=[1.0, 2.0, 3.0, 0.1])
    )


def test_bessel_functions_that_underflow() -> None:
    """There the first term is all: log I_v(2x) − log I_v(x) = v log 2."""
    for order in (3.0, 29.0):
        x = np.array([1e-12, 1e-100, 1e-200])
        value = _log_bessel(order, 2 * x) - _log_bessel(order, x)
        np.testing.assert_allclose(value, order * np.log(2), rtol=1e-9)
    wide = np.concatenate([X, np.zeros((12, 57), np.float32)], axis=1)
    value = vmf_mixture_likelihood(wide, Y, wide[:4], concentrations=1e-12)
    np.testing.assert_allclose(value, -np.log(4), rtol=1e-6)  # all classes alike


def test_mistakes() -> None:
    def refuses(message, labels=Y, **given):
        with pytest.raises(ValueError, match=message):
            vmf_mixture_likelihood(X, labels, P, **given)

    refuses(
        r"concentrations must be a number or have shape \[4\], got \[2\]", concentrations=[1, 2]
    )
    refuses("concentrations must be finite and above 0, got .-1.0", concentrations=-1.0)
    refuses("weights must be finite and not negative", weights=[1, -1, 1, 1])
    refuses(r"labels\[3\] is 4, expected 0…3", labels=np.where(np.arange(12) == 3, 4, Y))


def test_numbers_that_are_none() -> None:
    x, y = jnp.eye(2), jnp.array([0, 1])
    with pytest.raises(ValueError, match="concentrations must be finite and above 0"):
        vmf_mixture_likelihood(x, y, x, concentrations=np.inf)
    with pytest.raises(ValueError, match="weights must be finite"):
        vmf_mixture_likelihood(x, y, x, concentrations=1.0, weights=[np.nan, 1.0])
    with pytest.raises(TypeError, match="concentrations must be numbers, got 'a'"):
        vmf_mixture_likelihood(x, y, x, concentrations="a")
