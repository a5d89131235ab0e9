"""How other libraries lay out parameters: a stored array as ours."""

import math
from collections.abc import Mapping

import numpy as np

from jdml.models.dialects import Dialect

Shape = tuple[int, ...]
POSITIONS = "params/positions"
TOKENS = (POSITIONS, "params/class_token", "params/registers", "params/pool/query")
"""Tokens ``[1, T, C]``, whose axes of one entry others leave out."""
FUSED = {
    ".qkv.": ("query", "key", "value"),
    ".in_proj_": ("query", "key", "value"),
    ".kv.": ("key", "value"),
}
"""What arrays of such names hold, one after the other."""


def as_ours(
    array: np.ndarray, target: str, shape: Shape, dialect: Dialect, name: str
) -> np.ndarray | Shape:
    """Lay out a stored array as our parameter.

    Args:
        array: as it was stored.
        target: our parameter's path.
        shape: its shape.
        dialect: whose layout it is.
        name: what the array is called there.

    Returns:
        The parameter; the shape that the array should have where it has another.
    """
    if target in TOKENS:
        array = _tokens(array, target, shape)
        return array if array.shape[-1:] == shape[-1:] and array.ndim == 3 else shape
    number, place = _part(target, name)
    transposed = dialect.transposed and name.endswith("weight")
    wanted = stored_shape(target, shape, dialect, name)
    if array.shape != wanted:
        return wanted
    array = np.split(array, number)[place]
    if transposed and target.endswith("/kernel"):
        array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
    return array.reshape(shape)


def stored_shape(target: str, shape: Shape, dialect: Dialect, name: str) -> Shape:
    """Tell the shape that a parameter has in a file of a dialect.

    Args:
        target: its path.
        shape: its shape.
        dialect: the file's.
        name: what it is called there.
    """
    if not dialect.transposed:
        return shape
    if target.endswith("/kernel") and not name.endswith("weight"):
        return shape
    if target.endswith("/kernel") and len(shape) == 4:
        shape = (shape[3], shape[2], shape[0], shape[1])
    elif target.endswith("/out/kernel"):
        shape = (shape[-1], math.prod(shape[:-1]))
    elif target.endswith("/kernel"):
        shape = (math.prod(shape[1:]), shape[0])
    elif target.endswith("/bias"):
        shape = (math.prod(shape),)
    number, _ = _part(target, name)
    return (number * shape[0], *shape[1:]) if number > 1 else shape


def grid_of(converted: Mapping[str, np.ndarray], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Tell the grid that positions belong to, as a setting of the network, where it is not its usual one.

    Args:
        converted: parameters.
        shapes: those that the network usually has.
    """
    if POSITIONS not in shapes or converted[POSITIONS].shape == shapes[POSITIONS]:
        return {}
    return {"grid": math.isqrt(converted[POSITIONS].shape[1])}


def _part(target: str, name: str) -> tuple[int, int]:
    """How many parameters an array holds, and which of them is meant."""
    for fused, parts in FUSED.items():
        if fused in name and target.split("/")[-2] in parts:
            return len(parts), parts.index(target.split("/")[-2])
    return 1, 0


def _tokens(array: np.ndarray, target: str, shape: Shape) -> np.ndarray:
    """Tokens ``[1, T, C]``; positions of any square grid, of zero for a class token that has none of its own."""
    tokens = array.reshape(1, -1, array.shape[-1])
    number, usual = tokens.shape[1], shape[1]
    if target != POSITIONS:
        return tokens if number == usual else array
    first = usual - math.isqrt(usual) ** 2  # 1 with a class token
    if first and math.isqrt(number) ** 2 == number:
        tokens = np.concatenate([np.zeros_like(tokens[:, :1]), tokens], 1)
        number += 1
    return tokens if math.isqrt(number - first) ** 2 == number - first else array
