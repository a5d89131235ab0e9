"""The options of ``jdml train``, and the recipe that they make."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from jdml import recipes
from jdml._optional_imports import is_pointer
from jdml.cli.option_groups import DataOptions, DeviceOptions, RunOptions, WeightOptions
from jdml.cli.options import NO_OPTION, Part, Typed, empty_part
from jdml.data.folder import check_apart
from jdml.models.io import read_metadata
from jdml.models.weights import ARCHITECTURE
from jdml.recipes import METHODS, NetworkConfig, Recipe
from jdml.recipes.config import Config
from jdml.recipes.network import BACKBONE
from jdml.recipes.recipe import RATES, STEPS, Pretraining, recommended_parts
from jdml.registry import LOSSES, NETWORKS
from jdml.registry.networks import SMALL_IMAGES, for_images
from jdml.training import Evaluation

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
    words: Annotated[tuple[str, ...], NO_OPTION] = ()

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
        if self.recommends:
            steps = self.batch.get("steps", STEPS)
            parts = {**DEFAULT, **recommended_parts(self._pretraining, steps)}
        else:
            changes = self._changes()
            parts = {name: part.replace(**changes.get(name, {})) for name, part in DEFAULT.items()}
        loss = with_typed(parts["loss"], self.loss)
        if not (self.has_batch or loss.has_proxies):  # before it is fitted to the data
            parts["batch"] = parts["batch"].replace(classes=16, samples_per_class=4)
        return {name: with_typed(part, getattr(self, name)) for name, part in parts.items()}

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

    @property
    def _pretraining(self) -> Pretraining:
        """The pretraining of the network, which the recommended recipe depends on."""
        if self.weights.weights is not None:
            frozen = self.finetune.get("freeze") == BACKBONE or "lora" in self.finetune
            return "frozen" if frozen else "pretrained"
        model = self.network.get("name") or for_images(None)
        small = not is_pointer(model) and NETWORKS[model].small_images
        return "small" if small else "untrained"


def with_typed(part: Any, typed: Typed) -> Any:
    """Return a part of a recipe with typed values; NAME=VALUE are added to what a mapping has."""
    changes = dict(typed)
    for name, value in typed.items():
        own = getattr(part, name)
        if isinstance(own, Config):
            changes[name] = with_typed(own, value)
        elif isinstance(value, Mapping) and isinstance(own, Mapping):
            changes[name] = {**own, **value}
    return part.replace(**changes)
