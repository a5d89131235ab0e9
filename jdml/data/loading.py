"""Data sets by name, and what a path stands for: the same images for every command, and in Python."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from jdml._import_path import is_pointer
from jdml._paths import check_local, expand_user
from jdml.data.csv_list import ENDINGS
from jdml.data.dataset import Dataset
from jdml.data.folder import has_tables, read_folder, row_named
from jdml.data.image_discovery import image_files, unread_kinds
from jdml.data.listing import Listing
from jdml.data.rows import TABLES
from jdml.data.tfds import folder_of
from jdml.registry import DATASETS, file_sets
from jdml.registry.datasets import table

IMAGE_FILES = file_sets()
"""Names of the data sets whose images are ``ImageFiles``."""

NO_IMAGES = (".gz", ".json", ".jsonl", ".npy", ".npz", ".tar", ".tgz", ".txt", ".zip")
"""Endings of files that are no image, whatever is in them."""


def read_listing(name: str, data_dir: str | Path | None, *, download: bool = True) -> Listing:
    """Read the lists of a data set of image files."""
    listing: Listing = DATASETS[name].reader(folder_of(name, data_dir, download))
    return listing


LISTS: Mapping[str, Callable[[str | Path | None], Listing]] = {
    name: partial(read_listing, name) for name in IMAGE_FILES
}


def recognize(folder: str | Path) -> str:
    """Tell which data set's own folder this is."""
    check_local("folder", folder)
    place = expand_user(folder)
    for name, dataset in DATASETS.items():
        sign = dataset.sign
        if sign and ((place / sign).is_file() or any(place.glob(f"*/{sign}"))):
            return name
    return "folder"


SPLITS = ("train", "test", "all", "query", "gallery")
"""Of any data set: no folder is meant by these."""


def load(
    name: str,
    data_dir: str | Path | None = None,
    split: str = "train",
    download: bool = True,
    **options: Any,
) -> Dataset:
    """Read a data set: small images into memory, large ones as files that are decoded when read.

    {table}

    Image files are split by class: no class trains and tests. Each split numbers its classes 0, 1, …

    Args:
        name: one of these names.
        data_dir: the folder of the data set's own files. None: that of TensorFlow Datasets (tfds), which prepares
            the data set there on first use, if it has it (:func:`get`). Where that fails, the 20,000 training images
            of MNIST that Colab has are read, with a warning.
        split: ``"train"``, ``"test"`` or ``"all"``; inshop also has ``"query"`` and ``"gallery"``, which number
            the items as ``"test"`` does.
        download: whether tfds may prepare it.
        **options: the data set's own: ``image_size`` (pixels, 28 by default) for omniglot; for image files
            ``transform``, how images are cut (``conventional(224)`` by default), and ``check_files``, whether
            missing image files are an error (they are by default).

    Returns:
        The data set, with uint8 images ``[N, H, W, C]``; image files are ``ImageFiles``.

    Raises:
        FileNotFoundError: if files are missing; the message says which are expected where.
        MissingLibraryError: if preparing needs what is not installed.
        TypeError: if the data set has no such option.
        ValueError: if there is no data set of that name or no such split, or a file is damaged.

    Example:
        >>> data = load("digits", split="test")
        >>> data.images.shape, data.relabel("parity").num_classes
        ((599, 8, 8, 1), 2)
    """
    if name not in DATASETS:
        raise ValueError(f"name must be one of {tuple(DATASETS)}, got {name!r}")
    check_local("data_dir", data_dir)
    if data_dir in SPLITS:
        raise ValueError(f"data_dir must be a folder, got {data_dir!r}: write split={data_dir!r}")
    if name in IMAGE_FILES:
        return read_listing(name, data_dir, download=download).dataset(split, **options)
    folder = folder_of(name, data_dir, download)
    dataset: Dataset = DATASETS[name].reader(folder, split, **options)
    return dataset


if load.__doc__:  # which `python -OO` leaves out
    load.__doc__ = load.__doc__.replace("{table}", indent(table(), 4 * " ").lstrip())


class Found(NamedTuple):
    """Image files, and what is known of them."""

    files: list[Any]
    listing: Listing | None = None
    notes: tuple[str, ...] = ()


def read_path(path: Path) -> Found:
    """Find the images that a path stands for."""
    if path.is_dir():
        kind = recognize(path)
        if kind != "folder":
            return _of(read_listing(kind, path))
        if has_tables(path):
            return _of(read_folder(path))
        found, others = image_files(path)
        if not found:
            raise FileNotFoundError(f"{path} has no images in it")
        if all(file.parent == path for file in found):
            return Found(found, None, unread_kinds(others))
        return _of(read_folder(path))
    if not path.is_file():
        row = row_named(str(path))
        if row is not None:
            return Found([row])
        if is_pointer(str(path)):
            return _of(read_folder(path))
        raise FileNotFoundError(f"{path} does not exist")
    if path.suffix.lower() in NO_IMAGES:
        raise ValueError(f"{path} is no image, folder of images, .csv or Parquet file")
    of_many = path.suffix.lower() in (*ENDINGS, *TABLES)
    return _of(read_folder(path)) if of_many else Found([path])


def _of(listing: Listing) -> Found:
    files = [listing.files[row] for row in listing.splits["all"]]
    return Found(files, listing, listing.notes)
