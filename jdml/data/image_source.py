"""Images by what a user calls them: a folder, a data set, a list of files; split as a run had them."""

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
from jdml.data.loading import IMAGE_FILES, load, read_listing, read_path
from jdml.data.splits import SHARES, resplit, train_on
from jdml.ops.checks import did_you_mean
from jdml.registry import DATASETS

Split = Literal["all", "gallery", "query", "test", "train", "val"]


RUN = "run"
"""The key under which a file of what was trained says on which images that was."""
UNKNOWN = {"split": "not told"}
"""What is known of a file that does not say it."""


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
    """Read what a user named: a folder, an image, a ``.csv`` or Parquet file, or a data set with its folder."""
    config = config or {}
    path = expand_user(source)
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
    hint = did_you_mean(name, known)
    raise FileNotFoundError(
        "source must be a folder of images, an image, a .csv or .parquet file, or a data set such as cub:FOLDER; "
        f"{source} is none{hint}"
    )


def check_data_dir(source: str, data_dir: Path | None) -> None:
    """Refuse a typed ``--data-dir`` that would not be read."""
    if data_dir is not None and not (source in DATASETS and DATASETS[source].needs_folder):
        raise ValueError(
            f"--data-dir is the folder of a data set that is given by its name alone, such as cub; {source} needs none"
        )


def _data_set(
    name: str, folder: Path | None, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if name in IMAGE_FILES:
        return _of_listing(read_listing(name, folder), split, view, config)
    shape = _told(config, "embedding", "input", "shape")
    sized = DATASETS[name].sized and isinstance(shape, list) and len(shape) == 3
    options = {"image_size": shape[0]} if sized else {}
    part = load(name, data_dir=folder, split=split, **options)
    return Source(part, None, _labels(part, view, config))


def _of_path(path: Path, split: str, view: str | None, config: Mapping[str, Any]) -> Source:
    images = read_path(path)
    if images.listing is not None:
        return _of_listing(images.listing, split, view, config)
    if split != "all":
        raise NoSuchPartError(
            f"split {split} needs classes, each a folder: {path} holds images without"
        )
    files = np.array([image_id(file) for file in images.files])
    rows = any(isinstance(file, Row) for file in images.files)
    return Source(ImageFiles(images.files) if rows else images.files, files, None, images.notes)


def _of_listing(
    listing: Listing, split: str, view: str | None, config: Mapping[str, Any]
) -> Source:
    if split != "all":
        listing = _as_the_run(listing, split, config)
        if split not in listing.splits:
            there = ", ".join(listing.splits)
            raise NoSuchPartError(f"split {split}: there is no such part, only {there}")
    part = listing.dataset(split)
    files = np.array([image_id(file) for file in part.images.files])
    return Source(part, files, _labels(part, view, config), listing.notes)


def _as_the_run(listing: Listing, split: str, config: Mapping[str, Any]) -> Listing:
    """A listing split as the run's was; as it comes, where it is of another data set, or says itself what trains."""
    data, rule = config.get("data"), config.get("split")
    names = _told(config, "embedding", "class_names")
    of_command = isinstance(data, str) and data in DATASETS and "seed" in config
    if of_command and data != listing.name:
        return listing
    if of_command and rule == "none":
        _check_same(listing, split, config)
        listing = resplit(listing, "none")
        if split not in listing.splits:
            raise NoSuchPartError(
                f"split {split}: the run was trained on all of these images (--split none)"
            )
        return listing
    if listing.own_split:
        return listing
    by_class = rule == "classes" and trained_labelling(config) in (None, next(iter(listing.views)))
    if of_command and rule in SHARES and not by_class:
        _check_same(listing, split, config)
        return resplit(listing, rule, seed=config["seed"], share=config.get("test_share"))
    if rule == UNKNOWN["split"]:
        raise ValueError(
            f"split {split}: the file does not say which images it was trained on; give the run's folder, export it "
            "again, or write --split all"
        )
    by_name = (of_command and (by_class or config.get("classes_file"))) or listing.name == "folder"
    return train_on(listing, names) if by_name and names else listing


def _check_same(listing: Listing, split: str, config: Mapping[str, Any]) -> None:
    """Refuse images that are not all those that a run drew its parts from."""
    known = _told(config, "started", "files_checksum")
    if known is not None and known != listing.checksum:
        raise ValueError(
            f"split {split}: these are not all the images that the run split (--split {config['split']}), and only "
            "those: files were added, removed or renamed; write --split all, or give a folder of what is to be embedded"
        )


def image_id(file: Any) -> str:
    """What an image is called from everywhere: its absolute path, or ``FILE[ROW]``."""
    return str(file) if isinstance(file, Row) else str(Path(str(file)).absolute())


def _labels(part: Dataset, view: str | None, config: Mapping[str, Any]) -> np.ndarray:
    """The names of the classes, where they have names."""
    if view is not None and view not in part.views:
        raise ValueError(f"view must be one of {', '.join(part.views)}, got {view!r}")
    wanted = view or trained_labelling(config)
    if wanted is None and config.get("split") == UNKNOWN["split"] and len(part.views) > 1:
        raise ValueError(
            f"view must be one of {', '.join(part.views)}: the file does not say which it was trained on"
        )
    chosen = wanted if wanted is not None and wanted in part.views else next(iter(part.views))
    numbers, names = part.views[chosen], part.class_names.get(chosen)
    return numbers if names is None else np.array(names)[numbers]


def trained_labelling(config: Mapping[str, Any]) -> str | None:
    """The name of the labelling that a run was trained on; None where it has none, or does not say."""
    name = _told(config, "labels") or _told(config, "started", "labels")
    return name if isinstance(name, str) else None


def run_data_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration says which images it was trained on: all that :func:`read_source` asks."""
    asked = ("data", "split", "test_share", "classes_file", "labels", "seed")
    started = {name: _told(config, "started", name) for name in ("labels", "files_checksum")}
    return {**{name: config[name] for name in asked if name in config}, "started": started}


def _told(config: Any, *path: str) -> Any:
    """What stands in a configuration at a path; a caller of ``fit`` may have said something else there."""
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
