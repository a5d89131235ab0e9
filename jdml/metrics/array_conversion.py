"""Conversion of arguments: arrays of any framework, and classes by number or by name."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml import ops
from jdml.ops import checks
from jdml.ops.decorators import spell_documentation
from jdml.ops.numerics import accumulate_in

F = TypeVar("F", bound=Callable[..., Any])

_LABELS = ("labels", "query_labels", "gallery_labels", "anchor_labels")
_NAMED = (*_LABELS, "modes")
"""Arguments that may be names; their kind is checked with their shape."""


def accepts_any_array(**finite: str) -> Callable[[F], F]:
    """Let a metric take arrays of any library and classes by name; ``finite`` arguments are so where a mask counts."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        asks = "query_labels" in signature.parameters
        spell_documentation(function)
        if finite:
            shapes = "shapes that do not fit"
            refused = f"{shapes}, a row that is not finite (outside ``jit``)"
            function.__doc__ = (function.__doc__ or "").replace(shapes, refused)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if asks and "labels" in kwargs and "query_labels" not in kwargs:
                kwargs["query_labels"] = kwargs.pop("labels")
            bound = signature.bind(*args, **kwargs)
            values = {
                name: value if (name, type(value)) == ("gallery", np.memmap) else as_array(value)
                for name, value in bound.arguments.items()
            }
            values |= _numbered(values)
            for name, value in values.items():
                if name not in _NAMED or isinstance(value, np.ma.MaskedArray):
                    checks.check_numbers(name, value)
            bound.arguments.update(values)
            result = function(*bound.args, **bound.kwargs)  # refuses other shapes and kinds
            for name, mask in finite.items():
                vectors, counted = values[name], values.get(mask)
                if checks.is_at_hand(vectors) and not isinstance(counted, jax.core.Tracer):
                    counts = None if counted is None else np.asarray(counted)
                    if counts is not None and counts.dtype != bool:
                        counts = counts >= 0
                    checks.check_finite(name, vectors, counts)
            return result

        return wrapper  # type: ignore[return-value]

    return decorate


def as_array(value: Any) -> Any:
    """An array of another library as one of JAX or NumPy; anything else as it is."""
    is_array = isinstance(value, Array | np.ndarray | np.generic) or hasattr(value, "__jax_array__")
    if is_array or not hasattr(value, "__array__"):
        return checks.as_array(value)
    if hasattr(value, "is_floating_point"):  # PyTorch's, which has types that NumPy has not
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() and value.itemsize < 4 else value
    return checks.as_array(np.asarray(value))


def labelled_rows(function: str, embeddings: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return labels, and which rows have a class, for a function on the host; refuse other arrays and no class."""
    checks.check_concrete(function, embeddings, labels)
    checks.check_embeddings("embeddings", embeddings)
    checks.check_labels("labels", labels, len(embeddings))
    classes = np.asarray(labels)
    if not (classes >= 0).any():
        raise ValueError("labels must hold at least one class, got none")
    return classes, classes >= 0


def unit_rows(vectors: Any) -> np.ndarray:
    """Vectors on the unit sphere, computed in float32 at least, in float64: 16-bit ones are not rounded again."""
    x = jnp.asarray(vectors)
    return np.asarray(ops.sphere(x.astype(accumulate_in(x))), np.float64)


def as_groups(name: str, groups: Any) -> np.ndarray:
    """Return the groups of rows, given by number or by name."""
    values = np.asarray(as_array(groups))
    several = groups if isinstance(groups, list | tuple) else values.flat
    for row, value in enumerate(several if values.dtype.kind in "OTU" else ()):
        if not isinstance(value, str) and str(value) in ("None", "nan", "NaT", "<NA>"):
            raise ValueError(
                f"{name} has no group for row {row}, {value!r}: give each row without one a group of its own"
            )
    if values.dtype.kind in "OT":
        values = as_text(values)
    if values.size and values.dtype.kind not in "iubUS":
        raise TypeError(f"{name} must be integers or names, got dtype {values.dtype}")
    return values


def _numbered(arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Labels that are names, numbered together from 0; "-1" is no class."""
    classes = {name: arguments[name] for name in _LABELS if arguments.get(name) is not None}
    both = ((name, _as_names(labels)) for name, labels in classes.items())
    named = {name: names for name, names in both if names is not None}
    if not named:
        arrays = ((name, x) for name, x in classes.items() if isinstance(x, np.ndarray))
        return {name: x.astype(np.int64) for name, x in arrays if checks.are_integers(x)}
    for name in classes.keys() - named.keys():
        raise TypeError(f"{name} must be names as {', '.join(named)} are, got numbers")
    every = np.concatenate([names.ravel() for names in named.values()])
    none = b"-1" if every.dtype.kind == "S" else "-1"
    are_none = np.char.strip(every) == none
    numbers = np.where(are_none, -1, np.unique(every, return_inverse=True)[1].reshape(-1))
    ends = np.cumsum([names.size for names in named.values()])[:-1]
    parts = np.split(numbers.reshape(-1).astype(np.int32), ends)
    return {
        name: part.reshape(names.shape)
        for (name, names), part in zip(named.items(), parts, strict=True)
    }


def _as_names(labels: Any) -> np.ndarray | None:
    """Class names as a NumPy array of text, or None where labels are something else."""
    if isinstance(labels, list | tuple):
        labels = np.asarray(labels, object)
    if not isinstance(labels, np.ndarray) or labels.ndim not in (1, 2):
        return None
    if labels.dtype.kind in "US":
        return labels
    some = labels.flat if labels.dtype.kind in "OT" else ()
    return as_text(labels) if len(some) and all(isinstance(n, str) for n in some) else None


def as_text(values: np.ndarray) -> np.ndarray:
    """Return what objects print, as text of the longest one's width; also of NumPy's text without a width."""
    return values.astype(object).astype(np.str_)
