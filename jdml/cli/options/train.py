"""What ``jdml train`` is to do: its options, and the recipe that they make."""

import os
import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from jdml import registry
from jdml._import_path import is_pointer
from jdml.cli.options.data import DataOptions
from jdml.cli.options.devices import DeviceOptions
from jdml.cli.options.parts import (
    MethodOptions,
    Typed,
    as_typed,
    check_options,
    defining,
    make_groups,
    options_of,
    to_argv,
    typed,
    typed_parts,
    with_typed,
)
from jdml.cli.options.run import RunOptions, WeightOptions
from jdml.ops.checks import did_you_mean, one_of
from jdml.recipes import METHODS, NetworkConfig, Recipe, default_recipe, settings_of, with_method
from jdml.recipes.network import BACKBONE
from jdml.recipes.parsing import parse_settings
from jdml.registry import NETWORKS, pretrained_networks
from jdml.registry.networks import SMALL_IMAGES, for_images

PAIR_BATCH = {"classes": 16, "samples_per_class": 4}
"""The batch of a pair loss, before it is fitted to the data."""
PRETRAINED = "resnet50"
"""The network whose weights are recommended where none of them is named."""
COPIES = 4
"""Of a batch of images, as floating-point numbers and the first layer's output."""


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
class TrainOptions:
    """The options of ``jdml train``."""

    data: Annotated[DataOptions, options_of(DataOptions())] = typed()
    network: Annotated[Typed, options_of(SHOWN.network)] = typed()
    weights: Annotated[WeightOptions, options_of(WeightOptions())] = typed()
    loss: Annotated[Typed, options_of(SHOWN.loss)] = typed()
    method: Annotated[MethodOptions, options_of(MethodOptions())] = typed()
    finetune: Annotated[Typed, options_of(SHOWN.finetune)] = typed()
    batch: Annotated[Typed, options_of(SHOWN.batch, without=NOT_OPTIONS)] = typed()
    optimizer: Annotated[Typed, options_of(SHOWN.optimizer)] = typed()
    evaluation: Annotated[Typed, options_of(SHOWN.evaluation, without=NOT_OPTIONS)] = typed()
    run: Annotated[RunOptions, options_of(RunOptions())] = typed()
    devices: Annotated[DeviceOptions, options_of(DeviceOptions())] = typed()

    def __post_init__(self) -> None:
        make_groups(self)

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
        known = settings_of(method, of_paper=False)
        own = parse_settings(self.method.method_setting, "--method-setting", words=True)
        for name in own:
            if name not in known:
                raise ValueError(
                    f"--method-setting: {method} has no setting {name!r}; it has {', '.join(sorted(known))}"
                    f"{did_you_mean(name, known)}"
                )
        with as_typed():
            return with_method(base, method, **own)

    def recipe(self) -> Recipe:
        """Return the one description that everything is made from.

        Raises:
            ValueError: options that contradict each other, as typed.
        """
        return self._recipe

    @cached_property
    def _recipe(self) -> Recipe:
        base = self.base_recipe()
        if not self.has_batch and not with_typed(base, {"loss": self.loss}).loss.has_proxies:
            base = base.replace(batch=PAIR_BATCH)
        return with_typed(base, typed_parts(self))

    def check(self) -> None:
        """Refuse options of different groups that contradict each other."""
        if self.method.method == "plain" and self.method.method_setting:
            known = " or ".join(f"--method {name}" for name in METHODS)
            raise ValueError(f"--method-setting needs {known}")
        recipe = self.recipe()
        if self.run.out is not None and self.data.data_name == "folder":
            from jdml.data.folder import check_apart

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
        needs = "held-out rows: --validation 0.2"
        if not self.data.may_hold_out:
            for name, option in {"patience": "--patience", "every": "--evaluate-every"}.items():
                if name in self.evaluation:
                    raise ValueError(f"{option} needs {needs}")
            if recipe.loss.needs_validation:
                raise ValueError(f"--method {self.method.method} needs {needs}")
        if "monitor" in self.evaluation and "patience" not in self.evaluation:
            if not recipe.loss.needs_validation:
                raise ValueError("--monitor needs --patience")

    def settled(self) -> Self:
        """Return the options with the data set and the network named, after checking them."""
        self.run.check()
        options = replace(self, data=self.data.settled())
        images = options.data.image_size or 0
        self.weights.check(self.network.get("name"))
        model = self.network.get("name") or self.weights.model_name()
        model = model or for_images(None if options.data.of_files else images)
        with as_typed():
            NetworkConfig(model)  # refuses an unknown name
        options = replace(options, network={**options.network, "name": model})
        if self._shrinks(model):
            options = replace(options, data=replace(options.data, image_size=SMALL_IMAGES))
        options.check()
        size = options.data.image_size if options.data.of_files else None
        if size is not None:
            check_network(model, size)
        check_memory(options.recipe(), size)
        return options

    def defining(self) -> dict[str, Any]:
        """Return what defines a run beside its recipe, as JSON has it: files by what they hold."""
        return {
            **defining(self.data),
            **defining(self.weights),
            **defining(self.run),
        }

    def config(self) -> dict[str, Any]:
        """Return what defines the run: the recipe, and which data it is for."""
        options = self.settled()
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
        other = replace(self, weights=replace(self.weights, weights=Path(weights)))
        command = to_argv(other, without=("network.name", "image_size"))
        return [
            *lines,
            "note: the network begins untrained; pretrained weights learn photographs in fewer steps, and better:",
            f"      jdml weights convert {arch}.pth --arch {arch} --out {weights}",
            f"      {shlex.join(['jdml', 'train', *command])}",
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


def check_network(name: str, size: int) -> None:
    """Refuse a network whose dense layer grows with the images, where these are large."""
    if name == "eps" and size > SMALL_IMAGES:
        millions = (size // 2) ** 2 * 64 * 128 / 1e6
        raise ValueError(
            f"--model eps is for small pictures: at {size} pixels its dense layer has {millions:,.0f} million "
            "parameters; write --model small or resnet18"
        )


def check_memory(recipe: Recipe, image_size: int | None) -> None:
    """Refuse a memory or a batch of images larger than the machine's memory."""
    if not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = {
        f"--memory-size {recipe.loss.memory_size}": recipe.loss.memory_size * recipe.network.dim,
        f"--image-size {image_size} with batches of {recipe.batch}": (
            COPIES * recipe.batch.rows * 3 * (image_size or 0) ** 2
        ),
    }
    for option, number in numbers.items():
        if 4 * number > there:
            raise ValueError(
                f"{option} needs {4 * number / 2**30:,.0f} GiB, this machine has {there / 2**30:,.0f}"
            )
