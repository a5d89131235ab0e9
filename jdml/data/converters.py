"""Data sets of other libraries as this one's: pictures as arrays, photographs read when they are drawn."""

import glob
import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from jdml._paths import expand_user
from jdml.data.columns import Classes, Images, read_columns, tables_in
from jdml.data.dataset import Dataset, as_labels
from jdml.data.image_discovery import RealFiles
from jdml.data.images import ImageFiles, Readable, Row, decode, is_grey, named_if_bad
from jdml.data.labelled import in_one_form, numbered
from jdml.data.rows import (
    Rows,
    as_classes,
    check_order,
    each,
    label_of,
    of_anything,
    of_huggingface,
    of_torch,
    read_labels,
)
from jdml.data.tables import HELD
from jdml.data.transforms import Crops
from jdml.registry.networks import SMALL_IMAGES


def from_parquet(
    path: str | Path | Sequence[str | Path],
    image: str = "image",
    label: str = "label",
    *,
    transform: Crops | None = None,
) -> Dataset:
    """Read a Parquet file with images as bytes, as Hugging Face's hub has them; or what ``save_to_disk`` wrote.

    Labels are one column; no image is decoded for them. Small pictures of one size become an array; photographs are
    read and decoded when they are drawn, of a file that does not fit into memory by its row groups.

    Args:
        path: a file, a folder of files (of all its parts), a pattern such as ``"birds/train-*.parquet"``, or several
            of these.
        image: the column of the images: bytes, or a struct of ``bytes`` and ``path``.
        label: the column of the labels: integers, ``ClassLabel`` or strings.
        transform: how images are cut to one size, such as :func:`conventional`. None: pictures of one size up to 64
            pixels stay as they are, photographs are cut by ``conventional(224)``.

    Returns:
        The data set, its images ``[N, H, W, C]`` uint8 or ``ImageFiles``, its labels called as their column.

    Raises:
        BadImageError: a picture that cannot be decoded, by file and row.
        FileNotFoundError: no such file.
        MissingLibraryError: pyarrow is not installed.
        TypeError: no path; a column of another kind.
        ValueError: no such column, naming those there are; no row; a row without a label.

    Example:
        Photographs into a training::

            photos = jdml.data.from_parquet("birds/train-*.parquet")
            sampler = jdml.data.ClassBatchSampler(photos.labels, 16, 4)
            jdml.training.fit(model, objective, optimizer, photos, jdml.data.ImageBatches(photos, sampler), steps=1000)

        >>> from_parquet("birds.parquet")
        Traceback (most recent call last):
        ...
        FileNotFoundError: path must name Parquet files, a folder of them or a pattern, birds.parquet names none
    """
    given = [path] if isinstance(path, str | Path) else path
    if not isinstance(given, Sequence) or not given:
        raise TypeError(f"path must be a path, a pattern or several, got {given!r}")
    files = [file for each in given for file in _files(each)]
    real = RealFiles()
    seen: set[str] = set()
    for file in files:
        if real(file) in seen:
            raise ValueError(f"path must name each file once, {file} is named twice")
        seen.add(real(file))
    named = Path(given[0]) if Path(given[0]).exists() else files[0]
    return _dataset(named.stem, read_columns(files, image, label), label, transform)


def from_huggingface(
    dataset: Any, image: str = "image", label: str = "label", *, transform: Crops | None = None
) -> Dataset:
    """Take a ``datasets.Dataset`` of Hugging Face, in memory or on disk; its images stay there, encoded.

    Args:
        dataset: one split. One that is streamed is read once, and must fit into memory.
        image: the column of the images.
        label: the column of the labels: integers, ``ClassLabel`` or strings.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set, its labels called as their column.

    Raises:
        BadImageError: a picture that cannot be decoded, by its row.
        TypeError: no data set of this library, or one of several splits; a column of another kind.
        ValueError: no such column, naming those there are; a row without a label.

    Example:
        One split::

            birds = jdml.data.from_huggingface(datasets.load_dataset("birds", split="train"))

        >>> from_huggingface({"train": None, "test": None})
        Traceback (most recent call last):
        ...
        TypeError: dataset must be one split, got train, test: write dataset['train']
    """
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset)) or "none"
        first = next(iter(dataset), "train")
        raise TypeError(f"dataset must be one split, got {splits}: write dataset[{first!r}]")
    if not hasattr(dataset, "features") or not hasattr(dataset, "column_names"):
        raise TypeError(f"dataset must be a datasets.Dataset, got a {type(dataset).__name__}")
    rows, labels = of_huggingface(dataset, image, label)
    return _of_rows(rows, labels, label, transform)


def from_torch(
    dataset: Any,
    image: Any = None,
    label: Any = None,
    *,
    labels: Any = None,
    transform: Crops | None = None,
) -> Dataset:
    """Take a data set of PyTorch, or what a ``DataLoader`` yields in one epoch.

    Tensors ``[C, H, W]`` become arrays ``[N, H, W, C]``; those whose last axis alone has 1, 3 or 4 channels stay as
    they are. Pillow's images become arrays where they are small and of one size; else they are read when drawn.

    Args:
        dataset: of pairs ``(image, label)``, or of dictionaries; or a ``DataLoader`` of such.
        image: where a row has its image. None: the first of a pair, ``"image"`` of a dictionary.
        label: where it has its label. None: the second of a pair, ``"label"`` of a dictionary.
        labels: all labels ``[N]`` in the order of the rows, where they are known, such as ``dataset.targets``; of a
            loader that shuffles they are not. None: every row is read once.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set.

    Raises:
        TypeError: rows of another kind; a label that is neither an integer nor a string.
        ValueError: a row without an image or a label, by its number; images that do not fit into memory; labels that
            are those of a loader's rows in another order.

    Implementation notes:
        One row is read at a time, as a data set may keep a file open;
        ``ImageBatches(…, worker_kind="process")`` gives each process a copy of it.

    Example:
        A list stands for a ``torch.utils.data.Dataset``:

        >>> dataset = [(np.zeros((8, 8, 3), np.uint8), label) for label in range(4)]
        >>> from_torch(dataset).images.shape
        (4, 8, 8, 3)
    """
    return _of_rows(of_torch(dataset, image, label), _given(labels), "label", transform)


def from_rows(
    rows: Any,
    image: Any = None,
    label: Any = None,
    *,
    labels: Any = None,
    transform: Crops | None = None,
) -> Dataset:
    """Take rows of anything: a source of Grain, a list, an iterator such as tf.data's ``as_numpy_iterator()``.

    An image is an array ``[H, W, C]``, the bytes of an image file, its path, or an image of Pillow. Arrays become
    ``[N, H, W, C]``, as they are; others become arrays where they are small and of one size, else they are read when
    they are drawn. What has no length and numbers is read once, and must fit into memory.

    Args:
        rows: pairs ``(image, label)``, or dictionaries; neither batches nor without end. Several threads read them.
        image: where a row has its image. None: the first of a pair, ``"image"`` of a dictionary.
        label: where it has its label. None: the second of a pair, ``"label"`` of a dictionary.
        labels: all labels ``[N]``, where they are known. None: every row is read once.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set.

    Raises:
        TypeError: rows of another kind; a label that is neither an integer nor a string.
        ValueError: a row without an image or a label, by its number; images that do not fit into memory; labels that
            are those of an iterator's rows in another order.

    Example:
        >>> rows = [(np.full((8, 8, 3), n, np.uint8), "ant" if n < 2 else "bee") for n in range(4)]
        >>> data = from_rows(rows)
        >>> data.images.shape, data.labels.tolist(), data.class_names["label"]
        ((4, 8, 8, 3), [0, 0, 1, 1], ('ant', 'bee'))
    """
    return _of_rows(of_anything(rows, image, label), _given(labels), "label", transform)


def _of_rows(rows: Rows, classes: Classes | None, view: str, transform: Crops | None) -> Dataset:
    """Rows as a data set: arrays stacked, all else as files.

    Args:
        rows: at least one.
        classes: where they are known.
        view: what they are called.
        transform: as typed.
    """
    if not len(rows):
        raise ValueError(f"{rows} must hold at least one row, got none")
    if classes is not None and len(classes.labels) != len(rows):
        raise ValueError(f"labels must have shape [N] = [{len(rows)}], got [{len(classes.labels)}]")
    if classes is not None:
        check_order(rows, classes)
    first = rows.image(0)
    if isinstance(first, np.ndarray) and transform is None:
        stacked = _stacked(rows, first, classes)
        if stacked is not None:
            images, classes = stacked
            return _labelled(rows.name, images, classes, view)
    rows[0]  # tells at once what cannot be an image file
    classes = read_labels(rows) if classes is None else classes
    found = Images([Row(rows, row) for row in range(len(rows))], *classes)
    return _dataset(rows.name, found, view, transform)


def _stacked(
    rows: Rows, first: np.ndarray, classes: Classes | None
) -> tuple[np.ndarray, Classes] | None:
    """All images in one array, and all classes; None for bytes of several sizes."""
    _check_room(rows, first)
    images = np.empty((len(rows), *first.shape), first.dtype)
    shapes = {first.shape}

    def put(row: int) -> Any:
        image, label = (rows.image(row), None) if classes else rows.pair(row)
        if getattr(image, "dtype", None) != first.dtype:
            got = getattr(image, "dtype", type(image).__name__)
            raise TypeError(f"{rows}[{row}]: image must be {first.dtype} as the first, got {got}")
        if image.shape == first.shape:
            images[row] = image
        else:
            shapes.add(image.shape)
        return label

    found = each(put, len(rows), rows.threads)
    if len(shapes) == 1:
        return images, classes or as_classes(found)
    if first.dtype == np.uint8:
        return None
    one, other = map(list, sorted(shapes)[:2])
    raise ValueError(f"{rows} must have images of one shape, got {one} and {other}")


def _check_room(rows: Rows, first: np.ndarray) -> None:
    """Refuse images that no memory can hold."""
    if not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = len(rows) * first.nbytes
    if size > there // 2:
        raise ValueError(
            f"{rows} must fit into memory, got {len(rows):,} arrays {list(first.shape)}, {size / 2**30:,.0f} GiB of "
            f"{there / 2**30:,.0f}: write transform= for uint8 images that are read when they are drawn, or write the "
            "arrays into one file (numpy.lib.format.open_memmap)"
        )


def _given(labels: Any) -> Classes | None:
    """Labels that were handed in."""
    if labels is None:
        return None
    unordered = isinstance(labels, str | bytes | Mapping | Set)
    if not hasattr(labels, "__len__") or unordered:
        raise TypeError(f"labels must be integers or strings [N], got {labels!r}")
    return as_classes([label_of(label, f"labels[{row}]") for row, label in enumerate(labels)])


def _dataset(name: str, images: Images, view: str, transform: Crops | None) -> Dataset:
    """Images as a data set: small pictures of one size as an array, all else as files."""
    files: Any = _pictures(images.files) if transform is None else None
    files = ImageFiles(images.files, transform) if files is None else files
    return _labelled(name, files, Classes(images.labels, images.names), view)


def _labelled(name: str, images: Any, classes: Classes, view: str) -> Dataset:
    """A data set whose classes have numbers; those with names alone in the order of their names."""
    labels, names = classes
    if labels.dtype.kind == "U":
        labels, names = numbered([in_one_form(label) for label in labels.tolist()])
    labels = as_labels(view, labels)
    return Dataset(name, images, labels, {view: labels}, {} if names is None else {view: names})


def _pictures(files: Sequence[Readable]) -> np.ndarray | None:
    """Small pictures of one size as they are, uint8 ``[N, H, W, 1 or 3]``; None for all else."""
    with named_if_bad(files[0]):
        size = decode(files[0].read_bytes()).size
    if max(size) > SMALL_IMAGES or 3 * size[0] * size[1] * len(files) > HELD:
        return None
    images = np.empty((len(files), *size[::-1], 3), np.uint8)

    def put(row: int) -> tuple[bool, bool]:
        with named_if_bad(files[row]):
            content = files[row].read_bytes()
            image = decode(content)
        if image.size == size:
            images[row] = np.asarray(image)
        return image.size == size, is_grey(content)

    fits, grey = zip(*each(put, len(files)), strict=True)
    if not all(fits):
        return None
    return np.ascontiguousarray(images[..., :1]) if all(grey) else images


def _files(path: str | Path) -> list[Path]:
    """The tables of a path or a pattern."""
    place = expand_user(path)
    found = [file for _, file in tables_in(place)]
    found = found or [
        file for of in sorted(glob.glob(str(place))) for _, file in tables_in(Path(of))
    ]
    if not found:
        raise FileNotFoundError(
            f"path must name Parquet files, a folder of them or a pattern, {path} names none"
        )
    return found
