"""Data sets by name, and the images of a path: the same for every command, and in Python."""

import logging
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from jdml._import_path import is_pointer
from jdml._paths import check_local, expand_user
from jdml.data.csv_list import ENDINGS
from jdml.data.dataset import Dataset
from jdml.data.folder import has_tables, read_folder, row_named
from jdml.data.image_discovery import image_files, omitted
from jdml.data.listing import Listing
from jdml.data.rows import TABLES
from jdml.data.tfds import folder_of
from jdml.ops import checks
from jdml.registry import DATASETS
from jdml.registry.datasets import table

IMAGE_FILES = tuple(name for name, record in DATASETS.items() if record.kind == "files")
"""Names of the data sets whose images are ``ImageFiles``."""

_log = logging.getLogger(__name__)


def read_listing(name: str, data_dir: str | Path | None, *, download: bool = True) -> Listing:
    """Read the lists of a data set of image files."""
    listing: Listing = DATASETS[name].reader(folder_of(name, data_dir, download))
    return listing


def recognize(folder: str | Path) -> str:
    """Return the data set whose own folder this is, or ``"folder"``."""
    check_local("data_dir", folder)
    place = expand_user(folder)
    for name, dataset in DATASETS.items():
        sign = dataset.sign
        if sign and ((place / sign).is_file() or any(place.glob(f"*/{sign}"))):
            return name
    return "folder"


def load(
    name: str,
    data_dir: str | Path | None = None,
    split: str | None = None,
    download: bool = True,
    **options: Any,
) -> Dataset:
    """Read a data set: small images into memory, large ones as files that are decoded when read.

    {table}

    Image files are split by class: no class trains and tests. Each split numbers its classes 0, 1, …

    Args:
        name: one of these names.
        data_dir: the folder of the data set's own files. None: that of TensorFlow Datasets (tfds), which prepares
            the data set there on first use, if it has it (:func:`get`). If that fails, the 20,000 training images
            of MNIST that Colab has are read, with a warning.
        split: ``"train"``, ``"test"`` or ``"all"``; inshop also has ``"query"`` and ``"gallery"``, which number
            the items as ``"test"`` does. None: everything of a folder without parts, else ``"train"``. The log says
            how a folder was split.
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
    checks.one_of("name", name, DATASETS)
    check_local("data_dir", data_dir)
    if name not in IMAGE_FILES:
        folder = folder_of(name, data_dir, download)
        dataset: Dataset = DATASETS[name].reader(folder, split or "train", **options)
        return dataset
    listing = read_listing(name, data_dir, download=download)
    if split is None:
        split = "all" if name == "folder" and not listing.own_split else "train"
    dataset = listing.dataset(split, **options)
    if name == "folder" and len(dataset) < len(listing.files):
        how = "its own parts" if listing.own_split else "; ".join(listing.split_notes)
        _log.warning(
            "%s: split %r, %d of %d images (%s)",
            data_dir,
            split,
            len(dataset),
            len(listing.files),
            how,
        )
    return dataset


if load.__doc__:  # `python -OO` drops docstrings
    load.__doc__ = load.__doc__.replace("{table}", indent(table(), 4 * " ").lstrip())


class PathImages(NamedTuple):
    """The image files of a path, and their listing if they have classes."""

    files: list[Any]
    listing: Listing | None = None
    notes: tuple[str, ...] = ()


def read_path(path: Path) -> PathImages:
    """Return the images of a path."""
    if path.is_dir():
        kind = recognize(path)
        if kind != "folder":
            return _all_of(read_listing(kind, path))
        if has_tables(path):
            return _all_of(read_folder(path))
        images, others = image_files(path)
        if not images:
            raise FileNotFoundError(f"{path} has no images in it")
        if all(file.parent == path for file in images):
            return PathImages(images, None, omitted(others))
        return _all_of(read_folder(path))
    if path.is_file() and path.suffix.lower() not in (*ENDINGS, *TABLES):
        return PathImages([path])
    row = None if path.is_file() else row_named(str(path))
    if row is not None:
        return PathImages([row])
    if path.is_file() or is_pointer(str(path)):
        return _all_of(read_folder(path))
    raise FileNotFoundError(f"{path} does not exist")


def _all_of(listing: Listing) -> PathImages:
    files = [listing.files[row] for row in listing.splits["all"]]
    return PathImages(files, listing, listing.notes)
