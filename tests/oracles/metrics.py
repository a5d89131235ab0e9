"""Retrieval metrics query by query, rank by rank, in Python and NumPy float64."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def ranked(query: Array, gallery: Array, skip: Sequence[int] = ()) -> list[int]:
    """Gallery rows by (distance, index), without the rows `skip`."""
    query, gallery = query.astype(np.float64), gallery.astype(np.float64)
    distances = [math.sqrt(float(np.sum((query - row) ** 2))) for row in gallery]
    rows = [j for j in range(len(gallery)) if j not in skip]
    return sorted(rows, key=lambda j: (distances[j], j))


def recall(hits: Sequence[bool], k: int) -> float:
    return float(any(hits[:k]))


def r_precision(hits: Sequence[bool], relevant: int) -> float:
    return sum(hits[:relevant]) / relevant


def summed_precision(hits: Sequence[bool], k: int) -> float:
    right, total = 0, 0.0
    for rank, hit in enumerate(hits[:k], start=1):
        if hit:
            right += 1
            total += right / rank
    return total


def map_at_r(hits: Sequence[bool], relevant: int) -> float:
    return summed_precision(hits, relevant) / relevant


def map_at_k(hits: Sequence[bool], relevant: int, k: int, divisor: str = "min") -> float:
    return (
        summed_precision(hits, k) / {"min": min(k, relevant), "k": k, "relevant": relevant}[divisor]
    )


def ndcg(hits: Sequence[bool], relevant: int, k: int) -> float:
    gained = sum(1 / math.log2(rank + 1) for rank, hit in enumerate(hits[:k], start=1) if hit)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, relevant) + 1))
    return gained / best


def per_query(
    queries: Array,
    query_labels: Array,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    self_index: Array | None = None,
    ignore: Any = None,
    *,
    relevant: Array | None = None,
    mrr: bool = False,
    recall_at: Sequence[int] = (),
    precision_at: Sequence[int] = (),
    true_recall_at: Sequence[int] = (),
    ndcg_at: Sequence[int] = (),
    map_at: Sequence[int] = (),
) -> dict[str, Array]:
    """Return every metric of every query, NaN for a query without a match or with a negative label.

    Right answers are those of a matrix `relevant`, or the rows of the query's label.
    """
    if gallery is None:
        gallery, gallery_labels = queries, query_labels
        self_index = np.arange(len(queries)) if self_index is None else self_index
    if relevant is None:
        relevant = of_one_class(query_labels, gallery_labels)
    itself = np.full(len(queries), -1) if self_index is None else self_index
    rows: list[dict[str, float]] = []
    for i, query in enumerate(queries):
        skip = {itself[i]} | {j for j in range(len(gallery)) if is_ignored(ignore, relevant, i, j)}
        hits = [bool(relevant[i, j]) for j in ranked(query, gallery, skip)]
        total = sum(hits)
        if not total:
            rows.append({})
            continue
        row = {"P@1": float(hits[0])} | ({"MRR": 1 / (1 + hits.index(True))} if mrr else {})
        row["RP"], row["MAP@R"] = r_precision(hits, total), map_at_r(hits, total)
        row |= {f"R@{k}": recall(hits, k) for k in recall_at}
        row |= {f"P@{k}": sum(hits[:k]) / k for k in precision_at}
        row |= {f"recall(true)@{k}": sum(hits[:k]) / total for k in true_recall_at}
        row |= {f"nDCG@{k}": ndcg(hits, total, k) for k in ndcg_at}
        row |= {f"MAP@{k}": map_at_k(hits, total, k) for k in map_at}
        rows.append(row)
    names = {name for row in rows for name in row}
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}


def mean_of_classes(values: Array, labels: Array) -> float:
    """Return the mean over classes of the mean over the class's queries that have a value."""
    judged = [(label, value) for label, value in zip(labels, values, strict=True) if value == value]
    classes = {label for label, _ in judged}
    return float(np.mean([np.mean([v for own, v in judged if own == c]) for c in classes]))


def of_one_class(labels: Array, theirs: Array) -> Array:
    """Return which pairs are of one class; a negative label is no class."""
    same: Array = (labels[:, None] == theirs) & (labels[:, None] >= 0)
    return same


def is_ignored(ignore: Any, relevant: Array, i: int, j: int) -> bool:
    """Return whether a pair is ignored: by a matrix, or because both are of one group and one class."""
    if ignore is None or not isinstance(ignore, tuple):
        return ignore is not None and bool(ignore[i, j])
    groups, theirs = ignore
    return bool(groups[i] == theirs[j] and relevant[i, j])


def reidentified(
    distances: Array, people: Array, cameras: Array, their_people: Array, their_cameras: Array
) -> tuple[Array, float]:
    """Return the cumulative matching curve and the mean average precision, by the protocol of Market-1501.

    Zheng et al., *Scalable Person Re-identification: A Benchmark*, §5.1: of each query's ranked list good images are
    those of the person by another camera, junk those by the same camera, which are removed from the list.
    """
    curves, precisions = [], []
    for row, person, camera in zip(distances, people, cameras, strict=True):
        order = np.argsort(row, kind="stable")
        junk = (their_people[order] == person) & (their_cameras[order] == camera)
        good = (their_people[order] == person)[~junk]
        if not good.any():
            continue  # never seen by another camera
        places = np.flatnonzero(good) + 1
        curves.append(np.arange(1, len(order) + 1) >= places[0])
        precisions.append(np.mean(np.arange(1, len(places) + 1) / places))
    return np.mean(curves, axis=0), float(np.mean(precisions))


def nmi(classes: Array, clusters: Array) -> float:
    """Mutual information over the mean of the two entropies."""
    size = len(classes)

    def entropy(parts: Array) -> float:
        shares = [float(np.sum(parts == part)) / size for part in set(parts.tolist())]
        return -sum(share * math.log(share) for share in shares)

    information = 0.0
    for a in set(classes.tolist()):
        for b in set(clusters.tolist()):
            joint = float(np.sum((classes == a) & (clusters == b))) / size
            if joint:
                apart = float(np.mean(classes == a)) * float(np.mean(clusters == b))
                information += joint * math.log(joint / apart)
    return 2 * information / (entropy(classes) + entropy(clusters))


def labelled_pairs(
    queries: Array,
    labels: Array,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    *,
    self_index: Array | None = None,
    ignore: Any = None,
) -> tuple[Array, Array]:
    """Return distance and equality of class for every pair of labelled rows; within queries each pair once."""
    alone = gallery is None
    others, theirs = (queries, labels) if alone else (gallery, gallery_labels)
    apart, same = [], []
    for i, query in enumerate(queries):
        for j, row in enumerate(others):
            if labels[i] < 0 or theirs[j] < 0 or (alone and j <= i):
                continue
            both = ((i, j), (j, i)) if alone else ((i, j),)  # either order excludes the pair
            if self_index is not None and any(self_index[a] == b for a, b in both):
                continue
            if not any(is_ignored(ignore, of_one_class(labels, theirs), a, b) for a, b in both):
                difference = query.astype(np.float64) - row.astype(np.float64)
                apart.append(math.sqrt(float(np.sum(difference**2))))
                same.append(labels[i] == theirs[j])
    return np.array(apart), np.array(same)


def verification(*data: Array, **options: Any) -> dict[str, float]:
    """Return the rates at every occurring distance; the last argument lists the false accept rates."""
    *data, rates = data  # type: ignore[assignment]
    apart, same = labelled_pairs(*data, **options)
    right, wrong = apart[same], apart[~same]
    values = sorted(set(apart.tolist()))
    points = [(0.0, 0.0)]
    points += [(float(np.mean(wrong <= v)), float(np.mean(right <= v))) for v in values]
    beats = sum(float(np.sum(r < wrong) + 0.5 * np.sum(r == wrong)) for r in right)
    scores = {"AUC": beats / len(right) / len(wrong), "right": len(right), "wrong": len(wrong)}
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x1 >= 1 - y1:
            share = (1 - y0 - x0) / (x1 - x0 + y1 - y0)  # interpolates to x = 1 − y
            scores["EER"] = x0 + share * (x1 - x0)
            break
    for rate in rates:
        last = max(n for n, (x, _) in enumerate(points) if x <= rate)
        scores[f"TAR@FAR={rate:g}"] = points[last][1]
        scores[f"threshold@FAR={rate:g}"] = threshold(values, last)
    return scores


def threshold(values: Sequence[float], accepted: int) -> float:
    """Return the midpoint of the last accepted distance and the next."""
    if not accepted:
        return 0.0 if values[0] > 0 else -1.0
    return (values[accepted - 1] + values[min(accepted, len(values) - 1)]) / 2


def open_set(
    queries: Array,
    labels: Array,
    gallery: Array,
    theirs: Array,
    rates: Sequence[float],
    **options: Any,
) -> dict[str, float]:
    """Return open-set rates by each query's nearest row; queries of classes not in the gallery should be rejected."""
    own, ignore = options.get("self_index"), options.get("ignore")
    known, unknown = [], []
    for i, query in enumerate(queries):
        rows = [
            j
            for j in range(len(gallery))
            if (own is None or own[i] != j)
            and not is_ignored(ignore, of_one_class(labels, theirs), i, j)
        ]
        first = ranked(query, gallery, set(range(len(gallery))) - set(rows))[0]
        apart = math.sqrt(float(np.sum((query.astype(np.float64) - gallery[first]) ** 2)))
        if any(theirs[j] == labels[i] >= 0 for j in rows):
            known.append((apart, bool(theirs[first] == labels[i])))
        else:
            unknown.append(apart)
    values = sorted({apart for apart, _ in known} | set(unknown))
    scores = {"R@1": sum(right for _, right in known) / len(known)}
    for rate in rates:
        fits = [
            n
            for n, v in enumerate(values, 1)
            if sum(u <= v for u in unknown) / len(unknown) <= rate
        ]
        accepted = max(fits, default=0)
        limit = values[accepted - 1] if accepted else -1.0
        answered = sum(right and apart <= limit for apart, right in known)
        scores[f"DIR@FAR={rate:g}"] = answered / len(known)
        scores[f"threshold@FAR={rate:g}"] = threshold(values, accepted)
    return scores | {"known": len(known), "unknown": len(unknown)}


def reranked(queries: Array, gallery: Array, k1: int, k2: int, weight: float) -> Array:
    """Return k-reciprocal distances by sets, row by row (Zhong et al., eq. 1 to 12)."""
    every = np.concatenate([queries, gallery]).astype(np.float64)
    apart = np.sqrt(((every[:, None] - every[None]) ** 2).sum(-1))
    order = [
        [i, *sorted(set(range(len(every))) - {i}, key=lambda j, i=i: (apart[i, j], j))]
        for i in range(len(every))
    ]

    def mutual(p: int, k: int) -> set[int]:
        return {g for g in order[p][: k + 1] if p in order[g][: k + 1]}

    encoded = np.zeros_like(apart)
    for p in range(len(every)):
        own = mutual(p, k1)
        wide = set(own)
        for q in own:
            half = mutual(q, round(k1 / 2))
            if 3 * len(own & half) >= 2 * len(half):
                wide |= half
        for g in wide:
            encoded[p, g] = math.exp(-apart[p, g])
    encoded = np.array([np.mean([encoded[q] for q in near[:k2]], axis=0) for near in order])
    final = np.zeros((len(queries), len(gallery)))
    for i in range(len(queries)):
        for j in range(len(gallery)):
            one, other = encoded[i], encoded[len(queries) + j]
            jaccard = 1 - np.minimum(one, other).sum() / np.maximum(one, other).sum()
            final[i, j] = (1 - weight) * jaccard + weight * apart[i, len(queries) + j]
    return final


def expanded(vectors: Array, gallery: Array, k: int, alpha: float, alone: bool) -> Array:
    """Return each vector averaged with its k nearest, weighted by their cosines, at length 1."""
    rows = []
    for i, own in enumerate(vectors.astype(np.float64)):
        total = own.copy()
        for j in ranked(own, gallery, {i} if alone else ())[:k]:
            other = gallery[j].astype(np.float64)
            cosine = own @ other / np.linalg.norm(own) / np.linalg.norm(other)
            total += max(cosine, 0.0) ** alpha * other
        rows.append(total / np.linalg.norm(total))
    return np.array(rows)
