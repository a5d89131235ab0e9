"""Miners restated as loops over anchors: `(distances, positive, negative) -> (positive, negative)`.

Deterministic miners are stated whole; for random ones the oracle gives each row's candidates and
their probabilities, which tests compare with draws.
"""

import math

import numpy as np

Array = np.ndarray
Masks = tuple[Array, Array]


def all_pairs(
    labels: Array,
    reference_labels: Array | None = None,
    where: Array | None = None,
    reference_where: Array | None = None,
) -> Masks:
    """Positive where labels agree, negative where they differ; never a sample with itself."""
    others = labels if reference_labels is None else reference_labels
    shape = (len(labels), len(others))
    positive, negative = np.zeros(shape, bool), np.zeros(shape, bool)
    for i in range(shape[0]):
        for j in range(shape[1]):
            if labels[i] < 0 or others[j] < 0 or (reference_labels is None and i == j):
                continue
            if where is not None and not where[i]:
                continue
            if reference_labels is None and where is not None and not where[j]:
                continue
            if reference_where is not None and not reference_where[j]:
                continue
            (positive if labels[i] == others[j] else negative)[i, j] = True
    return positive, negative


def extreme(distances: Array, mask: Array, sign: int) -> Array:
    """Per row the one candidate of smallest sign·distance, the first of equals."""
    chosen = np.zeros_like(mask)
    for i in range(len(mask)):
        best = None
        for j in range(mask.shape[1]):
            if mask[i, j] and (best is None or sign * distances[i, j] < sign * distances[i, best]):
                best = j
        if best is not None:
            chosen[i, best] = True
    return chosen


def easy_positive(distances: Array, positive: Array, negative: Array) -> Masks:
    """EPS: only the nearest positive."""
    return extreme(distances, positive, 1), negative


def hard_positive(distances: Array, positive: Array, negative: Array) -> Masks:
    """Only the farthest positive."""
    return extreme(distances, positive, -1), negative


def hard_negative(distances: Array, positive: Array, negative: Array) -> Masks:
    """Only the nearest negative."""
    return positive, extreme(distances, negative, 1)


def trusted_negative(
    distances: Array, positive: Array, negative: Array, margin: float = 0.0
) -> Masks:
    """Negatives at most as similar as the most similar positive, less the margin."""
    similarity = 1 - distances**2 / 2
    kept = negative.copy()
    for i in range(len(positive)):
        for j in np.flatnonzero(negative[i] & positive[i].any()):
            kept[i, j] = similarity[i, j] <= similarity[i, positive[i]].max() - margin
    return positive, kept


def multi_similarity_pairs(
    distances: Array,
    positive: Array,
    negative: Array,
    epsilon: float = 0.1,
    mine_positives: bool = True,
) -> Masks:
    """Negatives with s + ε > the least positive s; positives with s − ε < the top negative s."""
    similarity = 1 - distances**2 / 2
    hard_positives, hard_negatives = np.zeros_like(positive), np.zeros_like(negative)
    for i in range(len(positive)):
        own, other = np.flatnonzero(positive[i]), np.flatnonzero(negative[i])
        if not len(own) or not len(other):
            continue
        least = min(similarity[i, j] for j in own)
        largest = max(similarity[i, j] for j in other)
        for j in other:
            hard_negatives[i, j] = similarity[i, j] + epsilon > least
        for j in own:
            hard_positives[i, j] = similarity[i, j] - epsilon < largest
    return (hard_positives if mine_positives else positive), hard_negatives


def distance_weights(
    distances: Array, candidates: Array, *, dim: int, cutoff: float = 0.5, max_distance: float = 1.4
) -> Array:
    """Probability of each negative ∝ 1/q(d), q(d) = d^{D−2} (1 − d²/4)^{(D−3)/2}.

    d is clipped below at `cutoff`; pairs beyond `max_distance` count only where a row has no other.
    """
    weights = np.zeros(distances.shape)
    for i in range(len(weights)):
        row = np.flatnonzero(candidates[i])
        near = [j for j in row if distances[i, j] <= max_distance]
        for j in near or row:
            d = max(float(distances[i, j]), cutoff)
            log_q = (dim - 2) * math.log(d) + (dim - 3) / 2 * math.log(1 - d * d / 4)
            weights[i, j] = math.exp(-log_q)
        if weights[i].any():
            weights[i] /= weights[i].sum()
    return weights
