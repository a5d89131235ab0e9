"""The options of ``jdml train``, and the recipe that they make."""

import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from jdml import registry
from jdml._import_path import is_pointer
from jdml.cli.options.groups import DataOptions, DeviceOptions, RunOptions, WeightOptions
from jdml.cli.options.parts import apply_options, naming_options, part_options
from jdml.cli.options.reading import Part, Typed, check_options, defining, empty_part, to_argv
from jdml.data.folder import check_apart
from jdml.ops.checks import one_of
from jdml.recipes import METHODS, NetworkConfig, Recipe, RecipeError, default_recipe, with_method
from jdml.recipes.config import parse_settings
from jdml.recipes.network import BACKBONE
from jdml.registry import NETWORKS, pretrained_networks
from jdml.registry.networks import SMALL_IMAGES, for_images

PAIR_BATCH = {"classes": 16, "samples_per_class": 4}
"""The batch of a pair loss, before it is fitted to the data."""
PRETRAINED = "resnet50"
"""The network whose weights are recommended where none of them is named."""


def recipe_of_loss(name: str) -> Recipe:
    """Return the recipe to begin with for a loss."""
    one_of("--loss", name, registry.LOSSES)
    loss = registry.LOSSES[name]
    return Recipe().replace(
        loss={"name": name, "proxies": {"init": loss.start}},
        batch={"size": 64, "on_small_class": "refuse", "steps": 1000},
        optimizer={"learning_rate": 1e-3},
        evaluation={"every": 100},
    )


NOT_OPTIONS = ("epochs", "nmi", "nmi_cluster_factor", "map_divisor")
"""Fields of a paper's recipe that this command does not read: it counts steps, and measures retrieval alone."""
SHOWN = recipe_of_loss("triplet")
"""The recipe whose values the help shows."""


@dataclass(frozen=True)
class MethodOptions:
    """What is made of the loss."""

    method: Literal[("plain", *sorted(METHODS))] = "plain"  # type: ignore[valid-type]
    """ccp: proxies for one problem after another; needs --validation. nir: a flow around each proxy."""
    method_setting: tuple[str, ...] = ()
    """The method's own numbers, such as pool_size=7 (ccp), weight=0.02 (nir)."""


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
        """Whether photographs are trained by the recommended recipe, since neither a loss nor a method is named."""
        return self.data.of_files and "name" not in self.loss and self.method.method == "plain"

    def base_recipe(self) -> Recipe:
        """Return the recommended recipe, or that of the loss and the method, without what else was typed."""
        if self.recommends:
            steps = self.batch.get("steps", default_recipe.STEPS)
            recipe = default_recipe.recommended(pretraining=self._pretraining, steps=steps)
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

    def recipe(self) -> Recipe:
        """Return the one description that everything is made from; what is wrong names the options."""
        return self._recipe

    @cached_property
    def _recipe(self) -> Recipe:
        base = self.base_recipe()
        if not self.has_batch and not apply_options(base, {"loss": self.loss}).loss.has_proxies:
            base = base.replace(batch=PAIR_BATCH)
        return apply_options(base, part_options(self))

    def check(self) -> None:
        """Refuse options of different groups that contradict each other."""
        if self.method.method == "plain" and self.method.method_setting:
            known = " or ".join(f"--method {name}" for name in METHODS)
            raise ValueError(f"--method-setting needs {known}")
        recipe = self.recipe()
        if self.run.out is not None and self.data.data_name == "folder":
            assert self.data.data_dir is not None
            check_apart("--out", self.run.out, self.data.data_dir)
        if self.data.augmentation == "none" and recipe.finetune.cached_views > 1:
            raise ValueError(
                f"--cached-views {recipe.finetune.cached_views} caches augmented views: --augmentation none leaves one"
            )
        if self.run.feature_cache is not None and not recipe.finetune.caches_features:
            raise ValueError(
                "--feature-cache needs --freeze backbone, of which features are cached"
            )
        if "monitor" in self.evaluation and "patience" not in self.evaluation:
            if not recipe.loss.needs_validation:
                raise ValueError("--monitor needs --patience")

    def resolve(self) -> Self:
        """Return the options with the data set and the network named, after checking them."""
        self.run.check()
        self.devices.check()
        options = replace(self, data=self.data.resolve())
        images = options.data.image_size or 0
        self.weights.check(self.network.get("name"))
        model = self.network.get("name") or self.weights.model_name()
        model = model or for_images(None if options.data.of_files else images)
        with naming_options():
            NetworkConfig(model)  # refuses an unknown name
        options = replace(options, network={**options.network, "name": model})
        if self._shrinks(model):
            options = replace(options, data=replace(options.data, image_size=SMALL_IMAGES))
        options.check()
        return options

    def defining(self) -> dict[str, Any]:
        """Return what defines a run beside its recipe, as JSON has it: files by what they hold."""
        return {**defining(self.data), **defining(self.weights), **defining(self.run)}

    def config(self) -> dict[str, Any]:
        """Return what defines the run: the recipe, and which data it is for."""
        options = self.resolve()
        return {"recipe": options.recipe().to_json(), **options.defining()}

    def hints(self) -> list[str]:
        """Return what would train photographs better, for the lines before the first step; of options as typed."""
        model = self.network.get("name") or for_images(None)
        lines: list[str] = []
        if not self.data.of_files or self.weights.weights is not None or is_pointer(model):
            return lines
        if self._shrinks(model):
            lines.append(
                f"note: images are cropped to {SMALL_IMAGES} pixels, which fit the network {model}: "
                "--image-size for others"
            )
        weights = f"{model if model in pretrained_networks() else PRETRAINED}.safetensors"
        arch = weights.removesuffix(".safetensors")
        other = replace(
            self,
            data=replace(self.data, image_size=None),
            network={name: value for name, value in self.network.items() if name != "name"},
            weights=replace(self.weights, weights=Path(weights)),
        )
        return [
            *lines,
            "note: the network begins untrained; pretrained weights learn photographs in fewer steps, and better:",
            f"      jdml weights convert {arch}.pth --arch {arch} --out {weights}",
            f"      {shlex.join(['jdml', 'train', *to_argv(other)])}",
        ]

    def title(self, recipe: Recipe) -> str:
        """Return one line that names the run."""
        loss = recipe.loss
        miner = "" if loss.miner == "none" else f" + {loss.miner}"
        method = "" if loss.method is None else f"{loss.method.name}, "
        data, dim = self.data.data, recipe.network.dim
        return f"{data}: {method}{loss.name}{miner}, {dim}-D, seed {self.run.seed}"

    def _shrinks(self, model: str) -> bool:
        """Whether image files are cropped to the size of a small network, as nobody has said how large they are."""
        said = self.data.image_size is not None or self.data.augmentation is not None
        own = is_pointer(model)
        return self.data.of_files and not said and not own and NETWORKS[model].small_images

    @property
    def _pretraining(self) -> default_recipe.Pretraining:
        """What the network knows when training begins."""
        if self.weights.weights is not None:
            frozen = self.finetune.get("freeze") == BACKBONE or "lora" in self.finetune
            return "frozen" if frozen else "pretrained"
        model = self.network.get("name") or for_images(None)
        small = not is_pointer(model) and NETWORKS[model].small_images
        return "small" if small else "untrained"
