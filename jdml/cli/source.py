"""What ``jdml embed`` and ``jdml search`` read: a folder of images, a data set, a list of files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jdml import data
from jdml.data.lists import Listing
from jdml.data.loading import read_listing, read_path
from jdml.registry import DATASETS
from jdml.registry.constraints import nearest

Split = Literal["all", "gallery", "query", "test", "train", "val"]


class Source(NamedTuple):
    """Images to embed.

    Attributes:
        images: a ``Dataset``, or paths.
        files: their names; None where they lie in memory.
        labels: names or numbers of their classes; None where they have none.
        notes: what was passed over, a line each.
    """

    images: Any
    files: np.ndarray | None
    labels: np.ndarray | None
    notes: tuple[str, ...] = ()

    def select(self, rows: np.ndarray) -> "Source":
        """Names and labels of some of the rows."""
        files, labels = (
            None if column is None else column[rows] for column in (self.files, self.labels)
        )
        return self._replace(files=files, labels=labels)


def read_source(
    text: str,
    data_dir: Path | None,
    *,
    split: Split = "all",
    view: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Source:
    """Read what a user named: a folder, an image, a ``.csv`` file, or a data set with its folder.

    Args:
        text: a path, the name of a data set, or ``NAME:FOLDER``.
        data_dir: the folder of a data set that was given by its name alone.
        split: which part. That of a folder of classes is the run's.
        view: the labelling; by default the run's, else the first.
        config: the run's configuration.

    Returns:
        The source.

    Raises:
        FileNotFoundError: a path that is not there.
        ValueError: what is neither path nor data set.
    """
    config = config or {}
    path = Path(text).expanduser()
    name, colon, folder = text.partition(":")
    known = tuple(DATASETS)
    if path.is_file() or (path.is_dir() and not (data_dir is not None and text in known)):
        return _of_path(path, split, view, config)
    if colon and name in known:
        return _data_set(name, Path(folder), split, view, config)
    if text in known:
        return _data_set(text, data_dir, split, view, config)
    hint = nearest(name, known)
    raise FileNotFoundError(
        "SOURCE must be a folder of images, an image, a .csv file, or a data set such as cub:FOLDER; "
        f"{text} is none{hint}"
    )


def _data_set(
    name: str, folder: Path | None, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if name in data.IMAGE_FILES:
        return _of_listing(read_listing(name, folder), split, view, config)
    size = config.get("image_size") if DATASETS[name].sized else None
    options = {"image_size": size} if size else {}
    part = data.load(name, data_dir=folder, split=split, **options)
    return Source(part, None, _labels(part, view, config))


def _of_path(path: Path, split: str, view: str | None, config: Mapping[str, Any]) -> Source:
    images = read_path(path)
    if images.listing is not None:
        return _of_listing(images.listing, split, view, config)
    if split != "all":
        raise ValueError(
            f"--split {split} needs classes, each a folder: {path} holds images without"
        )
    files = np.array([str(file.absolute()) for file in images.files])
    return Source(images.files, files, None, images.notes)


def _of_listing(
    listing: Listing, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if split != "all":
        listing = _as_the_run(listing, config)
        if split not in listing.splits:
            raise ValueError(
                f"--split {split}: there is no such part, only {', '.join(listing.splits)}"
            )
    part = listing.dataset(split)
    files = np.array([str(Path(str(file)).absolute()) for file in part.images.files])
    return Source(part, files, _labels(part, view, config), listing.notes)


def _as_the_run(listing: Listing, config: Mapping[str, Any]) -> Listing:
    """A listing split as the run's was."""
    if listing.own_split or listing.name != "folder":
        return listing
    if config.get("split") == "images":
        return data.resplit(listing, "images", seed=config["seed"], share=config.get("test_share"))
    trained = config.get("embedding", {}).get("class_names")
    return data.train_on(listing, trained) if trained else listing


def _labels(part: data.Dataset, view: str | None, config: Mapping[str, Any]) -> np.ndarray:
    """The names of the classes, where they have names."""
    wanted = view or config.get("labels")
    if view is not None and view not in part.views:
        raise ValueError(f"--labels must be one of {', '.join(part.views)}, got {view!r}")
    chosen: str = wanted if wanted in part.views else next(iter(part.views))  # type: ignore[assignment]
    numbers, names = part.views[chosen], part.class_names.get(chosen)
    return numbers if names is None else np.array(names)[numbers]
