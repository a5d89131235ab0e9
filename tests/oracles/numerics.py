"""Shared parts of the oracles in NumPy float64: normalization, log-sum-exp, reductions; arrays of other libraries."""

import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def sphere(vector: Array) -> Array:
    """The vector divided by its length; a zero vector stays zero."""
    length = math.sqrt(float(vector @ vector))
    return vector / length if length > 0 else vector


def ball(vector: Array) -> Array:
    """A vector longer than 1 divided by its length; a shorter one as it is."""
    return sphere(vector) if float(vector @ vector) > 1 else vector


def unchanged(vector: Array) -> Array:
    """The vector itself."""
    return vector


NORMALIZATIONS = {"sphere": sphere, "ball": ball, None: unchanged}


def normalized(vectors: Array, how: str | None) -> Array:
    """Every row normalized."""
    return np.array([NORMALIZATIONS[how](v) for v in np.asarray(vectors, np.float64)])


def relu(value: float) -> float:
    """The positive part."""
    return max(0.0, float(value))


def log_sum_exp(values: Sequence[float]) -> float:
    """Log Σ e^v, −inf for no values."""
    if not len(values):
        return -math.inf
    largest = max(values)
    return largest + math.log(sum(math.exp(v - largest) for v in values))


def softplus(value: float) -> float:
    """log(1 + e^v)."""
    return log_sum_exp([0.0, value]) if value > -math.inf else 0.0


def reduced(values: Array, present: Array, reduce: str) -> float | Array:
    """Return the reduction of the terms that are present."""
    values = np.where(present, values, 0.0)
    if reduce == "none":
        return values
    if reduce == "total":
        return float(values.sum())
    count = int(present.sum()) if reduce == "mean" else int((present & (values != 0)).sum())
    return float(values.sum()) / count if count else 0.0


# Stand-ins for arrays of libraries that need not be installed.


def array_of(library: str, kind: str, values: np.ndarray) -> object:
    """Return a stand-in for another library's array, which converts to a NumPy array."""

    def as_numpy(self, dtype=None, copy=None):
        return np.asarray(values, dtype)

    members = {"__module__": f"{library}.core", "__array__": as_numpy, "__hash__": None}
    return type(kind, (), members)()


LIBRARIES = {
    "pandas": "Series",
    "polars": "Series",
    "tensorflow": "EagerTensor",
    "torch": "Tensor",
    "h5py": "Dataset",
}
"""The type of each library's array."""
