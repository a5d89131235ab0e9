"""Proxies as directions of a mixture of von Mises–Fisher distributions: what proxy losses assume of a class."""

from typing import Any

import numpy as np
from jax import Array

from jdml.metrics.array_conversion import accepts_any_array, unit_rows
from jdml.ops import checks

LARGE_ORDER = 30.0
"""Of Bessel functions, from which on their uniform expansion is exact to 1e-9."""


@accepts_any_array
def vmf_mixture_likelihood(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    concentrations: float | Any = 16.0,
    weights: Any = None,
) -> float:
    """Measure how likely samples belong to their class in a mixture of von Mises–Fisher distributions around proxies.

    Formula:
        ``mean_i log [π_y C_d(κ_y) e^{κ_y s(x_i, ρ_y)} / Σ_c π_c C_d(κ_c) e^{κ_c s(x_i, ρ_c)}]`` with
        ``C_d(κ) = κ^{d/2−1} / ((2π)^{d/2} I_{d/2−1}(κ))``.

    Args:
        embeddings: ``[N, D]``, taken on the unit sphere.
        labels: ``[N]`` integers in 0…C−1; rows with a negative label take no part.
        proxies: ``[C, D]``, taken on the unit sphere.
        concentrations: κ > 0, a number or ``[C]``.
        weights: π, ``[C]`` ≥ 0; None: all alike.

    Returns:
        The mean log-likelihood, at most 0. With one κ for all it is −ProxyNCA++ with a temperature of 2/κ.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, labels out of range, no row that takes part, one that is not
            finite, a κ or π out of range.

    Implementation notes:
        Runs on the host in float64 (SciPy's Bessel functions, their first term where these underflow, and the uniform
        expansion for large orders); not for ``jit``. Each component is the same in all directions around its proxy: it
        cannot tell the modes of a class.

    Reference:
        Roth, Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*, eq. 2 and 3.

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
        >>> round(vmf_mixture_likelihood(x, y, jnp.eye(2), concentrations=2.0), 4)
        -0.1269
    """
    from scipy.special import logsumexp

    checks.check_concrete("vmf_mixture_likelihood", embeddings, labels, proxies)
    x, centres = embeddings, proxies
    checks.check_embeddings("embeddings", x)
    checks.check_embeddings("proxies", centres, dim=x.shape[1], like="embeddings")
    checks.check_labels("labels", labels, len(x))
    owners, (classes, dim) = np.asarray(labels), centres.shape
    if (owners >= classes).any():
        row = int((owners >= classes).argmax())
        raise ValueError(f"labels[{row}] is {owners[row]}, expected 0…{classes - 1}")
    rows = owners >= 0
    if not rows.any():
        raise ValueError("labels must hold at least one class, got none")
    checks.check_finite("embeddings", x, rows)
    checks.check_finite("proxies", centres)
    kappas = _of_classes("concentrations", concentrations, classes)
    if not ((kappas > 0) & np.isfinite(kappas)).all():
        raise ValueError(f"concentrations must be finite and above 0, got {kappas.tolist()}")
    shares = _of_classes("weights", 1.0 if weights is None else weights, classes)
    if not ((shares >= 0) & np.isfinite(shares)).all() or shares.sum() == 0:
        raise ValueError(
            f"weights must be finite and not negative, nor all 0, got {shares.tolist()}"
        )
    units, directions = unit_rows(x)[rows], unit_rows(centres)
    with np.errstate(divide="ignore"):
        parts = np.log(shares) + _log_normalizer(kappas, dim) + kappas * (units @ directions.T)
    of_class = parts[np.arange(len(parts)), owners[rows]]
    return float((of_class - logsumexp(parts, axis=1)).mean())


def _of_classes(name: str, values: Any, classes: int) -> np.ndarray:
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers, got {values!r}") from error
    if numbers.shape not in ((), (classes,)):
        raise ValueError(
            f"{name} must be a number or have shape [{classes}], got {list(numbers.shape)}"
        )
    return np.broadcast_to(numbers, (classes,))


def _log_normalizer(kappas: np.ndarray, dim: int) -> np.ndarray:
    """``log C_d(κ)``."""
    order = dim / 2 - 1
    return order * np.log(kappas) - dim / 2 * np.log(2 * np.pi) - _log_bessel(order, kappas)


def _log_bessel(order: float, x: np.ndarray) -> np.ndarray:
    """``log I_order(x)``: SciPy's, or for large orders the uniform expansion (Abramowitz & Stegun 9.7.7)."""
    from scipy.special import gammaln, ive

    if order < LARGE_ORDER:
        values, first_term = ive(order, x), order * np.log(x / 2) - gammaln(order + 1)
        there = values > 0
        return np.where(there, np.log(np.where(there, values, 1.0)) + x, first_term)
    z = x / order
    root = np.sqrt(1 + z * z)
    t = 1 / root
    exponent = root + np.log(z / (1 + root))
    first = (3 * t - 5 * t**3) / 24
    second = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    third = (30375 * t**3 - 369603 * t**5 + 765765 * t**7 - 425425 * t**9) / 414720
    series = 1 + first / order + second / order**2 + third / order**3
    leading = order * exponent - 0.5 * np.log(2 * np.pi * order) - 0.5 * np.log(root)
    expanded: np.ndarray = leading + np.log(series)
    return expanded
