"""Statistics of embeddings: neighbours, hubs, confusions, classes, spectrum, distances, maps, PFML's field."""

import base64
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jdml import fields
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
from jdml.ops.checks import one_of

NO_CLASS = "(no class)"
"""The class name of rows with a negative label."""

Projection = Literal["pca", "tsne"]
SAMPLE = 4000
"""The most rows whose pairs are measured."""
BINS = 40
HUBS = 12
"""Hubs that are shown."""
UNANIMOUS, FEWEST = 5, 3
"""Neighbours of one other class that make a label suspect; fewer if the class has fewer images, but this many."""
CHARGES, FIELDS, SIDE = 1500, 4, 72
"""Embeddings in a potential field, classes whose field is drawn, points of its grid along a side."""
POTENTIALS: dict[str, tuple[fields.Potential, tuple[str, ...]]] = {
    "potential_field": (fields.potential, ("delta", "alpha", "repulsion_delta")),
    "contrastive_potential": (fields.contrastive_potential, ("delta",)),
}
"""The potential of a loss, and the names of its settings."""


class Scores(NamedTuple):
    """Scores by labels ``[N]``: MAP@R and R@1 ``[N]``, rows with suspect labels."""

    labels: np.ndarray
    quality: np.ndarray
    first: np.ndarray
    suspects: list[int]


def nearest_neighbours(embeddings: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances and rows ``[N, K]`` of every row's nearest others."""
    x = jnp.asarray(embeddings, jnp.float32)
    distances, indices = nearest(x, x, min(k, len(x) - 1), exclude_self=True)
    return np.asarray(distances), np.asarray(indices)


def score_neighbours(
    embeddings: Any, labels: np.ndarray, distances: np.ndarray, indices: np.ndarray
) -> Scores:
    """Score neighbours by labels; NaN where a row has no other of its class."""
    with warnings.catch_warnings():  # queries without an answer are NaN
        warnings.simplefilter("ignore", UserWarning)
        x = jnp.asarray(embeddings, jnp.float32)
        scores = evaluate_retrieval(x, jnp.asarray(labels), recall_at=(1,), per_query=True)
    quality, first = (np.asarray(scores[name], np.float64) for name in ("MAP@R", "R@1"))
    suspects = _suspect_labels(indices, labels)
    nearest_first = np.argsort(distances[suspects, 0], kind="stable")
    return Scores(labels, quality, first, suspects[nearest_first].tolist())


def hubs(indices: np.ndarray) -> tuple[list[tuple[int, int]], float]:
    """Find rows that are neighbours of too many, with their counts, and the skewness of all counts."""
    counts = np.bincount(indices.reshape(-1), minlength=len(indices))
    order = np.argsort(-counts, kind="stable")[:HUBS]
    spread = counts.std()
    skew = float(np.mean(((counts - counts.mean()) / spread) ** 3)) if spread > 0 else 0.0
    return [(int(row), int(counts[row])) for row in order if counts[row] > indices.shape[1]], skew


def confused_pairs(
    indices: np.ndarray, labels: np.ndarray, most: int = 20
) -> list[tuple[int, int, int, float]]:
    """Count the confused pairs of classes: two labels, count, share."""
    known, own, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    query, answer = np.repeat(own, indices.shape[1]), own[indices].reshape(-1)
    wrong = (query != answer) & (known[query] >= 0) & (known[answer] >= 0)
    both = np.sort(np.stack([query, answer], axis=1)[wrong], axis=1)
    pairs, counts = np.unique(both, axis=0, return_counts=True)
    shares = counts / (indices.shape[1] * sizes[pairs].sum(axis=1))
    order = np.lexsort((-counts, -shares))[:most]
    columns = (known[pairs[order, 0]], known[pairs[order, 1]], counts[order], shares[order])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _suspect_labels(indices: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Find rows whose nearest neighbours are all of one other class: their labels may be wrong."""
    known, own, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    other = own[indices[:, 0]]
    same = (own[indices] == other[:, None]).cumprod(axis=1).sum(axis=1)
    unanimous = same >= np.minimum(UNANIMOUS, sizes[other])
    classes = (known[own] >= 0) & (known[other] >= 0) & (other != own)
    return np.flatnonzero(unanimous & classes & (sizes[other] >= FEWEST))


def by_class(scores: Scores) -> list[tuple[int, int, float, float]]:
    """Return the label, number of rows, R@1 and MAP@R of every class with two rows."""
    known, own, counts = np.unique(scores.labels, return_inverse=True, return_counts=True)
    means = [np.bincount(own, values) / counts for values in (scores.first, scores.quality)]
    columns = zip(*(column.tolist() for column in (known, counts, *means)), strict=True)
    return [row for row in columns if row[0] >= 0 and row[1] > 1]


def spectrum(embeddings: Any) -> np.ndarray:
    """Return singular values as shares of their sum, the largest first; of embeddings that are not centred."""
    x = np.asarray(embeddings, np.float64)
    values = np.linalg.svd(x[random_rows(len(x), SAMPLE)], compute_uv=False)
    return values / max(values.sum(), np.finfo(np.float64).tiny)


def structure(embeddings: Any, labels: Any) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Measure how embeddings fill their space, and count distances within and between classes, by a sample of rows."""
    from scipy.spatial.distance import pdist

    rows = random_rows(len(embeddings), SAMPLE)
    x, y = np.asarray(embeddings, np.float32)[rows], np.asarray(labels)[rows]
    few = np.random.default_rng(1).permutation(np.flatnonzero(y >= 0))[:2000]
    first, second = np.triu_indices(len(few), 1)
    distances, same = pdist(x[few]), y[few][first] == y[few][second]
    kinds = {"within": distances[same], "between": distances[~same]}
    within, between = (float(kind.mean()) if len(kind) else 0.0 for kind in kinds.values())
    measured = {
        "spectral decay": float(spectral_decay(x)),
        "density": float(class_density(x, y)),
        "uniformity": float(uniformity(x)),
        "within": within,
        "between": between,
        "ratio": within / between if between else 0.0,
    }
    edges = np.linspace(0, distances.max(initial=0.0) or 1.0, BINS + 1)
    counts = {name: np.histogram(kind, edges)[0] for name, kind in kinds.items()}
    shares = {name: count / max(count.sum(), 1) for name, count in counts.items()}
    return measured, {"edges": edges, **shares}


def proxy_structure(proxies: Any, embeddings: Any, labels: Any) -> dict[str, float]:
    """Measure the distances of proxies ``[C, K, D]`` from the embeddings of their class, on the unit sphere."""
    centres: Any = unit(proxies)
    x: Any = unit(np.asarray(embeddings, np.float64))
    away = [
        np.linalg.norm(centres[label] - x[labels == label].mean(0), axis=1).mean()
        for label in np.unique(labels)
    ]
    measured = {
        "proxy to its class": proxy_distance(centres, x, labels),
        "proxy to its class's mean": float(np.mean(away)),
    }
    if centres.shape[1] > 1:
        spread = proxy_spread(centres)
        measured["spread of a class's proxies"] = spread.distance
        measured["proxies of a class within 0.2 of each other"] = spread.together
    return measured


def project(
    embeddings: Any, method: Projection = "pca", *, others: Any = None, seed: int = 0
) -> tuple[np.ndarray, str]:
    """Lay embeddings, then others, out in the plane; return the points and the axes' label."""
    x = np.asarray(embeddings, np.float64)
    both = x if others is None else np.concatenate([x, np.asarray(others, np.float64)])
    if method == "pca":
        axes, share = principal_axes(x)
        return (both - x.mean(0)) @ axes, f"two principal axes, {100 * share:.0f} % of the variance"
    one_of("method", method, get_args(Projection))
    require_package("sklearn", "a map by t-SNE")
    from sklearn.manifold import TSNE

    perplexity = min(30.0, max(1.0, (len(both) - 1) / 3))
    both = both - both.mean(0)
    both /= np.abs(both).max() or 1.0
    # scikit-learn's start at the principal axes fails on equal rows and on one dimension.
    init: Any = "pca" if both.shape[1] > 1 and both.any() else "random"
    layout = TSNE(init=init, perplexity=perplexity, random_state=seed)
    words = f"t-SNE, perplexity {perplexity:.0f}: keeps neighbours, not distances"
    return layout.fit_transform(both.astype(np.float32)), words


def potential_fields(
    loss: Mapping[str, Any],
    proxies: np.ndarray,
    embeddings: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
) -> Iterator[dict[str, Any]]:
    """Draw PFML's potential for a sample of each of the largest classes; nothing for another loss."""
    if loss.get("name") not in POTENTIALS:
        return
    potential, known = POTENTIALS[loss["name"]]
    settings = {k: float(v) for k, v in loss.get("settings", {}).items() if k in known}
    rows = np.random.default_rng(0).permutation(len(embeddings))[:CHARGES]
    count, each, dim = proxies.shape
    charges = unit(np.concatenate([embeddings[rows], proxies.reshape(-1, dim)]))
    classes = np.concatenate([labels[rows], np.repeat(np.arange(count), each)])
    centre, (axes, share) = charges.mean(0), principal_axes(charges)
    points = (charges - centre) @ axes
    low, high = points.min(0), points.max(0)
    middle, half = (low + high) / 2, max(0.62 * float((high - low).max()), 1e-6)
    xs, ys = (np.linspace(m - half, m + half, SIDE) for m in middle)
    grid = np.stack(np.meshgrid(xs, ys[::-1]), axis=-1).reshape(-1, 2)  # row by row from the top
    places, sources = jnp.float32(centre + grid @ axes.T), jnp.float32(charges)

    @jax.jit
    def field(label: Any, places: Any, sources: Any) -> Any:
        groups = jnp.int32(classes)
        return fields.class_field(places, label, sources, groups, potential=potential, **settings)

    own, counts = np.unique(labels[rows], return_counts=True)
    for label in own[np.argsort(-counts, kind="stable")][:FIELDS].tolist():
        values = np.asarray(field(label, places, sources), np.float64)
        values -= np.median(values)  # a potential is known up to a constant: far charges add one
        heat = np.nan_to_num(np.arcsinh(values / (np.median(np.abs(values)) or 1.0)))
        top = max(np.abs(np.quantile(heat, (0.01, 0.99))).max(), 1e-12)
        pixels = np.round(127.5 * (1 + np.clip(heat / top, -1, 1))).astype(np.uint8)
        marks = [
            [*point, int(flag)]
            for point, flag in zip(points.round(4).tolist(), classes == label, strict=True)
        ]
        yield {
            "title": f"potential field of {names[label]}",
            "words": "Samples of this class are drawn from red to blue, where the potential is below its median. "
            "Dots are samples, stars are proxies; filled ones are of this class. The field is shown in the plane "
            f"of the charges' two principal axes ({100 * share:.0f} % of their variance), the charges projected.",
            "extent": [float(end) for axis in (xs, ys) for end in (axis[0], axis[-1])],
            "side": SIDE,
            "heat": base64.b64encode(pixels.tobytes()).decode(),
            "points": marks[: len(rows)],
            "stars": marks[len(rows) :],
        }


def principal_axes(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the two directions of largest variance ``[D, 2]``, and what share of it they have."""
    centred = x - x.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    axes = vectors[:, ::-1][:, :2]
    axes = np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(2)])
    total = max(float(values.clip(0).sum()), np.finfo(np.float64).tiny)
    return axes * np.where(signs == 0, 1, signs), float(values[::-1][:2].clip(0).sum() / total)


def unit(x: np.ndarray) -> np.ndarray:
    """Scale rows to length 1; a zero row stays zero."""
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(norms == 0, 1, norms)


def label_name(names: Sequence[Any] | None, label: Any) -> str:
    """Name a label: by its name, or itself; a negative one is no class."""
    if not isinstance(label, int | np.integer):
        return str(label)
    if label < 0:
        return NO_CLASS
    return str(label if names is None or label >= len(names) else names[int(label)])


def random_rows(count: int, most: int) -> np.ndarray:
    """Return all rows, or a random choice of them, in order."""
    rows = np.arange(count)
    return rows if count <= most else np.sort(np.random.default_rng(0).permutation(count)[:most])
