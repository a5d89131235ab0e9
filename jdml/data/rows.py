"""Rows of other libraries' data sets: an image and a label by number, read on access; tables, user modules."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from jdml._optional_imports import call_user_object, import_user_object, require_package
from jdml.data.dataset import Dataset, as_host, is_tensor
from jdml.data.images import CHANNELS, ImageFiles, Row, named_if_bad, open_image, usable_cores
from jdml.data.listing import PARTS, LabelledFile, Listing, as_listing, normalized
from jdml.ops import checks

IMAGE, LABEL = "image", "label"
"""The columns of a table, unless others are given."""
TABLES = (".arrow", ".parquet")
"""Endings of such files."""
BLOCK = 64
"""Rows that a thread reads at a time."""
SAVED = ("dataset_dict.json", "state.json")
"""Files in the folder of a data set that Hugging Face's datasets saved."""


class RowImages:
    """The images of a source of rows: ``images[3]`` is an array, an image of Pillow, or the bytes of an image file."""

    def __init__(
        self,
        rows: Any,
        image: Any = None,
        label: Any = None,
        name: str = "",
        labels: np.ndarray | None = None,
        class_names: tuple[str, ...] | None = None,
        of_torch: bool = False,
    ) -> None:
        """See the class; labels ``[N]``, numbers or names, are read from the rows if they are None."""
        if not len(rows):
            raise ValueError(f"{name} must hold at least one row, got none")
        self.rows, self.keys, self.name, self.of_torch = rows, (image, label), name, of_torch
        self.row_labels, self.class_names = labels, class_names
        self._lock = RLock()  # a data set of PyTorch may keep a file open

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what another process gets, which has its own lock."""
        labels = self.row_labels, self.class_names
        return RowImages, (self.rows, *self.keys, self.name, *labels, self.of_torch)

    def __len__(self) -> int:
        """Return the number of rows N."""
        return len(self.rows)

    def __str__(self) -> str:
        """Return the name of the source."""
        return self.name

    def __getitem__(self, number: int) -> Any:
        """Return an image as it is stored."""
        return self._image(self._row(number), number)

    def pair(self, number: int) -> tuple[Any, Any]:
        """Return image and label of a row, which is read once."""
        row = self._row(number)
        return self._image(row, number), self._label(row, number)

    def labels(self) -> np.ndarray:
        """Return all labels ``[N]``."""
        if self.row_labels is not None:
            return self.row_labels
        return np.array(self.each(lambda number: self._label(self._row(number), number)))

    def each(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function for each number of a row, by several threads unless they are PyTorch's."""

        def block(start: int) -> list[Any]:
            return [function(row) for row in range(start, min(start + BLOCK, len(self)))]

        with ThreadPoolExecutor(1 if self.of_torch else len(usable_cores())) as pool:
            blocks = pool.map(block, range(0, len(self), BLOCK))
            return [value for values in blocks for value in values]

    def files(self) -> list[Row]:
        """Return each image for ``ImageFiles``."""
        return [Row(self, row) for row in range(len(self))]

    def _row(self, number: int) -> Any:
        with self._lock if self.of_torch else nullcontext():
            return self.rows[int(number)]

    def _label(self, row: Any, number: int) -> Any:
        if self.row_labels is not None:
            return self.row_labels[number]
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
        if isinstance(value, list) and image.dtype.kind == "i" and image.ndim > 1:
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
            key = (IMAGE, LABEL)[part] if isinstance(row, Mapping) else part
        try:
            return row[key]
        except (LookupError, TypeError):
            content = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(f"{self}[{number}] has no {key!r}: it has {content}") from None


def as_label(value: Any, where: str) -> int | str:
    """Return one label as an integer from 0 or a string."""
    label = as_host(value)
    if label.shape == () and label.dtype.kind in "SU":
        text = label.item()
        text = (text.decode() if isinstance(text, bytes) else str(text)).strip()
        if text not in ("", "-1"):
            return text
    elif label.shape == () and label.dtype.kind in "iub":
        if label >= 0:
            return int(label)
    elif value is not None:
        raise TypeError(
            f"{where}: label must be an integer or a string, got a {type(value).__name__}"
        )
    raise ValueError(f"{where}: label must be a class, got {value!r}")


def as_row_labels(labels: Any, name: str) -> np.ndarray:
    """Return the labels of rows as integers or strings."""
    return np.array([as_label(label, f"{name}[{row}]") for row, label in enumerate(labels)])


def number_rows(
    rows: Any,
    image: Any = None,
    label: Any = None,
    name: str = "",
    *,
    labels: Any = None,
    of_torch: bool = False,
) -> RowImages:
    """Number the rows of any source, of a ``DataLoader`` those of its batches; an iterator is read once."""
    name = name or type(rows).__name__.lower()
    is_loader = hasattr(rows, "batch_sampler") and hasattr(rows, "collate_fn")
    is_stream = is_loader or any(base.__name__ == "IterableDataset" for base in type(rows).__mro__)
    is_stream = is_stream or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__"))
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # a table of pandas
        rows = rows.to_dict("records")
    elif is_loader:
        batch_of, pairs = RowImages([None], image, label, name), list[tuple[Any, Any]]()
        for batch in rows:
            images, classes = batch_of.part(batch, 0, 0), batch_of.part(batch, 1, 0)
            is_batch = np.ndim(classes) > 0
            pairs += zip(images, classes, strict=True) if is_batch else [(images, classes)]
        rows, image, label = pairs, None, None
    elif is_stream:
        rows = list(rows)
    if labels is not None:
        if is_stream:
            raise ValueError(
                "labels must be None for rows of a stream: they are read with the images"
            )
        labels = as_row_labels(labels, "labels")
        if len(labels) != len(rows):
            raise ValueError(f"labels must be one for each of {len(rows)} rows, got {len(labels)}")
    return RowImages(rows, image, label, name, labels, of_torch=of_torch)


def from_hub(dataset: Any, image: str, label: str, name: str) -> RowImages:
    """Number the rows of a data set of Hugging Face, their images encoded as they are stored."""
    require_package("datasets", "a data set of Hugging Face")
    import datasets

    features = dataset.features or {}
    for column in (image, label) if features else ():
        if column not in features:
            raise ValueError(
                f"{name} has no column {column!r}: it has {', '.join(features)}; write image= and label= in "
                "jdml.data.from_parquet or from_huggingface"
            )
    names = getattr(features.get(label), "names", None)
    encoded = isinstance(features.get(image), datasets.Image)
    if encoded:
        dataset = dataset.cast_column(image, datasets.Image(decode=False))
    files, labels = "binary" in str(features.get(image)), None
    if hasattr(dataset, "__len__"):
        labels = as_row_labels(dataset.select_columns([label]).with_format(None)[:][label], name)
        dataset = dataset.select_columns([image]).with_format(None if encoded or files else "numpy")
    else:
        dataset = list(dataset)
    return RowImages(dataset, image, label, name, labels, None if names is None else tuple(names))


def is_table(place: Path) -> bool:
    """Return whether a path is a Parquet or Arrow file, or a folder of such."""
    if place.is_dir():
        is_saved = any((place / note).is_file() for note in SAVED)
        return is_saved or any(any(place.glob(files)) for files in ("*.parquet", "*/*.parquet"))
    return place.suffix.lower() in TABLES and place.is_file()


def open_tables(files: Sequence[Path]) -> dict[str, Any]:
    """Open files, a folder of them or a saved data set, by part; the only part is called ``""``."""
    place = files[0]
    require_package("datasets", f"reading {place}")
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if not place.is_dir():
            kind = "arrow" if place.suffix.lower() == ".arrow" else "parquet"
            names = [str(file) for file in files]
            loaded = datasets.load_dataset(kind, data_files=names, split="train")
        elif any((place / note).is_file() for note in SAVED):
            loaded = datasets.load_from_disk(str(place))
        else:
            loaded = datasets.load_dataset("parquet", data_dir=str(place))
    except Exception as error:  # of Arrow, or of the library: not such files
        reason = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(f"{place} is not a readable table of rows: {reason}") from error
    finally:
        if shown:
            datasets.enable_progress_bars()
    parts = dict(loaded) if isinstance(loaded, Mapping) else {"": loaded}
    return parts if len(parts) > 1 else {"": next(iter(parts.values()))}


# Listings of rows


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
        files, labels, names = _files_of(source, f"{name} {part}".rstrip())
        classes = labels.tolist() if names is None else [names[label] for label in labels]
        rows += [
            LabelledFile(file, normalized(str(label)), PARTS.get(part, part), str(file))
            for file, label in zip(files, classes, strict=True)
        ]
    if not rows:
        raise ValueError(f"{name} has no rows")
    return as_listing(rows)


def _files_of(source: Any, name: str) -> tuple[Sequence[Any], np.ndarray, tuple[str, ...] | None]:
    """Return files, labels and names of classes of a ``Dataset`` or of rows of any library."""
    if isinstance(source, Dataset):
        named = [v for v, of in source.views.items() if np.array_equal(of, source.labels)]
        names = next((source.class_names[v] for v in named if v in source.class_names), None)
        if isinstance(source.images, ImageFiles):
            return list(source.images.files), source.labels, names
        images = [(image,) for image in source.images]
        rows = RowImages(images, name=name, labels=source.labels, class_names=names)
    elif hasattr(source, "features") and hasattr(source, "column_names"):
        rows = from_hub(source, IMAGE, LABEL, name)
    else:
        torch = any(base.__module__.split(".")[0] == "torch" for base in type(source).__mro__)
        rows = number_rows(source, name=name, of_torch=torch)
    files = rows.files()
    if not isinstance(rows[0], bytes):  # refuse other objects than images at once
        with named_if_bad(files[0]):
            open_image(files[0])
    return files, rows.labels(), rows.class_names
