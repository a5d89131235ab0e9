"""Studies are tried on networks that compile in no time, and on a small Omniglot."""

import dataclasses
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


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch, write_omniglot: Callable[..., None], tmp_path: Path):
    """The letters' study with a method, two steps and a trial, on eight letters; which parts of the data it read."""
    from experiments.letters import main as study
    from experiments.letters import protocol

    write_omniglot(tmp_path / "data", ("Aa", "Bb"))
    methods = {"MS": dataclasses.replace(study.METHODS["MS"], batch=(4, 4))}
    columns = {"tuned": (1,), "papers": (1,), "resnet": (1,), "also": (1,), "again": ()}
    for name, value in {"STEPS": 2, "EVERY": 1, "FOLDS": 2, "COLUMNS": columns}.items():
        monkeypatch.setattr(protocol, name, value)
    for name, value in {"METHODS": methods, "TRIALS": 1}.items():
        monkeypatch.setattr(study, name, value)
    values = {"rate": 2e-3, "per_class": 16}  # 4 × 16 rows, of the letters that there are
    monkeypatch.setattr(study, "trial", lambda recipe, number: values)
    read: list[str] = []
    load = jdml.data.load

    def told(*names: object, split: str, **where: object) -> jdml.data.Dataset:
        read.append(split)
        return load(*names, split=split, **where)

    monkeypatch.setattr(jdml.data, "load", told)
    protocol.letters.cache_clear()
    folder = {"runs": tmp_path / "runs", "frozen": tmp_path / "frozen.json"}
    yield study, study.Settings(tmp_path / "data", out=tmp_path / "kept.jsonl", **folder), read
    protocol.letters.cache_clear()


@pytest.fixture
def no_run() -> Callable[..., dict]:
    """What takes the place of a study's run where all is kept."""

    def run(job: dict, **where: str | None) -> dict:
        raise AssertionError(f"{job} was kept, and is run again")

    return run
