"""Rows of other libraries' data sets: an image and a label by number, read when asked for."""

from collections.abc import Callable, Mapping, Sequence, Set
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
"""Rows that a thread takes at a time."""


class Classes(NamedTuple):
    """Labels ``[N]``, numbers or names, and the names of the numbers where they have names."""

    labels: np.ndarray
    names: tuple[str, ...] | None = None


class RowImages:
    """The images of a source of rows: ``images[3]`` is an array, an image of Pillow, or the bytes of an image file."""

    def __init__(
        self, rows: Any, image: Any, label: Any, name: str, *, of_torch: bool = False
    ) -> None:
        """See the class."""
        self.rows, self.keys, self.name, self.of_torch = rows, (image, label), name, of_torch
        self.is_stream = False
        self._lock: Any = Lock() if of_torch and not isinstance(rows, list) else nullcontext()

    def __reduce__(self) -> Any:
        """Another process has a lock of its own."""
        return _row_images, (self.rows, *self.keys, self.name, self.of_torch)

    def __len__(self) -> int:
        """Number of rows N."""
        return len(self.rows)

    def __str__(self) -> str:
        """What they are called."""
        return self.name

    def __getitem__(self, row: int) -> Any:
        """An image as it is."""
        return self._image(self._row(row), row)

    def label(self, row: int) -> int | str:
        """A label."""
        return label_of(self.part(self._row(row), 1, row), f"{self}[{row}]")

    def pair(self, row: int) -> tuple[Any, int | str]:
        """Image and label."""
        found = self._row(row)
        return self._image(found, row), label_of(self.part(found, 1, row), f"{self}[{row}]")

    def files(self) -> list[Row]:
        """Each image for ``ImageFiles``."""
        return [Row(self, row) for row in range(len(self))]

    def _row(self, row: int) -> Any:
        with self._lock:
            return self.rows[int(row)]

    def _image(self, found: Any, row: int) -> Any:
        value = self.part(found, 0, row)
        if isinstance(value, Mapping) and "bytes" in value:  # Hugging Face's struct of an image
            value = value["bytes"] if value["bytes"] is not None else value.get("path")
        if value is None:
            raise ValueError(f"{self}[{row}] has no image")
        if isinstance(value, str | Path):
            return Path(value).read_bytes()
        if isinstance(value, bytes) or hasattr(value, "getbands"):
            return value
        image = as_host(f"{self}[{row}]: image", value)
        if image.dtype.kind not in "fiu":
            raise TypeError(
                f"{self}[{row}]: image must be an array of numbers or an image, got {image.dtype}"
            )
        if self.of_torch and is_tensor(value) and image.ndim == 3:
            last = image.shape[-1] in CHANNELS and image.shape[0] not in CHANNELS
            return image if last else np.moveaxis(image, 0, -1)
        return image[..., None] if image.ndim == 2 and image.dtype == np.uint8 else image

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


def _row_images(rows: Any, image: Any, label: Any, name: str, of_torch: bool) -> RowImages:
    return RowImages(rows, image, label, name, of_torch=of_torch)


def images_of(source: Any, name: str) -> tuple[Sequence[Any], Classes]:
    """Return the files and the classes of anything that the command line reads: a ``Dataset`` or rows."""
    classes: Classes | None = None
    if isinstance(source, Dataset):
        classes = Classes(source.labels, _names_of(source))
        if isinstance(source.images, ImageFiles):
            return tuple(source.images.files), classes
        rows = RowImages(_Zipped(source.images, source.labels), None, None, name)
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
    if not isinstance(rows[0], bytes):  # what is no image is refused at once
        with named_if_bad(rows.files()[0]):
            open_image(rows.files()[0])
    return rows.files(), classes or read_labels(rows)


def _names_of(dataset: Dataset) -> tuple[str, ...] | None:
    """Return the names of the classes by which a data set is labelled."""
    for view, labels in dataset.views.items():
        if view in dataset.class_names and np.array_equal(labels, dataset.labels):
            return dataset.class_names[view]
    return None


class _Zipped(NamedTuple):
    """Images and labels of two arrays by number."""

    images: Any
    labels: Any

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: Any) -> Any:
        return self.images[row], self.labels[row]


def of_anything(rows: Any, image: Any, label: Any, *, of_torch: bool = False) -> RowImages:
    """Number the rows of anything; what has no numbers is read once."""
    name = type(rows).__name__.lower()
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):  # a table of pandas
        return RowImages(rows.to_dict("records"), image, label, name)
    if isinstance(rows, Mapping) or not (hasattr(rows, "__iter__") or hasattr(rows, "__getitem__")):
        raise TypeError(
            f"rows must be a sequence or an iterable of rows, got a {type(rows).__name__}: of two arrays write "
            "jdml.data.Dataset(name, images, labels)"
        )
    stream = any(base.__name__ == "IterableDataset" for base in type(rows).__mro__)
    stream = stream or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__"))
    numbered = RowImages(list(rows) if stream else rows, image, label, name, of_torch=of_torch)
    numbered.is_stream = stream
    return numbered


def of_torch(dataset: Any, image: Any, label: Any) -> RowImages:
    """Number the rows of a data set of PyTorch; of a ``DataLoader`` those of its batches."""
    if not (hasattr(dataset, "batch_sampler") and hasattr(dataset, "collate_fn")):
        return of_anything(dataset, image, label, of_torch=True)
    name = type(dataset).__name__.lower()
    rows: list[Any] = []
    for batch in dataset:
        parts = RowImages([batch], image, label, name)
        images, labels = parts.part(batch, 0, 0), parts.part(batch, 1, 0)
        whole = np.ndim(labels) > 0
        rows += zip(images, labels, strict=True) if whole else [(images, labels)]
    numbered = RowImages(rows, None, None, name, of_torch=True)
    numbered.is_stream = True
    return numbered


def of_huggingface(
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
    stream = not hasattr(dataset, "__len__")
    images: Any = list(dataset) if stream else dataset.select_columns([image])
    if not stream:
        images = images.with_format(None if encoded or files else "numpy")
        dataset = dataset.select_columns([label]).with_format(None)
        labels = as_classes(
            [label_of(value, f"{name}[{row}]") for row, value in enumerate(dataset[:][label])]
        ).labels
    rows = RowImages(images, image, label, "huggingface")
    labels = read_labels(rows).labels if stream else labels
    if names is not None and len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        row = int(np.argmax((labels < 0) | (labels >= len(names))))
        raise ValueError(f"{name}[{row}] has the label {labels[row]}, which is no class")
    return rows, Classes(labels, None if names is None else tuple(names))


def open_tables(path: str | Path | Sequence[str | Path]) -> dict[str, Any]:
    """Open the data sets of Hugging Face, by part, of Parquet or Arrow files, folders of them, or a saved data set.

    Nothing for any other path.
    """
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
    """Give the library without its progress bars; name the path that it cannot read."""
    require_package("datasets", f"reading {path}")
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    except Exception as error:  # of Arrow, or of the library: not such files
        said = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(f"{path} is not a readable table of rows: {said}") from error
    finally:
        if shown:
            datasets.enable_progress_bars()


def of_table(
    table: Any, name: str, image: str | None = None, label: str | None = None
) -> tuple[RowImages, Classes]:
    """Return the images and the classes of an opened table; its columns by name, or the only ones that may be."""
    kinds = {column: str(getattr(kind, "dtype", kind)) for column, kind in table.features.items()}
    pictures = [
        c for c, kind in kinds.items() if "bytes" in kind or kind in ("binary", "large_binary")
    ]
    pictures += [c for c, kind in table.features.items() if type(kind).__name__ == "Image"]
    image = image or (pictures[0] if len(pictures) == 1 and "image" not in kinds else "image")
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
    label = label or "label"
    if not len(table):
        raise ValueError(f"{name} must hold at least one row, got none")
    for column in (image, label):
        if column not in kinds:
            raise ValueError(f"{name} has no column {column!r}: it has {', '.join(kinds)}")
    if image not in pictures:
        raise TypeError(
            f"{name}: the column {image!r} must hold images as bytes, got {kinds[image]}"
        )
    rows, classes = of_huggingface(table, image, label, name)
    rows.name = name
    return rows, classes


def read_labels(rows: RowImages) -> Classes:
    """Read the labels of rows, each of which is read once."""
    return as_classes(each(rows.label, len(rows), 1 if rows.of_torch else None))


def as_classes(labels: Sequence[int | str]) -> Classes:
    """Collect labels of one kind."""
    if len({type(label) for label in labels}) > 1:
        raise TypeError("labels must be integers or strings, got integers and strings")
    return Classes(np.array(labels))


def typed_classes(labels: Any) -> Classes | None:
    """Collect the labels of an argument; None of none."""
    if labels is None:
        return None
    if not hasattr(labels, "__len__") or isinstance(labels, str | bytes | Mapping | Set):
        raise TypeError(f"labels must be integers or strings [N], got {labels!r}")
    return as_classes([label_of(label, f"labels[{row}]") for row, label in enumerate(labels)])


def each(function: Callable[[int], Any], count: int, threads: int | None = None) -> list[Any]:
    """Call a function for each row, by several threads."""

    def block(start: int) -> list[Any]:
        return [function(row) for row in range(start, min(start + BLOCK, count))]

    with ThreadPoolExecutor(threads or cores()) as pool:
        return [value for values in pool.map(block, range(0, count, BLOCK)) for value in values]


def label_of(value: Any, where: str) -> int | str:
    """Return one label as an integer or a string."""
    label = as_host(where, value)
    if label.shape == () and label.dtype.kind in "SU":
        text = label.item()
        text = text.decode() if isinstance(text, bytes) else text
        if text.strip():
            return str(text)
    if value is None or label.dtype.kind in "SU":
        raise ValueError(f"{where} has no label")
    if label.shape or label.dtype.kind not in "iub":
        got = f"an array {list(label.shape)}" if label.shape else type(value).__name__
        raise TypeError(f"{where}: label must be an integer or a string, got {got}")
    return int(label)
