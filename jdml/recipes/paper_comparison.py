"""The papers' results, read from ``paper_results.toml``, and how a run differs from their rows."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from operator import attrgetter
from typing import Any

from flax.traverse_util import unflatten_dict

from jdml.recipes.config import Config
from jdml.recipes.loss import Method
from jdml.recipes.papers import recipe, settings_of
from jdml.recipes.recipe import DATASETS, Recipe

CROP_SIZES = {"ablation": 227, "conventional": 224, "mlrc": 227}
"""Height and width of the papers' crops, by protocol."""
TASK_FIELDS = (
    "loss.name",
    "loss.memory_size",
    "loss.memory_start_step",
    "loss.learn_beta",
    "network.dim",
    "network.pooling",
)
"""Fields of a recipe that the tables vary: a run with other values has another task than the row."""
TASK_SETTINGS = {
    "nir": (
        "shape",
        "temperature",
        "per_dimension",
        "stop_proxy_gradient",
        "wrong_class_weight",
        "self_regularization",
        "flow_settings",
    ),
    "ccp": ("patience",),
}
"""A method's own settings that the tables vary; a weight of 0, which leaves the proxy loss out, is another."""
EXCLUDED = ("loss.name", "loss.method", "loss.settings", "network.name", "batch.steps")
"""Fields of a recipe that are compared elsewhere; those of its evaluation only measure."""


@dataclass(frozen=True)
class PaperResult:
    """A row of a paper's table on one data set, by the keys of the file; ``values`` are in percent by metric."""

    table: str
    protocol: str
    method: str
    backbone: str
    dataset: str
    task: Mapping[str, Any]
    values: Mapping[str, float]
    unprinted: tuple[str, ...]
    note: str


def _read_table(table: Mapping[str, Any]) -> Iterator[PaperResult]:
    """Read every row of a ``[[table]]`` on every data set."""
    for row in table["rows"]:
        task = {**table.get("task", {}), **row}
        numbers = {dataset: task.pop(dataset) for dataset in DATASETS if dataset in task}
        method, backbone = task.pop("method"), task.pop("backbone")
        for dataset, percentages in numbers.items():
            columns = table.get("metrics_sop") if dataset == "sop" else None
            metrics = zip(columns or table["metrics"], percentages, strict=True)
            yield PaperResult(
                table=f"{table['paper']}, {table['name']}",
                protocol=table.get("protocol", "conventional"),
                method=method,
                backbone=backbone,
                dataset=dataset,
                task=task,
                values={metric: number for metric, number in metrics if not math.isnan(number)},
                unprinted=tuple(table.get("unprinted", ())),
                note=table.get("note", ""),
            )


_FILE = tomllib.loads(files("jdml.recipes").joinpath("paper_results.toml").read_text("utf-8"))
PAPER_RESULTS = tuple(result for table in _FILE["table"] for result in _read_table(table))
"""Every row of every table, on every data set."""


def unspecified_settings(method: str, protocol: str) -> str:
    """Say what a method's paper leaves open under a protocol, and how it is filled in; "" where nothing is."""
    kind = "conventional" if protocol == "conventional" else "mlrc"
    return "; ".join(
        each["text"]
        for each in _FILE["unspecified"]["settings"]
        if method in each.get("methods", [method]) and each.get("protocol", kind) == kind
    )


@dataclass(frozen=True)
class PaperRow:
    """A row of a paper's table, in percent by metric, and how a run differs from it."""

    table: str
    values: Mapping[str, float]
    differences: tuple[str, ...]

    @property
    def rows(self) -> dict[str, dict[str, float]]:
        """The numbers as rows to print: ``"separated P@1"`` is in the row ``"TABLE, separated"``."""
        rows: dict[str, dict[str, float]] = {}
        for name, value in self.values.items():
            part, _, metric = name.rpartition(" ")
            rows.setdefault(f"{self.table}, {part}" if part else self.table, {})[metric] = value
        return rows


def find_paper_rows(
    run: Recipe,
    method: str,
    dataset: str,
    *,
    protocol: str,
    backbone: str,
    label_noise: float,
    crop: int | None = None,
) -> list[PaperRow]:
    """Look up what the papers report of the task of a run."""
    if crop not in (None, CROP_SIZES[protocol]):
        return []
    asked = (protocol, method, backbone, dataset)
    matches = []
    for result in PAPER_RESULTS:
        if (result.protocol, result.method, result.backbone, result.dataset) != asked:
            continue
        paper, noise = reported_run(result)
        if noise == label_noise and _task(paper) == _task(run):
            paper = _with_values(paper, {name: attrgetter(name)(run) for name in result.unprinted})
            differences = (*_differences(run, paper), *([result.note] if result.note else []))
            matches.append(PaperRow(result.table, result.values, differences))
    return matches


def footnotes(
    matches: Sequence[PaperRow], method: str, protocol: str, differences: Sequence[str] = ()
) -> list[str]:
    """Write the lines below a table of a run and the papers' rows."""
    if not matches:
        return ["no table of the papers has this task"]
    lines = [
        f"not as in {row.table}: {'; '.join(row.differences)}" for row in matches if row.differences
    ]
    if differences:
        lines.append(f"not the paper's task: {'; '.join(differences)}")
    if filled_in := unspecified_settings(method, protocol):
        lines.append(f"what the paper leaves open is, in its recipe: {filled_in}")
    return lines


def reported_run(result: PaperResult) -> tuple[Recipe, float]:
    """Return the recipe of the run that a paper reports, and its share of wrong labels."""
    fields, known = dict(result.task), settings_of(result.method)
    noise = fields.pop("label_noise", 0.0)
    settings = {name: fields.pop(name) for name in list(fields) if name in known}
    protocol: Any = result.protocol
    network = result.backbone.removesuffix("_dino")
    paper = recipe(result.method, result.dataset, protocol=protocol, backbone=network, **settings)
    return _with_values(paper, fields), noise


def _with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other values, by dotted path."""
    return recipe.replace(**unflatten_dict(dict(values), sep="."))


def _task(run: Recipe) -> dict[str, Any]:
    """Return what the tables vary."""
    method = run.loss.method
    task = {name: attrgetter(name)(run) for name in TASK_FIELDS}
    task["proxies"] = run.loss.num_proxies
    task["clipped"] = run.optimizer.clip_global_norm is not None
    if method is not None:
        settings = vars(method)
        task |= {name: settings[name] for name in TASK_SETTINGS[method.name]}
        task["without the loss"] = settings.get("weight") == 0
    return task


def _differences(run: Recipe, paper: Recipe) -> Iterator[str]:
    """Say in what a recipe differs from that of a paper's row."""
    ours, theirs = _values_of(run), _values_of(paper)
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            yield f"{name} {_format(ours.get(name))} (paper: {_format(theirs.get(name))})"
    if run.batch.steps != paper.batch.steps:
        yield f"steps {run.batch.steps}"


def _values_of(run: Recipe) -> dict[str, Any]:
    """Return a recipe's values by name, those of its loss and method among them."""
    optimizer, method = run.optimizer, run.loss.method
    rates = {
        f"learning_rate of {role}": factor * optimizer.learning_rate
        for role, factor in optimizer.lr_multipliers.items()
    }
    fields = {
        path.removesuffix(".name").split(".", 1)[-1]: value
        for path, value in flat_values(run)
        if path not in EXCLUDED and not path.startswith(("evaluation.", "optimizer.lr_mult"))
    }
    for name in ("size", "classes", "samples_per_class"):
        del fields[name]
    values = {**run.loss.settings, **rates, **fields, "batch": str(run.batch)}
    if method is None:
        return values
    return values | {
        f"{name} of {method.name}" if name in values else name: value
        for name, value in vars(method).items()
    }


def flat_values(config: Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a recipe by dotted path; a method is one value."""
    for name, value in vars(config).items():
        if isinstance(value, Config) and not isinstance(value, Method):
            yield from flat_values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _format(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
