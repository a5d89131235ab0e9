"""How well clusters of embeddings agree with their classes."""

import warnings
from typing import Any

import jax
import numpy as np
from jax import Array

from jdml._optional_imports import require_package
from jdml.metrics.array_conversion import accepts_any_array, as_groups, labelled_rows
from jdml.ops import checks


@accepts_any_array()
def nmi(
    embeddings: Array,
    labels: Array,
    num_clusters: int | None = None,
    key: Array | None = None,
    *,
    max_iterations: int = 20,
    n_init: int = 1,
) -> float:
    """Compute the normalized mutual information between the classes and a k-means clustering of the embeddings.

    Formula:
        ``2 I(classes; clusters) / (H(classes) + H(clusters))``

    1 where clusters and classes are the same partition, near 0 where they have nothing to do with each other.

    Args:
        embeddings: ``[N, D]``, clustered as given.
        labels: ``[N]`` integers, or class names; rows with a negative label take no part, not in the clusters either.
        num_clusters: how many clusters, default the number of classes. NMI+ takes a multiple of it.
        key: of the random first centres; default ``jax.random.key(0)``.
        max_iterations: of Lloyd's algorithm, which stops earlier where nothing moves any more.
        n_init: how many k-means runs, of which the one with the least inertia counts. One run depends on its key.

    Returns:
        A fraction in 0…1, normalized by the arithmetic mean of the entropies.

    Raises:
        ValueError: no row that has a class, an embedding that is not finite, more clusters than embeddings.
        ImportError: scikit-learn is not installed.

    Implementation notes:
        Runs on the host with scikit-learn's k-means from randomly chosen embeddings. Not for ``jit``.

    Paper settings:
        NIR and PML: one run of 20 iterations (faiss). EPS: NMI+ with 10 × classes clusters (30 × on Omniglot).

    Reference:
        Manning, Raghavan & Schütze, *Introduction to Information Retrieval*, §16.3.

    Example:
        >>> import jax.numpy as jnp
        >>> nmi(jnp.array([[0.0], [0.1], [5.0], [5.1]]), jnp.array([3, 3, 7, 7]))
        1.0
    """
    return _normalized(*_clustered(embeddings, labels, num_clusters, key, max_iterations, n_init))


@accepts_any_array()
def agreement(embeddings: Array, labels: Array) -> dict[str, float]:
    """Cluster once, and measure by all that there is."""
    if not np.any(np.asarray(labels) >= 0):
        return {"NMI": 0.0, "AMI": 0.0}
    both = _clustered(embeddings, labels, None, None, 20, 1)
    return {"NMI": _normalized(*both), "AMI": adjusted_mutual_information(*both)}


def _normalized(classes: np.ndarray, clusters: np.ndarray) -> float:
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(classes, clusters, average_method="arithmetic"))


def _clustered(
    embeddings: Array,
    labels: Array,
    num_clusters: int | None,
    key: Any,
    max_iterations: int,
    n_init: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The classes and the clusters of the embeddings that have a class."""
    require_package("sklearn", "NMI")
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    every, labelled = labelled_rows("nmi", embeddings, labels)
    classes = every[labelled]
    clusters = len(np.unique(classes)) if num_clusters is None else num_clusters
    checks.count("num_clusters", clusters)
    if clusters > len(classes):
        raise ValueError(f"num_clusters must be at most the {len(classes)} rows, got {clusters}")
    checks.check_finite("embeddings", embeddings, labelled)
    points = np.asarray(embeddings)[labelled].astype(np.float32)
    points = np.ldexp(points, -np.frexp(np.abs(points).max())[1])  # squares over- or underflow
    key = jax.random.key(0) if key is None else key
    means = KMeans(
        clusters,
        init="random",
        n_init=n_init,
        max_iter=max_iterations,
        random_state=int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max)),
    )
    with warnings.catch_warnings():
        # Fewer distinct embeddings than clusters, as after a collapse, is a result and no mistake.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return classes, means.fit_predict(points)


def adjusted_mutual_information(labels: Any, clusters: Any) -> float:
    """Compute how far two partitions, classes and clusters, agree beyond what chance gives partitions of these sizes.

    Formula:
        ``(I − E[I]) / ((H(labels) + H(clusters)) / 2 − E[I])``, with the expectation over all ways to deal the rows to
        parts of the given sizes (the hypergeometric model).

    Take it where :func:`nmi` flatters: many clusters, few rows in each, as with a class per product. A partition at
    random scores 0, whatever its number of parts.

    Args:
        labels: ``[N]`` integers, or class names; rows with a negative label take no part.
        clusters: ``[N]`` integers, or names.

    Returns:
        At most 1, which equal partitions have; below 0 where they agree less than by chance.

    Raises:
        TypeError: neither integers nor names.
        ValueError: shapes that do not fit, no row that has a class.

    Implementation notes:
        By scikit-learn, in float64 on the host.

    Reference:
        Vinh, Epps & Bailey, *Information Theoretic Measures for Clusterings Comparison*, eq. 24a and 25.

    Example:
        >>> adjusted_mutual_information([0, 0, 1, 1], ["b", "b", "a", "a"])
        1.0
        >>> round(adjusted_mutual_information([0, 0, 1, 1], [0, 1, 2, 3]), 4)  # 0.6667 by nmi
        0.0
    """
    classes, parts = as_groups("labels", labels), as_groups("clusters", clusters)
    if classes.ndim != 1 or classes.shape != parts.shape:
        raise ValueError(
            f"labels and clusters must have shape [N], got {list(classes.shape)} and {list(parts.shape)}"
        )
    if classes.dtype.kind not in "US":
        classes, parts = classes[classes >= 0], parts[classes >= 0]
    if not len(classes):
        raise ValueError("labels must hold at least one class, got none")
    require_package("sklearn", "adjusted mutual information")
    from sklearn.metrics import adjusted_mutual_info_score

    return float(adjusted_mutual_info_score(classes, parts))
