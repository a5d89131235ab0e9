"""``Dataset``: images, or other inputs, with their labels, and the other ways of labelling the same rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jdml.data.images import CHANNELS, ImageFiles


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images, one label for each, and other labellings ("views") of the same images.

    Attributes:
        name: what the data set is called, for logs and error messages.
        images: ``[N, H, W, C]``, uint8 (0…255) or float32, in memory or as ``ImageFiles``. Or what else a network
            takes, with rows first: features ``[N, D]``, tokens ``[N, T]``, and dictionaries or tuples of such, for two
            towers.
        labels: ``[N]`` integers ≥ 0, kept as int32.
        views: other labellings of the same rows by name, each ``[N]``, such as ``{"digit", "parity"}``.
        class_names: for a view, the name of each of its labels, where they have names.

    Raises:
        TypeError: if images or labels are of a type other than these.
        ValueError: if shapes do not fit each other, or a label is negative.

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

    def __post_init__(self) -> None:
        """Check images, labels and views, and bring all labels to int32."""
        images = as_inputs("images", self.images)
        size = _rows(images)
        views = {
            name: as_labels(f"views[{name!r}]", labels, size) for name, labels in self.views.items()
        }
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "labels", as_labels("labels", self.labels, size))
        object.__setattr__(self, "views", views)

    def __len__(self) -> int:
        """Number of images N."""
        return _rows(self.images)

    @property
    def num_classes(self) -> int:
        """One more than the largest label; labels lie in 0…num_classes − 1, and not all need occur."""
        return int(self.labels.max()) + 1 if len(self) else 0

    def relabel(self, view: str) -> "Dataset":
        """Label the same images by one of the views.

        Raises:
            ValueError: if there is no such view; the message lists those there are.
        """
        if view not in self.views:
            raise ValueError(f"view must be one of {sorted(self.views)}, got {view!r}")
        return replace(self, labels=self.views[view])

    def select(self, rows: np.ndarray) -> "Dataset":
        """Select some of the rows: images, labels and all views together.

        Args:
            rows: a boolean mask ``[N]``, or indices 0…N − 1 in any order.

        Raises:
            TypeError: if ``rows`` is neither boolean nor integer.
            ValueError: if the mask has another length, or an index is out of range.
        """
        rows = as_rows(rows, len(self))
        return replace(
            self,
            images=_selected(self.images, rows),
            labels=self.labels[rows],
            views={name: labels[rows] for name, labels in self.views.items()},
        )


def is_tensor(value: Any) -> bool:
    """Whether it is of PyTorch."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def as_host(name: str, value: Any) -> np.ndarray:
    """What any library calls an array as NumPy's; a tensor wherever it lies, whether it is learned or not."""
    if np.ma.is_masked(value):
        raise TypeError(
            f"{name} must be an array without a mask: leave the masked rows out, or fill them (filled)"
        )
    if not is_tensor(value):
        return np.asarray(value)
    value = value.detach().cpu()
    return np.asarray(value.float() if "bfloat16" in str(value.dtype) else value)


def as_inputs(name: str, images: Any) -> Any:
    """Images, features or tokens as arrays; dictionaries and tuples of them part by part."""
    if isinstance(images, ImageFiles):
        return images
    if isinstance(images, Mapping):
        parts = {key: as_inputs(f"{name}[{key!r}]", part) for key, part in images.items()}
        _same_length(name, parts.values())
        return parts
    if isinstance(images, tuple):
        several = tuple(as_inputs(f"{name}[{i}]", part) for i, part in enumerate(images))
        _same_length(name, several)
        return several
    if isinstance(images, list):
        shapes = {np.shape(image) for image in images}
        if len(shapes) > 1:
            some = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise ValueError(
                f"{name} must have one shape each, got {some}: cut them to one size first, as "
                "jdml.data.ImageFiles does with image files"
            )
        modes = {image.mode for image in images if hasattr(image, "getbands")} & _OTHER_COLOURS
        if modes:
            raise TypeError(
                f"{name} must be images of grey, or of red, green and blue, got mode {min(modes)}: write "
                f'[image.convert("RGB") for image in {name}]'
            )
    images = as_host(name, images)
    if not images.dtype.isnative:
        images = images.astype(images.dtype.newbyteorder("="))
    if images.dtype.kind not in "fiu" or (images.ndim == 4 and images.dtype.name not in _PIXELS):
        instead = f": write {name}.astype(numpy.float32)" if images.dtype.kind == "f" else ""
        raise TypeError(f"{name} must be uint8 or float32, got {images.dtype}{instead}")
    if images.ndim == 0 or (images.dtype == np.uint8 and images.ndim != 4):
        raise ValueError(f"{name} must have shape [N, H, W, C], got {list(images.shape)}")
    check_channels(name, images)
    return images.astype(np.float32) if images.dtype == np.float64 else images


_PIXELS = ("uint8", "float32")
_OTHER_COLOURS = {"CMYK", "HSV", "LAB", "P", "PA", "YCbCr"}


def check_channels(name: str, images: Any) -> None:
    """Refuse images whose channels come before height and width."""
    shape = tuple(getattr(images, "shape", ()))
    if len(shape) == 4 and shape[1] in CHANNELS and shape[2] > 4 and shape[3] > 4:
        raise ValueError(
            f"{name} must have shape [N, H, W, C], got {list(shape)}, which looks like [N, C, H, W]: "
            f"write numpy.moveaxis({name}, 1, -1)"
        )


def _same_length(name: str, parts: Iterable[Any]) -> None:
    lengths = [_rows(part) for part in parts]
    if not lengths or len(set(lengths)) > 1:
        raise ValueError(f"{name} must have parts of the same number of rows, got {lengths}")


def _rows(images: Any) -> int:
    """The number of rows N."""
    if isinstance(images, dict):
        return _rows(next(iter(images.values())))
    return _rows(images[0]) if isinstance(images, tuple) else len(images)


def _selected(images: Any, rows: np.ndarray) -> Any:
    if isinstance(images, dict):
        return {name: _selected(part, rows) for name, part in images.items()}
    if isinstance(images, tuple):
        return tuple(_selected(part, rows) for part in images)
    return images.select(rows) if isinstance(images, ImageFiles) else images[rows]


def as_labels(name: str, labels: np.ndarray, size: int | None = None) -> np.ndarray:
    """Labels as int32 ``[N]``."""
    labels = as_host(name, labels)
    if not np.issubdtype(labels.dtype, np.integer):
        names = (
            f": write numpy.unique({name}, return_inverse=True)[1]"
            if labels.dtype.kind in "SU"
            else ""
        )
        raise TypeError(f"{name} must be integers, got {labels.dtype}{names}")
    if labels.ndim != 1 or (size is not None and len(labels) != size):
        expected = "[N]" if size is None else f"[N] = [{size}]"
        raise ValueError(f"{name} must have shape {expected}, got {list(labels.shape)}")
    if len(labels) and labels.min() < 0:
        row = int(labels.argmin())
        raise ValueError(f"{name} must be at least 0, got {labels[row]} in row {row}")
    if len(labels) and labels.max() > np.iinfo(np.int32).max:
        row = int(labels.argmax())
        raise ValueError(f"{name} must fit into int32, got {labels[row]} in row {row}")
    return labels.astype(np.int32)


def as_rows(rows: np.ndarray, size: int) -> np.ndarray:
    """A boolean mask ``[size]``, or indices below ``size``, as indices."""
    rows = np.asarray(rows)
    if rows.dtype == bool:
        if rows.shape != (size,):
            raise ValueError(f"rows must be a mask of shape [{size}], got {list(rows.shape)}")
        return np.flatnonzero(rows)
    if rows.size == 0:
        return np.zeros(0, np.intp)
    if not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"rows must be a boolean mask or integer indices, got {rows.dtype}")
    if rows.ndim != 1 or rows.min() < 0 or rows.max() >= size:
        raise ValueError(f"rows must be indices [n] from 0 to {size - 1}, got {rows}")
    return rows


class NoSuchPartError(ValueError):
    """Images that are there do not have the part that was asked for."""


def check_split(split: str, splits: tuple[str, ...]) -> None:
    """Refuse a split that the data set does not have."""
    if split not in splits:
        raise NoSuchPartError(f"split must be one of {splits}, got {split!r}")
