"""A dry run: noise in the form of a real data set, and a recipe small enough for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from jdml.recipes import Problems, Recipe
from jdml.recipes.base import Batch
from jdml.registry.extras import need

DRY_CLASSES = 8
DRY_IMAGES, DRY_TEST_IMAGES = 8, 2


def rehearsed(recipe: Recipe) -> Recipe:
    """The recipe with batches and pools that the made-up images fill."""
    small: Batch = (DRY_CLASSES // 4, 4) if isinstance(recipe.batch, tuple) else DRY_CLASSES
    method = recipe.method
    if isinstance(method, Problems):
        method = replace(method, pool_size=DRY_IMAGES)
    return replace(recipe, batch=small, method=method)


@contextmanager
def fake_images(size: int) -> Iterator[Path]:
    """A folder of classes with noise as JPEG files, a little larger than the crops."""
    import tempfile

    need("PIL", "a dry run")
    from PIL import Image

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        for of_class in range(2 * DRY_CLASSES):
            training = of_class < DRY_CLASSES
            folder = Path(name) / ("train" if training else "test") / f"class{of_class:02}"
            folder.mkdir(parents=True)
            colour = rng.integers(0, 256, (1, 1, 3))
            for number in range(DRY_IMAGES if training else DRY_TEST_IMAGES):
                noise = rng.integers(-40, 40, (size + 24, size + 40, 3))
                pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
        yield Path(name)
