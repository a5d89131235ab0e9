"""Studies are tried on networks that compile in no time, and on a small Omniglot."""

from collections.abc import Callable
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest

import jdml


class LinearNet(nn.Module):
    """Compiles in no time, where a study's network takes seconds for every loss."""

    dim: int

    @nn.compact
    def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
        return nn.Dense(self.dim)(images.reshape(len(images), -1))


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jdml.models, "create", lambda name, *, dim, **_: LinearNet(dim))


@pytest.fixture
def _small_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    preset, small = jdml.flows.preset, {"num_blocks": 1, "depth": 2, "hidden": 8}
    monkeypatch.setattr(
        jdml.flows, "preset", lambda *sizes, **changes: preset(*sizes, **{**changes, **small})
    )


@pytest.fixture
def write_omniglot() -> Callable[..., None]:
    """What writes a small Omniglot into a folder."""
    return _write_omniglot


def _write_omniglot(folder: Path, alphabets: tuple[str, ...] = ("Aa", "Bb")) -> None:
    """A few small alphabets per split, as unpacked folders of 105×105 drawings."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split in ("images_background", "images_evaluation"):
        for alphabet in alphabets:
            for letter in range(4):
                path = folder / split / alphabet / f"character{letter + 1:02d}"
                path.mkdir(parents=True)
                for drawer in range(20):
                    paper = rng.random((105, 105)) > 0.1 * (letter + 1)
                    Image.fromarray(paper).save(path / f"{letter + 1:04d}_{drawer + 1:02d}.png")
