"""Data sets of other libraries as this one's: pictures as arrays, photographs read when they are drawn."""

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jdml._paths import expand_user
from jdml.data.dataset import Dataset, as_labels
from jdml.data.images import ImageFiles, Row, is_grey, named_if_bad, open_image
from jdml.data.listing import in_one_form, numbered
from jdml.data.rows import (
    Classes,
    RowImages,
    as_classes,
    each,
    of_anything,
    of_huggingface,
    of_table,
    of_torch,
    open_tables,
    typed_classes,
)
from jdml.data.transforms import Crops
from jdml.registry.networks import SMALL_IMAGES

HELD = 1 << 30
"""Bytes of small pictures that are kept in memory."""


def from_parquet(
    path: str | Path | Sequence[str | Path],
    image: str = "image",
    label: str = "label",
    *,
    transform: Crops | None = None,
) -> Dataset:
    """Read a Parquet file with images as bytes, as Hugging Face's hub has them; or what ``save_to_disk`` wrote.

    Labels are one column; no image is decoded for them. Small pictures of one size become an array; photographs are
    read and decoded when they are drawn. Hugging Face's ``datasets`` maps them from an Arrow copy in its cache.

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
        MissingLibraryError: Hugging Face's ``datasets`` is not installed.
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
    if isinstance(path, str | Path):
        tables = open_tables(path)
        if not tables:
            path = sorted(glob.glob(str(expand_user(path)))) or [path]
    elif not isinstance(path, Sequence) or not path:
        raise TypeError(f"path must be a path, a pattern or several, got {path!r}")
    if not isinstance(path, str | Path):
        absent = next((file for file in path if not expand_user(file).is_file()), None)
        if absent is not None:
            raise FileNotFoundError(
                f"path must name Parquet files, a folder of them or a pattern, {absent} names none"
            )
        if len({*map(str, path)}) < len(path):
            raise ValueError(f"path must name each file once, got {', '.join(map(str, path))}")
        tables = open_tables(path)
    first = Path(path if isinstance(path, str | Path) else path[0])
    if len(tables) > 1:
        import datasets

        with named_if_bad(first):
            tables = {"": datasets.concatenate_datasets([*tables.values()])}
    rows, classes = of_table(next(iter(tables.values())), str(first), image, label)
    rows.name = str(first)
    return _of_rows(rows, classes, label, transform, first.stem)


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
        labels: all labels ``[N]`` in the order of the rows, where they are known, such as ``dataset.targets``; not
            for a loader. None: every row is read once.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set.

    Raises:
        TypeError: rows of another kind; a label that is neither an integer nor a string.
        ValueError: a row without an image or a label, by its number; arrays that do not fit into memory;
            ``labels`` for a loader or a stream.

    Implementation notes:
        One row is read at a time, as a data set may keep a file open;
        ``ImageBatches(…, worker_kind="process")`` gives each process a copy of it.

    Example:
        A list stands for a ``torch.utils.data.Dataset``:

        >>> dataset = [(np.zeros((8, 8, 3), np.uint8), label) for label in range(4)]
        >>> from_torch(dataset).images.shape
        (4, 8, 8, 3)
    """
    return _of_rows(of_torch(dataset, image, label), typed_classes(labels), "label", transform)


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
        labels: all labels ``[N]``, where they are known; not for an iterator. None: every row is read once.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set.

    Raises:
        TypeError: rows of another kind; a label that is neither an integer nor a string.
        ValueError: a row without an image or a label, by its number; arrays that do not fit into memory;
            ``labels`` for an iterator.

    Example:
        >>> rows = [(np.full((8, 8, 3), n, np.uint8), "ant" if n < 2 else "bee") for n in range(4)]
        >>> data = from_rows(rows)
        >>> data.images.shape, data.labels.tolist(), data.class_names["label"]
        ((4, 8, 8, 3), [0, 0, 1, 1], ('ant', 'bee'))
    """
    return _of_rows(of_anything(rows, image, label), typed_classes(labels), "label", transform)


def _of_rows(
    rows: RowImages,
    classes: Classes | None,
    view: str,
    transform: Crops | None,
    name: str | None = None,
) -> Dataset:
    """Make a data set of rows: arrays and small pictures of one size in memory, all else read when drawn."""
    if not len(rows):
        raise ValueError(f"{rows} must hold at least one row, got none")
    if classes is not None and rows.is_stream:
        raise ValueError(
            "labels must be left out for rows that come one after another, whose order may be their own: their labels "
            "are read with them; or give the rows as a list"
        )
    if classes is not None and len(classes.labels) != len(rows):
        raise ValueError(f"labels must have shape [N] = [{len(rows)}], got [{len(classes.labels)}]")
    images: Any = None
    if transform is None:
        images, read = _in_memory(rows, read_labels=classes is None)
        classes = classes if read is None else as_classes(read)
    elif isinstance(rows[0], np.ndarray) and rows[0].dtype != np.uint8:
        raise TypeError(
            f"images must be uint8 [H, W, C], got {rows[0].dtype} {list(rows[0].shape)}"
        )
    if classes is None:
        classes = as_classes(each(rows.label, len(rows), 1 if rows.of_torch else None))
    labels, names = classes
    if labels.dtype.kind == "U":
        labels, names = numbered([in_one_form(label) for label in labels.tolist()])
    labels = as_labels(view, labels)
    images = ImageFiles(rows.files(), transform) if images is None else images
    named = {} if names is None else {view: names}
    return Dataset(name or rows.name, images, labels, {view: labels}, named)


def _in_memory(
    rows: RowImages, *, read_labels: bool
) -> tuple[np.ndarray | None, list[int | str] | None]:
    """Read all images of one size, and the labels; None where they are large or of several sizes."""
    first = rows[0]
    as_arrays = isinstance(first, np.ndarray)
    if as_arrays and hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if len(rows) * first.nbytes > memory // 2:
            raise ValueError(
                f"{rows} must fit into memory, got {len(rows):,} arrays {list(first.shape)} {first.dtype}: write "
                "transform= for uint8 images that are read when they are drawn"
            )
    if not as_arrays:
        first = _picture(rows, 0, first)[0]
        if max(first.shape[:2]) > SMALL_IMAGES or first.nbytes * len(rows) > HELD:
            return None, None
    images = np.empty((len(rows), *first.shape), first.dtype)
    shapes = {first.shape}

    def put(row: int) -> tuple[Any, bool]:
        image, label = rows.pair(row) if read_labels else (rows[row], None)
        grey = False
        if not as_arrays:
            image, grey = _picture(rows, row, image)
        elif getattr(image, "dtype", None) != first.dtype:
            got = getattr(image, "dtype", type(image).__name__)
            raise TypeError(f"{rows}[{row}]: image must be {first.dtype} as the first, got {got}")
        shapes.add(image.shape)
        if image.shape == first.shape:
            images[row] = image
        return label, grey

    labels, grey = zip(*each(put, len(rows), 1 if rows.of_torch else None), strict=True)
    read = list(labels) if read_labels else None
    if len(shapes) > 1:
        if first.dtype == np.uint8:
            return None, read
        one, other = map(list, sorted(shapes)[:2])
        raise ValueError(f"{rows} must have images of one shape, got {one} and {other}")
    return (np.ascontiguousarray(images[..., :1]) if all(grey) else images), read


def _picture(rows: RowImages, row: int, image: Any) -> tuple[np.ndarray, bool]:
    """Decode an image as uint8 ``[H, W, 3]``; and whether it is grey."""
    with named_if_bad(Row(rows, row)):
        return np.asarray(open_image(Row({row: image}, row))), is_grey(image)
