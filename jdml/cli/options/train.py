"""All options of ``jdml train``, and what of them is too large for a machine or a network."""

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from jdml.cli.options.base import as_typed
from jdml.cli.options.data import Data
from jdml.cli.options.machines import Machines
from jdml.cli.options.method import Method
from jdml.cli.options.network import Network
from jdml.cli.options.optimizer import Optimizer
from jdml.cli.options.run import RunOptions
from jdml.cli.start_of_run import words_of
from jdml.recipes import Recipe, beginning
from jdml.recipes.base import BACKBONE
from jdml.recipes.words import write_batch
from jdml.registry import NETWORKS, pretrained_networks
from jdml.registry.networks import SMALL_IMAGES, for_images
from jdml.registry.pointers import is_pointer

PAIRED = (16, 4)
"""Classes × samples of a pair loss's batch that nobody has chosen."""
PRETRAINED = "resnet50"
"""The network whose weights are recommended where none of them is named."""
COPIES = 4
"""Of a batch of images, as floating-point numbers and what the first layer makes of them."""


@dataclass(frozen=True)
class TrainOptions(Machines, RunOptions, Optimizer, Method, Network, Data):
    """Which data, network, method, optimizer; which run, on which machines."""

    def check(self) -> None:
        """Refuse options of different parts that do not go together."""
        super().check()
        if self.out is not None and self.data_dir is not None and self.data_name == "folder":
            from jdml.data.folder import check_apart

            check_apart("--out", self.out, self.data_dir)
        if self.augmentation == "none" and (self.kept_views or 0) > 1:
            raise ValueError(
                f"--kept-views {self.kept_views} keeps augmented views: --augmentation none leaves one"
            )
        if self.features is not None and not self.recipe().keeps:
            raise ValueError("--features needs --freeze backbone, of which features are kept")
        has_hook = self.recipe().has_hook
        needs = "a held-out share of the training rows"
        if self.patience is not None and not self.may_hold_out:
            raise ValueError(f"--patience needs --validation, {needs}")
        if self.monitor is not None and self.patience is None and not has_hook:
            raise ValueError("--monitor needs --patience")
        if self.evaluate_every is not None and not self.may_hold_out:
            raise ValueError(f"--evaluate-every needs --validation, {needs}")
        if has_hook and not self.may_hold_out:
            raise ValueError(
                f"--method {self.method} needs --validation, held-out rows that tell it what to do: --validation 0.2"
            )

    def settled(self) -> Self:
        """Also choose the network by the images, once all is checked."""
        options = super().settled()
        model = options.model or for_images(None if options.of_files else options.image_size or 0)
        options = replace(options, model=model)
        if self._shrinks(model):
            options = replace(options, image_size=SMALL_IMAGES)
        options.check()
        recipe, size = options.recipe(), options.image_size if options.of_files else None
        if size is not None:
            check_network(model, size)
        check_memory(recipe, size, options.batch)
        return options

    def _shrinks(self, model: str) -> bool:
        """Whether image files are cut to what a small network is for, as nobody has said how large they are."""
        said = self.image_size is not None or self.augmentation is not None
        own = is_pointer(model)
        return self.of_files and not said and not own and NETWORKS[model].small_images

    def hints(self) -> list[str]:
        """Say, before the first step, what would train photographs better; of options as typed."""
        model, lines = self.model or for_images(None), []
        if not self.of_files or self.weights is not None or is_pointer(model):
            return []
        if self._shrinks(model):
            lines.append(
                f"note: images are cut to {SMALL_IMAGES} pixels, which fit the network {model}: --image-size for others"
            )
        known = model in pretrained_networks()
        weights = f"{model if known else PRETRAINED}.safetensors"
        arch = weights.removesuffix(".safetensors")
        command = words_of(replace(self, weights=Path(weights)), without=("model", "image_size"))
        return [
            *lines,
            "note: the network begins untrained; pretrained weights learn photographs in fewer steps, and better:",
            f"      jdml weights convert {arch}.pth --arch {arch} --out {weights}",
            f"      {shlex.join(['jdml', 'train', *command])}",
        ]

    @property
    def recommends(self) -> bool:
        """Whether photographs are trained as is recommended, since nobody has said how."""
        return self.of_files and self.loss is None and self.method == "plain"

    @property
    def loss_name(self) -> str:
        """The loss, as typed, or recommended, or by the method."""
        return beginning.LOSS if self.recommends else super().loss_name

    def of_loss(self) -> Recipe:
        """Give the recipe that is recommended, or that of the loss and the method."""
        if not self.recommends:
            return super().of_loss()
        steps = beginning.STEPS if self.steps is None else self.steps
        return beginning.recommended(begins=self._begins, steps=steps)

    @property
    def _begins(self) -> beginning.Begins:
        """What the network knows when it begins; of one of one's own that is not known, and its rate in between."""
        if self.weights is not None:
            return "frozen" if self.freeze == BACKBONE or self.lora is not None else "pretrained"
        model = self.model or for_images(None)
        small = not is_pointer(model) and NETWORKS[model].small_images
        return "small" if small else "untrained"

    def recipe(self) -> Recipe:
        """Say how the options train: the one description that everything is made from.

        Raises:
            ValueError: options that do not go together, as typed.
        """
        with as_typed():
            base = self.of_loss()
            recipe = replace(base, **self.changes(base))
        if self.batch is None and not recipe.has_proxies:
            recipe = replace(recipe, batch=PAIRED)  # fitted to the data when they are read
        return recipe

    def config(self) -> dict[str, Any]:
        """Return what defines the run: the recipe, and which data it is for."""
        options = self.settled()
        return {"recipe": options.recipe().to_json(), **options.defining()}

    def title(self, recipe: Recipe) -> str:
        """Return one line that names the run."""
        miner = "" if recipe.miner == "none" else f" + {recipe.miner}"
        method = "" if self.method == "plain" else f"{self.method}, "
        return f"{self.data}: {method}{recipe.loss}{miner}, {recipe.dim}-D, seed {self.seed}"


def check_network(name: str, size: int) -> None:
    """Refuse a network whose dense layer grows with the images, where these are large.

    Args:
        name: the network's.
        size: height and width of the images.

    Raises:
        ValueError: with the number of parameters.
    """
    if name == "eps" and size > SMALL_IMAGES:
        millions = (size // 2) ** 2 * 64 * 128 / 1e6
        raise ValueError(
            f"--model eps is for small pictures: at {size} pixels its dense layer has {millions:,.0f} million "
            "parameters; write --model small or resnet18"
        )


def check_memory(recipe: Recipe, image_size: int | None, batch: str | None) -> None:
    """Refuse what no memory can hold.

    Args:
        recipe: of the run.
        image_size: height and width of image files' crops; None for images that are there already.
        batch: as typed.

    Raises:
        ValueError: naming the option, what it needs and what there is.
    """
    if not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = {
        f"--memory {recipe.memory}": recipe.memory * recipe.dim,
        f"--image-size {image_size} at --batch {batch or write_batch(recipe.batch)}": (
            COPIES * recipe.batch_size * 3 * (image_size or 0) ** 2
        ),
    }
    for option, number in numbers.items():
        size = 4 * number
        if size > there:
            raise ValueError(
                f"{option} needs {size / 2**30:,.0f} GiB, this machine has {there / 2**30:,.0f}"
            )
