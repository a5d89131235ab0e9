"""Images by what a user calls them: a folder, a data set, a list of files; split as a run had them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jdml.data.columns import row_named
from jdml.data.dataset import Dataset
from jdml.data.images import ImageFiles, Row
from jdml.data.lists import Listing
from jdml.data.loading import IMAGE_FILES, load, read_listing, read_path
from jdml.data.splits import resplit, train_on
from jdml.registry import DATASETS
from jdml.registry.constraints import nearest
from jdml.registry.places import at_home
from jdml.registry.pointers import is_pointer

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


def read_source(
    source: str,
    data_dir: Path | None,
    *,
    split: Split = "all",
    view: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Source:
    """Read what a user named: a folder, an image, a ``.csv`` or Parquet file, or a data set with its folder.

    Args:
        source: a path, the name of a data set, ``NAME:FOLDER``, or ``module:name`` of a user's own.
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
    path = at_home(source)
    name, colon, folder = source.partition(":")
    known = tuple(DATASETS)
    if path.is_dir() and data_dir is None and source in known and not DATASETS[source].needs_folder:
        raise ValueError(
            f"source {source} is a data set of that name, and a folder here: write ./{source} for the folder"
        )
    if path.is_file() or (path.is_dir() and not (data_dir is not None and source in known)):
        return _of_path(path, split, view, config)
    if colon and name in known:
        return _data_set(name, Path(folder), split, view, config)
    if source in known:
        return _data_set(source, data_dir, split, view, config)
    if is_pointer(source) or row_named(source) is not None:
        return _of_path(path, split, view, config)
    hint = nearest(name, known)
    raise FileNotFoundError(
        "source must be a folder of images, an image, a .csv or .parquet file, or a data set such as cub:FOLDER; "
        f"{source} is none{hint}"
    )


def _data_set(
    name: str, folder: Path | None, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if name in IMAGE_FILES:
        return _of_listing(read_listing(name, folder), split, view, config)
    size = config.get("image_size") if DATASETS[name].sized else None
    options = {"image_size": size} if size else {}
    part = load(name, data_dir=folder, split=split, **options)
    return Source(part, None, _labels(part, view, config))


def _of_path(path: Path, split: str, view: str | None, config: Mapping[str, Any]) -> Source:
    images = read_path(path)
    if images.listing is not None:
        return _of_listing(images.listing, split, view, config)
    if split != "all":
        raise ValueError(f"split {split} needs classes, each a folder: {path} holds images without")
    files = np.array([name_of(file) for file in images.files])
    rows = any(isinstance(file, Row) for file in images.files)
    return Source(ImageFiles(images.files) if rows else images.files, files, None, images.notes)


def _of_listing(
    listing: Listing, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if split != "all":
        listing = _as_the_run(listing, config)
        if split not in listing.splits:
            raise ValueError(
                f"split {split}: there is no such part, only {', '.join(listing.splits)}"
            )
    part = listing.dataset(split)
    files = np.array([name_of(file) for file in part.images.files])
    return Source(part, files, _labels(part, view, config), listing.notes)


def _as_the_run(listing: Listing, config: Mapping[str, Any]) -> Listing:
    """A listing split as the run's was."""
    if listing.own_split or listing.name != "folder":
        return listing
    if config.get("split") == "images":
        return resplit(listing, "images", seed=config["seed"], share=config.get("test_share"))
    trained = config.get("embedding", {}).get("class_names")
    return train_on(listing, trained) if trained else listing


def name_of(file: Any) -> str:
    """What an image is called from everywhere: its absolute path, or ``FILE[ROW]``."""
    return str(file) if isinstance(file, Row) else str(Path(str(file)).absolute())


def _labels(part: Dataset, view: str | None, config: Mapping[str, Any]) -> np.ndarray:
    """The names of the classes, where they have names."""
    wanted = view or config.get("labels")
    if view is not None and view not in part.views:
        raise ValueError(f"view must be one of {', '.join(part.views)}, got {view!r}")
    chosen: str = wanted if wanted in part.views else next(iter(part.views))  # type: ignore[assignment]
    numbers, names = part.views[chosen], part.class_names.get(chosen)
    return numbers if names is None else np.array(names)[numbers]
