"""What defines a run, in sixteen digits each: two runs with the same fingerprints compute the same."""

import dataclasses
import enum
import functools
import hashlib
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.data import ImageFiles
from jdml.data.protocols import TrainSet
from jdml.models.train_flags import is_flag
from jdml.runs.source_hash import written

LIBRARIES = ("distrax", "flax", "jax", "jdml", "numpy", "optax", "tensorflow_probability")
"""Functions of these count by their names and settings; those of a user by their code, too."""
SAMPLE_BYTES = 1 << 26
"""Of a larger array, so many bytes count, evenly spaced."""


def fingerprint(*values: Any) -> str:
    """Return a digest of functions, objects and arrays that is the same in every process.

    Args:
        *values: functions with what they close over, dataclasses, modules, optax transformations, arrays, plain values.

    Returns:
        Sixteen hexadecimal digits.

    Implementation notes:
        A function counts by its name, its defaults, and the values that it closes over; a user's own by what is written
        in it (:func:`jdml.runs.source_hash.written`: the same under another version of Python, or with other comments)
        and by the plain values and own functions among the globals that it names. Not by what it reads elsewhere, such
        as attributes of a global object.

    Example:
        >>> import functools, jdml
        >>> one, two = (functools.partial(jdml.triplet_loss, margin=m) for m in (0.1, 0.2))
        >>> fingerprint(one) == fingerprint(functools.partial(jdml.triplet_loss, margin=0.1))
        True
        >>> fingerprint(one) == fingerprint(two)
        False
    """
    digest = hashlib.sha256()
    for word in _words(values, frozenset()):
        digest.update(word)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def of_data(train: TrainSet) -> str:
    """Return the fingerprint of what is trained on: pixels, or the names of files, and labels.

    Args:
        train: a data set with ``images`` and ``labels``.

    Returns:
        Sixteen hexadecimal digits; the same wherever a folder of images lies.
    """
    if isinstance(train.images, ImageFiles):
        names = ["/".join(str(file).split("/")[-2:]) for file in train.images.files]
        return fingerprint(names, train.images.transform, np.asarray(train.labels))
    return fingerprint(train.images, np.asarray(train.labels))


def settings_of(parts: Iterable[Any]) -> list[Any]:
    """Return what tells modules apart that hold their arrays: kinds, code, and what they hold beside arrays.

    Args:
        parts: a module and all modules within it.

    Returns:
        Of each its kind, the methods that a user wrote, and the numbers, texts and functions among its attributes, but
        for flags of the mode, which a run sets.
    """
    return [
        (_name(type(part)), [_methods(kind) for kind in type(part).__mro__], _settings(part))
        for part in parts
    ]


def _settings(part: Any) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, enum.Enum) else value
        for name, value in vars(part).items()
        if not name.startswith(("_pytree__", "_object__"))
        and not is_flag(name)
        and _is_setting(value)
    }


def _is_setting(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_setting, value.values()))
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_setting, value))
    if isinstance(value, types.SimpleNamespace):
        return _is_setting(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # a configuration
        leaves = jax.tree.leaves(value)
        is_module = len(leaves) != 1 or leaves[0] is not value
        held = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        return not is_module and _is_setting(held)
    plain = bool | int | float | complex | str | bytes | type | np.dtype | enum.Enum
    functions = types.FunctionType | types.BuiltinFunctionType | functools.partial | np.ufunc
    jitted = callable(value) and hasattr(value, "__wrapped__")
    return value is None or isinstance(value, plain | functions) or jitted


def _words(value: Any, above: frozenset[int]) -> Iterator[bytes]:
    """What a value is, word by word."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        yield from _of_array(value)
    elif isinstance(value, Path):
        yield hashlib.sha256(value.read_bytes()).digest() if value.is_file() else b"path"
    elif isinstance(value, type | np.dtype | types.BuiltinFunctionType | np.ufunc):
        yield _name(value).encode()
    elif isinstance(value, types.ModuleType):
        yield value.__name__.encode()
    elif id(value) in above:
        yield b"itself"
    else:
        yield from _of_object(value, above | {id(value)})


def _of_object(value: Any, above: frozenset[int]) -> Iterator[bytes]:
    def several(kind: str, parts: Any) -> Iterator[bytes]:
        yield kind.encode()
        for part in parts:
            yield from _words(part, above)
        yield b"end"

    if isinstance(value, Mapping):
        parts = sorted(value.items(), key=lambda item: str(item[0]))
        yield from several("mapping", [part for item in parts for part in item])
    elif isinstance(value, tuple | list):
        yield from several(type(value).__name__, value)
    elif isinstance(value, set | frozenset):
        yield from several("set", sorted(fingerprint(part) for part in value))
    elif isinstance(value, functools.partial):
        yield from several("partial", (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield from several("method", (value.__func__, value.__self__))
    elif isinstance(value, types.FunctionType):
        yield from several(_name(value), _of_function(value))
    elif hasattr(value, "__wrapped__"):  # jitted, cached, with a derivative of its own
        yield from _words(value.__wrapped__, above)
    else:
        yield from several(_name(type(value)), [_attributes(value), _methods(type(value))])


def _of_function(function: types.FunctionType) -> list[Any]:
    """What a function's value depends on."""
    cells = [_cell(cell) for cell in function.__closure__ or ()]
    if _is_of_library(function):  # optax's cosine makes a float of its steps at its first call
        cells = [float(cell) if type(cell) is int else cell for cell in cells]
    parts: list[Any] = [cells, function.__defaults__, function.__kwdefaults__]
    if _is_of_library(function):
        return parts
    read, named = written(function), function.__globals__
    globals_ = {name: named[name] for name in read.names if name in named}
    return [*parts, read.words, {name: x for name, x in globals_.items() if _is_own(x)}]


def _is_of_library(function: types.FunctionType) -> bool:
    """Where it was written, whatever it wraps and says to be."""
    return str(function.__globals__.get("__name__")).split(".")[0] in LIBRARIES


def _is_own(value: Any) -> bool:
    """Whether a global is a plain value or a function that the user wrote."""
    if isinstance(value, types.FunctionType):
        return not _is_of_library(value)
    return value is None or isinstance(value, bool | int | float | str)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object; of a Linen module those that its author declared."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                attributes[slot] = getattr(value, slot)
    hidden = ("parent", "name", "_state", "_id", "_parent_ref", "scope")
    return {k: v for k, v in attributes.items() if k not in hidden and not inspect.ismodule(v)}


def _methods(kind: type) -> dict[str, Any]:
    """The methods of a class that the user wrote."""
    if kind.__module__.split(".")[0] in LIBRARIES:
        return {}
    return {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, types.FunctionType) and (name[:2] != "__" or name == "__call__")
    }


def _of_array(value: Any) -> Iterator[bytes]:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        yield b"key"
        value = jax.random.key_data(value)
    yield f"{value.dtype} {list(value.shape)}".encode()
    if value.nbytes > SAMPLE_BYTES:
        value = value[:: -(-value.nbytes // SAMPLE_BYTES)]
    yield hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()


def _name(value: Any) -> str:
    if isinstance(value, np.dtype):
        return str(value)
    name = getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__))
    return f"{getattr(value, '__module__', '')}.{name}"
