"""The options of ``jdml train``, and the recipe that they make."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Self

from jdml import registry
from jdml._import_path import is_pointer
from jdml.cli.option_groups import DataOptions, DeviceOptions, RunOptions, WeightOptions
from jdml.cli.options import Part, Typed, check_options, defining, empty_part, option_of
from jdml.data.folder import check_apart
from jdml.models.io import read_metadata
from jdml.models.weights import ARCHITECTURE
from jdml.ops.checks import one_of
from jdml.recipes import (
    METHODS,
    NetworkConfig,
    ProxyConfig,
    Recipe,
    RecipeError,
    recommended,
    with_method,
)
from jdml.recipes.config import Config, parse_settings
from jdml.recipes.network import BACKBONE
from jdml.recipes.recipe import STEPS, Pretraining
from jdml.registry import NETWORKS
from jdml.registry.networks import SMALL_IMAGES, for_images

PAIR_BATCH = {"classes": 16, "samples_per_class": 4}
"""The default batch of a pair loss, before it is fitted to the data."""


def recipe_of_loss(name: str) -> Recipe:
    """Return the default recipe of a loss."""
    one_of("--loss", name, registry.LOSSES)
    loss = registry.LOSSES[name]
    return Recipe().replace(
        loss={"name": name, "proxies": {"init": loss.start}},
        batch={"size": 64, "on_small_class": "refuse", "steps": 1000},
        optimizer={"learning_rate": 1e-3},
        evaluation={"every": 100},
    )


NOT_OPTIONS = ("epochs", "nmi", "nmi_cluster_factor", "map_divisor")
"""Fields of a recipe that are no options: the command counts steps and measures retrieval alone."""
SHOWN = recipe_of_loss("triplet")
"""The recipe whose values the help shows."""


@dataclass(frozen=True)
class MethodOptions:
    """The method around the loss."""

    method: Literal[("plain", *sorted(METHODS))] = "plain"  # type: ignore[valid-type]
    """ccp: proxies for one problem after another; needs --validation. nir: a flow around each proxy."""
    method_setting: tuple[str, ...] = ()
    """The method's settings, such as pool_size=7 (ccp), weight=0.02 (nir)."""


@dataclass(frozen=True)
class TrainOptions:
    """The options of ``jdml train``."""

    data: DataOptions = DataOptions()
    network: Annotated[Typed, Part(SHOWN.network)] = empty_part()
    weights: WeightOptions = WeightOptions()
    loss: Annotated[Typed, Part(SHOWN.loss, ("method",))] = empty_part()
    method: MethodOptions = MethodOptions()
    finetune: Annotated[Typed, Part(SHOWN.finetune)] = empty_part()
    batch: Annotated[Typed, Part(SHOWN.batch, NOT_OPTIONS)] = empty_part()
    optimizer: Annotated[Typed, Part(SHOWN.optimizer)] = empty_part()
    evaluation: Annotated[Typed, Part(SHOWN.evaluation, NOT_OPTIONS)] = empty_part()
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

    def base_recipe(self) -> Recipe:
        """Return the recommended recipe, or that of the loss and the method, without the other options."""
        if self.recommends:
            steps = self.batch.get("steps", STEPS)
            recipe = recommended(pretraining=self._pretraining, steps=steps)
            return recipe.replace(evaluation={"every": 100})
        check_options(self.method)
        method = self.method.method
        loss = "triplet" if method == "plain" else METHODS[method].loss
        base = recipe_of_loss(self.loss.get("name", loss))
        if self.loss.get("proxies", {}).get("per_class") == 0:
            base = base.replace(loss={"proxies": {"init": "random"}})
        if method == "plain":
            return base
        own = parse_settings(self.method.method_setting, "--method-setting", words=True)
        with naming_options():
            try:
                return with_method(base, method, **own)
            except RecipeError:
                raise
            except (TypeError, ValueError) as error:
                raise ValueError(f"--method-setting {error}") from error

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of all options; errors name the options."""
        base = self.base_recipe()
        if not self.has_batch and not apply_options(base, {"loss": self.loss}).loss.has_proxies:
            base = base.replace(batch=PAIR_BATCH)
        return apply_options(base, part_options(self))

    def resolve(self) -> Self:
        """Check the options, and fill in the data set and the network."""
        self.run.check()
        self.devices.check()
        self.weights.check()
        options = replace(self, data=self.data.resolve())
        file, run, model = self.weights.weights, self.weights.of_run, self.network.get("name")
        model = model or (file and read_metadata(file).get(ARCHITECTURE)) or run.get("network")
        model = model or for_images(None if options.data.of_files else options.data.image_size or 0)
        with naming_options():
            NetworkConfig(model)  # refuses an unknown name
        size = {"dim": run["dim"]} if run.get("network") == model else {}
        options = replace(options, network={**size, **options.network, "name": model})
        out = options.run.out
        if run and file and out is not None and out.resolve() == file.parent.resolve():
            raise ValueError(f"--weights must be another run's than --out, got {out} for both")
        sized = self.data.image_size is not None or self.data.augmentation is not None
        if self.data.of_files and not sized and not is_pointer(model):
            if NETWORKS[model].small_images:
                options = replace(options, data=replace(options.data, image_size=SMALL_IMAGES))
        if self.method.method == "plain" and self.method.method_setting:
            known = " or ".join(f"--method {name}" for name in METHODS)
            raise ValueError(f"--method-setting needs {known}")
        _ = options.recipe  # refuses wrong values
        if options.run.out is not None and options.data.data == "folder":
            assert options.data.data_dir is not None
            check_apart("--out", options.run.out, options.data.data_dir)
        return options

    def defining(self) -> dict[str, Any]:
        """Return the options outside the recipe that define a run, as JSON has them."""
        return {**defining(self.data), **defining(self.weights), **defining(self.run)}

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
    """Return a recipe with the typed values of its parts; errors name the options."""
    with naming_options():
        return recipe.replace(
            **{name: _values(getattr(recipe, name), part) for name, part in values.items()}
        )


def part_options(command: Any) -> dict[str, Typed]:
    """Return the typed values of a recipe's parts in a command's options."""
    return {field.name: getattr(command, field.name) for field in fields(Recipe)}


def _values(part: Config, values: Typed) -> dict[str, Any]:
    """Return typed values as a part takes them: NAME=VALUE are merged into a mapping."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        own = getattr(part, name)
        if isinstance(own, Config):
            value = _values(own, value)
        elif isinstance(value, tuple) and isinstance(own, Mapping):
            option, patterns = option_of(type(part), name), name == "lr_multipliers"
            value = {**own, **parse_settings(value, option, patterns=patterns)}
        changed[name] = value
    return changed


@cache
def _options_by_field() -> dict[str, str]:
    """Return the option of each field that an error may name."""
    options = {"loss": "--loss", "method": "--method", "network": "--model"}
    options["optimizer"] = "--optimizer"
    for kind in (*map(type, vars(Recipe()).values()), ProxyConfig):
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
    """Name a recipe's fields as options in errors."""
    options = _options_by_field()
    try:
        yield
    except RecipeError as error:
        raise ValueError(error.with_names(lambda name: options.get(name, name))) from error
    except (TypeError, ValueError) as error:
        name, _, wrong = str(error).partition(" ")
        raise ValueError(f"{options.get(name, name)} {wrong}") from error
