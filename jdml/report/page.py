"""The report: one self-contained page that shows what runs learned, side by side."""

import base64
import datetime
import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import check_local, write_text
from jdml.data import ImageFiles
from jdml.report import embedding_stats as stats
from jdml.report.compare import Comparison, compare_runs, comparison_table, summary_sentences
from jdml.report.figures import curve, logged_metrics
from jdml.report.images import thumbnails
from jdml.report.runs import Run, as_runs
from jdml.report.tables import setting_cell
from jdml.runs.identity import fingerprint
from jdml.runs.inference import load

SCRIPTS = ("plot.js", "views.js", "page.js")
POINTS = 1500
"""Points of a curve; longer ones are thinned."""
NEAR = 8
"""Neighbours that are found."""
SHOWN = 6
"""Neighbours that are shown."""
FEW = 200
"""Pictures for which queries are chosen where fewer are shown."""
SUSPECTS = 24
"""Images with suspect labels that are shown."""
TRAINED = 2000
"""Images of the training part that are embedded for its proxies."""
ACROSS = 4096
"""Steps of a map's coordinates, along the longer side."""


def html_report(
    runs: Any,
    out: str | Path,
    *,
    data: Any = None,
    title: str = "What was learned",
    labels: str | None = None,
    projections: Sequence[stats.Projection] = ("pca",),
    max_images: int = 10_000,
    thumbnails: int = 1000,
    max_runs: int = 6,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
) -> Path:
    """Write one page that shows what runs learned: settings, scores, curves, neighbours, map, structure.

    The page is one file without any address in it: it opens from a disk, and asks nothing of a network.

    Args:
        runs: a folder of a run, of runs or of a study, a ``.npz`` file, a :class:`Run`, or several of these.
        out: the file to write, ``.html``.
        data: a :class:`jdml.data.Dataset` that every run embeds. Default: the data of each run.
        title: of the page.
        labels: the labelling that is shown first. Default: the data's first.
        projections: of the map: ``"pca"``, ``"tsne"``.
        max_images: images with neighbours and a place on the map; of more a random choice.
        thumbnails: pictures in the page, for all runs together.
        max_runs: settings whose embeddings are shown, each by its first seed.
        baseline: the run that others are compared with. Default: the first.
        metrics: of the table. Default: R@1, MAP@R, P@1 and NMI if there are many.

    Returns:
        The path.

    Raises:
        FileNotFoundError: a run does not exist.
        ValueError: a place holds no run, or a baseline, metric or labelling is unknown.

    Implementation notes:
        10,000 embeddings with 1,000 pictures take some seconds and about 3 MB. Charts are drawn by the page's own
        script of a few hundred lines: of the libraries that PyPI has, Plotly is 4.8 MB, Bokeh 1.3 MB and Vega comes in
        a wheel of 33 MB, and none of them is operated by keyboard, read by a screen reader and dark at night.
    """
    check_local("out", out)
    comparison = compare_runs(as_runs(runs, data), metrics=metrics, baseline=baseline)
    firsts = [row.runs[0] for row in comparison.rows]
    order = [run for run in firsts if run.embeddings is not None or run.trained]
    analyzed = [
        (run.name, _analyze(run, labels, projections, max_images)) for run in order[:max_runs]
    ]
    views = [view for _, view in analyzed if isinstance(view, EmbeddingView)]
    notes = [f"{name}: {view}" for name, view in analyzed if isinstance(view, str)]
    if len(order) > max_runs:
        notes.append(f"The embeddings of {len(order) - max_runs} more settings are not shown.")
    text = _render(
        title=title,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        comparison=comparison,
        table=comparison_table(comparison),
        sentences=summary_sentences(comparison),
        notes=notes,
        page={
            "rows": [row.name for row in comparison.rows],
            "curves": _curves(comparison),
            **_to_json(views, thumbnails),
        },
    )
    write_text(Path(out), text)
    return Path(out)


def _render(**values: Any) -> str:
    """Render the page, which holds its script and style, and allows no others."""
    require_package("jinja2", "a report")
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader("jdml.report", "assets")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {"cell": setting_cell, "settings": _settings, "sha256": _sha256}
    *scripts, style = (loader.get_source(environment, n)[0] for n in (*SCRIPTS, "page.css"))
    page = environment.get_template("page.html")
    return page.render(**values, script="\n".join(scripts), style=style)


def _sha256(text: str) -> str:
    """Return a digest as the page's policy has it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _settings(run: Run) -> dict[str, Any]:
    """Return the seed and settings of a run, and those of its training."""
    seed = {} if run.seed is None else {"seed": run.seed}
    fit = {f"fit.{name}": value for name, value in run.config.get("fit", {}).items()}
    return {**seed, **run.settings, **fit}


def _curves(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the logs by metric: a line for each run."""
    runs = [(place, run) for place, row in enumerate(comparison.rows) for run in row.runs]
    curves = []
    for name in logged_metrics(run.log for _, run in runs):
        lines = []
        for place, run in runs:
            points = curve(run.log, name)
            every = -(-len(points) // POINTS)
            is_nothing = name == "bad_images" and not any(value for _, value in points)
            if points and not is_nothing:
                thinned = [*points[:-1:every], points[-1]]
                lines.append({"run": run.name, "row": place, "points": thinned})
        if lines:
            curves.append({"name": name, "lines": lines})
    return curves


class EmbeddingView(NamedTuple):
    """One run's embeddings, their neighbours and scores by labelling, and what the page shows of them as it is."""

    name: str
    data: Any
    rows: np.ndarray
    distances: np.ndarray
    indices: np.ndarray
    scores: Mapping[str, stats.Scores]
    shown: dict[str, Any]


def _analyze(
    run: Run, labels: str | None, projections: Sequence[stats.Projection], max_images: int
) -> EmbeddingView | str:
    """Analyse a run's embeddings, or say why they are not shown."""
    if run.data is None:
        return "its images are not found, so its embeddings are not shown"
    try:
        trained = load(run.path or "") if run.embeddings is None else None
    except (ValueError, FileNotFoundError) as error:
        return f"its embeddings are not shown: {error}"
    rows, vectors = _embed(run.data, run.embeddings, trained, max_images)
    if len(rows) < 3:
        return "it has fewer than three embeddings to show"
    data = run.data.select(rows)
    distances, indices = stats.nearest_neighbours(vectors, NEAR)
    scores = {}
    for name, numbers in (data.views or {"class": data.labels}).items():
        names = np.asarray(data.class_names.get(name, ()), str)
        without = np.isin(numbers, np.flatnonzero(names == stats.NO_CLASS))
        numbers = np.where(without, -1, numbers)
        if np.ptp(numbers):
            scores[name] = stats.score_neighbours(vectors, numbers, distances, indices)
    if labels is not None and labels not in scores:
        raise ValueError(f"labels must be one of {', '.join(scores) or 'none'}, got {labels!r}")
    scores = dict(sorted(scores.items(), key=lambda item: item[0] != labels))
    hubs, skew = stats.hubs(indices)
    shown: dict[str, Any] = {"proxies": {}, "panels": [], "notes": []}
    learned = run.proxies if trained is None else trained.objective_params.get("proxies")
    stars, star_names = None, list[str]()
    if learned is not None:
        count = len(learned)
        proxies = np.asarray(learned, np.float64).reshape(count, -1, vectors.shape[1])
        classes = trained.class_names if trained is not None else ()
        classes = classes if len(classes) == count else tuple(map(str, range(count)))
        stars = _proxy_rows(proxies, vectors, trained)
        star_names = np.repeat(classes, len(stars) // count).tolist()
        shown |= _proxy_parts(run, trained, proxies, classes)
    measured, counts = dict[str, float](), dict[str, np.ndarray]()
    for first in list(scores.values())[:1]:
        measured, counts = stats.structure(vectors, first.labels)
    if len(rows) < len(run.data):
        shown["notes"].append(f"a random choice of {len(rows):,} of {len(run.data):,} images")
    maps = {name: stats.project(vectors, name, others=stars) for name in projections}
    shown |= {
        "hubs": hubs,
        "skew": round(skew, 2),
        "dim": vectors.shape[1],
        "spectrum": list(map(_round, stats.spectrum(vectors)[:512])),
        "histogram": {name: list(map(_round, of)) for name, of in counts.items()} or None,
        "structure": {name: _round(value) for name, value in measured.items()},
        "maps": {name: _map_json(*points, star_names) for name, points in maps.items()},
    }
    return EmbeddingView(run.name, data, rows, distances, indices, scores, shown)


def _embed(data: Any, embeddings: Any, trained: Any, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a data set, all or a random choice, and their embeddings; no row without one."""
    rows = stats.random_rows(len(data), most)
    if embeddings is None:
        vectors = trained.embed(data.select(rows), on_bad_image="nan")
    else:
        vectors = np.asarray(embeddings, np.float32)[rows]
    whole = np.isfinite(vectors).all(axis=1)
    return rows[whole], vectors[whole]


def _proxy_rows(proxies: np.ndarray, vectors: np.ndarray, trained: Any) -> np.ndarray:
    """Return proxies as rows, normalized as embeddings are."""
    rows = proxies.reshape(-1, vectors.shape[1])
    if trained is not None and trained.normalize is not None:
        return np.asarray(trained.normalize(rows.astype(np.float32)), np.float64)
    return stats.unit(rows) if np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3) else rows


def _proxy_parts(
    run: Run, trained: Any, proxies: np.ndarray, names: Sequence[str]
) -> dict[str, Any]:
    """Return how proxies relate to the training data, and PFML's own picture."""
    if run.train is None or (trained is None and run.train_embeddings is None):
        note = "its training images are not found: proxies are shown on the map alone"
        return {"notes": [note]}
    rows, vectors = _embed(run.train, run.train_embeddings, trained, TRAINED)
    labels = run.train.labels[rows]
    known = labels < len(names)
    vectors, labels = vectors[known], labels[known]
    if not len(vectors):
        return {}
    measured = stats.proxy_structure(proxies, vectors, labels)
    loss = run.config.get("recipe", {}).get("loss")
    described = loss if isinstance(loss, Mapping) else {}  # of a recipe, not a user's own
    return {
        "proxies": {name: _round(value) for name, value in measured.items()},
        "panels": [*stats.potential_fields(described, proxies, vectors, labels, names)],
    }


def _to_json(views: Sequence[EmbeddingView], pictures: int) -> dict[str, Any]:
    """Lay out embeddings as plain values, those of the same images with the same labels together."""
    sets = defaultdict[str, list[EmbeddingView]](list)
    for view in views:
        images = view.data.images
        if isinstance(images, ImageFiles):
            images = list(map(str, images.files))
        elif getattr(images, "ndim", 0) != 4:
            images = None
        names = view.data.name, list(view.scores)
        sets[fingerprint(names, view.rows, view.data.labels, images)].append(view)
    data: list[dict[str, Any]] = []
    embeddings: list[dict[str, Any]] = []
    for number, of_set in enumerate(sets.values()):
        queries, rows = _choose_rows(of_set, pictures // len(sets))
        data.append(_data_json(of_set[0], thumbnails(of_set[0].data.images, rows)))
        embeddings += [_view_json(view, number, queries) for view in of_set]
    return {"sets": data, "embeddings": embeddings}


def _data_json(view: EmbeddingView, pictures: Mapping[int, str]) -> dict[str, Any]:
    views = {}
    for name, scores in view.scores.items():
        known, numbers = np.unique(scores.labels, return_inverse=True)
        names = [stats.label_name(view.data.class_names.get(name), label) for label in known]
        none = 0 if known[0] < 0 else None
        views[name] = {"names": names, "labels": numbers.tolist(), "none": none}
    paths = None
    if isinstance(view.data.images, ImageFiles):
        paths = [str(file) for file in view.data.images.files]
        paths = [p if i in pictures else p.rsplit("/", 1)[-1] for i, p in enumerate(paths)]
    return {
        "name": view.data.name,
        "count": len(view.data),
        "views": views,
        "files": paths,
        "pictures": {str(row): address for row, address in pictures.items()},
    }


def _view_json(view: EmbeddingView, number: int, queries: list[int]) -> dict[str, Any]:
    def neighbours(rows: list[int]) -> dict[str, Any]:
        return {
            "near": view.indices[rows, :SHOWN].tolist(),
            "distances": np.round(view.distances[rows, :SHOWN], 3).tolist(),
        }

    views: dict[str, dict[str, Any]] = {}
    for name, scores in view.scores.items():
        place = {label: n for n, label in enumerate(np.unique(scores.labels).tolist())}
        suspects = scores.suspects[:SUSPECTS]
        # One digit for each row: 0, its nearest is right; 1, it is wrong; 2, there is nothing to find.
        digits = np.where(np.isnan(scores.first), 2, scores.first == 0).astype(int)
        views[name] = {
            "quality": [_round(scores.quality[row]) for row in queries],
            "suspects": {"count": len(scores.suspects), "rows": suspects, **neighbours(suspects)},
            "nearest": "".join(map(str, digits)),
            "classes": [
                [place[label], count, *map(_round, means)]
                for label, count, *means in stats.by_class(scores)
            ],
            "confused": [
                [place[a], place[b], count, _round(share)]
                for a, b, count, share in stats.confused_pairs(view.indices, scores.labels)
            ],
        }
    return {
        "name": view.name,
        "set": number,
        "queries": queries,
        **neighbours(queries),
        "views": views,
        **view.shown,
    }


def _map_json(points: np.ndarray, words: str, names: Sequence[str]) -> dict[str, Any]:
    """Lay out embeddings and proxies, whose names are known, on a raster, which makes the file small."""
    low = points.min(0)
    scale = (ACROSS - 1) / max(float((points.max(0) - low).max()), 1e-12)
    xs, ys = np.round((points - low) * scale).astype(int).T.tolist()
    count = len(points) - len(names)
    stars = list(zip(xs[count:], ys[count:], names, strict=True))
    return {"x": xs[:count], "y": ys[:count], "words": words, "proxies": stars}


def _choose_rows(views: Sequence[EmbeddingView], pictures: int) -> tuple[list[int], list[int]]:
    """Choose queries of the gallery, and the rows that get a picture, those around suspects and queries first."""
    random = np.random.default_rng(0).permutation(len(views[0].data)).tolist()
    firsts = [next(iter(view.scores.values()), None) for view in views]
    orders = [order for first in firsts for order in (_worst_first(first) or random, random)]
    in_turns = itertools.chain.from_iterable(zip(*orders, strict=True))
    suspects = (row for first in firsts if first for row in first.suspects[:SUSPECTS])
    rows: dict[int, None] = {}
    chosen: dict[int, None] = {}
    for candidates, share in ((suspects, 0.25), (in_turns, 0.85)):
        chosen = {}
        for row in candidates:
            near = (other for view in views for other in view.indices[row, :SHOWN].tolist())
            more = rows | dict.fromkeys((row, *near))
            if len(more) > share * max(pictures, FEW):
                break
            rows, chosen[row] = more, None
    rows |= dict.fromkeys(row for view in views for row, _ in view.shown["hubs"])
    return list(chosen), list(rows | dict.fromkeys(random))[:pictures]


def _worst_first(scores: stats.Scores | None) -> list[int]:
    """Order rows: the worst of each class, then the second worst of each, and so on; without labels none."""
    if scores is None:
        return []
    turns = defaultdict[int, Iterator[int]](itertools.count)  # of the rows of a class
    worst = np.argsort(scores.quality, kind="stable").tolist()  # NaN last
    return sorted(worst, key=lambda row: next(turns[int(scores.labels[row])]))


def _round(value: Any) -> float | None:
    return None if not np.isfinite(value) else float(f"{float(value):.4g}")
