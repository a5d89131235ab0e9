"""Rows of other libraries' data sets: an image and a label by number, read on access; tables, user modules."""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from jdml._optional_imports import (
    call_user_object,
    import_user_object,
    is_pointer,
    require_package,
)
from jdml._paths import expand_user
from jdml.data.dataset import Dataset, as_host, is_tensor
from jdml.data.image_discovery import image_files
from jdml.data.images import CHANNELS, ImageFiles, Readable, Row, cores, named_if_bad, open_image
from jdml.data.listing import PARTS, LabelledFile, Listing, as_listing, normalized
from jdml.ops import checks

TABLES = (".arrow", ".parquet")
"""Endings of such files."""
SAVED = ("dataset_dict.json", "state.json")
"""Files in the folder of a data set that Hugging Face's datasets saved."""
BLOCK = 64
"""Rows that a thread reads at a time."""


class Classes(NamedTuple):
    """Labels ``[N]``, numbers or names, and the names of the numbers if they have names."""

    labels: np.ndarray
    names: tuple[str, ...] | None = None


class RowImages:
    """The images of a source of rows: ``images[3]`` is an array, an image of Pillow, or the bytes of an image file."""

    def __init__(
        self,
        rows: Any,
        image: Any = None,
        label: Any = None,
        name: str = "",
        *,
        of_torch: bool = False,
        is_stream: bool = False,
        classes: Classes | None = None,
    ) -> None:
        """See the class; classes that are not known are read from the rows."""
        if not len(rows):
            raise ValueError(f"{name} must hold at least one row, got none")
        self.rows, self.keys, self.name = rows, (image, label), name
        self.of_torch, self.is_stream, self.known_classes = of_torch, is_stream, classes
        self._lock = RLock()  # a data set of PyTorch may keep a file open

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process gets, which has its own lock."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what another process sent."""
        vars(self).update(state, _lock=RLock())

    def __len__(self) -> int:
        """Return the number of rows N."""
        return len(self.rows)

    def __str__(self) -> str:
        """Return the name of the source."""
        return self.name

    def __getitem__(self, number: int) -> Any:
        """Return an image as it is stored."""
        return self._image(self._row(number), number)

    def pair(self, number: int) -> tuple[Any, int | str | None]:
        """Return image and label; no label where all classes are known."""
        row = self._row(number)
        label = None if self.known_classes else self._label(row, number)
        return self._image(row, number), label

    def classes(self) -> Classes:
        """Return all labels."""
        if self.known_classes is None:
            labels = self.each(lambda number: self._label(self._row(number), number))
            self.known_classes = Classes(np.array(labels))
        return self.known_classes

    def each(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function for each number of a row, by several threads; by one for PyTorch."""

        def block(start: int) -> list[Any]:
            return [function(row) for row in range(start, min(start + BLOCK, len(self)))]

        with ThreadPoolExecutor(1 if self.of_torch else cores()) as pool:
            blocks = pool.map(block, range(0, len(self), BLOCK))
            return [value for values in blocks for value in values]

    def files(self) -> list[Row]:
        """Return each image for ``ImageFiles``."""
        return [Row(self, row) for row in range(len(self))]

    def _row(self, number: int) -> Any:
        with self._lock if self.of_torch else nullcontext():
            return self.rows[int(number)]

    def _label(self, row: Any, number: int) -> int | str:
        return as_label(self.part(row, 1, number), f"{self}[{number}]")

    def _image(self, row: Any, number: int) -> Any:
        value = self.part(row, 0, number)
        if isinstance(value, Mapping) and "bytes" in value:  # Hugging Face's struct of an image
            value = value["bytes"] if value["bytes"] is not None else value.get("path")
        if isinstance(value, str | Path):
            return Path(value).read_bytes()
        value = value.getvalue() if hasattr(value, "getvalue") else value
        if isinstance(value, bytes) or hasattr(value, "getbands"):
            return value
        image = as_host(value)
        if image.ndim == 1 and image.dtype == np.uint8:  # a file, such as a bytearray
            return image.tobytes()
        if isinstance(value, list) and image.ndim > 1 and image.dtype.kind == "i":
            image = image.astype(np.uint8) if 0 <= image.min() <= image.max() <= 255 else image
        if image.dtype.kind not in "fiu":
            raise TypeError(
                f"{self}[{number}]: image must be an array or image, got a {type(value).__name__}"
            )
        if self.of_torch and is_tensor(value) and image.ndim == 3:
            last = image.shape[-1] in CHANNELS and image.shape[0] not in CHANNELS
            return image if last else np.moveaxis(image, 0, -1)
        return image[..., None] if image.ndim == 2 and image.dtype == np.uint8 else image

    def part(self, row: Any, part: int, number: int) -> Any:
        """Return the image (0) or the label (1) of a row."""
        key = self.keys[part]
        if key is None:
            key = ("image", "label")[part] if isinstance(row, Mapping) else part
        try:
            return row[key]
        except (LookupError, TypeError):
            content = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(f"{self}[{number}] has no {key!r}: it has {content}") from None


def images_of(source: Any, name: str) -> tuple[Sequence[Any], Classes]:
    """Return the files and the classes of a ``Dataset`` or of rows of any library."""
    if isinstance(source, Dataset):
        named = [v for v, of in source.views.items() if np.array_equal(of, source.labels)]
        names = next((source.class_names[v] for v in named if v in source.class_names), None)
        classes = Classes(source.labels, names)
        if isinstance(source.images, ImageFiles):
            return list(source.images.files), classes
        rows = RowImages([(image,) for image in source.images], name=name, classes=classes)
    elif hasattr(source, "features") and hasattr(source, "column_names"):
        rows = from_hub(source, *_guess_columns(source.features or {}), name)
    else:
        torch = any(base.__module__.split(".")[0] == "torch" for base in type(source).__mro__)
        rows = number_rows(source, of_torch=torch)
    rows.name = name
    files = rows.files()
    if not isinstance(rows[0], bytes):  # refuse other objects than images at once
        with named_if_bad(files[0]):
            open_image(files[0])
    return files, rows.classes()


def number_rows(
    rows: Any, image: Any = None, label: Any = None, *, of_torch: bool = False
) -> RowImages:
    """Number the rows of any source, of a ``DataLoader`` those of its batches; an iterator is read once."""
    name = type(rows).__name__.lower()
    if hasattr(rows, "batch_sampler") and hasattr(rows, "collate_fn"):
        pairs: list[Any] = []
        for batch in rows:
            parts = RowImages([batch], image, label, name)
            images, labels = parts.part(batch, 0, 0), parts.part(batch, 1, 0)
            is_batch = np.ndim(labels) > 0
            pairs += zip(images, labels, strict=True) if is_batch else [(images, labels)]
        return RowImages(pairs, name=name, of_torch=True, is_stream=True)
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # a table of pandas
        rows = rows.to_dict("records")
    is_stream = any(base.__name__ == "IterableDataset" for base in type(rows).__mro__)
    is_stream = is_stream or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__"))
    rows = list(rows) if is_stream else rows
    return RowImages(rows, image, label, name, of_torch=of_torch, is_stream=is_stream)


def from_hub(dataset: Any, image: str, label: str, name: str = "dataset") -> RowImages:
    """Number the rows of a data set of Hugging Face, their images encoded as they are stored."""
    require_package("datasets", "a data set of Hugging Face")
    import datasets

    features = dataset.features or {}
    for column in (image, label) if features else ():
        if column not in features:
            raise ValueError(f"{name} has no column {column!r}: it has {', '.join(features)}")
    names = getattr(features.get(label), "names", None)
    encoded = isinstance(features.get(image), datasets.Image)
    if encoded:
        dataset = dataset.cast_column(image, datasets.Image(decode=False))
    files = "binary" in str(features.get(image))
    if hasattr(dataset, "__len__"):
        values = dataset.select_columns([label]).with_format(None)[:][label]
        labels = as_classes(values, name).labels
        dataset = dataset.select_columns([image]).with_format(None if encoded or files else "numpy")
    else:
        dataset = list(dataset)
        labels = RowImages(dataset, image, label, name).classes().labels
    classes = Classes(labels, None if names is None else tuple(names))
    return RowImages(dataset, image, label, name, classes=classes)


def _guess_columns(features: Mapping[str, Any]) -> tuple[str, str]:
    """Return the columns of the images and the labels of a table: by name, or the only ones of their kind."""
    kinds = {column: str(getattr(kind, "dtype", kind)) for column, kind in features.items()}
    pictures = [column for column, kind in kinds.items() if re.search("binary|bytes|Image", kind)]
    image = pictures[0] if len(pictures) == 1 and "image" not in kinds else "image"
    named = [column for column, kind in features.items() if hasattr(kind, "names")]
    plain = [
        column
        for column, kind in kinds.items()
        if ("int" in kind or kind == "string")
        and not (column == image or column.startswith("__index_level"))
    ]
    lone = [columns[0] for columns in (named, plain) if len(columns) == 1]
    return image, lone[0] if lone and "label" not in kinds else "label"


def is_table(place: Path) -> bool:
    """Return whether a path is a Parquet or Arrow file, or a folder of such."""
    if place.is_dir():
        is_saved = any((place / note).is_file() for note in SAVED)
        return is_saved or any(any(place.glob(files)) for files in ("*.parquet", "*/*.parquet"))
    return place.suffix.lower() in TABLES and place.is_file()


def open_tables(files: Sequence[Path]) -> dict[str, Any]:
    """Open files, a folder of them or a saved data set, by part; the only part is called ``""``."""
    place = files[0]
    with _quiet(place) as datasets:
        if not place.is_dir():
            kind = "arrow" if place.suffix.lower() == ".arrow" else "parquet"
            names = [str(file) for file in files]
            loaded = datasets.load_dataset(kind, data_files=names, split="train")
        elif any((place / note).is_file() for note in SAVED):
            loaded = datasets.load_from_disk(str(place))
        else:
            loaded = datasets.load_dataset("parquet", data_dir=str(place))
    parts = dict(loaded) if isinstance(loaded, Mapping) else {"": loaded}
    return parts if len(parts) > 1 else {"": next(iter(parts.values()))}


@contextmanager
def _quiet(path: Any) -> Any:
    """Return the library without its progress bars; name a path that it cannot read."""
    require_package("datasets", f"reading {path}")
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    except Exception as error:  # of Arrow, or of the library: not such files
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(f"{path} is not a readable table of rows: {reason}") from error
    finally:
        if shown:
            datasets.enable_progress_bars()


def as_classes(labels: Any, name: str) -> Classes:
    """Return labels as integers or strings."""
    return Classes(
        np.array([as_label(label, f"{name}[{row}]") for row, label in enumerate(labels)])
    )


def as_label(value: Any, where: str) -> int | str:
    """Return one label as an integer or a string."""
    label = as_host(value)
    if label.shape == () and label.dtype.kind in "SU":
        text = label.item()
        text = (text.decode() if isinstance(text, bytes) else str(text)).strip()
        if text == "-1":
            raise ValueError(f"{where}: label must be a class, got -1, which is none")
        if text:
            return text
    if value is None or label.dtype.kind in "SU":
        raise ValueError(f"{where} has no label")
    if label.shape or label.dtype.kind not in "iub":
        raise TypeError(
            f"{where}: label must be an integer or a string, got a {type(value).__name__}"
        )
    return int(label)


# Listings of rows


def has_tables(root: Path) -> bool:
    """Return whether a path is tables of rows; a folder that also holds images is not."""
    return is_table(root) and (root.is_file() or not image_files(root)[0])


def read_tables(root: Path) -> Listing:
    """Read tables; an image is called ``PATH[ROW]``, or ``PATH PART[ROW]``."""
    return list_rows(str(root), open_tables([root]))


@cache
def read_pointer(pointer: str) -> Listing:
    """Read an object of a user's module, which may be in the working directory, or a dictionary of such by part."""
    value = import_user_object(pointer)
    value = call_user_object(pointer, value) if callable(value) else value
    if not isinstance(value, Mapping):
        return list_rows(pointer, {"": value})
    for part in value:
        checks.one_of(f"{pointer}: a part", part, PARTS)
    return list_rows(pointer, value)


def list_rows(name: str, sources: Mapping[str, Any]) -> Listing:
    """Make a listing of rows, by part; classes are called by their names, or their numbers."""
    rows = []
    for part, source in sources.items():
        files, (numbers, known) = images_of(source, f"{name} {part}".rstrip())
        labels = numbers.tolist()
        if numbers.dtype.kind == "i" and numbers.min() < 0:
            row = int(numbers.argmin())
            raise ValueError(f"{files[row]}: label must be at least 0, got {labels[row]}")
        names = labels if known is None else [known[label] for label in labels]
        rows += [
            LabelledFile(file, normalized(str(label)), PARTS.get(part, part))
            for file, label in zip(files, names, strict=True)
        ]
    if not rows:
        raise ValueError(f"{name} has no rows")
    return as_listing(rows)


@cache
def _rows_by_name(source: str) -> dict[str, Readable]:
    listing = read_pointer(source) if is_pointer(source) else read_tables(Path(source))
    return {str(file): file for file in listing.files}


def row_named(name: str) -> Readable | None:
    """Return the row of a table or of a user's object, called ``PATH[ROW]`` or ``PATH PART[ROW]``, or None."""
    name = str(expand_user(name))
    match = re.fullmatch(r"(.+?)(?: \w+)?\[\d+\]", name)
    if not match or not (has_tables(Path(match[1])) or is_pointer(match[1])):
        return None
    rows = _rows_by_name(match[1])
    if name not in rows:
        raise ValueError(f"{name}: {match[1]} has no such row")
    return rows[name]


def image_named(name: str) -> Readable:
    """Return the image of a name: a row, or a file."""
    return row_named(name) or Path(name)
