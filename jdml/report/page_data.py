"""What a page shows of a run's embeddings, computed and laid out as plain values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jdml.data import ImageFiles
from jdml.report import embedding_analysis as analysis
from jdml.report import method_panels
from jdml.report.compare import Comparison
from jdml.report.embedding_analysis import NO_CLASS
from jdml.report.runs import Run
from jdml.report.thumbnails import thumbnails
from jdml.runs.inference import load

NEAR = 8
"""Neighbours that are looked up."""
SHOWN = 6
"""Neighbours that are shown."""
DOUBTFUL = 24
"""Images with doubtful labels that are shown."""
TRAINED = 2000
"""Images of the training part that are embedded, to see where proxies stand."""
ACROSS = 4096
"""Steps of a map's coordinates, along the longer side."""


@dataclass
class EmbeddingView:
    """One run's embeddings, looked at."""

    name: str
    data: Any
    rows: np.ndarray
    embeddings: np.ndarray
    view: str | None
    views: Mapping[str, np.ndarray]
    neighbours: dict[str, analysis.Neighbours] = field(default_factory=dict)
    maps: dict[str, tuple[np.ndarray, np.ndarray, str]] = field(default_factory=dict)
    structure: dict[str, float] = field(default_factory=dict)
    proxy_numbers: dict[str, float] = field(default_factory=dict)
    proxy_names: list[str] = field(default_factory=list)
    panels: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def runs_to_analyze(comparison: Comparison) -> list[Run]:
    """The runs that are looked at: the first one of each row, if there is anything to see."""
    return [
        run
        for row in comparison.rows
        for run in row.runs[:1]
        if run.embeddings is not None or run.trained
    ]


def analyze_run(
    run: Run, *, labels: str | None, projections: Sequence[analysis.Projection], most: int
) -> EmbeddingView | str:
    """EmbeddingView at a run's embeddings."""
    if run.data is None:
        return "its images are not at hand, so its embeddings are not shown"
    trained, vectors = None, run.embeddings
    rows = _some(len(run.data), most)
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
    views = {view: _without_class(data, view) for view in data.views}
    views = {view: numbers for view, numbers in views.items() if len(np.unique(numbers)) > 1}
    if not data.views and len(np.unique(data.labels)) > 1:
        views = {"class": data.labels}
    if labels is not None and labels not in views:
        raise ValueError(f"labels must be one of {', '.join(views) or 'none'}, got {labels!r}")
    first = labels or next(iter(views), None)
    views = {view: views[view] for view in sorted(views, key=lambda view: view != first)}
    look = EmbeddingView(run.name, data, rows, vectors, first, views)
    for view, numbers in views.items():
        look.neighbours[view] = analysis.nearest_neighbours(vectors, numbers, NEAR)
    if not views:
        look.neighbours[""] = analysis.nearest_neighbours(
            vectors, np.zeros(len(vectors), np.int32), NEAR
        )
    _add_proxies(look, run, trained)
    proxies = _flat_proxies(look, run, trained)
    for projection in projections:
        look.maps[projection] = analysis.project(vectors, projection, others=proxies)
    if first is not None:
        look.structure = analysis.structure(vectors, views[first])
    if len(rows) < len(run.data):
        look.notes.append(f"a random choice of {len(rows):,} of {len(run.data):,} images")
    return look


def to_json(looks: Sequence[EmbeddingView], pictures: int, room: int) -> dict[str, Any]:
    """Lay out looks as what a page's script reads."""
    sets: list[list[EmbeddingView]] = []
    for look in looks:
        for same in sets:
            if _same_rows(same[0], look):
                same.append(look)
                break
        else:
            sets.append([look])
    shown: list[dict[str, Any]] = []
    views: list[dict[str, Any]] = []
    for number, same in enumerate(sets):
        share = max(1, len(sets))
        queries, rows = _chosen(same, pictures // share)
        shown.append(_data_json(same[0], thumbnails(same[0].data.images, rows, room // share)))
        views += [_view_json(look, number, queries) for look in same]
    return {"sets": shown, "looks": views}


def _data_json(look: EmbeddingView, pictures: Mapping[int, str]) -> dict[str, Any]:
    views = {}
    for view, labels in look.views.items():
        known, numbers = np.unique(labels, return_inverse=True)
        names = [analysis.label_name(look.data.class_names.get(view), label) for label in known]
        none = 0 if known[0] < 0 else None
        views[view] = {"names": names, "labels": numbers.reshape(-1).tolist(), "none": none}
    images = look.data.images
    files = [str(name) for name in images.files] if isinstance(images, ImageFiles) else None
    if files is not None:
        files = [name if i in pictures else name.rsplit("/", 1)[-1] for i, name in enumerate(files)]
    return {
        "name": look.data.name,
        "count": len(look.data),
        "views": views,
        "files": files,
        "pictures": {str(row): address for row, address in pictures.items()},
    }


def _view_json(look: EmbeddingView, number: int, queries: Sequence[int]) -> dict[str, Any]:
    any_view = next(iter(look.neighbours.values()))
    hubs, skew = analysis.hubs(any_view.indices)
    views: dict[str, dict[str, Any]] = {}
    for view, labels in look.views.items():
        near = look.neighbours[view]
        place = {label: n for n, label in enumerate(np.unique(labels).tolist())}
        doubtful = near.doubtful[:DOUBTFUL]
        views[view] = {
            "quality": [_rounded(near.quality[row]) for row in queries],
            "doubtful": {
                "count": len(near.doubtful),
                "rows": doubtful,
                **_neighbours_json(near, doubtful),
            },
            "nearest": _verdicts(near.first),
            "classes": [
                [place[label], count, _rounded(first), _rounded(quality)]
                for label, count, first, quality in analysis.by_class(near, labels)
            ],
            "confused": [
                [place[a], place[b], count, _rounded(share)]
                for a, b, count, share in analysis.confused_pairs(near.indices, labels)
            ],
        }
    histogram = look.view and analysis.distance_histogram(look.embeddings, look.views[look.view])
    return {
        "name": look.name,
        "set": number,
        "dim": look.embeddings.shape[1],
        "notes": look.notes,
        "queries": list(queries),
        **_neighbours_json(any_view, queries),
        "views": views,
        "hubs": hubs,
        "skew": round(skew, 2),
        "spectrum": [float(f"{share:.3g}") for share in analysis.spectrum(look.embeddings)[:512]],
        "histogram": histogram
        and {name: [float(f"{v:.3g}") for v in counts] for name, counts in histogram.items()},
        "structure": {name: _rounded(value) for name, value in look.structure.items()},
        "proxies": {name: _rounded(value) for name, value in look.proxy_numbers.items()},
        "maps": {name: _map_json(*drawn, look.proxy_names) for name, drawn in look.maps.items()},
        "panels": look.panels,
    }


def _neighbours_json(near: analysis.Neighbours, rows: Sequence[int]) -> dict[str, Any]:
    return {
        "near": near.indices[list(rows), :SHOWN].tolist(),
        "distances": np.round(near.distances[list(rows), :SHOWN], 3).tolist(),
    }


def _map_json(points: np.ndarray, proxies: np.ndarray, words: str, names: Any) -> dict[str, Any]:
    """Points on a raster, for the file's sake."""
    both = np.concatenate([points, proxies])
    low = both.min(0)
    scale = (ACROSS - 1) / max(float((both.max(0) - low).max()), 1e-12)
    raster = np.round((both - low) * scale).astype(int)
    return {
        "x": raster[: len(points), 0].tolist(),
        "y": raster[: len(points), 1].tolist(),
        "words": words,
        "proxies": [
            [int(x), int(y), name]
            for (x, y), name in zip(raster[len(points) :], names, strict=True)
        ],
    }


def _chosen(looks: Sequence[EmbeddingView], pictures: int) -> tuple[list[int], list[int]]:
    """Queries of the gallery, and all rows that get a picture: of both no more than there is room for."""
    room = pictures if pictures > 0 else 200
    queries: list[int] = []
    rows: dict[int, None] = {}
    for look in looks:
        for row in next(iter(look.neighbours.values())).doubtful[:DOUBTFUL]:
            if len(rows) <= 0.25 * room:
                rows |= dict.fromkeys([row, *_near(look)[row, :SHOWN].tolist()])
    for row in _worst_and_others(looks):
        near = [int(i) for look in looks for i in _near(look)[row, :SHOWN]]
        new = [i for i in dict.fromkeys([row, *near]) if i not in rows]
        if row in queries or len(rows) + len(new) > 0.85 * room:
            if row not in queries:
                break
            continue
        queries.append(row)
        rows |= dict.fromkeys(new)
    for look in looks:
        rows |= dict.fromkeys(row for row, _ in analysis.hubs(_near(look))[0][:12])
    for row in np.random.default_rng(0).permutation(len(looks[0].data)):
        if len(rows) >= room:
            break
        rows[int(row)] = None
    return queries, list(rows)[:pictures]


def _near(look: EmbeddingView) -> np.ndarray:
    return next(iter(look.neighbours.values())).indices


def _worst_and_others(looks: Sequence[EmbeddingView]) -> Iterator[int]:
    """Rows in turns: of each run the worst of a class, then any other of it, class after class."""
    rng = np.random.default_rng(0)
    orders = []
    for look in looks:
        near = next(iter(look.neighbours.values()))
        labels = next(iter(look.views.values()), look.data.labels)
        quality = np.where(np.isnan(near.quality), np.inf, near.quality)
        worst = np.argsort(quality, kind="stable")
        rank = np.zeros(len(worst), int)
        seen_of: dict[int, int] = {}
        for row in worst:
            label = int(labels[row])
            rank[row] = seen_of.get(label, 0)
            seen_of[label] = rank[row] + 1
        orders.append((worst[np.argsort(rank[worst], kind="stable")], rng.permutation(len(worst))))
    for place in range(len(looks[0].data)):
        for worst, others in orders:
            yield int(worst[place])
            yield int(others[place])


def _add_proxies(look: EmbeddingView, run: Run, trained: Any) -> None:
    """Where proxies stand to what was trained on, and the method's own picture."""
    learned = dict(trained.objective_params) if trained is not None else {}
    if run.proxies is not None:
        learned["proxies"] = run.proxies
    if "proxies" not in learned:
        return
    count = len(np.asarray(learned["proxies"]))
    names = trained.class_names if trained is not None else ()
    names = names if len(names) == count else tuple(map(str, range(count)))
    look.proxy_names = [
        name
        for name in names
        for _ in range(np.asarray(learned["proxies"]).size // (count * look.embeddings.shape[1]))
    ]
    if run.train is None or (trained is None and run.train_embeddings is None):
        look.notes.append(
            "what it was trained on is not at hand: proxies are shown on the map alone"
        )
        return
    rows = _some(len(run.train), TRAINED)
    train = run.train.select(rows)
    if run.train_embeddings is not None:
        vectors = np.asarray(run.train_embeddings, np.float32)[rows]
    else:
        vectors = trained.embed(train, on_bad_image="nan")
    whole = np.isfinite(vectors).all(axis=1) & (train.labels < count)
    vectors, labels = vectors[whole], train.labels[whole]
    if not len(vectors):
        return
    look.proxy_numbers = analysis.proxy_structure(learned["proxies"], vectors, labels)
    try:
        look.panels = method_panels.panels(
            run.config, learned, vectors, labels, lambda label: names[label], run.path
        )
    except ModuleNotFoundError as error:
        look.notes.append(f"the method's own picture is not shown: {error}")


def _flat_proxies(look: EmbeddingView, run: Run, trained: Any) -> np.ndarray | None:
    """Proxies as rows, normalized as embeddings are."""
    proxies = run.proxies
    if proxies is None and trained is not None:
        proxies = trained.objective_params.get("proxies")
    if proxies is None:
        return None
    flat = np.asarray(proxies, np.float64).reshape(-1, look.embeddings.shape[1])
    if trained is not None and trained.normalize is not None:
        return np.asarray(trained.normalize(flat.astype(np.float32)), np.float64)
    lengths = np.linalg.norm(look.embeddings, axis=1)
    return analysis.unit(flat) if np.allclose(lengths, 1, atol=1e-3) else flat


def _same_rows(a: EmbeddingView, b: EmbeddingView) -> bool:
    return (
        a.data.name == b.data.name
        and np.array_equal(a.rows, b.rows)
        and a.neighbours.keys() == b.neighbours.keys()
        and np.array_equal(a.data.labels, b.data.labels)
        and _same_images(a.data.images, b.data.images)
    )


def _same_images(a: Any, b: Any) -> bool:
    if isinstance(a, ImageFiles) and isinstance(b, ImageFiles):
        return list(map(str, a.files)) == list(map(str, b.files))
    pictures = [getattr(images, "ndim", 0) == 4 for images in (a, b)]
    return pictures == [False, False] or (all(pictures) and np.array_equal(a, b))


def _without_class(data: Any, view: str) -> np.ndarray:
    """The labels of a view, −1 of rows without a class."""
    names = data.class_names.get(view, ())
    none = [number for number, name in enumerate(names) if name == NO_CLASS]
    return np.where(np.isin(data.views[view], none), -1, data.views[view])


def _some(count: int, most: int) -> np.ndarray:
    """All rows, or a random choice of them, in order."""
    rows = np.arange(count)
    return rows if count <= most else np.sort(np.random.default_rng(0).permutation(count)[:most])


def _verdicts(first: np.ndarray) -> str:
    """Of every row a digit: 0, its nearest is right; 1, it is wrong; 2, there is nothing to find."""
    return "".join(map(str, np.where(np.isnan(first), 2, first == 0).astype(int)))


def _rounded(value: Any) -> float | None:
    return None if not np.isfinite(value) else float(f"{float(value):.4g}")
