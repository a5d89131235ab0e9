"""Checks of arrays: their kind, type and shape when a function is traced, their values under ``jdml.checked``."""

import contextlib
import contextvars
import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify

from jdml.ops.meshes import on_host


def as_array(value: Any) -> Any:
    """Return the array of what has ``__jax_array__`` (a variable of Flax NNX), in native byte order; or the value."""
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, Array | np.ndarray) or not hasattr(value, "__jax_array__"):
        return value
    return jnp.asarray(value.__jax_array__())


def check_numbers(name: str, value: Any) -> None:
    """Refuse an array that is not one of numbers, or not JAX's or NumPy's; let through what is no array."""
    if not hasattr(value, "__array__") or isinstance(value, Array | np.generic | type):
        return
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array of JAX or NumPy, got {type(value).__name__}")
    if value.dtype != bool and not jnp.issubdtype(value.dtype, jnp.number):
        raise TypeError(f"{name} must be numbers, got dtype {value.dtype}")


def is_fixed_shape(value: Any) -> bool:
    """Whether a value is no array of which ``jax.export`` leaves a size open."""
    return not isinstance(value, Array) or all(isinstance(size, int) for size in value.shape)


def check_fixed_shape(name: str, value: Any) -> None:
    """Refuse an array of which a size is open: sizes decide how a loss or a search computes."""
    if not is_fixed_shape(value):
        shape = ", ".join(map(str, value.shape))
        raise ValueError(
            f"{name} must have a fixed shape, got [{shape}]: export one size, and fill up smaller inputs to it"
        )


def is_at_hand(value: Any) -> bool:
    """Whether a value is an array that this process can read: not traced, not on other processes' devices."""
    if isinstance(value, np.ndarray):
        return True
    return (
        isinstance(value, Array)
        and not isinstance(value, jax.core.Tracer)
        and (value.is_fully_addressable or value.is_fully_replicated)
    )


def is_on_host(value: Any) -> bool:
    """Whether NumPy reads an array without a copy: it is NumPy's own, or on one CPU."""
    if isinstance(value, np.ndarray):
        return True
    return is_at_hand(value) and [each.platform for each in value.devices()] == ["cpu"]


def _check_kind(name: str, value: Any, expected: str, *dtypes: Any, hint: str = "") -> None:
    """Refuse what is not an array of JAX or NumPy, or none of these types."""
    is_array = isinstance(value, Array | np.ndarray)
    if not is_array or not any(jnp.issubdtype(value.dtype, dtype) for dtype in dtypes):
        got = f"dtype {value.dtype}" if is_array else type(value).__name__
        raise TypeError(f"{name} must be {expected}, got {got}{hint}")


def check_embeddings(name: str, vectors: Any, *, dim: int | None = None, like: str = "") -> None:
    """Refuse what is not a floating array ``[N, D]``, with ``D = dim``, the dimension of the argument ``like``."""
    _check_kind(name, vectors, "a floating-point array of shape [N, D]", jnp.floating)
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError(f"{name} must have shape [N, D] with D > 0, got {list(vectors.shape)}")
    if dim is not None and vectors.shape[1] != dim:
        raise ValueError(
            f"{name} must have the dimension of {like}, {dim}, got {list(vectors.shape)}"
        )


def check_concrete(function: str, *arrays: Any) -> None:
    """Refuse traced arrays where a function runs on the host."""
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        raise TypeError(
            f"{function} runs on the host and cannot be traced: call it outside jit, grad and vmap"
        )


def as_centres(name: str, proxies: Any) -> Array:
    """Return proxies ``[C, D]`` or ``[C, K, D]`` as ``[C, K, D]``."""
    _check_kind(name, proxies, "a floating-point array of shape [C, D] or [C, K, D]", jnp.floating)
    if proxies.ndim not in (2, 3) or 0 in proxies.shape:
        raise ValueError(
            f"{name} must have shape [C, D] or [C, K, D], none of them 0, got {list(proxies.shape)}"
        )
    proxies = jnp.asarray(proxies)
    return proxies if proxies.ndim == 3 else proxies[:, None, :]


def check_labels(name: str, labels: Any, size: int) -> None:
    """Refuse what is not an integer array ``[size]``."""
    hint = ""
    if isinstance(labels, Array | np.ndarray):
        if labels.dtype == object:
            hint = f": write {name}.astype(str)"
        elif jnp.issubdtype(labels.dtype, jnp.floating):  # pandas' integers with gaps
            hint = f": write numpy.nan_to_num({name}, nan=-1).astype(int), -1 for no class"
    _check_shape(name, labels, ((size,),), "an integer array", jnp.integer, hint=hint)
    if labels.dtype == np.uint64 and is_at_hand(labels):
        _check_within(name, np.asarray(labels), np.int64, "")


def widen_labels(labels: Any, name: str = "labels") -> Array:
    """Return labels of any integer type as int32, or wider where they are."""
    check_label_values(name, labels)
    labels = as_array(labels)
    _check_kind(name, labels, "an array of integers", jnp.integer)
    labels = jnp.asarray(labels)
    return labels.astype(jnp.promote_types(labels.dtype, jnp.int32))


def is_integer(value: Any) -> bool:
    """Whether a number or array is of an integer type."""
    return value is not None and jnp.issubdtype(jnp.result_type(value), jnp.integer)


def check_label_values(name: str, labels: Any) -> None:
    """Refuse labels that are names, and those that JAX would cut down to 32 bits, and so take for others."""
    if isinstance(labels, list | tuple) and labels and isinstance(labels[0], str):
        labels = np.asarray(labels)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "USOT":
        text = f"{name}.astype(str)" if labels.dtype.kind == "O" else name
        both = ", of both sides in one call" if name.startswith("reference_") else ""
        advice = f"numpy.unique({text}, return_inverse=True)[1]{both}"
        advice = f"{name}.astype(int)" if are_integers(labels) else advice
        raise TypeError(f"{name} must be integers, got dtype {labels.dtype}: write {advice}")
    if isinstance(labels, Array) and labels.dtype == jnp.uint32 and is_at_hand(labels):
        labels = np.asarray(labels)
    is_wide = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu"
    if is_wide and labels.dtype.itemsize >= 4 and labels.dtype != np.int32:
        if jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
            _check_within(name, labels, np.int32, ", or enable 64-bit types")


def _check_within(name: str, labels: np.ndarray, kind: type[np.signedinteger], also: str) -> None:
    """Refuse a label that a type of integers cannot hold."""
    limit = np.iinfo(kind)
    outside = (labels < limit.min) | (labels > limit.max)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"{name}[{row}] is {labels.flat[row]}, expected an {kind.__name__}: number them from 0{also}"
        )


def are_integers(array: np.ndarray) -> bool:
    """Whether an array is one of Python objects, all of which are whole numbers."""
    return (
        array.dtype == object
        and array.size > 0
        and all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in array.flat)
    )


def check_classes(labels: Any, classes: int, like: str, where: Any = None) -> None:
    """Refuse NumPy labels beyond the classes that ``like`` has; to look at JAX's would wait for a device."""
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu":
        return
    outside = labels >= classes
    if where is not None and outside.any():
        if not is_at_hand(where) or where.shape != labels.shape:
            return
        outside = outside & np.asarray(where, bool)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(
            f"labels[{row}] is {labels[row]}, expected 0…{classes - 1} as {like} has {classes} classes: number them "
            "from 0; a row of no class has label -1"
        )


def check_mask(name: str, mask: Any, *shapes: tuple[int, ...]) -> None:
    """Refuse what is neither None nor a boolean array of one of the given shapes."""
    if mask is not None:
        _check_shape(name, mask, shapes, "a boolean array", jnp.bool_)


def check_weights(name: str, weights: Any, *shapes: tuple[int, ...]) -> None:
    """Refuse what is not a real array of one of the given shapes."""
    _check_shape(name, weights, shapes, "a real array", jnp.floating, jnp.integer)


def _check_shape(
    name: str, value: Any, shapes: Sequence[Any], kind: str, *dtypes: Any, hint: str = ""
) -> None:
    allowed = " or ".join(str(list(shape)) for shape in shapes)
    _check_kind(name, value, f"{kind} of shape {allowed}", *dtypes, hint=hint)
    if value.shape not in shapes:
        raise ValueError(f"{name} must have shape {allowed}, got {list(value.shape)}")


def as_finite(name: str, vectors: Any) -> Array:
    """Return vectors ``[N, D]`` in float32 on the device, and refuse a row that is not finite."""
    with np.errstate(over="ignore"):
        rows = jnp.asarray(vectors, jnp.float32)
    check_finite(name, rows)
    return rows


def check_finite(
    name: str, vectors: Any, rows: np.ndarray | None = None, *, first: int = 0
) -> None:
    """Refuse a row of ``[N, …]``, of those in ``rows``, that is not finite; ``first`` is the first row's number."""
    with np.errstate(over="ignore"):
        vectors = jnp.asarray(vectors)
    axes = tuple(range(1, vectors.ndim))
    if is_on_host(vectors):  # without a program for their shape
        finite = np.isfinite(np.asarray(vectors)).all(axis=axes)
    else:
        finite = on_host(jnp.isfinite(vectors).all(axis=axes))
    if rows is not None:
        finite = finite | ~rows
    if not finite.all():
        raise ValueError(
            f"{name} must be finite (in {vectors.dtype}), row {first + finite.argmin()} is not"
        )


def check_key(name: str, key: Array | None, *, needed_by: str) -> Array:
    """Refuse a missing random key."""
    if key is None:
        raise ValueError(
            f"{name} is missing: {needed_by} is random and needs {name}=jax.random.key(…)"
        )
    return key


def check_array(name: str, value: Any, constraint: Any) -> None:
    """Check an array as :class:`Constraint` says; a traced one under ``jdml.checked`` only."""
    test, expected = constraint.test, constraint.expected
    if not isinstance(value, Array | np.ndarray) or value.dtype == bool:
        raise TypeError(f"{name} must be a number {expected}, got {value!r}")
    if value.ndim > constraint.rank:
        allowed = "a scalar or one-dimensional" if constraint.rank else "a scalar"
        raise ValueError(f"{name} must be {allowed}, got shape {list(value.shape)}")
    if not is_at_hand(value):
        flat = jnp.ravel(value)
        require(test(flat), f"{name} must be {expected}, got {{0}}", flat)
    elif not np.all(test(np.asarray(value))):
        raise ValueError(f"{name} must be {expected}, got {value}")


_checking: contextvars.ContextVar[bool] = contextvars.ContextVar("jdml_checking", default=False)


def is_checking() -> bool:
    """Whether run-time checks are being traced (see :func:`jdml.checked`)."""
    return _checking.get()


@contextlib.contextmanager
def checking(enabled: bool) -> Iterator[None]:
    """Switch run-time checks on or off while a function is traced."""
    token = _checking.set(enabled)
    try:
        yield
    finally:
        _checking.reset(token)


def require(holds: Array, message: str, *values: Array) -> None:
    """Under :func:`jdml.checked`, raise for the first entry of ``holds``, a scalar or ``[N]``, that is False.

    In the message ``{row}`` is that entry's row, and ``{0}``, ``{1}`` … are ``values`` there.
    """
    if not _checking.get() or holds.size == 0:
        return
    holds = jnp.atleast_1d(holds)
    row = jnp.argmin(holds)
    shown = {f"v{i}": jnp.broadcast_to(v, holds.shape)[row] for i, v in enumerate(values)}
    for i in range(len(values)):
        message = message.replace(f"{{{i}}}", f"{{v{i}}}")
    checkify.check(jnp.all(holds), message, row=row, **shown)  # type: ignore[arg-type]


def require_finite(name: str, values: Array, rows: Array | None = None) -> None:
    """Under :func:`jdml.checked`, raise for the first row of ``[N, …]``, of those in ``rows``, that is not finite."""
    finite = jnp.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    require(finite if rows is None else finite | ~rows, f"{name}[{{row}}] is not finite")
