"""Rows of other libraries' data sets: an image and a label by number, read on access."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import expand_user
from jdml.data.dataset import Dataset, as_host, is_tensor
from jdml.data.images import CHANNELS, ImageFiles, Row, cores, named_if_bad, open_image

TABLES = (".arrow", ".parquet")
"""Endings of such files."""
SPLITS = ("train", "validation", "test")
"""Names of parts that Hugging Face's datasets finds in the names of files."""
BLOCK = 64
"""Rows that a thread reads at a time."""


class Classes(NamedTuple):
    """Labels ``[N]``, numbers or names, and the names of the numbers if they have names."""

    labels: np.ndarray
    names: tuple[str, ...] | None = None


class RowImages:
    """The images of a source of rows: ``images[3]`` is an array, an image of Pillow, or the bytes of an image file."""

    def __init__(
        self, rows: Any, image: Any, label: Any, name: str, of_torch: bool = False
    ) -> None:
        """See the class."""
        if not len(rows):
            raise ValueError(f"{name} must hold at least one row, got none")
        self.rows, self.keys, self.name, self.of_torch = rows, (image, label), name, of_torch
        self.is_stream = False
        self._lock: Any = Lock() if of_torch and not isinstance(rows, list) else nullcontext()

    def __reduce__(self) -> Any:
        """Return a copy for another process, which has its own lock."""
        return RowImages, (self.rows, *self.keys, self.name, self.of_torch)

    def __len__(self) -> int:
        """Return the number of rows N."""
        return len(self.rows)

    def __str__(self) -> str:
        """Return the name of the source."""
        return self.name

    def __getitem__(self, number: int) -> Any:
        """Return an image as it is stored."""
        return self._image(self._row(number), number)

    def label(self, number: int) -> int | str:
        """Return a label."""
        return as_label(self.part(self._row(number), 1, number), f"{self}[{number}]")

    def pair(self, number: int) -> tuple[Any, int | str]:
        """Return image and label."""
        row = self._row(number)
        return self._image(row, number), as_label(self.part(row, 1, number), f"{self}[{number}]")

    def labels(self) -> Classes:
        """Read all labels."""
        return Classes(np.array(self.each(self.label)))

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
        with self._lock:
            return self.rows[int(number)]

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
        if (
            image.ndim == 1 and image.dtype == np.uint8
        ):  # a file: bytearray, memoryview, np.frombuffer
            return image.tobytes()
        if isinstance(value, list) and image.ndim > 1 and image.dtype.kind == "i":
            image = image.astype(np.uint8) if 0 <= image.min() <= image.max() <= 255 else image
        if image.dtype.kind not in "fiu":
            raise TypeError(
                f"{self}[{number}]: image must be an array of numbers or an image, got a {type(value).__name__}"
            )
        if self.of_torch and is_tensor(value) and image.ndim == 3:
            last = image.shape[-1] in CHANNELS and image.shape[0] not in CHANNELS
            return image if last else np.moveaxis(image, 0, -1)
        return image[..., None] if image.ndim == 2 and image.dtype == np.uint8 else image

    def part(self, row: Any, part: int, number: int) -> Any:
        """Return the image or the label of a row."""
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
    classes: Classes | None = None
    if isinstance(source, Dataset):
        classes = Classes(source.labels, _class_names(source))
        if isinstance(source.images, ImageFiles):
            return tuple(source.images.files), classes
        rows = RowImages([*zip(source.images, source.labels, strict=True)], None, None, name)
    elif hasattr(source, "features") and hasattr(source, "column_names"):
        rows, classes = from_hub(source, "image", "label")
    else:
        torch = any(base.__module__.split(".")[0] == "torch" for base in type(source).__mro__)
        rows = (number_torch if torch else number_rows)(source, None, None)
    rows.name = name
    if not isinstance(rows[0], bytes):  # refuse other objects than images at once
        with named_if_bad(rows.files()[0]):
            open_image(rows.files()[0])
    return rows.files(), classes or rows.labels()


def _class_names(dataset: Dataset) -> tuple[str, ...] | None:
    """Return the names of the classes by which a data set is labelled."""
    for view, labels in dataset.views.items():
        if view in dataset.class_names and np.array_equal(labels, dataset.labels):
            return dataset.class_names[view]
    return None


def number_rows(rows: Any, image: Any, label: Any, *, of_torch: bool = False) -> RowImages:
    """Number the rows of any source; an iterator is read once."""
    name = type(rows).__name__.lower()
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # a table of pandas
        return RowImages(rows.to_dict("records"), image, label, name)
    stream = any(base.__name__ == "IterableDataset" for base in type(rows).__mro__)
    stream = stream or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__"))
    numbered = RowImages(list(rows) if stream else rows, image, label, name, of_torch)
    numbered.is_stream = stream
    return numbered


def number_torch(dataset: Any, image: Any, label: Any) -> RowImages:
    """Number the rows of a data set of PyTorch; of a ``DataLoader`` those of its batches."""
    if not (hasattr(dataset, "batch_sampler") and hasattr(dataset, "collate_fn")):
        return number_rows(dataset, image, label, of_torch=True)
    name = type(dataset).__name__.lower()
    rows: list[Any] = []
    for batch in dataset:
        parts = RowImages([batch], image, label, name)
        images, labels = parts.part(batch, 0, 0), parts.part(batch, 1, 0)
        is_batch = np.ndim(labels) > 0
        rows += zip(images, labels, strict=True) if is_batch else [(images, labels)]
    numbered = RowImages(rows, None, None, name, of_torch=True)
    numbered.is_stream = True
    return numbered


def from_hub(
    dataset: Any, image: str, label: str, name: str = "dataset"
) -> tuple[RowImages, Classes]:
    """Return the rows of a data set of Hugging Face, their images encoded as they are stored; and their classes."""
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
        images = dataset.select_columns([image]).with_format(None if encoded or files else "numpy")
        rows = RowImages(images, image, label, "huggingface")
        values = dataset.select_columns([label]).with_format(None)[:][label]
        labels = [as_label(value, f"{name}[{row}]") for row, value in enumerate(values)]
        classes = Classes(np.array(labels))
    else:
        rows = RowImages(list(dataset), image, label, "huggingface")
        classes = rows.labels()
    return rows, Classes(classes.labels, None if names is None else tuple(names))


def open_tables(path: str | Path | Sequence[str | Path]) -> dict[str, Any]:
    """Open Parquet or Arrow files, folders of them, or a saved data set, by part; return nothing for another path."""
    if isinstance(path, str | Path):
        place = expand_user(path)
        if any((place / note).is_file() for note in ("dataset_dict.json", "state.json")):
            with _quiet(path) as datasets:
                loaded = datasets.load_from_disk(str(place))
                return dict(loaded) if isinstance(loaded, Mapping) else {"": loaded}
        if place.is_dir():
            inside = (place, place / "data", *(place / split for split in SPLITS))
            if not any(any(folder.glob("*.parquet")) for folder in inside):
                return {}
            with _quiet(path) as datasets:
                loaded = dict(datasets.load_dataset("parquet", data_dir=str(place)))
                return loaded if len(loaded) > 1 else {"": next(iter(loaded.values()))}
        if place.suffix.lower() not in TABLES or (place.suffix and not place.is_file()):
            return {}
        path = [place]
    files = [str(expand_user(file)) for file in path]
    kind = "arrow" if files[0].lower().endswith(".arrow") else "parquet"
    with _quiet(files[0]) as datasets:
        return {"": datasets.load_dataset(kind, data_files=files, split="train")}


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


def of_table(
    table: Any, name: str, image: str | None = None, label: str | None = None
) -> tuple[RowImages, Classes]:
    """Return the images and the classes of an opened table; its columns by name, or the only ones of their kind."""
    kinds = {column: str(getattr(kind, "dtype", kind)) for column, kind in table.features.items()}
    if image is None and "image" not in kinds:
        pictures = [c for c, kind in kinds.items() if "bytes" in kind or "binary" in kind]
        pictures += [c for c, kind in table.features.items() if type(kind).__name__ == "Image"]
        image = pictures[0] if len(pictures) == 1 else None
    if label is None and "label" not in kinds:
        named = [c for c, kind in table.features.items() if hasattr(kind, "names")]
        plain = [
            c
            for c, kind in kinds.items()
            if c != image
            and not c.startswith("__index_level")
            and ("int" in kind or "string" == kind)
        ]
        label = next((some[0] for some in (named, plain) if len(some) == 1), None)
    rows, classes = from_hub(table, image or "image", label or "label", name)
    rows.name = name
    return rows, classes


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
