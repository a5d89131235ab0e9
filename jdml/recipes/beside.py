"""Which row of a paper a run stands beside, and in what the two are not alike."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jdml.recipes.base import Recipe
from jdml.recipes.papers import RECIPES, recipe, settings_of
from jdml.recipes.printed import ENTRIES, Entry, Row, inferred
from jdml.recipes.words import write_batch
from jdml.registry import NETWORKS
from jdml.registry.constraints import one_of

CROPS = {"ablation": 227, "conventional": 224, "mlrc": 227}
"""Height and width of the papers' crops, by protocol."""
VARIED = ("loss", "dim", "pooling", "num_proxies", "memory", "memory_wait", "learn_beta")
"""In what runs are other tasks than a row's, of the recipe: tables vary it."""
VARIED_OF_METHOD = {
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
"""The same, of the method's own numbers. So is a weight of 0, which leaves the proxy loss out."""
UNTOLD = ("network", "nmi", "more_clusters", "map_divisor", "steps", "method", "settings", "loss")
"""Of a recipe, what is told elsewhere, or measures alone."""


@dataclass(frozen=True)
class Beside:
    """A row of a table beside a run.

    Attributes:
        table: the paper and the table.
        rows: in percent by metric, by what they are called.
        unlike: in what the run is not the row's, in words.
    """

    table: str
    rows: Mapping[str, Row]
    unlike: tuple[str, ...]

    @property
    def values(self) -> dict[str, float]:
        """All its numbers by metric, as a run tells its own: those of a part of it as ``"separated P@1"``."""
        parts = {called: called.removeprefix(self.table).lstrip(", ") for called in self.rows}
        return {
            f"{part} {metric}".strip(): value
            for called, part in parts.items()
            for metric, value in self.rows[called].items()
        }


def beside(
    run: Recipe,
    method: str,
    dataset: str,
    *,
    protocol: str = "conventional",
    backbone: str = "resnet50",
    label_noise: float = 0.0,
    crop: int | None = None,
) -> list[Beside]:
    """Look up what the papers report of the task of a run.

    Args:
        run: the recipe as it runs.
        method: whose recipe it was made of.
        dataset: what is trained on.
        protocol: of ``jdml benchmark``.
        backbone: the network, as the tables of :mod:`jdml.recipes.printed` name it.
        label_noise: the share of wrong labels.
        crop: height and width of the crops; None: the papers'.

    Returns:
        The rows of this task; none where the papers have none.

    Raises:
        ValueError: if there is no such method, protocol or backbone.

    Example:
        >>> row = beside(recipe("pfml", "cub", preset="found"), "pfml", "cub")[0]
        >>> row.table, row.rows[row.table]["R@1"], row.unlike[0]
        ('PFML, Table 1', 73.4, 'alpha 1 (paper: 4)')
    """
    one_of("method", method, RECIPES)
    one_of("protocol", protocol, CROPS)
    one_of("backbone", backbone, (*NETWORKS, "vit_s16_dino"))
    if crop not in (None, CROPS[protocol]):
        return []
    asked = (protocol, method, backbone, dataset)
    found = []
    for entry in ENTRIES:
        if (entry.protocol, entry.method, entry.backbone, entry.dataset) != asked:
            continue
        own, noise = of_entry(entry)
        if noise == label_noise and _task(own) == _task(run):
            own = replace(own, **{name: getattr(run, name) for name in entry.unprinted})
            unlike = (*_differences(run, own), *([entry.note] if entry.note else []))
            found.append(Beside(entry.table, entry.rows, unlike))
    return found


def told_below(
    found: Sequence[Beside], method: str, protocol: str, unlike: Sequence[str] = ()
) -> list[str]:
    """Say what belongs below a table of a run and its rows.

    Args:
        found: the rows.
        method: whose recipe the run was made of.
        protocol: of ``jdml benchmark``.
        unlike: in what the run is another than any row's, beside its recipe.

    Returns:
        Lines: in what the run and the rows are not alike, and what the paper leaves open.

    Example:
        >>> told_below([], "mpa", "conventional")
        ['no table of the papers has this task']
    """
    if not found:
        return ["no table of the papers has this task"]
    lines = [f"not as in {each.table}: {'; '.join(each.unlike)}" for each in found if each.unlike]
    if unlike:
        lines.append(f"not the paper's task: {'; '.join(unlike)}")
    if filled := inferred(method, protocol):
        lines.append(f"what the paper leaves open is, in its recipe: {filled}")
    return lines


def of_entry(entry: Entry) -> tuple[Recipe, float]:
    """Give the run that a row of a table reports.

    Args:
        entry: the row.

    Returns:
        Its recipe, and its share of wrong labels.
    """
    fields, known = dict(entry.task), settings_of(entry.method)
    noise = fields.pop("label_noise", 0.0)
    settings = {name: fields.pop(name) for name in list(fields) if name in known}
    protocol: Any = entry.protocol
    network = entry.backbone.removesuffix("_dino")
    made = recipe(entry.method, entry.dataset, protocol=protocol, backbone=network, **settings)
    return replace(made, **fields), noise


def _task(made: Recipe) -> dict[str, Any]:
    """What tables vary, of a recipe."""
    task = {name: getattr(made, name) for name in VARIED}
    task["clipped"] = made.max_norm is not None
    if made.method is not None:
        own = vars(made.method)
        task |= {name: own[name] for name in VARIED_OF_METHOD[made.method.name]}
        task["without the loss"] = own.get("weight") == 0
    return task


def _differences(run: Recipe, own: Recipe) -> Iterator[str]:
    """In what a recipe is not that of its row."""
    ours, theirs = _told(run), _told(own)
    for name in {**ours, **theirs}:
        mine, printed = ours.get(name), theirs.get(name)
        if mine != printed:
            yield f"{name} {_word(mine)} (paper: {_word(printed)})"
    if run.steps != own.steps:
        yield f"steps {run.steps}"


def _told(made: Recipe) -> dict[str, Any]:
    """A recipe's values by name, those of its loss and method among them."""
    rates = {f"rate of {role}": factor * made.rate for role, factor in made.role_rates.items()}
    fields = {name: value for name, value in vars(made).items() if name not in UNTOLD}
    fields |= {"batch": write_batch(made.batch), "role_rates": None}
    told = {**made.settings, **rates, **fields}
    if made.method is None:
        return told
    called = made.method.name
    own = {
        f"{name} of {called}" if name in told else name: v for name, v in vars(made.method).items()
    }
    return told | own


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
