"""Images by the name that a user gives: a folder, a data set, a list of files; split as a run split them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jdml._import_path import is_pointer
from jdml._paths import expand_user
from jdml.data.dataset import Dataset, NoSuchPartError
from jdml.data.folder import row_named
from jdml.data.images import ImageFiles, Row
from jdml.data.listing import Listing
from jdml.data.load import IMAGE_FILES, load, read_listing, read_path
from jdml.data.splits import SHARES, resplit, split_by_class_names
from jdml.ops.checks import did_you_mean, one_of
from jdml.registry import DATASETS

Split = Literal["all", "gallery", "query", "test", "train", "val"]


RUN = "run"
"""The key of a model file under which the data of its run are described."""
UNKNOWN = {"split": "unknown"}
"""The description in a file without one."""


class Source(NamedTuple):
    """Images to embed."""

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
    """Read a folder, an image, a ``.csv`` or Parquet file, or a data set with its folder."""
    config = config or {}
    path = expand_user(source)
    name, colon, folder = source.partition(":")
    if path.is_file() or (path.is_dir() and not (data_dir is not None and source in DATASETS)):
        return _from_path(path, split, view, config)
    if name in DATASETS:
        return _from_name(name, Path(folder) if colon else data_dir, split, view, config)
    if is_pointer(source) or row_named(source) is not None:
        return _from_path(path, split, view, config)
    raise FileNotFoundError(
        "source must be a folder of images, an image, a .csv or .parquet file, or a data set such as cub:FOLDER; "
        f"{source} is none{did_you_mean(name, DATASETS)}"
    )


def check_data_dir(source: str, data_dir: Path | None) -> None:
    """Refuse a ``--data-dir`` that would not be read."""
    if data_dir is not None and not (source in DATASETS and DATASETS[source].needs_folder):
        raise ValueError(
            f"--data-dir is the folder of a data set that is given by its name alone, such as cub; {source} needs none"
        )


def root_of(source: str, data_dir: Path | None, images: Source) -> Path:
    """Return the folder to which the images' paths are relative."""
    name, _, folder = source.partition(":")
    path = expand_user(source)
    if not path.exists() and name in DATASETS:
        path = Path(folder or data_dir or ".")
        if not (folder or data_dir) and images.files is not None:
            path = Path(os.path.commonpath(images.files.tolist()))
    return (path if path.is_dir() else path.parent).absolute()


def _from_name(
    name: str, folder: Path | None, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if name in IMAGE_FILES:
        return _from_listing(read_listing(name, folder), split, view, config)
    shape = _lookup(config, "embedding", "input", "shape")
    is_image = isinstance(shape, list) and len(shape) == 3
    options = {"image_size": shape[0]} if DATASETS[name].sized and is_image else {}
    part = load(name, data_dir=folder, split=split, **options)
    return Source(part, None, _class_labels(part, view, config))


def _from_path(path: Path, split: str, view: str | None, config: Mapping[str, Any]) -> Source:
    images = read_path(path)
    if images.listing is not None:
        return _from_listing(images.listing, split, view, config)
    if split != "all":
        raise NoSuchPartError(f"split {split} needs a folder for each class, {path} has none")
    files = np.array([image_id(file) for file in images.files])
    rows = any(isinstance(file, Row) for file in images.files)
    return Source(ImageFiles(images.files) if rows else images.files, files, None, images.notes)


def _from_listing(
    listing: Listing, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if split != "all":
        listing = _split_as_run(listing, split, config)
    part = listing.dataset(split)
    files = np.array([image_id(file) for file in part.images.files])
    return Source(part, files, _class_labels(part, view, config), listing.notes)


def _split_as_run(listing: Listing, split: str, config: Mapping[str, Any]) -> Listing:
    """Split a listing as the run did; not one of another data set, or with a split of its own."""
    data, rule = config.get("data"), config.get("split")
    names = _lookup(config, "embedding", "class_names")
    is_command = isinstance(data, str) and data in DATASETS and "seed" in config
    if is_command and data != listing.name:
        return listing
    if is_command and rule == "none":
        _check_same(listing, split, config)
        if split != "train":
            raise NoSuchPartError(
                f"split {split}: the run was trained on all of these images (--split none)"
            )
        return resplit(listing, "none")
    if listing.own_split:
        return listing
    by_class = rule == "classes" and trained_labelling(config) in (None, next(iter(listing.views)))
    if is_command and rule in SHARES and not by_class:
        _check_same(listing, split, config)
        return resplit(listing, rule, seed=config["seed"], share=config.get("test_share"))
    if rule == UNKNOWN["split"]:
        raise ValueError(
            f"split {split}: the file does not say which images trained it; give the run's folder, export it again, or "
            "write --split all"
        )
    by_name = (is_command and (by_class or config.get("classes_file"))) or listing.name == "folder"
    return split_by_class_names(listing, names) if by_name and names else listing


def _check_same(listing: Listing, split: str, config: Mapping[str, Any]) -> None:
    """Refuse images that are not those that a run drew its parts from."""
    known = _lookup(config, "started", "files_checksum")
    if known is not None and known != listing.checksum:
        raise ValueError(
            f"split {split}: these are not the images that the run split (--split {config['split']}): files were "
            "added, removed or renamed; write --split all, or give a folder of the images to embed"
        )


def image_id(file: Any) -> str:
    """Return an image's name from everywhere: its absolute path, or ``FILE[ROW]``."""
    return str(file) if isinstance(file, Row) else str(Path(str(file)).absolute())


def _class_labels(part: Dataset, view: str | None, config: Mapping[str, Any]) -> np.ndarray:
    """Return the names of the images' classes, or their numbers if they have no names."""
    if view is not None:
        one_of("view", view, part.views)
    wanted = view or trained_labelling(config)
    chosen = wanted if wanted is not None and wanted in part.views else next(iter(part.views))
    numbers, names = part.views[chosen], part.class_names.get(chosen)
    return numbers if names is None else np.array(names)[numbers]


def trained_labelling(config: Mapping[str, Any]) -> str | None:
    """Return the name of the labelling that a run was trained on, if it is known."""
    name = _lookup(config, "labels") or _lookup(config, "started", "labels")
    return name if isinstance(name, str) else None


def run_data_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a run's configuration that describes its data, as :func:`read_source` needs it."""
    names = ("data", "split", "test_share", "classes_file", "labels", "seed")
    started = {name: _lookup(config, "started", name) for name in ("labels", "files_checksum")}
    return {**{name: config[name] for name in names if name in config}, "started": started}


def _lookup(config: Any, *path: str) -> Any:
    """Return the value at a path of a configuration; None if there is none."""
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
