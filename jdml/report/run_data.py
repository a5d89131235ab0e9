"""The images of a run, found again: what it was scored on, and what it was trained on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jdml import data
from jdml.data.dataset import NoSuchPartError
from jdml.data.image_source import Source, read_source, trained_labelling
from jdml.report.runs import Run

SCORED: tuple[Any, ...] = ("test", "query", "val", "all")
"""Parts of a data set, the first of which there is one is what is looked at."""


def attach_images(
    run: Run, source: str | None = None, data_dir: Path | None = None
) -> tuple[Run, str]:
    """Give a run the images that it was scored on and those that it was trained on, as far as they are at hand.

    Example:
        >>> attach_images(Run("a run in memory"))[1]
        ''
    """
    if run.data is not None or not run.trained:
        return run, ""
    config = run.config
    options = config.get("benchmark", config)
    name = options.get("dataset", options.get("data"))
    there = config.get("started", {}).get("data_dir") or options.get("data_dir")
    folder = data_dir or (Path(there) if there else None)
    own = str(folder) if name == "folder" and folder else name
    if source is None and own is None:
        return run, "it does not say what images it read: source names them"
    try:
        scored = _scored(source or own, folder, config)
    except (FileNotFoundError, ValueError, TypeError) as error:
        return run, f"its images are not at hand ({error}): source or data_dir names them"
    with_scored = replace(run, data=scored)
    try:
        return replace(with_scored, train=_trained(own, folder, config)), ""
    except (FileNotFoundError, ValueError, TypeError):
        return with_scored, ""  # proxies are then shown without what they stand for


def _scored(text: str, folder: Path | None, config: Any) -> data.Dataset:
    wrong: Exception | None = None
    for split in SCORED:
        try:
            return _as_dataset(text, read_source(text, folder, split=split, config=config))
        except NoSuchPartError as error:
            wrong = wrong or error
    assert wrong is not None
    raise wrong


def _trained(text: str | None, folder: Path | None, config: Any) -> data.Dataset:
    """The training part, by the labels that were trained on, numbered as the run numbered them."""
    options = config.get("benchmark", {})
    held_out = options.get("protocol") in ("mlrc", "ablation") or options.get("method") == "ccp"
    if text is None or held_out:
        raise ValueError("the run does not say which classes it was trained on")
    part = _as_dataset(text, read_source(text, folder, split="train", config=config))
    view = trained_labelling(config)
    part = part.relabel(view) if view is not None and view in part.views else part
    names = config.get("embedding", {}).get("class_names") or []
    own = next((part.class_names[v] for v in part.class_names if part.views[v] is part.labels), ())
    if names and own and list(own) != list(names):
        place = {name: number for number, name in enumerate(names)}
        known = np.array([own[label] in place for label in part.labels])
        part = part.select(known)
        return replace(part, labels=np.array([place[own[label]] for label in part.labels]))
    return part


def _as_dataset(text: str, source: Source) -> data.Dataset:
    if isinstance(source.images, data.Dataset):
        return source.images
    files = data.ImageFiles(source.images)
    return data.Dataset(Path(text).name, files, np.zeros(len(files), np.int32))
