"""Data sets of other libraries: small pictures as arrays, photographs as files that are decoded when drawn."""

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jdml._paths import expand_user
from jdml.data.dataset import Dataset, as_labels
from jdml.data.images import ImageFiles, Row, is_grey, named_if_bad, open_image
from jdml.data.listing import normalized, number_classes
from jdml.data.rows import IMAGE, LABEL, RowImages, from_hub, is_table, number_rows, open_tables
from jdml.data.transforms import Crops
from jdml.registry.networks import SMALL_IMAGES

IN_MEMORY = 1 << 30
"""The largest size in bytes of small pictures that become an array."""


def from_parquet(
    path: str | Path | Sequence[str | Path],
    image: str = IMAGE,
    label: str = LABEL,
    *,
    transform: Crops | None = None,
) -> Dataset:
    """Read Parquet files with images as bytes, as Hugging Face's hub has them; or a folder of ``save_to_disk``.

    Labels are one column; no image is decoded for them. Small pictures of one size become an array; photographs are
    read and decoded when they are drawn. Hugging Face's ``datasets`` maps them from an Arrow copy in its cache.

    Args:
        path: a file, a folder of files (all its parts are read), a pattern such as ``"birds/train-*.parquet"``, or
            several files.
        image: the column of the images: bytes, or a struct of ``bytes`` and ``path``.
        label: the column of the labels: integers, ``ClassLabel`` or strings.
        transform: how images are cut to one size, such as :func:`conventional`. None: pictures of one size up to 64
            pixels are not cut, photographs are cut by ``conventional(224)``.

    Returns:
        The data set, its images ``[N, H, W, C]`` uint8 or ``ImageFiles``, its labels called as their column.

    Raises:
        BadImageError: a picture that cannot be decoded, by file and row.
        FileNotFoundError: no such file.
        MissingLibraryError: Hugging Face's ``datasets`` is not installed.
        ValueError: no such column, with the names of all; no row; a row without a label.

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
    files = [expand_user(each) for each in ([path] if isinstance(path, str | Path) else path)]
    if isinstance(path, str | Path) and not files[0].exists():
        files = [Path(file) for file in sorted(glob.glob(str(files[0])))] or files
    is_folder = len(files) == 1 and files[0].is_dir() and is_table(files[0])
    absent = None if is_folder else next((file for file in files if not file.is_file()), None)
    if absent is not None:
        raise FileNotFoundError(
            f"path must name Parquet files, a folder of them or a pattern, {absent} names none"
        )
    table, *others = open_tables(files).values()
    if others:
        import datasets

        with named_if_bad(files[0]):
            table = datasets.concatenate_datasets([table, *others])
    rows = from_hub(table, image, label, str(files[0]))
    return _as_dataset(rows, label, transform, files[0].stem)


def from_huggingface(
    dataset: Any, image: str = IMAGE, label: str = LABEL, *, transform: Crops | None = None
) -> Dataset:
    """Convert a ``datasets.Dataset`` of Hugging Face, in memory or on disk; its images are not copied.

    Args:
        dataset: one split. A stream is read once, and must fit into memory.
        image: the column of the images.
        label: the column of the labels: integers, ``ClassLabel`` or strings.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set, its labels called as their column.

    Raises:
        BadImageError: a picture that cannot be decoded, by its row.
        TypeError: several splits.
        ValueError: no such column, with the names of all; a row without a label.

    Example:
        One split::

            birds = jdml.data.from_huggingface(datasets.load_dataset("birds", split="train"))

        >>> from_huggingface({"train": None, "test": None})
        Traceback (most recent call last):
        ...
        TypeError: dataset must be one split of train, test, got a dictionary
    """
    if isinstance(dataset, Mapping):
        raise TypeError(f"dataset must be one split of {', '.join(dataset)}, got a dictionary")
    return _as_dataset(from_hub(dataset, image, label, "huggingface"), label, transform)


def from_torch(
    dataset: Any,
    image: Any = None,
    label: Any = None,
    *,
    labels: Any = None,
    transform: Crops | None = None,
) -> Dataset:
    """Convert a data set of PyTorch, or one epoch of a ``DataLoader``.

    Tensors ``[C, H, W]`` become arrays ``[N, H, W, C]``; those of which only the last axis has 1, 3 or 4 channels are
    not transposed. Pillow's images become arrays if they are small and of one size; else they are read when drawn.

    Args:
        dataset: of pairs ``(image, label)``, or of dictionaries; or a ``DataLoader`` of such.
        image: the image's place in a row. None: the first of a pair, ``"image"`` of a dictionary.
        label: the label's place in a row. None: the second of a pair, ``"label"`` of a dictionary.
        labels: all labels ``[N]`` in the order of the rows, such as ``dataset.targets``. None: every row is read once.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set.

    Raises:
        TypeError: rows of another kind; a label that is neither an integer nor a string.
        ValueError: a row without an image or a label, by its number; ``labels`` for a loader or a stream.

    Implementation notes:
        One row is read at a time, as a data set may keep a file open; each process of ``ImageBatches`` has a copy.

    Example:
        A list stands for a ``torch.utils.data.Dataset``:

        >>> dataset = [(np.zeros((8, 8, 3), np.uint8), label) for label in range(4)]
        >>> from_torch(dataset).images.shape
        (4, 8, 8, 3)
    """
    rows = number_rows(dataset, image, label, labels=labels, of_torch=True)
    return _as_dataset(rows, LABEL, transform)


def from_rows(
    rows: Any,
    image: Any = None,
    label: Any = None,
    *,
    labels: Any = None,
    transform: Crops | None = None,
) -> Dataset:
    """Convert rows of any source: of Grain, a list, an iterator such as tf.data's ``as_numpy_iterator()``.

    An image is an array ``[H, W, C]``, the bytes of an image file, its path, or an image of Pillow. Arrays become
    ``[N, H, W, C]`` unchanged; others become arrays if they are small and of one size, else they are read when they
    are drawn. A source without length and numbers is read once, and must fit into memory.

    Args:
        rows: pairs ``(image, label)``, or dictionaries; neither batches nor without end. Several threads read them.
        image: the image's place in a row. None: the first of a pair, ``"image"`` of a dictionary.
        label: the label's place in a row. None: the second of a pair, ``"label"`` of a dictionary.
        labels: all labels ``[N]``; not for an iterator. None: every row is read once.
        transform: as for :func:`from_parquet`.

    Returns:
        The data set.

    Raises:
        TypeError: rows of another kind; a label that is neither an integer nor a string.
        ValueError: a row without an image or a label, by its number; ``labels`` for an iterator.

    Example:
        >>> rows = [(np.full((8, 8, 3), n, np.uint8), "ant" if n < 2 else "bee") for n in range(4)]
        >>> data = from_rows(rows)
        >>> data.images.shape, data.labels.tolist(), data.class_names["label"]
        ((4, 8, 8, 3), [0, 0, 1, 1], ('ant', 'bee'))
    """
    return _as_dataset(number_rows(rows, image, label, labels=labels), LABEL, transform)


def _as_dataset(
    rows: RowImages, view: str, transform: Crops | None, name: str | None = None
) -> Dataset:
    """Make a data set of rows: arrays and small pictures of one size in memory, all others read when drawn."""
    images: Any = None
    numbers: np.ndarray | None = None
    if transform is None:
        images, numbers = _read_into_memory(rows)
    numbers, names = rows.labels() if numbers is None else numbers, rows.class_names
    if numbers.dtype.kind == "U":
        numbers, names = number_classes([normalized(label) for label in numbers.tolist()])
    images = ImageFiles(rows.files(), transform) if images is None else images
    numbers = as_labels(view, numbers)
    class_names = {} if names is None else {view: names}
    return Dataset(name or rows.name, images, numbers, {view: numbers}, class_names)


def _read_into_memory(rows: RowImages) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Read all images of one size, and their labels; None for images that are large or of several sizes."""
    first = rows[0]
    as_arrays = isinstance(first, np.ndarray)
    if not as_arrays:
        first = _decode(rows, 0, first)[0]
        if max(first.shape[:2]) > SMALL_IMAGES or first.nbytes * len(rows) > IN_MEMORY:
            return None, None
    images = np.empty((len(rows), *first.shape), first.dtype)
    shapes = {first.shape}

    def read(row: int) -> tuple[Any, bool]:
        image, label = rows.pair(row)
        grey = False
        if not as_arrays:
            image, grey = _decode(rows, row, image)
        elif getattr(image, "dtype", None) != first.dtype:
            kind = getattr(image, "dtype", type(image).__name__)
            raise TypeError(f"{rows}[{row}]: image must be {first.dtype} as the first, got {kind}")
        shapes.add(image.shape)
        if image.shape == first.shape:
            images[row] = image
        return label, grey

    labels, grey = zip(*rows.each(read), strict=True)
    if len(shapes) == 1:
        return np.ascontiguousarray(images[..., :1]) if all(grey) else images, np.array(labels)
    if first.dtype != np.uint8:
        one, other = map(list, sorted(shapes)[:2])
        raise ValueError(f"{rows} must have images of one shape, got {one} and {other}")
    return None, np.array(labels)


def _decode(rows: RowImages, row: int, image: Any) -> tuple[np.ndarray, bool]:
    """Decode an image as uint8 ``[H, W, 3]``; return also whether it is grey."""
    with named_if_bad(Row(rows, row)):
        return np.asarray(open_image(Row({row: image}, row))), is_grey(image)
