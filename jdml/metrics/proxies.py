"""How proxies lie: how far from their embeddings and from each other, and as von Mises–Fisher mixtures."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jax import Array

from jdml.metrics.array_conversion import accepts_any_array, as_text, labelled_rows, unit_rows
from jdml.ops import checks

Kind = Literal["assignment", "nearest", "represented"]


@accepts_any_array()
def proxy_distance(
    proxies: Array, embeddings: Array, labels: Array, kind: Kind = "assignment"
) -> float:
    """Measure how far the proxies of a class are from the embeddings that they stand for.

    Formula:
        ``"assignment"``: per class ``min_π (1/K) Σ_k ‖p_k − z_π(k)‖`` over all choices of K different embeddings of
        the class; ``"nearest"``: per class ``(1/K) Σ_k min_z ‖p_k − z‖``, each proxy for itself; ``"represented"``: per
        class the mean over its proxies of the mean distance to all embeddings that are nearer to this proxy than to
        the class's others. Then the mean over the classes.

    Args:
        proxies: ``[C, K, D]`` or ``[C, D]``, taken on the unit sphere.
        embeddings: ``[N, D]``, taken on the unit sphere.
        labels: ``[N]`` integers in 0…C−1; rows with a negative label take no part.
        kind: which of the three.

    Returns:
        A Euclidean distance, 0…2.

    Raises:
        ValueError: labels out of range, another kind, no row that takes part, one that is not finite.

    Implementation notes:
        Runs on the host (SciPy's linear assignment); not for ``jit``. The paper's corollary has the first kind; its
        words, the subset of the data represented by a proxy, also allow the third. For one proxy per class it takes
        the closest embedding, as the first two do; the third is then the mean distance to the whole class. Classes
        without an embedding are left out, and of the third kind proxies to which no embedding is nearest; in a class
        with fewer embeddings than proxies only so many proxies, the best ones, are assigned. None of the three sees
        proxies that all lie on one point: see :func:`proxy_spread`.

    Reference:
        Bhatnagar & Ahuja, *Potential Field Based Deep Metric Learning*, Table 3 and corollary 1, where it is called a
        Wasserstein distance.

    Example:
        >>> import jax.numpy as jnp
        >>> p = jnp.array([[[1.0, 0.0], [0.8, 0.6]]])
        >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0, 0])
        >>> round(proxy_distance(p, x, y), 4), round(proxy_distance(p, x, y, kind="nearest"), 4)
        (0.4472, 0.3162)
    """
    checks.one_of("kind", kind, get_args(Kind))
    centres = _units("proxy_distance", proxies)
    by_class = _by_class("proxy_distance", centres, embeddings, labels)
    return float(np.mean([_class_distance(costs, kind) for _, costs in by_class]))


class ProxySpread(NamedTuple):
    """How a class's proxies are spread: see :func:`proxy_spread`.

    Attributes:
        together: the share of the pairs of a class's proxies that are at most δ apart.
        distance: the mean distance between two proxies of a class.
        covered: the share of a class's modes that have a proxy of the class at most δ from one of their embeddings;
            None where no modes were given.
    """

    together: float
    distance: float
    covered: float | None = None


@accepts_any_array()
def proxy_spread(
    proxies: Array,
    embeddings: Array | None = None,
    labels: Array | None = None,
    modes: Array | None = None,
    *,
    delta: float = 0.2,
) -> ProxySpread:
    """Measure whether the proxies of a class stand for different things: how many lie together, what they cover.

    Formula:
        ``together``: per class the share of its ``K (K − 1) / 2`` pairs with ``‖p_k − p_l‖ ≤ δ``; ``distance``: their
        mean distance; ``covered``: per class the share of its modes m with ``min_{k, z∈m} ‖p_k − z‖ ≤ δ``. Then the
        mean over the classes.

    A small :func:`proxy_distance` says that proxies are near the data, and not that they are near *different* data: K
    proxies on one embedding have a small one, and act as a single proxy.

    Args:
        proxies: ``[C, K, D]`` or ``[C, D]``, taken on the unit sphere.
        embeddings: ``[N, D]``, taken on the unit sphere, where modes are looked for.
        labels: ``[N]`` integers in 0…C−1, the classes of the embeddings; rows with a negative one take no part.
        modes: ``[N]``, what the classes consist of, by number or name: digits where the classes are even and odd.
        delta: δ, a Euclidean distance.

    Returns:
        :class:`ProxySpread`. With one proxy per class there are no pairs: ``together`` and ``distance`` are 0.

    Raises:
        ValueError: labels out of range, δ not positive, only some of ``embeddings``, ``labels`` and ``modes``, a row
            that is not finite.

    Implementation notes:
        Runs on the host; not for ``jit``. Two classes may share a mode's name: each has its own.

    Example:
        >>> import jax.numpy as jnp
        >>> p = jnp.array([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]])
        >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), jnp.array([0, 0, 0])
        >>> [round(value, 2) for value in proxy_spread(p, x, y, jnp.array([4, 6, 8]))]
        [0.33, 0.95, 0.67]
    """
    checks.positive("delta", delta)
    is_there = [value is not None for value in (embeddings, labels, modes)]
    if any(is_there) and not all(is_there):
        raise ValueError(
            "embeddings, labels and modes tell together which modes are covered: give all of them or none"
        )
    centres = _units("proxy_spread", proxies)
    spread = _pairs(centres, delta)
    if embeddings is None:
        return ProxySpread(*spread)
    by_class = _by_class("proxy_spread", centres, embeddings, labels)
    names = np.asarray(modes)
    if names.shape != (len(embeddings),):
        raise ValueError(
            f"modes must have shape [{len(embeddings)}], one for each of embeddings, got {list(names.shape)}"
        )
    names = as_text(names)  # numbers and None beside names
    covered = []
    for rows, costs in by_class:
        own, reached = names[rows], costs.min(axis=0) <= delta
        covered.append(np.mean([reached[own == mode].any() for mode in np.unique(own)]))
    return ProxySpread(*spread, float(np.mean(covered)))


def _by_class(
    function: str, centres: np.ndarray, embeddings: Any, labels: Any
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The rows ``[N]`` of each class that has some, and how far its proxies are from these ``[K, n]``; checked."""
    from scipy.spatial.distance import cdist

    owners, rows = labelled_rows(function, embeddings, labels)
    checks.check_embeddings("embeddings", embeddings, dim=centres.shape[2], like="proxies")
    checks.check_classes(owners, len(centres), "proxies")
    checks.check_finite("embeddings", embeddings, rows)
    points = unit_rows(embeddings)
    # One after the other: all masks together take C · N bytes.
    masks = ((owners == c, centre) for c, centre in enumerate(centres))
    return ((own, cdist(centre, points[own])) for own, centre in masks if own.any())


def _units(function: str, proxies: Array) -> np.ndarray:
    """``[C, K, D]`` on the unit sphere, in float64; checked."""
    checks.check_concrete(function, proxies)
    centres = checks.as_centres("proxies", proxies)
    checks.check_finite("proxies", centres)
    return unit_rows(centres)


def _class_distance(costs: np.ndarray, kind: Kind) -> float:
    from scipy.optimize import linear_sum_assignment

    if kind == "nearest":
        return float(costs.min(axis=1).mean())
    if kind == "assignment":
        return float(costs[linear_sum_assignment(costs)].mean())
    nearest = costs.argmin(axis=0)
    means = [costs[k, nearest == k].mean() for k in np.unique(nearest)]
    return float(np.mean(means))


def _pairs(centres: np.ndarray, delta: float) -> tuple[float, float]:
    """The share of a class's pairs of proxies within δ, and their mean distance."""
    from scipy.spatial.distance import pdist

    if centres.shape[1] == 1:
        return 0.0, 0.0
    apart = np.stack([pdist(of_class) for of_class in centres])
    return float((apart <= delta).mean()), float(apart.mean())


@accepts_any_array()
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
        ValueError: labels out of range, no row that takes part, one that is not finite, a κ or π out of range.

    Implementation notes:
        Runs on the host in float64 (SciPy's Bessel functions, and their series where these underflow); not for
        ``jit``. Each component is the same in all directions around its proxy: it cannot tell the modes of a class.

    Reference:
        Roth, Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*, eq. 2 and 3.

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0, 1])
        >>> round(vmf_mixture_likelihood(x, y, jnp.eye(2), concentrations=2.0), 4)
        -0.1269
    """
    from scipy.special import logsumexp

    checks.check_concrete("vmf_mixture_likelihood", proxies)
    owners, rows = labelled_rows("vmf_mixture_likelihood", embeddings, labels)
    checks.check_embeddings("proxies", proxies, dim=embeddings.shape[1], like="embeddings")
    classes, dim = proxies.shape
    checks.check_classes(owners, classes, "proxies")
    checks.check_finite("embeddings", embeddings, rows)
    checks.check_finite("proxies", proxies)
    kappas, shares = np.asarray(concentrations), np.asarray(1 if weights is None else weights)
    for name, values in (("concentrations", kappas), ("weights", shares)):
        checks.check_weights(name, values, (), (classes,))
    kappas = np.broadcast_to(kappas.astype(np.float64), (classes,))
    if not ((kappas > 0) & np.isfinite(kappas)).all():
        raise ValueError(f"concentrations must be finite and above 0, got {kappas.tolist()}")
    shares = np.broadcast_to(shares.astype(np.float64), (classes,))
    if not ((shares >= 0) & np.isfinite(shares)).all() or shares.sum() == 0:
        raise ValueError(
            f"weights must be finite and not negative, nor all 0, got {shares.tolist()}"
        )
    units, directions = unit_rows(embeddings)[rows], unit_rows(proxies)
    order = dim / 2 - 1
    normalizers = order * np.log(kappas) - dim / 2 * np.log(2 * np.pi) - _log_bessel(order, kappas)
    with np.errstate(divide="ignore"):
        parts = np.log(shares) + normalizers + kappas * (units @ directions.T)
    of_class = parts[np.arange(len(parts)), owners[rows]]
    return float((of_class - logsumexp(parts, axis=1)).mean())


def _log_bessel(order: float, x: np.ndarray) -> np.ndarray:
    """``log I_order(x)``: SciPy's, or its series where that underflows, as it does where x is small for the order."""
    from scipy.special import gammaln, ive, logsumexp

    with np.errstate(divide="ignore"):
        logarithms: np.ndarray = np.log(ive(order, x)) + x
    low = logarithms - x < -660
    j = np.arange(1000.0)[:, None]
    terms = (order + 2 * j) * np.log(x[low] / 2) - gammaln(j + 1) - gammaln(order + j + 1)
    logarithms[low] = logsumexp(terms, axis=0)
    return logarithms
