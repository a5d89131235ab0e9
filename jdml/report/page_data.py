"""Analyse the embeddings of runs, and lay them out as the plain values that a page's script reads."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jdml.data import ImageFiles
from jdml.report import embedding_stats as stats
from jdml.report import method_panels
from jdml.report.compare import Comparison
from jdml.report.images import thumbnails
from jdml.report.runs import Run
from jdml.runs.inference import load

NEAR = 8
"""Neighbours that are found."""
SHOWN = 6
"""Neighbours that are shown."""
SUSPECTS = 24
"""Images with suspect labels that are shown."""
TRAINED = 2000
"""Images of the training part that are embedded, to see where proxies stand."""
ACROSS = 4096
"""Steps of a map's coordinates, along the longer side."""


@dataclass
class EmbeddingView:
    """One run's embeddings and their statistics, by view where they depend on labels; the first view is shown first."""

    name: str
    data: Any
    rows: np.ndarray
    embeddings: np.ndarray
    views: Mapping[str, np.ndarray]
    neighbours: stats.Neighbours
    scores: Mapping[str, stats.Scores]
    maps: dict[str, tuple[np.ndarray, np.ndarray, str]] = field(default_factory=dict)
    structure: dict[str, float] = field(default_factory=dict)
    histogram: dict[str, np.ndarray] = field(default_factory=dict)
    proxy_structure: dict[str, float] = field(default_factory=dict)
    proxy_names: list[str] = field(default_factory=list)
    panels: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def runs_to_analyze(comparison: Comparison) -> list[Run]:
    """Choose the first run of each row, if it has embeddings or parameters."""
    return [
        run
        for row in comparison.rows
        for run in row.runs[:1]
        if run.embeddings is not None or run.trained
    ]


def analyze_run(
    run: Run, *, labels: str | None, projections: Sequence[stats.Projection], most: int
) -> EmbeddingView | str:
    """Analyse a run's embeddings, or say why they are not shown."""
    if run.data is None:
        return "its images are not at hand, so its embeddings are not shown"
    trained, vectors = None, run.embeddings
    rows = stats.random_rows(len(run.data), most)
    data = run.data if len(rows) == len(run.data) else run.data.select(rows)
    if vectors is None:
        try:
            trained = load(run.path or "")
        except (ValueError, FileNotFoundError) as error:
            return f"its embeddings are not shown: {error}"
        vectors = trained.embed(data, on_bad_image="nan")
    else:
        vectors = np.asarray(vectors, np.float32)[rows]
    whole = np.isfinite(vectors).all(axis=1)
    if whole.sum() < 3:
        return "it has fewer than three embeddings to show"
    if not whole.all():
        rows, data, vectors = rows[whole], data.select(whole), vectors[whole]
    views = {}
    for view, numbers in data.views.items():
        names = np.asarray(data.class_names.get(view, ()), str)
        numbers = np.where(np.isin(numbers, np.flatnonzero(names == stats.NO_CLASS)), -1, numbers)
        if len(np.unique(numbers)) > 1:
            views[view] = numbers
    if not data.views and len(np.unique(data.labels)) > 1:
        views = {"class": data.labels}
    if labels is not None and labels not in views:
        raise ValueError(f"labels must be one of {', '.join(views) or 'none'}, got {labels!r}")
    first = labels or next(iter(views), None)
    views = {view: views[view] for view in sorted(views, key=lambda view: view != first)}
    near = stats.nearest_neighbours(vectors, NEAR)
    scores = {view: stats.score_neighbours(vectors, views[view], near) for view in views}
    shown = EmbeddingView(run.name, data, rows, vectors, views, near, scores)
    learned = dict(trained.objective_params) if trained is not None else {}
    if run.proxies is not None:
        learned["proxies"] = run.proxies
    proxies = None
    if "proxies" in learned:
        learned["proxies"] = np.asarray(learned["proxies"])
        proxies = _proxy_rows(learned["proxies"], vectors, trained)
        _add_proxies(shown, run, trained, learned)
    for projection in projections:
        shown.maps[projection] = stats.project(vectors, projection, others=proxies)
    if first is not None:
        shown.structure, shown.histogram = stats.structure(vectors, views[first])
    if len(rows) < len(run.data):
        shown.notes.append(f"a random choice of {len(rows):,} of {len(run.data):,} images")
    return shown


def _proxy_rows(proxies: np.ndarray, vectors: np.ndarray, trained: Any) -> np.ndarray:
    """Proxies as rows, normalized as embeddings are."""
    rows = proxies.astype(np.float64).reshape(-1, vectors.shape[1])
    if trained is not None and trained.normalize is not None:
        return np.asarray(trained.normalize(rows.astype(np.float32)), np.float64)
    return stats.unit(rows) if np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3) else rows


def _add_proxies(shown: EmbeddingView, run: Run, trained: Any, learned: Mapping[str, Any]) -> None:
    """Add how proxies stand to what was trained on, and the method's own picture."""
    proxies = learned["proxies"]
    count = len(proxies)
    names = trained.class_names if trained is not None else ()
    names = names if len(names) == count else tuple(map(str, range(count)))
    each = proxies.size // (count * shown.embeddings.shape[1])
    shown.proxy_names = [name for name in names for _ in range(each)]
    if run.train is None or (trained is None and run.train_embeddings is None):
        shown.notes.append(
            "what it was trained on is not at hand: proxies are shown on the map alone"
        )
        return
    rows = stats.random_rows(len(run.train), TRAINED)
    train = run.train.select(rows)
    if run.train_embeddings is not None:
        vectors = np.asarray(run.train_embeddings, np.float32)[rows]
    else:
        vectors = trained.embed(train, on_bad_image="nan")
    whole = np.isfinite(vectors).all(axis=1) & (train.labels < count)
    vectors, labels = vectors[whole], train.labels[whole]
    if not len(vectors):
        return
    shown.proxy_structure = stats.proxy_structure(proxies, vectors, labels)
    try:
        shown.panels = method_panels.panels(
            run.config, learned, vectors, labels, lambda label: names[label], run.path
        )
    except ModuleNotFoundError as error:
        shown.notes.append(f"the method's own picture is not shown: {error}")


def to_json(shown: Sequence[EmbeddingView], pictures: int, room: int) -> dict[str, Any]:
    """Lay out embeddings, those of the same images together."""
    sets: list[list[EmbeddingView]] = []
    for view in shown:
        same = next((views for views in sets if _same_rows(views[0], view)), None)
        if same is None:
            sets.append([view])
        else:
            same.append(view)
    data: list[dict[str, Any]] = []
    looks: list[dict[str, Any]] = []
    for number, views in enumerate(sets):
        queries, rows = _choose_rows(views, pictures // len(sets))
        images = thumbnails(views[0].data.images, rows, room // len(sets))
        data.append(_data_json(views[0], images))
        looks += [_view_json(view, number, queries) for view in views]
    return {"sets": data, "looks": looks}


def _same_rows(a: EmbeddingView, b: EmbeddingView) -> bool:
    if isinstance(a.data.images, ImageFiles) and isinstance(b.data.images, ImageFiles):
        same = list(map(str, a.data.images.files)) == list(map(str, b.data.images.files))
    else:
        pictures = [getattr(view.data.images, "ndim", 0) == 4 for view in (a, b)]
        both = all(pictures) and np.array_equal(a.data.images, b.data.images)
        same = both or not any(pictures)
    return (
        same
        and a.data.name == b.data.name
        and a.views.keys() == b.views.keys()
        and np.array_equal(a.rows, b.rows)
        and np.array_equal(a.data.labels, b.data.labels)
    )


def _data_json(shown: EmbeddingView, pictures: Mapping[int, str]) -> dict[str, Any]:
    views = {}
    for view, labels in shown.views.items():
        known, numbers = np.unique(labels, return_inverse=True)
        names = [stats.label_name(shown.data.class_names.get(view), label) for label in known]
        none = 0 if known[0] < 0 else None
        views[view] = {"names": names, "labels": numbers.reshape(-1).tolist(), "none": none}
    files = None
    if isinstance(shown.data.images, ImageFiles):
        paths = map(str, shown.data.images.files)
        files = [path if i in pictures else path.rsplit("/", 1)[-1] for i, path in enumerate(paths)]
    return {
        "name": shown.data.name,
        "count": len(shown.data),
        "views": views,
        "files": files,
        "pictures": {str(row): address for row, address in pictures.items()},
    }


def _view_json(shown: EmbeddingView, number: int, queries: list[int]) -> dict[str, Any]:
    near = shown.neighbours
    hubs, skew = stats.hubs(near.indices)

    def neighbours(rows: list[int]) -> dict[str, Any]:
        return {
            "near": near.indices[rows, :SHOWN].tolist(),
            "distances": np.round(near.distances[rows, :SHOWN], 3).tolist(),
        }

    views: dict[str, dict[str, Any]] = {}
    for view, labels in shown.views.items():
        scores = shown.scores[view]
        place = {label: n for n, label in enumerate(np.unique(labels).tolist())}
        suspects = scores.suspects[:SUSPECTS]
        # Of every row a digit: 0, its nearest is right; 1, it is wrong; 2, there is nothing to find.
        digits = np.where(np.isnan(scores.first), 2, scores.first == 0).astype(int)
        views[view] = {
            "quality": [_rounded(scores.quality[row]) for row in queries],
            "doubtful": {
                "count": len(scores.suspects),
                "rows": suspects,
                **neighbours(suspects),
            },
            "nearest": "".join(map(str, digits)),
            "classes": [
                [place[label], count, _rounded(first), _rounded(quality)]
                for label, count, first, quality in stats.by_class(scores, labels)
            ],
            "confused": [
                [place[a], place[b], count, _rounded(share)]
                for a, b, count, share in stats.confused_pairs(near.indices, labels)
            ],
        }
    return {
        "name": shown.name,
        "set": number,
        "dim": shown.embeddings.shape[1],
        "notes": shown.notes,
        "queries": queries,
        **neighbours(queries),
        "views": views,
        "hubs": hubs,
        "skew": round(skew, 2),
        "spectrum": _digits(stats.spectrum(shown.embeddings)[:512]),
        "histogram": {name: _digits(counts) for name, counts in shown.histogram.items()} or None,
        "structure": {name: _rounded(value) for name, value in shown.structure.items()},
        "proxies": {name: _rounded(value) for name, value in shown.proxy_structure.items()},
        "maps": {
            name: _map_json(*points, shown.proxy_names) for name, points in shown.maps.items()
        },
        "panels": shown.panels,
    }


def _map_json(points: np.ndarray, proxies: np.ndarray, words: str, names: Any) -> dict[str, Any]:
    """Points on a raster, for the file's sake."""
    both = np.concatenate([points, proxies])
    low = both.min(0)
    scale = (ACROSS - 1) / max(float((both.max(0) - low).max()), 1e-12)
    raster = np.round((both - low) * scale).astype(int).tolist()
    xs, ys = zip(*raster[: len(points)], strict=True)
    stars = zip(raster[len(points) :], names, strict=True)
    return {
        "x": xs,
        "y": ys,
        "words": words,
        "proxies": [[x, y, name] for (x, y), name in stars],
    }


def _choose_rows(shown: Sequence[EmbeddingView], pictures: int) -> tuple[list[int], list[int]]:
    """Choose queries of the gallery, and all rows that get a picture: of both no more than there is room for."""
    room = pictures if pictures > 0 else 200
    queries: list[int] = []
    rows: dict[int, None] = {}
    for view in shown:
        for row in next((scores.suspects for scores in view.scores.values()), [])[:SUSPECTS]:
            if len(rows) <= 0.25 * room:
                rows |= dict.fromkeys([row, *view.neighbours.indices[row, :SHOWN].tolist()])
    for row in _worst_and_random(shown):
        near = [i for view in shown for i in view.neighbours.indices[row, :SHOWN].tolist()]
        new = {i: None for i in (row, *near) if i not in rows}
        if row in queries:
            continue
        if len(rows) + len(new) > 0.85 * room:
            break
        queries.append(row)
        rows |= new
    for view in shown:
        rows |= dict.fromkeys(row for row, _ in stats.hubs(view.neighbours.indices)[0][:12])
    for row in np.random.default_rng(0).permutation(len(shown[0].data)).tolist():
        if len(rows) >= room:
            break
        rows[row] = None
    return queries, list(rows)[:pictures]


def _worst_and_random(shown: Sequence[EmbeddingView]) -> Iterator[int]:
    """Rows in turns: of each run the worst of a class, class after class, then a random one."""
    rng = np.random.default_rng(0)
    orders = []
    for view in shown:
        labels = next(iter(view.views.values()), view.data.labels)
        quality = next((scores.quality for scores in view.scores.values()), np.zeros(len(labels)))
        worst = np.argsort(np.where(np.isnan(quality), np.inf, quality), kind="stable")
        rank, counts = np.zeros(len(worst), int), Counter[int]()
        for place, label in enumerate(labels[worst].tolist()):
            rank[place] = counts[label]
            counts[label] += 1
        orders += [worst[np.argsort(rank, kind="stable")], rng.permutation(len(worst))]
    for rows in zip(*orders, strict=True):
        yield from map(int, rows)


def _rounded(value: Any) -> float | None:
    return None if not np.isfinite(value) else float(f"{float(value):.4g}")


def _digits(values: np.ndarray) -> list[float]:
    return [float(f"{value:.3g}") for value in values]
