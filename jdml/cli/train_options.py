"""The options of ``jdml train``, and the recipe that they make."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Self

from jdml import recipes
from jdml._optional_imports import is_pointer
from jdml.cli.option_groups import DataOptions, DeviceOptions, RunOptions, WeightOptions
from jdml.cli.options import Part, Typed, defining, empty_part, option_of
from jdml.data.folder import check_apart
from jdml.models.io import read_metadata
from jdml.models.weights import ARCHITECTURE
from jdml.recipes import METHODS, NetworkConfig, ProxyConfig, Recipe, RecipeError
from jdml.recipes.config import Config
from jdml.recipes.network import BACKBONE
from jdml.recipes.recipe import RATES, STEPS, Pretraining, recommended_parts
from jdml.registry import LOSSES, NETWORKS
from jdml.registry.networks import SMALL_IMAGES, for_images
from jdml.training import Evaluation

PAIR_BATCH = {"classes": 16, "samples_per_class": 4}
"""The default batch of a pair loss, before it is fitted to the data."""
DEFAULT: dict[str, Any] = {
    "loss": recipes.LossConfig(),
    "network": NetworkConfig(),
    "finetune": recipes.FinetuneConfig(),
    "batch": recommended_parts("untrained", STEPS)["batch"],
    "optimizer": recipes.OptimizerConfig(learning_rate=RATES["untrained"]),
    "evaluation": recipes.EvaluationConfig(every=Evaluation.every),
}
"""The parts of a recipe of which nothing is typed; the help shows their values."""
NOT_OPTIONS = ("epochs", "nmi", "nmi_cluster_factor", "map_divisor")
"""Fields of a recipe that are no options: the command counts steps and measures retrieval alone."""


@dataclass(frozen=True)
class MethodOptions:
    """The method around the loss."""

    method: Literal[("plain", *sorted(METHODS))] = "plain"  # type: ignore[valid-type]
    """ccp: proxies for one problem after another; needs --validation. nir: a flow around each proxy."""
    method_setting: Mapping[str, Any] = empty_part()
    """The method's settings, such as pool_size=7 (ccp), weight=0.02 (nir)."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of ``jdml train``."""

    data: DataOptions = DataOptions()
    network: Annotated[Typed, Part(DEFAULT["network"])] = empty_part()
    weights: WeightOptions = WeightOptions()
    loss: Annotated[Typed, Part(DEFAULT["loss"], ("method",))] = empty_part()
    method: MethodOptions = MethodOptions()
    finetune: Annotated[Typed, Part(DEFAULT["finetune"])] = empty_part()
    batch: Annotated[Typed, Part(DEFAULT["batch"], NOT_OPTIONS)] = empty_part()
    optimizer: Annotated[Typed, Part(DEFAULT["optimizer"])] = empty_part()
    evaluation: Annotated[Typed, Part(DEFAULT["evaluation"], NOT_OPTIONS)] = empty_part()
    run: RunOptions = RunOptions()
    devices: DeviceOptions = DeviceOptions()

    @property
    def has_batch(self) -> bool:
        """Whether the shape of a batch was typed."""
        return bool({"size", "classes"} & self.batch.keys())

    @property
    def recommends(self) -> bool:
        """Whether the recommended recipe for photographs is used: neither a loss nor a method is named."""
        return self.data.of_files and "name" not in self.loss and self.method.method == "plain"

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The parts of the recipe, before they are fitted to the data."""
        parts, changes = DEFAULT, {} if self.recommends else self._changes()
        if self.recommends:
            steps = self.batch.get("steps", STEPS)
            parts = {**DEFAULT, **recommended_parts(self._pretraining, steps)}
        changes = with_typed(parts, changes, part_options(self))
        loss = parts["loss"].replace(**changes.pop("loss"))
        if not (self.has_batch or loss.has_proxies):
            changes["batch"] = {**PAIR_BATCH, **changes["batch"]}
        replaced = {name: parts[name].replace(**change) for name, change in changes.items()}
        return {"loss": loss, **replaced}

    def _changes(self) -> dict[str, Any]:
        """Return the changes of the default parts by the loss and the method."""
        method, changes = self.method.method, dict[str, Any]()
        usual = DEFAULT["loss"].name if method == "plain" else METHODS[method].loss
        name = self.loss.get("name", usual)
        if method != "plain":
            try:
                changes = METHODS[method].changes(DEFAULT, **self.method.method_setting)
            except (TypeError, ValueError) as error:
                raise ValueError(f"--method-setting {error}") from error
        no_proxies = self.loss.get("proxies", {}).get("per_class") == 0
        proxies = {"init": "random" if no_proxies else LOSSES[name].start}
        return {**changes, "loss": {**changes.get("loss", {}), "name": name, "proxies": proxies}}

    @property
    def recipe(self) -> Recipe:
        """The recipe before it is fitted to the data."""
        return Recipe(**self.parts)

    def resolve(self) -> Self:
        """Check the options, and fill in the data set and the network."""
        data, out = self.data.resolve(), self.run.out
        file, run, model = self.weights.weights, self.weights.of_run, self.network.get("name")
        model = model or (file and read_metadata(file).get(ARCHITECTURE)) or run.get("network")
        model = model or for_images(None if data.of_files else data.image_size or 0)
        NetworkConfig(model)  # refuses an unknown name
        size = {"dim": run["dim"]} if run.get("network") == model else {}
        sized = self.data.image_size is not None or self.data.augmentation is not None
        if data.of_files and not sized and not is_pointer(model) and NETWORKS[model].small_images:
            data = replace(data, image_size=SMALL_IMAGES)
        options = replace(self, data=data, network={**size, **self.network, "name": model})
        if run and file and out is not None and out.resolve() == file.parent.resolve():
            raise ValueError(f"--weights must be another run's than --out, got {out} for both")
        if self.method.method == "plain" and self.method.method_setting:
            known = " or ".join(f"--method {name}" for name in METHODS)
            raise ValueError(f"--method-setting needs {known}")
        _ = options.parts  # refuses wrong values
        if out is not None and data.data == "folder" and data.data_dir is not None:
            check_apart("--out", out, data.data_dir)
        return options

    def defining(self) -> dict[str, Any]:
        """Return the options outside the recipe that define a run, as JSON has them."""
        return defining(self.data, self.weights, self.run)

    def config(self) -> dict[str, Any]:
        """Return the recipe and the other options that define the run, as JSON has them."""
        options = self.resolve()
        return {"recipe": options.recipe.to_json(), **options.defining()}

    def title(self, recipe: Recipe) -> str:
        """Return the title of the run."""
        loss = recipe.loss
        miner = "" if loss.miner == "none" else f" + {loss.miner}"
        method = "" if loss.method is None else f"{loss.method.name}, "
        data, dim = self.data.data, recipe.network.dim
        return f"{data}: {method}{loss.name}{miner}, {dim}-D, seed {self.run.seed}"

    @property
    def _pretraining(self) -> Pretraining:
        """The pretraining of the network, which the recommended recipe depends on."""
        if self.weights.weights is not None:
            frozen = self.finetune.get("freeze") == BACKBONE or "lora" in self.finetune
            return "frozen" if frozen else "pretrained"
        model = self.network.get("name") or for_images(None)
        small = not is_pointer(model) and NETWORKS[model].small_images
        return "small" if small else "untrained"


def apply_options(recipe: Recipe, values: Mapping[str, Typed]) -> Recipe:
    """Return a recipe with the typed values of its parts."""
    return recipe.replace(**with_typed(vars(recipe), {}, values))


def part_options(command: Any) -> dict[str, Typed]:
    """Return the typed values of a recipe's parts in a command's options."""
    return {field.name: getattr(command, field.name) for field in fields(Recipe)}


def with_typed(values: Mapping[str, Any], changes: Typed, typed: Mapping[str, Any]) -> Typed:
    """Add typed values to changes of values; NAME=VALUE are added to what a mapping has."""
    changes = dict(changes)
    for name, value in typed.items():
        own = values[name]
        if isinstance(own, Config):
            value = with_typed(vars(own), changes.get(name, {}), value)
        elif isinstance(value, Mapping) and isinstance(own, Mapping):
            value = {**changes.get(name, own), **value}
        changes[name] = value
    return changes


@cache
def _options_by_field() -> dict[str, str]:
    """Return the option of each field that an error may name."""
    options = {"loss": "--loss", "method": "--method", "network": "--model"}
    options["optimizer"] = "--optimizer"
    for kind in (*map(type, DEFAULT.values()), ProxyConfig):
        for field in fields(kind):
            option = option_of(kind, field.name)
            options.setdefault(field.name, option)
            options[f"{kind.__name__}.{field.name}"] = option
    for method in METHODS.values():
        for field in fields(method):
            options[f"{method.__name__}.{field.name}"] = f"--method-setting {field.name}"
    return options


@contextmanager
def naming_options() -> Iterator[None]:
    """Name a recipe's fields as options in errors, also as a decorator of a function."""
    options = _options_by_field()
    try:
        yield
    except RecipeError as error:
        raise ValueError(error.with_names(lambda name: options.get(name, name))) from error
    except (TypeError, ValueError) as error:
        name, _, wrong = str(error).partition(" ")
        if name not in options:
            raise
        raise ValueError(f"{options[name]} {wrong}") from error
