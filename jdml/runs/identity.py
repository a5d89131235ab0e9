"""The identity of a run: digests of its parts, and the fields in which two configurations differ."""

import dataclasses
import functools
import hashlib
import json
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from jdml.data import ImageFiles
from jdml.data.dataset import TrainSet
from jdml.data.images import Row
from jdml.data.listing import short_names
from jdml.models.base_adapter import is_flag

SAMPLE_BYTES = 1 << 26
"""Number of bytes, evenly spaced, that count of a larger array."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
ABSENT = object()
"""The value of a field that a tree does not have."""


def fingerprint(*values: Any) -> str:
    """Return sixteen hexadecimal digits of values, the same in every process; a function's code does not count."""
    return _digest("\0".join(_words(values, frozenset())).encode())[:16]


def data_fingerprint(train: TrainSet) -> str:
    """Return the digest of pixels or names of files, and labels; it does not depend on where a folder is."""
    images = train.images
    of_files = isinstance(images, ImageFiles)
    parts = (short_names(images.files), images.transform) if of_files else (images,)
    return fingerprint(*parts, np.asarray(train.labels))


def file_version(file: Any) -> list[Any]:
    """Return size and modification time in ns of an image's file or table; of other images their checksum."""
    is_row = isinstance(file, Row)
    path = str(file.source if is_row else file)
    if os.path.isfile(path):
        stat = os.stat(path)
        return [stat.st_size, stat.st_mtime_ns]
    content = file.source[file.number] if is_row else file.read_bytes()
    return [_digest(content if isinstance(content, bytes) else np.asarray(content).tobytes())]


def qualified_name(value: Any) -> str:
    """Return where a function or an object's class is defined."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _words(value: Any, above: frozenset[int]) -> Iterator[str]:
    """Yield words for a value; ``above`` are the objects that contain it."""
    if isinstance(value, float) and value.is_integer():
        yield repr(int(value))  # a schedule of optax makes its steps floats when it is called
    elif isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        yield _array_digest(value)
    elif isinstance(value, Path):
        yield _digest(value.read_bytes()) if value.is_file() else "path"
    elif id(value) in above:
        yield "itself"
    else:
        inside = above | {id(value)}
        words = [" ".join(_words(part, inside)) for part in _parts(value)]
        yield f"{qualified_name(value)} {len(words)}"
        yield from sorted(words) if isinstance(value, Mapping | Set) else words


def _parts(value: Any) -> Sequence[Any]:
    """Return what a value consists of; nothing of a class, a module or a function of C."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list | Set):
        return list(value)
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return cells, value.__defaults__, value.__kwdefaults__
    if isinstance(value, type | types.ModuleType):
        return ()
    if dataclasses.is_dataclass(value):
        hidden = ("parent", "name")  # of Linen, which sets them
        names = [f.name for f in dataclasses.fields(value) if f.name not in hidden]
        return [(name, getattr(value, name, None)) for name in names]
    if hasattr(value, "__wrapped__"):  # jitted, cached, with a derivative of its own
        return (value.__wrapped__,)
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(value, nnx.Variable):
        return [(str(x.dtype), x.shape) for x in jax.tree.leaves(value)]
    # What is private in the library's own objects, such as image files, changes while they are used.
    is_own = type(value).__module__.startswith("jdml.")
    private = ("_",) if is_own else ("_pytree__", "_object__")  # of NNX
    return [
        (name, part)
        for name, part in getattr(value, "__dict__", {}).items()
        if not name.startswith(private) and not is_flag(name)
    ]


def _array_digest(value: Any) -> str:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    kind = f"{value.dtype} {list(value.shape)}"
    if value.nbytes > SAMPLE_BYTES:
        value = value[:: -(-value.nbytes // SAMPLE_BYTES)]
    return f"{kind} {_digest(np.ascontiguousarray(value).tobytes())}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two JSON trees differ, and both values."""
    one, other = (flatten_dict(dict(tree), sep=".") for tree in (old, new))
    names = sorted(one.keys() | other.keys())
    values = {name: (one.get(name, ABSENT), other.get(name, ABSENT)) for name in names}
    # NaN differs from itself.
    return {name: (a, b) for name, (a, b) in values.items() if a != b and repr(a) != repr(b)}


def explain(differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return a sentence for each difference, such as ``"fit.steps: 10 there, 20 now"``."""
    sentences = []
    for name, values in differing.items():
        old, new = ("absent" if x is ABSENT else json.dumps(x) for x in values)
        field = name.removeprefix("fingerprint.")  # of digests, whose values say nothing
        is_plain = field == name
        sentences.append(f"{name}: {old} there, {new} now" if is_plain else f"the {field} differs")
    return sentences
