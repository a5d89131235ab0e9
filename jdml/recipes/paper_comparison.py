"""The papers' results, read from ``paper_results.toml``, and how a run differs from their rows."""

import dataclasses
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from operator import attrgetter
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from jdml.recipes.papers import recipe, settings_of
from jdml.recipes.recipe import DATASETS, Recipe

CROP_SIZES = {"ablation": 227, "conventional": 224, "mlrc": 227}
"""Height and width of the papers' crops, by protocol."""
TASK = (
    "loss.name",
    "loss.memory_size",
    "loss.memory_start_step",
    "loss.learn_beta",
    "loss.method.flow_settings",
    "loss.method.patience",
    "loss.method.per_dimension",
    "loss.method.self_regularization",
    "loss.method.shape",
    "loss.method.stop_proxy_gradient",
    "loss.method.temperature",
    "loss.method.wrong_class_weight",
    "network.dim",
    "network.pooling",
)
"""Values of a recipe that the tables vary: a run with others has another task than the row."""
EXCLUDED = (
    "loss.name",
    "loss.method.name",
    "network.name",
    "batch.size",
    "batch.classes",
    "batch.samples_per_class",
    "batch.steps",
    "optimizer.lr_multipliers",
    "evaluation.",
)
"""Values of a recipe that are compared elsewhere; those of its evaluation only measure."""


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """A row of a paper's table on one data set, by the keys of the file, and how a run differs from it."""

    table: str
    protocol: str
    method: str
    backbone: str
    dataset: str
    task: Mapping[str, Any]
    values: Mapping[str, float]
    """In percent, by metric."""
    unprinted: tuple[str, ...]
    note: str
    differences: tuple[str, ...] = ()

    @cached_property
    def reported_run(self) -> tuple[Recipe, float]:
        """The recipe of the run that the paper reports, and its share of wrong labels."""
        fields, known = dict(self.task), settings_of(self.method)
        noise = fields.pop("label_noise", 0.0)
        settings = {name: fields.pop(name) for name in list(fields) if name in known}
        protocol: Any = self.protocol
        network = self.backbone.removesuffix("_dino")
        paper = recipe(self.method, self.dataset, protocol=protocol, backbone=network, **settings)
        return _with_values(paper, fields), noise

    @property
    def rows(self) -> dict[str, dict[str, float]]:
        """The numbers as rows to print: ``"separated P@1"`` is in the row ``"TABLE, separated"``."""
        rows: dict[str, dict[str, float]] = {}
        for name, value in self.values.items():
            part, _, metric = name.rpartition(" ")
            rows.setdefault(f"{self.table}, {part}" if part else self.table, {})[metric] = value
        return rows


def _read_table(table: Mapping[str, Any]) -> Iterator[PaperRow]:
    """Read every row of a ``[[table]]`` on every data set."""
    for row in table["rows"]:
        task = {**table.get("task", {}), **row}
        numbers = {dataset: task.pop(dataset) for dataset in DATASETS if dataset in task}
        method, backbone = task.pop("method"), task.pop("backbone")
        for dataset, percentages in numbers.items():
            columns = table.get("metrics_sop") if dataset == "sop" else None
            metrics = zip(columns or table["metrics"], percentages, strict=True)
            yield PaperRow(
                f"{table['paper']}, {table['name']}",
                table.get("protocol", "conventional"),
                method,
                backbone,
                dataset,
                task,
                {metric: number for metric, number in metrics if not math.isnan(number)},
                tuple(table.get("unprinted", ())),
                table.get("note", ""),
            )


_FILE = tomllib.loads(files("jdml.recipes").joinpath("paper_results.toml").read_text("utf-8"))
PAPER_RESULTS = tuple(row for table in _FILE["table"] for row in _read_table(table))
"""Every row of every table, on every data set."""


def unspecified_settings(method: str, protocol: str) -> str:
    """Say what a method's paper leaves open under a protocol, and how it is filled in; "" where nothing is."""
    kind = "conventional" if protocol == "conventional" else "mlrc"
    return "; ".join(
        each["text"]
        for each in _FILE["unspecified"]["settings"]
        if method in each.get("methods", [method]) and each.get("protocol", kind) == kind
    )


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
        paper, noise = result.reported_run
        if noise == label_noise and _task(paper) == _task(run):
            paper = _with_values(paper, {name: attrgetter(name)(run) for name in result.unprinted})
            ours, theirs = _values_of(run), _values_of(paper)
            differences = [
                f"{name} {_format(ours.get(name))} (paper: {_format(theirs.get(name))})"
                for name in {**ours, **theirs}
                if ours.get(name) != theirs.get(name)
            ]
            if run.batch.steps != paper.batch.steps:
                differences.append(f"steps {run.batch.steps}")
            differences += [result.note] if result.note else []
            matches.append(dataclasses.replace(result, differences=tuple(differences)))
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


def _with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with other values, by dotted path."""
    return recipe.replace(**unflatten_dict(dict(values), sep="."))


def _task(run: Recipe) -> dict[str, Any]:
    """Return what the tables vary; a weight of 0 leaves NIR's proxy loss out."""
    values = flatten_dict(run.to_json(), sep=".")
    task = {name: value for name, value in values.items() if name.startswith(TASK)}
    task["proxies"] = run.loss.num_proxies
    task["clipped"] = run.optimizer.clip_global_norm is not None
    task["without the loss"] = values.get("loss.method.weight") == 0
    return task


def _values_of(run: Recipe) -> dict[str, Any]:
    """Return a recipe's values by name, those of its loss and method among them."""
    values: dict[str, Any] = {"batch": str(run.batch)}
    for role, factor in run.optimizer.lr_multipliers.items():
        values[f"learning_rate of {role}"] = factor * run.optimizer.learning_rate
    for path, value in flatten_dict(run.to_json(), sep=".").items():
        if not path.startswith(EXCLUDED):
            long = path.removesuffix(".name").split(".", 1)[-1]
            short = long.removeprefix("settings.").removeprefix("method.")
            values[long if short in values else short] = value
    return values


def _format(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
