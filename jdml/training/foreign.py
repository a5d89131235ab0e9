"""What other libraries have for data sets and loaders: each in its own sentence, with what to write instead."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WRITE = 'jdml.data.Dataset("name", images, labels)'
"""What a data set is made with."""


def instead_of_train(train: Any) -> str | None:
    """Say what something that is no data set is, and how one is made of it.

    Args:
        train: what was passed.

    Returns:
        The rest of a sentence that begins with "train must be a data set"; None of what is not known.
    """
    kind, name = _library(train), type(train).__name__
    if kind == "torch" and "Loader" in name:
        return (
            "got a PyTorch DataLoader, which has drawn its batches already: write jdml.data.from_torch(loader), which "
            "collects them once; a sampler draws the batches"
        )
    if kind == "torch":
        return f"got a PyTorch {name}: write jdml.data.from_torch(dataset)"
    if kind == "datasets":
        split = '["train"], one of its splits' if isinstance(train, Mapping) else ""
        return f"got a Hugging Face {name}: write jdml.data.from_huggingface(dataset{split})"
    if kind == "grain":
        return (
            f"got a {name} of Grain: write jdml.data.from_rows(source), of one epoch and before batches are made; a "
            "sampler draws the batches"
        )
    if kind in ("tensorflow", "tensorflow_datasets"):
        return (
            f"got a {name} of TensorFlow: write jdml.data.from_rows(dataset.as_numpy_iterator()), of one epoch and "
            "before batches are made"
        )
    if kind == "pandas":
        return f'got a pandas {name}: write {WRITE}, with labels=numpy.asarray(frame["label"])'
    if isinstance(train, Mapping):
        return f"got a dictionary of {', '.join(map(str, train))}: write {WRITE}"
    if isinstance(train, str | Path):
        path = f"{str(train)!r}"
        if path.endswith((".parquet'", ".arrow'")):
            return f"got the path {path}: write jdml.data.from_parquet(path)"
        return f'got the path {path}: write jdml.data.load("folder", data_dir=path)'
    if isinstance(train, Iterator):
        return (
            f"got a {name}, which gives each batch once and in its own order: collect it, images, labels = "
            f"(numpy.concatenate(part) for part in zip(*batches)), and write {WRITE}"
        )
    return None


def instead_of_sampler(sampler: Any) -> str | None:
    """Say what something that yields no rows is, and what a sampler is for.

    Args:
        sampler: what was passed.

    Returns:
        The rest of a sentence that begins with "sampler must be an iterator of row indices [B]"; None of what is not
        known.
    """
    kind, name = _library(sampler), type(sampler).__name__
    if kind == "torch" and "Sampler" in name:
        return (
            f"got a PyTorch {name}: in a run without a folder, write (numpy.asarray(rows) for _ in iter(int, 1) for "
            "rows in sampler), which begins again at each epoch"
        )
    whose = {
        "torch": "PyTorch",
        "grain": "Grain",
        "datasets": "Hugging Face",
        "tensorflow": "TensorFlow",
    }
    if kind in whose:
        return (
            f"got a {name} of {whose[kind]}, which yields examples: those are for train, a sampler yields their "
            "numbers"
        )
    return None


def _library(value: Any) -> str | None:
    """The library that something is of."""
    known = ("torch", "torchvision", "datasets", "grain", "tensorflow", "tensorflow_datasets", "pandas")  # fmt: skip
    for base in type(value).__mro__:
        root = base.__module__.split(".")[0]
        if root in known:
            return "torch" if root == "torchvision" else root
    return None
