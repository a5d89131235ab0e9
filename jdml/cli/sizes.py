"""What is too large for a machine or a network, told before any work."""

import os

from jdml.recipes import Recipe
from jdml.recipes.words import write_batch

SMALL_IMAGES = 64
"""Up to this size images are what the network ``eps`` is for."""
COPIES = 4
"""Of a batch of images, as floating-point numbers and what the first layer makes of them."""


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
