"""Search on the host: one pass of a matrix product over a gallery, whose norms are known, and no compilation."""

import numpy as np

from jdml.metrics.gallery_search import Neighbors, by_distance, nearest_rows

SPARE = 32
"""Neighbours that are proposed beyond those that are wanted."""
BLOCK = 1 << 24
"""Scores that are computed at a time."""


def norms(part: np.ndarray) -> tuple[np.ndarray, float]:
    """Return ``‖g‖²/2`` of every row, and the largest norm: what a search needs to know of a gallery."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("nd,nd->n", part, part)
    return squares / 2, float(np.sqrt(squares.max()))


def exact_nearest(
    points: np.ndarray,
    part: np.ndarray,
    halves: np.ndarray,
    longest: float,
    k: int,
) -> Neighbors:
    """Return the k nearest rows: proposed by scores ``q · g − ‖g‖²/2``, ordered by distances from differences.

    ``halves [N]`` are ``‖g‖²/2``. Queries of which rounding could have hidden a neighbour are searched in a frame.
    """
    step = max(1, BLOCK // max(len(part), (k + SPARE) * points.shape[1]))
    if len(points) > step:
        starts = range(0, len(points), step)
        blocks = [exact_nearest(points[i : i + step], part, halves, longest, k) for i in starts]
        return np.concatenate([b[0] for b in blocks]), np.concatenate([b[1] for b in blocks])
    many = min(k + SPARE, len(part))
    scores = points @ part.T
    scores -= halves
    proposed = np.argpartition(scores, len(part) - many, axis=1)[:, len(part) - many :]
    neighbors = by_distance(points, part[proposed], proposed, k)
    if many == len(part):
        return neighbors
    best = np.sort(np.take_along_axis(scores, proposed, 1), axis=1)
    rounding = np.linalg.norm(points, axis=1) * longest + longest**2
    rounding *= 2 * points.shape[1] * np.finfo(np.float32).eps
    hidden = ~(best[:, many - k] - best[:, 0] > rounding)
    if hidden.any():
        exact = nearest_rows(points[hidden], part, many)
        for mine, theirs in zip(neighbors, exact, strict=True):
            mine[hidden] = theirs[:, :k]
    return neighbors
