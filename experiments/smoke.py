"""`--smoke`: a study from end to end in seconds, at toy size, to see that it runs; its numbers mean nothing."""

import dataclasses
import itertools
import secrets
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jdml.models import EmbeddingHead

SMOKE = "--smoke" in sys.argv[1:]
FOLDER = Path("runs") / f"smoke-{secrets.token_hex(4)}"
"""The folder of a toy run."""
NETWORK = "experiments.smoke:Linear"
"""The network of toy runs: it compiles in no time."""
FLOW = {"num_blocks": 1, "depth": 2, "hidden": 8}


def small(value: Any, toy: Any) -> Any:
    """Return a constant's value, or its toy value with --smoke."""
    return toy if SMOKE else value


def record(file: Path) -> Path:
    """Return a file of records, or one of that name in the toy run's folder with --smoke."""
    return FOLDER / file.parent.name / file.name if SMOKE else file


class Linear(nn.Module):
    """Two linear layers on all pixels."""

    dim: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        """Embed images."""
        hidden = nn.Dense(8)(images.reshape(len(images), 1, 1, -1))
        return EmbeddingHead(self.dim, name="head")(hidden)


def begin(settings: Any) -> Any:
    """Say that a toy run follows, make its folder, and return its settings, with a folder of images."""
    print(f"smoke: a toy run, whose numbers mean nothing, in {FOLDER}", flush=True)
    FOLDER.mkdir(parents=True)
    if getattr(settings, "data", getattr(settings, "task", "")) == "digits":
        return settings
    missing = [name for name in ("data_dir", "birds") if getattr(settings, name, 0) is None]
    return dataclasses.replace(settings, **dict.fromkeys(missing, write_images(FOLDER / "images")))


def write_images(folder: Path) -> Path:
    """Write a small Omniglot, and a few birds in the layout of CUB, into a folder, and return it."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, alphabet, letter in itertools.product(
        ("images_background", "images_evaluation"), "ABC", range(1, 5)
    ):
        path = folder / split / alphabet / f"character{letter:02d}"
        path.mkdir(parents=True)
        for drawer in range(1, 21):
            paper = rng.random((105, 105)) > 0.1 * letter
            Image.fromarray(paper).save(path / f"{letter:04d}_{drawer:02d}.png")
    (folder / "images").mkdir()
    species = (*range(1, 7), *range(101, 107))
    birds = [(one, f"{one}_{n}.png") for one in species for n in range(6)]
    for one, name in birds:
        pixels = rng.integers(0, 16 + 2 * one, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / name)
    rows = list(enumerate(birds, 1))
    for name, lines in (
        ("classes", [f"{one} bird{one}" for one in species]),
        ("images", [f"{row} {file}" for row, (_, file) in rows]),
        ("image_class_labels", [f"{row} {one}" for row, (one, _) in rows]),
    ):
        (folder / f"{name}.txt").write_text("\n".join(lines))
    return folder
