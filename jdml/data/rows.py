"""Rows of other libraries' data sets: an image and a label by number, read when asked for."""

import io
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import read_bytes
from jdml.data.columns import Classes, Images, labels_of
from jdml.data.dataset import CHANNELS, Dataset, as_host, is_tensor
from jdml.data.images import ImageFiles, Row, cores, upright
from jdml.data.tables import unwrapped

BLOCK = 64
"""Rows that a thread takes at a time."""
MANY = 1 << 20
"""Rows of an iterator after which is said that it has not ended."""
_log = logging.getLogger(__name__)


class Rows:
    """Rows of any kind by number: ``rows[3]`` are the bytes of an image file.

    Args:
        rows: with length and numbers.
        image: where a row has its image; None as for ``from_rows``.
        label: where it has its label.
        name: what they are called.
    """

    threads: int | None = None
    are_read = False
    """Whether they came one after another, in an order of their own."""

    def __init__(self, rows: Any, image: Any, label: Any, name: str) -> None:
        """See the class."""
        self.rows, self.keys, self.name = rows, (image, label), name

    def __len__(self) -> int:
        """Number of rows N."""
        return len(self.rows)

    def __str__(self) -> str:
        """What they are called."""
        return self.name

    def __getitem__(self, row: int) -> bytes:
        """The bytes of an image file."""
        return as_bytes(self.image(row))

    def image(self, row: int) -> Any:
        """An image as it is: an array, an image of Pillow, bytes."""
        return self._image(self._row(row), row)

    def pair(self, row: int) -> tuple[Any, int | str]:
        """Image and label."""
        found = self._row(row)
        return self._image(found, row), self._label(found, row)

    def label(self, row: int) -> int | str:
        """A label."""
        return self._label(self._row(row), row)

    def _label(self, found: Any, row: int) -> int | str:
        return label_of(self.part(found, 1, row), f"{self}[{row}]")

    def _row(self, row: int) -> Any:
        return self.rows[int(row)]

    def _image(self, found: Any, row: int) -> Any:
        value = unwrapped(self.part(found, 0, row))
        if value is None:
            raise ValueError(f"{self}[{row}] has no image")
        if isinstance(value, str | os.PathLike):
            return read_bytes(Path(value))
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if isinstance(value, bytes) or hasattr(value, "getbands"):
            return value
        try:
            array = as_host(f"{self}[{row}]: image", value)
        except ValueError as error:  # lists of several lengths
            raise ValueError(
                f"{self}[{row}]: image must be an array or an image: {error}"
            ) from error
        return self._array(array, row)

    def _array(self, value: np.ndarray, row: int) -> np.ndarray:
        if value.dtype.kind not in "fiu":
            raise TypeError(
                f"{self}[{row}]: image must be an array of numbers or an image, got {value.dtype}"
            )
        if value.ndim > 3:
            raise ValueError(
                f"{self} must be single images [H, W, C], got {list(value.shape)}: take them before they are batched"
            )
        whole = value.dtype.kind == "i" and value.ndim in (2, 3)
        if whole and 0 <= value.min() <= value.max() < 256:  # as lists of numbers come
            value = value.astype(np.uint8)
        return value[..., None] if value.ndim == 2 and value.dtype == np.uint8 else value

    def part(self, found: Any, part: int, row: int) -> Any:
        """Image or label of a row."""
        named = isinstance(found, Mapping)
        if not named and not isinstance(found, tuple | list):
            raise TypeError(
                f"{self} must be pairs (image, label) or dictionaries, got a {type(found).__name__} in row {row}: of "
                "two arrays write jdml.data.Dataset(name, images, labels)"
            )
        key = self.keys[part]
        key = (("image", "label")[part] if named else part) if key is None else key
        try:
            return found[key]
        except (LookupError, TypeError):
            there = ", ".join(map(repr, found)) if named else f"{len(found)} parts"
            raise ValueError(f"{self}[{row}] has no {key!r}: it has {there}") from None


def check_order(rows: Rows, classes: Classes) -> None:
    """Refuse labels of another order than rows that came one after another, as those of a loader that shuffles.

    Such labels are as many of each kind as the rows', in another order, and no other names of the same classes.

    Raises:
        ValueError: labels of this kind.
    """
    if not rows.are_read:
        return
    try:
        own = [rows.label(row) for row in range(len(rows))]
    except (TypeError, ValueError):  # they have none
        return
    given = classes.labels.tolist()
    renamed = len(set(zip(own, given, strict=True))) == len(set(own)) < len(own)
    if own != given and Counter(own) == Counter(given) and not renamed:
        row = next(row for row, (a, b) in enumerate(zip(own, given, strict=True)) if a != b)
        raise ValueError(
            f"labels must be those of the rows as they come, but row {row} has {own[row]!r} and labels[{row}] is "
            f"{given[row]!r}, and there are as many of each: a loader that shuffles has an order of its own, and its "
            "rows their labels: leave labels out; or, where they are others, give the rows as a list"
        )


class _PyTorch(Rows):
    """Rows that are read one at a time, whose tensors have their channels first."""

    threads = 1

    def __init__(self, rows: Any, image: Any, label: Any, name: str) -> None:
        super().__init__(rows, image, label, name)
        self._lock: Any = nullcontext() if isinstance(rows, list) else Lock()

    def __reduce__(self) -> Any:
        return type(self), (self.rows, *self.keys, self.name)

    def _row(self, row: int) -> Any:
        with self._lock:
            return super()._row(row)

    def _image(self, found: Any, row: int) -> Any:
        value = self.part(found, 0, row)
        image = super()._image(found, row)
        if not is_tensor(value) or value.ndim != 3:
            return image
        last = image.shape[-1] in CHANNELS and image.shape[0] not in CHANNELS
        return image if last else np.moveaxis(image, 0, -1)


def images_of(source: Any, name: str) -> Images:
    """What the command line reads of anything: images that are encoded when they are read, and their labels.

    Args:
        source: a :class:`Dataset`, or what :func:`from_huggingface`, :func:`from_torch` or :func:`from_rows` take.
        name: what it is called.

    Returns:
        The images.

    Raises:
        TypeError: arrays that are no uint8 images.
        ValueError: no rows; as for these functions.
    """
    classes: Classes | None = None
    if isinstance(source, Dataset):
        classes = Classes(source.labels, _names_of(source))
        if isinstance(source.images, ImageFiles):
            return Images(tuple(source.images.files), *classes)
        rows: Rows = Rows(_Zipped(source.images, source.labels), None, None, name)
    elif hasattr(source, "features") and hasattr(source, "column_names"):
        rows, classes = of_huggingface(source, "image", "label")
    else:
        torch = any(base.__module__.split(".")[0] == "torch" for base in type(source).__mro__)
        try:
            rows = (of_torch if torch else of_anything)(source, None, None)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from error
    rows.name = name
    if not len(rows):
        raise ValueError(f"{name} must hold at least one row, got none")
    rows[0]  # tells at once what cannot be an image file
    return Images([Row(rows, row) for row in range(len(rows))], *(classes or read_labels(rows)))


def _names_of(dataset: Dataset) -> tuple[str, ...] | None:
    """The names of the classes by which a data set is labelled."""
    for view, labels in dataset.views.items():
        if view in dataset.class_names and np.array_equal(labels, dataset.labels):
            return dataset.class_names[view]
    return None


def of_anything(rows: Any, image: Any, label: Any) -> Rows:
    """Rows of anything, by number."""
    return _noted(Rows(_numbered(rows), image, label, type(rows).__name__.lower()), rows)


def of_torch(dataset: Any, image: Any, label: Any) -> Rows:
    """The rows of a data set of PyTorch; of a ``DataLoader`` those of its batches."""
    name = type(dataset).__name__.lower()
    if not (hasattr(dataset, "batch_sampler") and hasattr(dataset, "collate_fn")):
        return _noted(_PyTorch(_numbered(dataset), image, label, name), dataset)
    rows: list[Any] = []
    for batch in dataset:
        of = Rows([batch], image, label, name)
        images, labels = of.part(batch, 0, 0), of.part(batch, 1, 0)
        if np.ndim(labels) == 0:  # batch_size=None
            images, labels = [images], [labels]
        rows += zip(images, labels, strict=True)
    return _noted(_PyTorch(rows, None, None, name), dataset)


def _noted(rows: Rows, source: Any) -> Rows:
    """Rows, with whether they are no longer their source's by number."""
    rows.are_read = rows.rows is not source and not hasattr(source, "iloc")
    return rows


def of_huggingface(dataset: Any, image: str, label: str) -> tuple[Rows, Classes]:
    """The rows of a data set of Hugging Face, their images encoded as they lie there; and their classes."""
    require_package("datasets", "a data set of Hugging Face")
    import datasets

    there = dataset.column_names or list(dataset.features or ())
    if not there:  # it is streamed, and tells its columns by its rows
        rows = Rows(list(dataset), image, label, "huggingface")
        return rows, read_labels(rows)
    for column in (image, label):
        if column not in there:
            raise ValueError(f"dataset has no column {column!r}: it has {', '.join(there)}")
    names = getattr(dataset.features[label], "names", None)
    names = None if names is None else tuple(names)
    encoded = isinstance(dataset.features[image], datasets.Image)
    if encoded:
        dataset = dataset.cast_column(image, datasets.Image(decode=False))
    if not hasattr(dataset, "__len__"):  # it is streamed
        rows = Rows(list(dataset.select_columns([image, label])), image, label, "huggingface")
        return rows, Classes(read_labels(rows).labels, names)
    column = dataset.select_columns([label]).with_format("arrow")[:][label]
    images = dataset.select_columns([image]).with_format(None if encoded else "numpy")
    labels = labels_of("dataset", label, column, names)
    return Rows(images, image, label, "huggingface"), Classes(labels, names)


def read_labels(rows: Rows) -> Classes:
    """The labels of rows, each of which is read once."""
    return as_classes(each(lambda row: rows.pair(row)[1], len(rows), rows.threads))


def as_classes(labels: Sequence[int | str]) -> Classes:
    """Labels of one kind."""
    kinds = sorted({type(label).__name__ for label in labels})
    if len(kinds) > 1:
        raise TypeError(f"labels must be integers or strings, got {' and '.join(kinds)}")
    return Classes(np.array(labels))


def each(function: Callable[[int], Any], count: int, threads: int | None = None) -> list[Any]:
    """What a function gives for each row, by several threads."""

    def block(start: int) -> list[Any]:
        return [function(row) for row in range(start, min(start + BLOCK, count))]

    starts = range(0, count, BLOCK)
    if threads == 1:
        return [value for start in starts for value in block(start)]
    with ThreadPoolExecutor(threads or cores()) as pool:
        return [value for values in pool.map(block, starts) for value in values]


def as_bytes(image: Any) -> bytes:
    r"""An image as a file, without loss.

    Args:
        image: the bytes of a file, an image of Pillow, or uint8 ``[H, W, C]``.

    Returns:
        The bytes.

    Raises:
        TypeError: an array of another kind; pixels of more than 16 bits.

    Example:
        >>> as_bytes(np.zeros((1, 2, 3), np.uint8))
        b'P6\n2 1\n255\n\x00\x00\x00\x00\x00\x00'
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        from PIL import Image

        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] not in CHANNELS:
            got = f"{image.dtype} {list(image.shape)}"
            scaled = image.dtype.kind == "f" and image.ndim == 3
            instead = ": leave their scaling (ToTensor) out" if scaled else ""
            raise TypeError(f"images must be uint8 [H, W, C], got {got}{instead}")
        grey = image.shape[-1] == 1
        image = Image.fromarray(np.ascontiguousarray(image[..., 0] if grey else image))
    image = upright(image)
    if image.mode == "F" or (image.mode == "I" and not _fits(image)):
        raise TypeError(f"images must have 8 or 16 bits, got mode {image.mode!r}")
    if image.mode[0] == "I" and image.mode != "I;16":
        image = image.convert("I").convert("I;16")
    clear = image.has_transparency_data
    if clear and image.mode not in ("I;16", "L", "LA", "P", "RGB"):
        image = image.convert("RGBA")
    file = io.BytesIO()
    if clear or image.mode in ("1", "I;16", "P"):
        image.save(file, "PNG", compress_level=1)
    else:  # no more than a copy
        (image if image.mode in ("L", "RGB") else image.convert("RGB")).save(file, "PPM")
    return file.getvalue()


def _fits(image: Any) -> bool:
    """Whether whole numbers fit into 16 bits."""
    least, most = image.getextrema()
    return bool(0 <= least <= most < 2**16)


class _Zipped:
    """Images and labels of two arrays by number."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        return tuple(part[row] for part in self.parts)


def label_of(value: Any, where: str) -> int | str:
    """One label."""
    if isinstance(value, np.ndarray) and not value.shape:
        value = value.item()
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: label must be UTF-8, got {value!r}") from error
    if isinstance(value, str) and value.strip():
        return str(value)
    if value is None or isinstance(value, str):
        raise ValueError(f"{where} has no label")
    number = as_host(where, value)
    if number.shape or number.dtype.kind not in "iub":
        got = type(value).__name__ if number.dtype.kind == "O" else str(number.dtype)
        got = f"an array {list(number.shape)}" if number.shape else got
        raise TypeError(f"{where}: label must be an integer or a string, got {got}")
    return int(number)


def _numbered(rows: Any) -> Any:
    """Rows with numbers; what has none is read once."""
    if isinstance(rows, Mapping):
        there = ", ".join(map(str, rows))
        raise TypeError(
            f"rows must be a sequence or an iterable of rows, got a dictionary of {there}: write rows[…] of one, or "
            "of two arrays jdml.data.Dataset(name, images, labels)"
        )
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # a table of pandas
        return rows.to_dict("records")
    streamed = any(base.__name__ == "IterableDataset" for base in type(rows).__mro__)
    if not streamed and hasattr(rows, "__len__") and hasattr(rows, "__getitem__"):
        return rows
    if not hasattr(rows, "__iter__") and not hasattr(rows, "__getitem__"):
        raise TypeError(f"rows must be a sequence or an iterable, got a {type(rows).__name__}")
    read = []
    for row in rows:
        read.append(row)
        if len(read) == MANY:
            _log.warning(
                "%s rows are read and there are more: rows that never end are not for this",
                f"{MANY:,}",
            )
    return read
