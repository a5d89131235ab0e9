"""The report: one self-contained page that shows what runs learned, side by side."""

import base64
import datetime
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jdml._optional_imports import require_package
from jdml._paths import check_local
from jdml.models.io import write_text
from jdml.report.compare import Comparison, compare_runs, comparison_table, verdict
from jdml.report.embedding_stats import Projection
from jdml.report.figures import curve, logged_metrics
from jdml.report.images import ROOM
from jdml.report.page_data import EmbeddingView, analyze_run, runs_to_analyze, to_json
from jdml.report.runs import Run, as_runs
from jdml.report.tables import setting_cell

PARTS = ("plot.js", "views.js", "page.js")
POINTS = 1500
"""Points of a curve; of longer ones every other, or fewer."""
BAD_IMAGES = "bad_images"
"""Logged by every run of image files, and worth a curve where there were some."""


def html_report(
    runs: Any,
    out: str | Path,
    *,
    data: Any = None,
    title: str = "What was learned",
    labels: str | None = None,
    projections: Sequence[Projection] = ("pca",),
    most: int = 10_000,
    thumbnails: int = 1000,
    looked: int = 6,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
) -> Path:
    """Write one page that shows what runs learned: settings, scores, curves, neighbours, map, structure.

    The page is one file without any address in it: it opens from a disk, and asks nothing of a network.

    Args:
        runs: a folder of a run, of runs or of a study, a ``.npz`` file, a :class:`Run`, or several of these.
        out: the file to write, ``.html``.
        data: a :class:`jdml.data.Dataset` that every run embeds; by default what the runs bring with them.
        title: above the page.
        labels: the labelling that is shown first, where the data have several. Default: their first.
        projections: of the map: ``"pca"``, ``"tsne"``, ``"umap"`` (needs umap-learn).
        most: images of which neighbours and map are shown; of more a random choice.
        thumbnails: pictures in the page, for all runs together.
        looked: how many runs' embeddings are looked at: the first seed of each setting, in the order given.
        baseline: the run that others are compared with. Default: the first.
        metrics: which metrics the table shows. Default: R@1, MAP@R, P@1 and NMI where there are many.

    Returns:
        The path.

    Raises:
        FileNotFoundError: a run that is not there.
        ValueError: a place that holds no run, or a baseline, metric or labelling that there is not.

    Implementation notes:
        10,000 embeddings with 1,000 pictures take some seconds and about 3 MB. Charts are drawn by the page's own
        script of a few hundred lines: of the libraries that PyPI has, Plotly is 4.8 MB, Bokeh 1.3 MB and Vega comes in
        a wheel of 33 MB, and none of them is operated by keyboard, read by a screen reader and dark at night.
    """
    check_local("out", out)
    comparison = compare_runs(as_runs(runs, data), metrics=metrics, baseline=baseline)
    order = runs_to_analyze(comparison)
    analyzed = [
        (run.name, analyze_run(run, labels=labels, projections=projections, most=most))
        for run in order[:looked]
    ]
    looks = [look for _, look in analyzed if isinstance(look, EmbeddingView)]
    notes = [f"{name}: {look}" for name, look in analyzed if isinstance(look, str)]
    if len(order) > looked:
        notes.append(
            f"{len(order) - looked} more settings are compared above, and not looked at here."
        )
    page = {
        "rows": [row.name for row in comparison.rows],
        "curves": _curves(comparison),
        **to_json(looks, thumbnails, ROOM),
    }
    columns, rows = comparison_table(comparison)
    text = _render(
        title=title,
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        columns=columns,
        rows=rows,
        verdict=verdict(comparison),
        several=len(comparison.rows) > 1,
        seeds=any(len(row.runs) > 1 for row in comparison.rows),
        confidence=round(100 * comparison.confidence),
        runs=[_run_details(run) for row in comparison.rows for run in row.runs],
        page=page,
        notes=notes,
        has_methods=any(look.panels for look in looks),
        has_proxies=any(look.proxy_structure for look in looks),
    )
    write_text(Path(out), text)
    return Path(out)


def _render(**values: Any) -> str:
    """Render the page with its script and style in it."""
    require_package("jinja2", "a report")
    from jinja2 import Environment, PackageLoader, select_autoescape

    script, style = "\n".join(_asset(name) for name in PARTS), _asset("page.css")
    environment = Environment(
        loader=PackageLoader("jdml.report", "assets"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template("page.html").render(
        **values,
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
    )


def _asset(name: str) -> str:
    return (files("jdml.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the page's policy lets its own script run, and no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _run_details(run: Run) -> dict[str, Any]:
    """Return what a page says of a run."""
    fit = {f"fit.{name}": value for name, value in run.config.get("fit", {}).items()}
    settings = {**run.settings, **fit} if run.settings else fit
    if run.seed is not None:
        settings = {"seed": run.seed, **settings}
    return {
        "name": run.name,
        "place": None if run.path is None else str(run.path),
        "command": run.command,
        "settings": [(name, setting_cell(value)) for name, value in settings.items()],
        "versions": ", ".join(f"{name} {value}" for name, value in run.versions.items()),
        "data": run.config.get("data_checksum", run.config.get("fingerprint", {}).get("data")),
        "metrics": [(name, f"{value:.4g}") for name, value in run.metrics.items()],
    }


def _curves(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the logs by metric: a line for each run."""
    runs = [
        (place, run) for place, row in enumerate(comparison.rows) for run in row.runs if run.log
    ]
    curves = []
    for name in logged_metrics(run.log for _, run in runs):
        lines = []
        for place, run in runs:
            points = curve(run.log, name)
            every = -(-len(points) // POINTS)
            if points and (name != BAD_IMAGES or any(value for _, value in points)):
                thinned = [*points[:-1:every], points[-1]]  # a curve ends at the last
                lines.append({"run": run.name, "row": place, "points": thinned})
        if lines:
            curves.append({"name": name, "lines": lines})
    return curves
