"""Argument checks: what a caller passed, what was expected, in one sentence.

Shapes, types and plain Python numbers are checked when a function is traced. Values that exist only at run time are
checked by :func:`require`, which does something only inside :func:`jdml.checked`.
"""

import contextlib
import contextvars
import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify

Constraint = Callable[[str, Any], None]
"""Checks one hyper-parameter: ``constraint(name, value)`` raises where the value cannot be meant."""

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
    """Under :func:`jdml.checked`, raise for the first entry of ``holds`` that is False.

    Args:
        holds: boolean, a scalar or ``[N]``.
        message: a format string; ``{row}`` is the first offending row, ``{0}``, ``{1}`` … are ``values`` there.
        *values: arrays of the length of ``holds`` (or scalars) to show.
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
    """Under :func:`jdml.checked`, raise for the first row that is not finite.

    Args:
        name: the argument's name.
        values: ``[N, …]``.
        rows: ``[N]`` bool, the rows that count; None for all.
    """
    finite = jnp.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    require(finite if rows is None else finite | ~rows, f"{name}[{{row}}] is not finite")


def instead(name: str, value: Any) -> str:
    """What to write where a torch tensor or a list was passed; empty for anything else."""
    if type(value).__module__.partition(".")[0] == "torch":
        return f": write {name}.detach().cpu().numpy()"
    return f": write numpy.asarray({name})" if isinstance(value, list) else ""


def check_settings(function: Callable[..., Any], settings: Any) -> None:
    """Refuse keywords that a function does not take, before it is called.

    Args:
        function: a loss.
        settings: names, or a mapping by name.

    Raises:
        TypeError: naming the keyword, the nearest one, and all there are.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not a Python function
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            label = getattr(function, "__name__", type(function).__name__)
            raise TypeError(f"{label} has no setting {name!r}; {hint}it has {', '.join(known)}")


def takes(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function takes a keyword.

    Args:
        function: a loss.
        name: the keyword.

    Returns:
        Whether its signature has it, or any keyword; True where there is no signature to look at.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not a Python function
        return True
    return any(p.kind is p.VAR_KEYWORD or p.name == name for p in parameters)


def taken_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the settings that a function takes by name, and has not been given yet.

    Args:
        function: what is to be called, or a :class:`functools.partial` of it.
        settings: by name.

    Returns:
        Those of its keywords.
    """
    known = inspect.signature(function).parameters
    given = getattr(function, "keywords", {})
    return {name: value for name, value in settings.items() if name in known and name not in given}


def as_array(value: Any) -> Any:
    """What stands for an array, as one: a variable of Flax NNX, say, which has ``__jax_array__``.

    Args:
        value: an argument.

    Returns:
        The array, or the value itself.
    """
    if isinstance(value, Array | np.ndarray) or not hasattr(value, "__jax_array__"):
        return value
    return jnp.asarray(value.__jax_array__())


def check_embeddings(name: str, vectors: Any, *, dim: int | None = None, like: str = "") -> None:
    """Refuse what is not a floating array ``[N, D]`` (with ``D = dim`` where given).

    Args:
        name: the argument's name.
        vectors: what was passed.
        dim: the expected D.
        like: which other argument D comes from.

    Raises:
        TypeError: not an array, or not floating.
        ValueError: wrong rank, D = 0, or another D than expected.
    """
    if not isinstance(vectors, Array | np.ndarray):
        raise TypeError(
            f"{name} must be an array of shape [N, D], got {type(vectors).__name__}{instead(name, vectors)}"
        )
    if not jnp.issubdtype(vectors.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, got dtype {vectors.dtype}")
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError(f"{name} must have shape [N, D] with D > 0, got {list(vectors.shape)}")
    if dim is not None and vectors.shape[1] != dim:
        raise ValueError(
            f"{name} must have the dimension of {like}, {dim}, got {list(vectors.shape)}"
        )


def check_concrete(function: str, *arrays: Any) -> None:
    """Refuse traced arrays where a function runs on the host.

    Args:
        function: its name.
        *arrays: what was passed.

    Raises:
        TypeError: one of them is being traced.
    """
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        raise TypeError(
            f"{function} runs on the host and cannot be traced: call it outside jit, grad and vmap"
        )


def as_centres(name: str, proxies: Any) -> Array:
    """``[C, K, D]`` from ``[C, D]`` or ``[C, K, D]``.

    Args:
        name: the argument's name.
        proxies: what was passed.

    Returns:
        The proxies, K = 1 where it was not given.

    Raises:
        TypeError: not an array, or not floating.
        ValueError: another rank, or nothing at all.
    """
    if not isinstance(proxies, Array | np.ndarray):
        raise TypeError(
            f"{name} must be an array of shape [C, D] or [C, K, D], got {type(proxies).__name__}"
        )
    if not jnp.issubdtype(proxies.dtype, jnp.floating):
        raise TypeError(f"{name} must be floating point, got dtype {proxies.dtype}")
    if proxies.ndim not in (2, 3) or 0 in proxies.shape:
        raise ValueError(
            f"{name} must have shape [C, D] or [C, K, D], none of them 0, got {list(proxies.shape)}"
        )
    proxies = jnp.asarray(proxies)
    return proxies if proxies.ndim == 3 else proxies[:, None, :]


def check_labels(name: str, labels: Any, size: int) -> None:
    """Refuse what is not an integer array ``[size]``.

    Args:
        name: the argument's name.
        labels: what was passed.
        size: how many labels there must be.

    Raises:
        TypeError: not an array, or not integers.
        ValueError: another shape.
    """
    if not isinstance(labels, Array | np.ndarray):
        raise TypeError(
            f"{name} must be an integer array of shape [{size}], got {type(labels).__name__}"
            f"{instead(name, labels)}"
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{name} must be integers, got dtype {labels.dtype}")
    if labels.shape != (size,):
        raise ValueError(f"{name} must have shape [{size}], got {list(labels.shape)}")


def widen_labels(labels: Array) -> Array:
    """Labels in a type that the number of classes fits into: int32, or wider where they are.

    Args:
        labels: integers of any type.

    Returns:
        The same labels.
    """
    return jnp.asarray(labels).astype(jnp.promote_types(labels.dtype, jnp.int32))


def is_integer(value: Any) -> bool:
    """Whether a number or array is of an integer type.

    Args:
        value: a number, an array or None.

    Returns:
        True for integers.
    """
    return value is not None and jnp.issubdtype(jnp.result_type(value), jnp.integer)


def check_label_values(name: str, labels: Any) -> None:
    """Refuse NumPy labels that JAX would cut down to 32 bits, and so take for others.

    Args:
        name: the argument's name.
        labels: what was passed.

    Raises:
        TypeError: labels are strings.
        ValueError: a label is beyond int32 while 64-bit types are off.
    """
    words = isinstance(labels, list | tuple) and len(labels) > 0 and isinstance(labels[0], str)
    if words or (isinstance(labels, np.ndarray) and labels.dtype.kind in "USO"):
        raise TypeError(
            f"{name} must be integers, got strings: write numpy.unique({name}, return_inverse=True)[1]"
        )
    if not isinstance(labels, np.ndarray) or labels.dtype.itemsize < 4 or labels.dtype == np.int32:
        return
    if (
        jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        or not np.issubdtype(labels.dtype, np.integer)
        or labels.size == 0
    ):
        return
    limit = np.iinfo(np.int32)
    outside = (labels < limit.min) | (labels > limit.max)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"{name}[{row}] is {labels.flat[row]}, expected an int32: number the classes, or enable 64-bit types"
        )


def check_flag(name: str, value: Any) -> bool:
    """Refuse what is not a plain boolean.

    Args:
        name: the argument's name.
        value: what was passed.

    Returns:
        The flag as a Python boolean.

    Raises:
        TypeError: it is something else, a traced boolean included.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_mask(name: str, mask: Any, *shapes: tuple[int, ...]) -> None:
    """Refuse what is not a boolean array of one of the given shapes.

    Args:
        name: the argument's name.
        mask: what was passed.
        *shapes: the shapes that are allowed.

    Raises:
        TypeError: not an array, or not boolean.
        ValueError: another shape.
    """
    _check_shape(name, mask, shapes, "boolean", jnp.bool_)


def check_weights(name: str, weights: Any, *shapes: tuple[int, ...]) -> None:
    """Refuse what is not a real array of one of the given shapes.

    Args:
        name: the argument's name.
        weights: what was passed.
        *shapes: the shapes that are allowed.

    Raises:
        TypeError: not an array of numbers.
        ValueError: another shape.
    """
    _check_shape(name, weights, shapes, "real", jnp.floating, jnp.integer)


def _check_shape(
    name: str, value: Any, shapes: tuple[tuple[int, ...], ...], kind: str, *dtypes: Any
) -> None:
    allowed = " or ".join(str(list(shape)) for shape in shapes)
    if not isinstance(value, Array | np.ndarray):
        raise TypeError(
            f"{name} must be a {kind} array of shape {allowed}, got {type(value).__name__}"
        )
    if not any(jnp.issubdtype(value.dtype, dtype) for dtype in dtypes):
        raise TypeError(f"{name} must be a {kind} array, got dtype {value.dtype}")
    if value.shape not in shapes:
        raise ValueError(f"{name} must have shape {allowed}, got {list(value.shape)}")


def check_function(name: str, value: Any) -> None:
    """Refuse what is neither a function nor None.

    Args:
        name: the argument's name.
        value: what was passed.

    Raises:
        TypeError: it cannot be called.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, got {value!r}")


def check_key(name: str, key: Array | None, *, needed_by: str) -> Array:
    """Refuse a missing random key.

    Args:
        name: the argument's name.
        key: what was passed.
        needed_by: what needs it.

    Returns:
        The key.

    Raises:
        ValueError: the key is None.
    """
    if key is None:
        raise ValueError(
            f"{name} is missing: {needed_by} is random and needs {name}=jax.random.key(…)"
        )
    return key


def _number(test: Callable[[Any], Any], expected: str, *, rank: int = 0) -> Constraint:
    def constraint(name: str, value: Any) -> None:
        if isinstance(value, bool | str) or not isinstance(
            value, numbers.Real | Array | np.ndarray
        ):
            raise TypeError(f"{name} must be a number {expected}, got {value!r}")
        if isinstance(value, Array | np.ndarray) and value.dtype == bool:
            raise TypeError(f"{name} must be a number {expected}, got a boolean")
        if isinstance(value, Array | np.ndarray) and value.ndim > rank:
            allowed = "a scalar" if rank == 0 else "a scalar or one-dimensional"
            raise ValueError(f"{name} must be {allowed}, got shape {list(value.shape)}")
        if isinstance(value, Array):
            flat = jnp.ravel(value)
            require(test(flat), f"{name} must be {expected}, got {{0}}", flat)
        elif not np.all(test(np.asarray(value))):
            raise ValueError(f"{name} must be {expected}, got {value}")

    return constraint


finite = _number(lambda v: abs(v) < math.inf, "finite")
finite_per_class = _number(lambda v: abs(v) < math.inf, "finite", rank=1)
positive = _number(lambda v: (v > 0) & (v < math.inf), "> 0")
non_negative = _number(lambda v: (v >= 0) & (v < math.inf), ">= 0")
angle = _number(lambda v: (v >= 0) & (v <= math.pi), "an angle in radians, 0…π")
angle_per_class = _number(lambda v: (v >= 0) & (v <= math.pi), "an angle in radians, 0…π", rank=1)
unit_interval = _number(lambda v: (v >= 0) & (v <= 1), "in [0, 1]")


def count(name: str, value: Any, *, least: int = 1) -> None:
    """Constraint of a static whole number ≥ 1 (a shape: a number of bins, blocks, clusters), or ≥ ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a Python integer >= {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")


def counts(name: str, value: Any) -> None:
    """Constraint of one or several static whole numbers ≥ 1."""
    several = isinstance(value, Sequence) and not isinstance(value, str)
    if several and not value:
        raise ValueError(f"{name} must hold at least one integer >= 1, got {value!r}")
    for number in value if several else (value,):
        count(name, number)


@functools.cache
def optional(constraint: Constraint) -> Constraint:
    """The same constraint, or None.

    Args:
        constraint: one of this module's.

    Returns:
        The constraint, the same function for the same argument.
    """

    def constraint_or_none(name: str, value: Any) -> None:
        if value is not None:
            constraint(name, value)

    return constraint_or_none


def block(name: str, value: Any) -> None:
    """Constraint of a block size: a static whole number ≥ 1, ``"auto"``, or None."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(f'{name} must be an integer >= 1, "auto" or None, got {value!r}')
    if value is not None and not isinstance(value, str):
        count(name, value)


def nonzero_integer(name: str, value: Any) -> None:
    """Constraint of a static whole number other than 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a Python integer other than 0, got {value!r}")
    if value == 0:
        raise ValueError(f"{name} must not be 0")


STATIC = frozenset({count, counts, optional(count), block, nonzero_integer})
"""The constraints of what is part of a compiled program: sizes."""
