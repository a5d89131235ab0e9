"""Data sets by name, and the images of a path or a data set, split as a run split them: the same everywhere."""

import logging
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any, Literal, NamedTuple

import numpy as np

from jdml._optional_imports import is_pointer
from jdml._paths import check_local, expand_user
from jdml.data.dataset import Dataset, NoSuchPartError, check_split
from jdml.data.folder import ENDINGS, has_tables, image_files, omission_notes, row_named
from jdml.data.images import ImageFiles, Row
from jdml.data.listing import Listing
from jdml.data.rows import TABLES
from jdml.data.splits import SHARES, read_groups, resplit, split_by_class_names
from jdml.data.tfds import folder_of
from jdml.ops import checks
from jdml.registry import DATASETS
from jdml.registry.datasets import describe

IMAGE_FILES = tuple(name for name, record in DATASETS.items() if record.kind == "files")
"""Names of the data sets whose images are ``ImageFiles``."""
Split = Literal["all", "gallery", "query", "test", "train", "val"]
RUN = "run"
"""The key of a model file under which the data of its run are described."""
UNKNOWN = {"split": "unknown"}
"""The description in a file without one."""

_log = logging.getLogger(__name__)


def read_listing(
    name: str, data_dir: str | Path | None, *, download: bool = True, groups: Any = None
) -> Listing:
    """Read the lists of a data set of image files, whose splits keep each of the groups on one side."""
    folder = folder_of(name, data_dir, download)
    listing = _read_lists(name, folder, groups)
    return listing if groups is None else read_groups(listing, groups, folder)


def _read_lists(name: str, folder: Path, groups: Any) -> Listing:
    """Read the lists of a data set of image files; groups may name a column."""
    has_column = name == "folder" and isinstance(groups, str)
    listing: Listing = DATASETS[name].reader(folder, *([groups] if has_column else []))
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
    *,
    groups: Any = None,
    **options: Any,
) -> Dataset:
    r"""Read a data set: small images into memory, large ones as files that are decoded when read.

    The data sets, their views, of which the first is the labels, and the content of ``data_dir``:

    {datasets}

    Image files are split by class: no class trains and tests. Each split numbers its classes 0, 1, …

    Args:
        name: one of these names.
        data_dir: the folder of the data set's own files. None: that of TensorFlow Datasets (tfds), which prepares
            the data set there on first use, if it has it (:func:`get`).
        split: ``"train"``, ``"test"`` or ``"all"``; inshop also has ``"query"`` and ``"gallery"``, which number
            the items as ``"test"`` does. None: everything of a folder without parts, else ``"train"``. The log says
            how a folder was split.
        download: whether tfds may prepare it.
        groups: rows of one recording, session or identity, which stand on one side of every split of image files: a
            column of the .csv; a regular expression with one group in parentheses, which is searched in each file's
            path within the folder, such as ``r"_session(\d+)"``; or ``[N]`` names or integers in the order of
            ``split="all"``. They are the data set's ``groups``.
        **options: the data set's own: ``image_size`` (pixels, 28 by default) for omniglot; for image files
            ``transform``, how images are cut (``conventional(224)`` by default), and ``check_files``, whether
            missing image files are an error (they are by default).

    Returns:
        The data set, with uint8 images ``[N, H, W, C]``; image files are ``ImageFiles``.

    Raises:
        FileNotFoundError: if files are missing; the message says which are expected where.
        MissingLibraryError: if preparing needs what is not installed.
        TypeError: if the data set has no such option.
        ValueError: if there is no data set of that name or no such split, or a file is damaged; groups that do not fit
            the files, or that are on both sides of the folder's own parts.

    Example:
        >>> data = load("digits", split="test")
        >>> data.images.shape, data.relabel("parity").num_classes
        ((599, 8, 8, 1), 2)
    """
    checks.one_of("name", name, DATASETS)
    if name not in IMAGE_FILES:
        if groups is not None:
            raise ValueError(f"groups are for image files, not for {name}")
        split = split or "train"
        check_split(split, (*DATASETS[name].published, "all"))
        dataset: Dataset = DATASETS[name].reader(
            folder_of(name, data_dir, download), split, **options
        )
        return dataset
    listing = read_listing(name, data_dir, download=download, groups=groups)
    if split is None:
        split = "all" if name == "folder" and not listing.own_split else "train"
    dataset = listing.dataset(split, **options)
    if name == "folder" and len(dataset) < len(listing.files):
        how = "its own parts" if listing.own_split else "; ".join(listing.split_notes)
        counts = len(dataset), len(listing.files)
        _log.warning("%s: split %r, %d of %d images (%s)", data_dir, split, *counts, how)
    return dataset


if load.__doc__:  # `python -OO` drops docstrings
    load.__doc__ = load.__doc__.replace("{datasets}", indent(describe(), 4 * " ").lstrip())


def read_path(path: Path, column: str | None = None) -> Listing:
    """Return the images of a path: a listing, which has no labellings if they have no classes."""
    kind = recognize(path) if path.is_dir() else "folder"
    files: list[Any] = []
    notes: tuple[str, ...] = ()
    if path.is_dir() and kind == "folder" and not has_tables(path):
        images, others = image_files(path)
        if not images:
            raise FileNotFoundError(f"{path} has no images in it")
        if all(file.parent == path for file in images):
            files, notes = [*images], omission_notes(others)
    elif path.is_file() and path.suffix.lower() not in (*ENDINGS, *TABLES):
        files = [path]
    elif not path.exists():
        files = [row for row in [row_named(str(path))] if row is not None]
        if not files and not is_pointer(str(path)):
            raise FileNotFoundError(
                "source must be a folder of images, an image, a .csv or .parquet file, or a data set such as "
                f"cub:FOLDER; {path} is none{checks.did_you_mean(str(path).partition(':')[0], DATASETS)}"
            )
    if files:
        return Listing("folder", files, {}, {"all": np.arange(len(files))}, notes=notes)
    return _read_lists(kind, path, column)


# Images to embed


class Source(NamedTuple):
    """Images to embed, with the names of their files and of their classes, and the folder that holds them."""

    images: Dataset | ImageFiles
    root: Path
    files: np.ndarray | None = None
    labels: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def read_source(
    source: str,
    data_dir: Path | None,
    *,
    split: Split = "all",
    view: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Source:
    """Read a folder, an image, a ``.csv`` or Parquet file, or a data set with its folder, split as a run did."""
    config = config or {}
    path, group = expand_user(source), config.get("group")
    name, colon, folder = source.partition(":")
    is_name = name in DATASETS and not path.is_file()
    if is_name and (not path.is_dir() or (data_dir is not None and source in DATASETS)):
        place = Path(folder) if colon else data_dir
        if name not in IMAGE_FILES:
            shape = _lookup(config, "embedding", "input", "shape")
            is_image = isinstance(shape, list) and len(shape) == 3
            options = {"image_size": shape[0]} if DATASETS[name].sized and is_image else {}
            part = load(name, data_dir=place, split=split, **options)
            return Source(part, Path.cwd(), labels=_class_labels(part, view, config))
        root = folder_of(name, place)
        listing = _read_lists(name, root, group)
    else:
        root, listing = path, read_path(path, group)
    if split != "all":
        listing = _split_as_run(listing, root, split, config)
    root = (root if root.is_dir() else root.parent).absolute()
    files = np.array([image_id(listing.files[row]) for row in listing.splits.get(split, ())])
    if not listing.views:
        return Source(ImageFiles(listing.files), root, files, None, listing.notes)
    part = listing.dataset(split)
    return Source(part, root, files, _class_labels(part, view, config), listing.notes)


def has_validation(name: str, data_dir: Path | None) -> bool:
    """Return whether a data set has a val part of its own."""
    return DATASETS[name].kind == "files" and "val" in read_listing(name, data_dir).splits


def source_name(data: str, folder: Path | None) -> str:
    """Return a data set and its folder in one word, as :func:`read_source` reads it."""
    if folder is None:
        return data
    return str(folder) if data == "folder" else f"{data}:{folder}"


def _split_as_run(listing: Listing, root: Path, split: str, config: Mapping[str, Any]) -> Listing:
    """Split a listing as the run did; not one of another data set, or with a split of its own."""
    if not listing.views:
        raise NoSuchPartError(f"split {split} needs a folder for each class, {root} has none")
    data, rule, group = (config.get(name) for name in ("data", "split", "group"))
    names = _lookup(config, "embedding", "class_names")
    is_command = isinstance(data, str) and data in DATASETS and "seed" in config
    if is_command and data != listing.name:
        return listing
    if group and data == listing.name:
        listing = read_groups(listing, group, root)
    if is_command and rule == "none":
        _check_same(listing, split, config)
        if split != "train":
            raise NoSuchPartError(f"split {split}: the run trained on all images (--split none)")
        return resplit(listing, "none")
    if listing.own_split:
        return listing
    by_class = rule == "classes" and trained_labelling(config) in (None, next(iter(listing.views)))
    if is_command and rule in SHARES and not by_class:
        _check_same(listing, split, config)
        return resplit(listing, rule, seed=config["seed"], share=config.get("test_share"))
    if rule == UNKNOWN["split"]:
        raise ValueError(
            f"split {split}: the file does not say which images trained it; give the run's folder, or --split all"
        )
    if group and rule is None and not config.get("classes_file"):
        _check_same(listing, split, config)
        return listing
    by_name = (is_command and (by_class or config.get("classes_file"))) or listing.name == "folder"
    return split_by_class_names(listing, names) if by_name and names else listing


def _check_same(listing: Listing, split: str, config: Mapping[str, Any]) -> None:
    """Refuse images that are not those that a run drew its parts from."""
    known = _lookup(config, "provenance", "files_checksum")
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
        checks.one_of("view", view, part.views)
    wanted = view or trained_labelling(config)
    chosen = wanted if wanted is not None and wanted in part.views else next(iter(part.views))
    numbers, names = part.views[chosen], part.class_names.get(chosen)
    return numbers if names is None else np.array(names)[numbers]


def trained_labelling(config: Mapping[str, Any]) -> str | None:
    """Return the name of the labelling that a run was trained on, if it is known."""
    name = _lookup(config, "labels") or _lookup(config, "provenance", "labels")
    return name if isinstance(name, str) else None


def run_data_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a run's configuration that describes its data, as :func:`read_source` needs it."""
    names = ("data", "split", "test_share", "classes_file", "group", "labels", "seed")
    provenance = {
        name: _lookup(config, "provenance", name) for name in ("labels", "files_checksum")
    }
    return {**{name: config[name] for name in names if name in config}, "provenance": provenance}


def _lookup(config: Any, *path: str) -> Any:
    """Return the value at a path of a configuration; None if there is none."""
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
