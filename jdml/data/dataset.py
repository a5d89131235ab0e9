"""``Dataset``: images, or other inputs, with their labels and other labellings; the checks of such arrays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jdml.data.images import CHANNELS, ImageFiles
from jdml.ops import checks

SAMPLE = 256
"""Rows, evenly spaced, whose range of values is checked."""
SLACK = 0.25
"""How far resizing may lead out of 0…1."""
LIKE_BYTES = 16.0
"""A larger maximum, with no value below 0, is taken for that of bytes."""


class TrainSet(Protocol):
    """A data set to train on, such as a :class:`Dataset`."""

    @property
    def images(self) -> Any:
        """``[N, H, W, C]``, or whatever the model takes, with rows first."""

    @property
    def labels(self) -> np.ndarray | jax.Array:
        """``[N]`` integers."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, one label for each, and other labellings ("views") of the same images.

    Attributes:
        name: the data set's name, for logs and error messages.
        images: ``[N, H, W, C]``, uint8 (0…255) or float32, in memory or as ``ImageFiles``. Or any other input of a
            network, with rows first: features ``[N, D]``, tokens ``[N, T]``, or dictionaries or tuples of such, for
            two towers.
        labels: ``[N]`` integers ≥ 0, stored as int32.
        views: other labellings of the same rows by name, each ``[N]``, such as ``{"digit", "parity"}``.
        class_names: for a view, the name of each of its labels, if they have names.
        groups: ``[N]`` the recording, session or identity of each row, by name or number, if they are known.

    Raises:
        TypeError: if images or labels are of another type.
        ValueError: if shapes do not match, or a label is negative.

    Example:
        >>> images = np.zeros((3, 2, 2, 1), np.uint8)
        >>> digits = np.array([4, 7, 9])
        >>> data = Dataset("toy", images, digits, {"digit": digits, "parity": digits % 2})
        >>> print(len(data), data.num_classes, data.relabel("parity").labels)
        3 10 [0 1 1]
        >>> print(data.select(digits > 5).labels)
        [7 9]
    """

    name: str
    images: Any
    labels: np.ndarray
    views: Mapping[str, np.ndarray] = field(default_factory=dict)
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check images, labels and views, and convert all labels to int32."""
        images = as_inputs("images", self.images)
        size = _num_rows(images)
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", as_labels("labels", self.labels, size))
        views = {
            name: as_labels(f"views[{name!r}]", labels, size) for name, labels in self.views.items()
        }
        object.__setattr__(self, "views", views)

    def __len__(self) -> int:
        """Return the number of images N."""
        return _num_rows(self.images)

    def __repr__(self) -> str:
        """Return the name, shapes, number of classes and labellings, in one line."""
        parts = [
            f"{getattr(part, 'dtype', '')} {list(np.shape(part))}"
            for part in jax.tree.leaves(self.images)
        ]
        views = f", views {', '.join(self.views)}" if self.views else ""
        return f"Dataset({self.name!r}, {' and '.join(parts)}, {self.num_classes} classes{views})"

    @property
    def num_classes(self) -> int:
        """The largest label plus one; not every label below it need occur."""
        return int(self.labels.max()) + 1 if len(self) else 0

    def relabel(self, view: str) -> "Dataset":
        """Label the same images by one of the views.

        Raises:
            ValueError: if there is no such view; the message lists all views.
        """
        checks.one_of("view", view, self.views)
        return replace(self, labels=self.views[view])

    def select(self, rows: np.ndarray) -> "Dataset":
        """Select some of the rows: images, labels and all views together.

        Args:
            rows: a boolean mask ``[N]``, or indices in any order.

        Raises:
            IndexError: if the mask has another length, or an index is out of range.
        """
        rows = np.arange(len(self))[rows]
        return replace(
            self,
            images=jax.tree.map(
                lambda x: x.select(rows) if isinstance(x, ImageFiles) else x[rows], self.images
            ),
            labels=self.labels[rows],
            views={name: labels[rows] for name, labels in self.views.items()},
            groups=None if self.groups is None else self.groups[rows],
        )


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def as_host(value: Any) -> np.ndarray:
    """Return an array of any library as NumPy's."""
    if not is_tensor(value):
        return np.asarray(value)
    value = value.detach().cpu()
    return np.asarray(value.float() if "bfloat16" in str(value.dtype) else value)


def as_inputs(name: str, images: Any) -> Any:
    """Return images, features or tokens as arrays; dictionaries and tuples of them part by part."""
    if isinstance(images, ImageFiles):
        return images
    if isinstance(images, Mapping | tuple):
        items = images.items() if isinstance(images, Mapping) else enumerate(images)
        parts = {key: as_inputs(f"{name}[{key!r}]", part) for key, part in items}
        lengths = [_num_rows(part) for part in parts.values()]
        if len(set(lengths)) != 1:
            raise ValueError(f"{name} must have parts of the same number of rows, got {lengths}")
        return parts if isinstance(images, Mapping) else tuple(parts.values())
    listed = images if isinstance(images, list) else []
    if any(isinstance(each, bytes) or hasattr(each, "getbands") for each in listed):
        kinds = {(getattr(each, "mode", None), getattr(each, "size", None)) for each in listed}
        if len(kinds) > 1 or {mode for mode, _ in kinds}.isdisjoint(_MODES):
            raise TypeError(
                f"{name} must be an array, or images of one size in grey or RGB: write "
                "jdml.data.from_rows(list(zip(images, labels)))"
            )
        images = np.stack([np.atleast_3d(np.asarray(each)) for each in listed])
    images = as_host(images)
    if images.dtype.kind not in "fiu" or (images.ndim == 4 and images.dtype.name not in _PIXELS):
        instead = {
            "f": f": write {name}.astype(numpy.float32)",
            "U": f": write jdml.data.ImageFiles({name}) for files",
        }.get(images.dtype.kind, "")
        raise TypeError(f"{name} must be uint8 or float32, got {images.dtype}{instead}")
    if images.ndim == 0 or (images.dtype == np.uint8 and images.ndim != 4):
        raise ValueError(f"{name} must have shape [N, H, W, C], got {list(images.shape)}")
    check_channels(name, images)
    return images.astype(np.float32) if images.dtype == np.float64 else images


_PIXELS = ("uint8", "float32")
_MODES = ("F", "L", "LA", "RGB", "RGBA")


def check_channels(name: str, images: Any) -> None:
    """Refuse images whose channels come before height and width."""
    shape = tuple(getattr(images, "shape", ()))
    if len(shape) == 4 and shape[1] in CHANNELS and shape[2] > 4 and shape[3] > 4:
        raise ValueError(
            f"{name} must have shape [N, H, W, C], got {list(shape)}, which looks like [N, C, H, W]: "
            f"write numpy.moveaxis({name}, 1, -1)"
        )


def _num_rows(images: Any) -> int:
    return len(jax.tree.leaves(images)[0])


def as_labels(name: str, labels: np.ndarray, size: int | None = None) -> np.ndarray:
    """Return labels as int32 ``[N]``."""
    labels = as_host(labels)
    if labels.dtype.kind not in "iu":
        numbers = {
            "f": f": write {name}.astype(int), without the rows that have none",
            "S": f": write numpy.unique({name}, return_inverse=True)[1]",
        }
        hint = numbers.get(labels.dtype.kind.replace("U", "S"), "")
        raise TypeError(f"{name} must be integers, got {labels.dtype}{hint}")
    if labels.ndim != 1 or (size is not None and len(labels) != size):
        expected = "[N]" if size is None else f"[N] = [{size}]"
        raise ValueError(f"{name} must have shape {expected}, got {list(labels.shape)}")
    wrong = (labels < 0) | (labels > np.iinfo(np.int32).max)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{name} must be from 0 to 2³¹ - 1, got {labels[row]} in row {row}")
    return labels.astype(np.int32)


def labels_as_in(first: Dataset, second: Dataset, view: str) -> np.ndarray:
    """Return the second's labels of a view, numbered as the first's where the classes of both have names."""
    names, others = (part.class_names.get(view) for part in (first, second))
    labels = second.views[view]
    if names is None or others is None or names == others:
        return labels
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers.setdefault(name, len(numbers)) for name in others], np.int32)[labels]


class NoSuchPartError(ValueError):
    """Images that are there do not have the part that was asked for."""


def check_split(split: str, splits: Iterable[str]) -> None:
    """Refuse a split that the data set does not have."""
    if split not in splits:
        raise NoSuchPartError(f"split must be one of {', '.join(splits)}, got {split!r}")


# The range of images' values: bytes 0…255, or numbers 0…1


class Range(NamedTuple):
    """The least and the largest value."""

    least: float
    most: float


def value_range(images: Any) -> Range | None:
    """Return the range of photographs of floating-point numbers; None for any other input."""
    if not isinstance(images, np.ndarray) or images.ndim != 4 or images.shape[3] not in (1, 3):
        return None
    if images.dtype.kind != "f" or not images.size:
        return None
    values = _sample(images)
    values = values[np.isfinite(values)]
    return Range(float(values.min()), float(values.max())) if values.size else None


def _sample(images: np.ndarray) -> np.ndarray:
    return images[np.unique(np.linspace(0, len(images) - 1, SAMPLE).astype(int))]


def check_in_unit_range(name: str, images: Any, why: str) -> None:
    """Refuse floating-point photographs outside of 0…1."""
    values = value_range(images)
    if values is not None and (values.least < -SLACK or values.most > 1 + SLACK):
        raise ValueError(
            f"{name} must be uint8 in 0…255 or float in 0…1{why}, got {images.dtype} from "
            f"{values.least:.4g} to {values.most:.4g}"
        )


def check_not_bytes(name: str, images: Any) -> None:
    """Refuse floating-point photographs that look like bytes, and bytes that are only 0 and 1."""
    values = value_range(images)
    if values is not None and values.least >= 0 and values.most > LIKE_BYTES:
        raise ValueError(
            f"{name} must be uint8 in 0…255, or float in 0…1 or standardized, got {images.dtype} up to "
            f"{values.most:.4g}: write {name}.astype(numpy.uint8), or pass preprocess= if they are right"
        )
    check_not_bits(name, images, "pass preprocess= if they are right")


def check_not_bits(name: str, images: Any, otherwise: str) -> None:
    """Refuse bytes that are only 0 and 1, as numbers from 0 to 1 become where they are cast."""
    if isinstance(images, np.ndarray) and images.ndim == 4 and images.dtype == np.uint8:
        if _sample(images).max(initial=0) == 1:
            raise ValueError(
                f"{name} must be uint8 in 0…255, got only 0 and 1: write {name}.astype(numpy.float32), or {otherwise}"
            )


def check_same_range(name: str, images: np.ndarray, trained: Range) -> None:
    """Refuse photographs whose range of values is not that of the training images."""
    values = Range(0.0, 1.0) if images.dtype == np.uint8 else value_range(images)
    if values is None:
        return
    larger = max(map(abs, values)) > 8 * max(map(abs, trained))
    below = trained.least >= 0 and values.least < -SLACK * trained.most
    not_standardized = trained.least < -SLACK and values.least >= 0
    not_standardized &= 0.5 < values.most - values.least <= 1 + SLACK
    beyond_bytes = images.dtype == np.uint8 and trained.most > 1 + SLACK
    if larger or below or not_standardized or beyond_bytes:
        raise ValueError(
            f"{name} must have values in the range of the training images, {trained.least:.4g} to "
            f"{trained.most:.4g}, got {images.dtype} from {values.least:.4g} to {values.most:.4g}"
        )
