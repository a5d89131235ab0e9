"""How well clusters of embeddings agree with their classes."""

import warnings
from typing import Any

import jax
import numpy as np
from jax import Array

from jdml.metrics.handed import handed_in
from jdml.ops import checks
from jdml.registry.extras import need


@handed_in
def nmi(
    embeddings: Array,
    labels: Array,
    num_clusters: int | None = None,
    key: Array | None = None,
    *,
    max_iterations: int = 20,
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

    Returns:
        A fraction in 0…1, normalized by the arithmetic mean of the entropies.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, an embedding that is not finite, more clusters than embeddings.
        ImportError: scikit-learn is not installed.

    Implementation notes:
        Runs on the host with scikit-learn, one k-means run from randomly chosen embeddings. Not for ``jit``.

    Paper settings:
        NIR and PML: 20 iterations (faiss). EPS: NMI+ with 10 × classes clusters (30 × on Omniglot's languages).

    Reference:
        Manning, Raghavan & Schütze, *Introduction to Information Retrieval*, §16.3.

    Example:
        >>> import jax.numpy as jnp
        >>> nmi(jnp.array([[0.0], [0.1], [5.0], [5.1]]), jnp.array([3, 3, 7, 7]))
        1.0
    """
    checks.check_concrete("nmi", embeddings, labels)
    checks.check_embeddings("embeddings", embeddings)
    checks.check_labels("labels", labels, embeddings.shape[0])
    labelled = np.asarray(labels) >= 0
    classes = np.asarray(labels)[labelled]
    clusters = len(np.unique(classes)) if num_clusters is None else num_clusters
    checks.count("num_clusters", clusters)
    checks.count("max_iterations", max_iterations)
    if clusters > len(classes):
        raise ValueError(
            f"num_clusters must be at most the number of embeddings, {len(classes)}, got {clusters}"
        )
    checks.check_finite("embeddings", embeddings, labelled)
    points = np.asarray(embeddings)[labelled].astype(np.float32)
    points = np.ldexp(points, -np.frexp(np.abs(points).max())[1])  # squares over- or underflow
    assigned = _k_means(points, clusters, _seed(key), max_iterations)

    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(classes, assigned, average_method="arithmetic"))


def _k_means(points: np.ndarray, clusters: int, seed: int, max_iterations: int) -> np.ndarray:
    need("sklearn", "NMI")
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    means = KMeans(clusters, init="random", n_init=1, max_iter=max_iterations, random_state=seed)
    with warnings.catch_warnings():
        # Fewer distinct embeddings than clusters, as after a collapse, is a result and no mistake.
        warnings.simplefilter("ignore", ConvergenceWarning)
        assigned: np.ndarray = means.fit_predict(points)
    return assigned


def _seed(key: Any) -> int:
    key = jax.random.key(0) if key is None else key
    return int(jax.random.randint(key, (), 0, np.iinfo(np.int32).max))
