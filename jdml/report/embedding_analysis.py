"""What embeddings look like: neighbours, hubs, confusions, classes, spectrum, distances, maps."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from jdml._optional_imports import require_package
from jdml.metrics import (
    class_density,
    evaluate_retrieval,
    nearest,
    proxy_distance,
    proxy_spread,
    spectral_decay,
    uniformity,
)

NO_CLASS = "(no class)"
"""What a negative label is called, of rows that are of no class."""

Projection = Literal["pca", "tsne", "umap"]
SAMPLE = 4000
"""Rows of which pairs are measured, where there are more."""
BINS = 40


class Neighbours(NamedTuple):
    """Who is near whom."""

    indices: np.ndarray
    distances: np.ndarray
    right: np.ndarray
    quality: np.ndarray
    first: np.ndarray
    doubtful: list[int]


def nearest_neighbours(embeddings: Any, labels: Any, k: int = 8) -> Neighbours:
    """Find every row's nearest others, and how good they are."""
    x, y = jnp.asarray(embeddings, jnp.float32), np.asarray(labels)
    near, rows = nearest(x, x, min(k, len(x) - 1), exclude_self=True)
    indices = np.asarray(rows)
    right = (y[indices] == y[:, None]) & (y >= 0)[:, None]
    with warnings.catch_warnings():  # queries without an answer are NaN
        warnings.simplefilter("ignore", UserWarning)
        scores = evaluate_retrieval(x, jnp.asarray(y), recall_at=(1,), per_query=True)
    quality, first = (np.asarray(scores[name], np.float64) for name in ("MAP@R", "R@1"))
    doubts = suspect_labels(indices, y)
    doubts = doubts[np.argsort(np.asarray(near)[doubts, 0], kind="stable")]
    return Neighbours(indices, np.asarray(near), right, quality, first, doubts.tolist())


def hubs(indices: np.ndarray, most: int = 24) -> tuple[list[tuple[int, int]], float]:
    """Rows that are neighbours of too many.

    Example:
        >>> hubs(np.array([[1], [0], [1], [1]]), most=1)[0]
        [(1, 3)]
    """
    counts = np.bincount(indices.reshape(-1), minlength=len(indices))
    order = np.argsort(-counts, kind="stable")[:most]
    spread = counts.std()
    skew = float(np.mean(((counts - counts.mean()) / spread) ** 3)) if spread > 0 else 0.0
    return [(int(row), int(counts[row])) for row in order if counts[row] > indices.shape[1]], skew


def confused_pairs(
    indices: np.ndarray, labels: np.ndarray, most: int = 20
) -> list[tuple[int, int, int, float]]:
    """Pairs of classes that are taken for each other.

    Example:
        >>> confused_pairs(np.array([[1], [0], [3], [2]]), np.array([0, 1, 2, 2]))
        [(0, 1, 2, 1.0)]
    """
    labels = np.asarray(labels)
    known, own = np.unique(labels, return_inverse=True)
    own = own.reshape(-1)
    query, answer = np.repeat(own, indices.shape[1]), own[indices].reshape(-1)
    wrong = (query != answer) & (known[query] >= 0) & (known[answer] >= 0)
    low, high = np.minimum(query, answer)[wrong], np.maximum(query, answer)[wrong]
    codes, counts = np.unique(low.astype(np.int64) * len(known) + high, return_counts=True)
    sizes = np.bincount(own, minlength=len(known)) * indices.shape[1]
    pairs = []
    for code, count in zip(codes, counts, strict=True):
        a, b = divmod(int(code), len(known))
        pairs.append(
            (int(known[a]), int(known[b]), int(count), float(count / (sizes[a] + sizes[b])))
        )
    return sorted(pairs, key=lambda pair: (-pair[3], -pair[2], pair[0], pair[1]))[:most]


def suspect_labels(
    indices: np.ndarray, labels: np.ndarray, agree: int = 5, least: int = 3
) -> np.ndarray:
    """Find rows whose neighbours all say one other class: their labels may be wrong.

    Example:
        >>> near = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [4, 5, 6], [5, 6, 3], [4, 6, 3], [4, 5, 3]])
        >>> suspect_labels(near, np.array([0, 0, 0, 0, 1, 1, 1]))
        array([3])
    """
    known, own, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    own = own.reshape(-1)
    said = own[indices]
    other = said[:, 0]
    asked = np.minimum(agree, sizes[other])
    same = (said == other[:, None]).cumprod(axis=1).sum(axis=1) >= asked
    classes = (known[own] >= 0) & (known[other] >= 0) & (other != own)
    return np.flatnonzero(same & classes & (sizes[other] >= least))


def by_class(neighbours: Neighbours, labels: np.ndarray) -> list[tuple[int, int, float, float]]:
    """Score every class."""
    rows = []
    for label in np.unique(labels[labels >= 0]):
        members = np.flatnonzero(labels == label)
        if len(members) > 1:
            first, quality = neighbours.first[members].mean(), neighbours.quality[members].mean()
            rows.append((int(label), len(members), float(first), float(quality)))
    return rows


def spectrum(embeddings: Any) -> np.ndarray:
    """Singular values as shares of their sum, the largest first (not centred, as ``spectral_decay`` takes them)."""
    values = np.linalg.svd(_sample(np.asarray(embeddings, np.float64))[0], compute_uv=False)
    return values / max(values.sum(), np.finfo(np.float64).tiny)


def structure(embeddings: Any, labels: Any) -> dict[str, float]:
    """Measure how embeddings fill their space, by at most 4,000 rows."""
    x, rows = _sample(np.asarray(embeddings, np.float32))
    y = np.asarray(labels)[rows]
    same, other = _pair_distances(x, y)
    within, between = (
        float(distances.mean()) if len(distances) else 0.0 for distances in (same, other)
    )
    points, classes = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    return {
        "spectral decay": float(spectral_decay(points)),
        "density": float(class_density(points, classes)),
        "uniformity": float(uniformity(points)),
        "within": within,
        "between": between,
        "ratio": within / between if between else 0.0,
    }


def distance_histogram(embeddings: Any, labels: Any) -> dict[str, list[float]]:
    """Count distances within and between classes, as shares of each kind's pairs."""
    x, rows = _sample(np.asarray(embeddings, np.float32))
    same, other = _pair_distances(x, np.asarray(labels)[rows])
    top = (
        max((float(distances.max()) for distances in (same, other) if len(distances)), default=1.0)
        or 1.0
    )
    edges = np.linspace(0, top, BINS + 1)
    histogram: dict[str, list[float]] = {"edges": edges.tolist()}
    for name, distances in (("within", same), ("between", other)):
        counts = np.histogram(distances, edges)[0]
        histogram[name] = (counts / max(counts.sum(), 1)).tolist()
    return histogram


def proxy_structure(proxies: Any, embeddings: Any, labels: Any) -> dict[str, float]:
    """Measure how proxies stand to the embeddings that they stand for, on the unit sphere."""
    centres = unit(np.asarray(proxies, np.float64))
    centres = centres[:, None] if centres.ndim == 2 else centres
    x, y = unit(np.asarray(embeddings, np.float64)), np.asarray(labels)
    away = [
        np.linalg.norm(centres[c] - x[y == c].mean(0), axis=1).mean()
        for c in range(len(centres))
        if (y == c).any()
    ]
    measured = {
        "proxy to its class": proxy_distance(
            jnp.asarray(centres, jnp.float32),
            jnp.asarray(x, jnp.float32),
            jnp.asarray(y, jnp.int32),
        ),
        "proxy to its class's mean": float(np.mean(away)),
    }
    if centres.shape[1] > 1:
        spread = proxy_spread(jnp.asarray(centres, jnp.float32))
        measured["spread of a class's proxies"] = spread.distance
        measured["proxies of a class within 0.2 of each other"] = spread.together
    return measured


def project(
    embeddings: Any, method: Projection = "pca", *, others: Any = None, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, str]:
    """Lay embeddings out in the plane."""
    x = np.asarray(embeddings, np.float64)
    more = np.zeros((0, x.shape[1])) if others is None else np.asarray(others, np.float64)
    if method == "pca":
        axes, share = principal_axes(x)
        points = [(part - x.mean(0)) @ axes for part in (x, more)]
        return points[0], points[1], f"two principal axes, {100 * share:.0f} % of the variance"
    if method not in ("tsne", "umap"):
        raise ValueError(f'method must be "pca", "tsne" or "umap", got {method!r}')
    both = _of_one_size(np.concatenate([x, more]))
    if not both.any():
        return np.zeros((len(x), 2)), np.zeros((len(more), 2)), "all rows are the same: one point"
    if method == "tsne":
        require_package("sklearn", "a map by t-SNE")
        from sklearn.manifold import TSNE

        perplexity = min(30.0, max(1.0, (len(both) - 1) / 3))
        init: Any = "pca" if both.shape[1] > 1 else "random"
        laid: Any = TSNE(init=init, perplexity=perplexity, random_state=seed).fit_transform(both)
        words = f"t-SNE, perplexity {perplexity:.0f}: neighbours are kept, distances are not"
    else:
        require_package("umap", "a map by UMAP")
        from umap import UMAP

        laid = UMAP(random_state=seed, n_jobs=1).fit_transform(both)
        words = "UMAP: neighbours are kept, distances are not"
    return np.asarray(laid[: len(x)]), np.asarray(laid[len(x) :]), words


def _of_one_size(x: np.ndarray) -> np.ndarray:
    """Rows around their mean, the largest entry 1; zeros where they do not differ but by rounding."""
    largest, centred = np.abs(x).max(), x - x.mean(0)
    spread = np.abs(centred).max()
    if spread <= np.finfo(np.float32).eps * largest:
        return np.zeros(x.shape, np.float32)
    return (centred / spread).astype(np.float32)


def principal_axes(x: np.ndarray) -> tuple[np.ndarray, float]:
    """The two directions of largest variance ``[D, 2]``, and what share of it they have."""
    centred = x - x.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    axes = vectors[:, ::-1][:, :2]
    if axes.shape[1] < 2:
        axes = np.concatenate([axes, np.zeros((len(axes), 2 - axes.shape[1]))], axis=1)
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(2)])
    total = max(float(values.clip(0).sum()), np.finfo(np.float64).tiny)
    return axes * np.where(signs == 0, 1, signs), float(values[::-1][:2].clip(0).sum() / total)


def unit(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; a zero row stays zero."""
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(norms == 0, 1, norms)


def label_name(names: Sequence[Any] | None, label: Any) -> str:
    """The name of a label, or the label; of a negative one that it is no class."""
    if not isinstance(label, int | np.integer):
        return str(label)
    if label < 0:
        return NO_CLASS
    return str(label if names is None or label >= len(names) else names[int(label)])


def _sample(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most so many rows, and which."""
    rows = np.arange(len(x))
    if len(x) > SAMPLE:
        rows = np.sort(np.random.default_rng(0).permutation(len(x))[:SAMPLE])
    return x[rows], rows


def _pair_distances(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances of all pairs of one class, and of all pairs of two classes; negative labels are none."""
    few = np.random.default_rng(1).permutation(np.flatnonzero(y >= 0))[:2000]
    from scipy.spatial.distance import pdist

    a, b = np.triu_indices(len(few), 1)
    apart = pdist(x[few])
    same = y[few][a] == y[few][b]
    return apart[same], apart[~same]
