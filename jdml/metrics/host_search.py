"""Search on the host: one pass of a matrix product over a gallery, whose norms are known, and no compilation."""

import numpy as np

from jdml.metrics.neighbors import nearest

SPARE = 32
"""Neighbours that are proposed beyond those that are wanted."""


def exact_nearest(
    points: np.ndarray, part: np.ndarray, halves: np.ndarray, longest: float, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest rows: proposed by scores ``q · g − ‖g‖²/2``, ordered by distances from differences."""
    many = min(k + SPARE, len(part))
    scores = points @ part.T
    scores -= halves
    proposed = np.argpartition(scores, len(part) - many, axis=1)[:, len(part) - many :]
    found = by_distance(points, part[proposed], proposed, k)
    if many == len(part):
        return found
    best = np.sort(np.take_along_axis(scores, proposed, 1), axis=1)
    rounding = np.linalg.norm(points, axis=1) * longest + longest**2
    rounding *= 2 * points.shape[1] * np.finfo(np.float32).eps
    hidden = ~(best[:, many - k] - best[:, 0] > rounding)
    if hidden.any():
        exact = compiled_nearest(points[hidden], part, k)
        for mine, theirs in zip(found, exact, strict=True):
            mine[hidden] = theirs
    return found


def by_distance(
    points: np.ndarray, vectors: np.ndarray, rows: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances to ``vectors [Q, c, D]`` and their rows, the k nearest by distance, then row."""
    distances = np.linalg.norm(points[:, None] - vectors, axis=-1)
    order = np.lexsort((rows, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, 1), np.take_along_axis(rows, order, 1)


def compiled_nearest(
    points: np.ndarray, gallery: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and rows of :func:`jdml.nearest` as NumPy's."""
    distances, rows = nearest(points, gallery, k)  # type: ignore[arg-type]
    return np.asarray(distances), np.asarray(rows)
