"""How embeddings, and the proxies that stand for them, lie in space."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import ops
from jdml.ops import checks


def proxy_distance(
    proxies: Array,
    embeddings: Array,
    labels: Array,
    kind: Literal["assignment", "nearest"] = "assignment",
) -> float:
    """How far the proxies of a class are from the embeddings that they stand for.

    Formula:
        ``"assignment"``: per class ``min_π (1/K) Σ_k ‖p_k − z_π(k)‖`` over all choices of K different embeddings of
        the class; ``"nearest"``: per class ``(1/K) Σ_k min_z ‖p_k − z‖``, each proxy for itself. Then the mean over
        the classes. Both are the distance to the closest embedding where K = 1.

    Args:
        proxies: ``[C, K, D]`` or ``[C, D]``, taken on the unit sphere.
        embeddings: ``[N, D]``, taken on the unit sphere.
        labels: ``[N]`` integers in 0…C−1.
        kind: which of the two.

    Returns:
        A Euclidean distance, 0…2.

    Raises:
        TypeError: arguments of the wrong kind.
        ValueError: shapes that do not fit, labels out of range, another kind, no embedding at all.

    Implementation notes:
        Runs on the host (SciPy's linear assignment); not for ``jit``. Classes without an embedding are left out; in a
        class with fewer embeddings than proxies only so many proxies, the best ones, are assigned.

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
    checks.check_concrete("proxy_distance", proxies, embeddings, labels)
    if kind not in ("assignment", "nearest"):
        raise ValueError(f'kind must be "assignment" or "nearest", got {kind!r}')
    centres = checks.as_centres("proxies", proxies)
    classes, _, dim = centres.shape
    checks.check_embeddings("embeddings", embeddings, dim=dim, like="proxies")
    checks.check_labels("labels", labels, len(embeddings))
    owners = np.asarray(labels)
    outside = (owners < 0) | (owners >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(f"labels[{row}] is {owners[row]}, expected 0…{classes - 1}")
    if len(owners) == 0:
        raise ValueError("embeddings must hold at least one row, got none")
    units = np.asarray(ops.sphere(jnp.asarray(embeddings)), np.float64)
    centre_units = np.asarray(ops.sphere(centres), np.float64)
    found = [
        _distance(centre_units[c], units[owners == c], kind)
        for c in range(classes)
        if (owners == c).any()
    ]
    return float(np.mean(found))


def _distance(proxies: np.ndarray, points: np.ndarray, kind: str) -> float:
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    costs = cdist(proxies, points)
    if kind == "nearest":
        return float(costs.min(axis=1).mean())
    return float(costs[linear_sum_assignment(costs)].mean())
