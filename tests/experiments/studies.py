"""An experiment as a module, and a small Omniglot for it."""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def load(name: str, file: str = "main") -> types.ModuleType:
    """An experiment's main.py, or another script of it, as a module."""
    spec = importlib.util.spec_from_file_location(
        f"experiment_{name}_{file}", EXPERIMENTS / name / f"{file}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    for sibling in EXPERIMENTS.glob("*/*.py"):  # another experiment's module may have the same name
        sys.modules.pop(sibling.stem, None)
    sys.path.insert(0, str(EXPERIMENTS / name))  # as `python main.py` does
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def write_omniglot(folder: Path, alphabets: tuple[str, ...] = ("Aa", "Bb")) -> None:
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
