"""The numerics that every other room stands on.

Normalization, roots and logarithms of sums with finite gradients, pairwise distances by matrix product,
masked reductions, argument checks, and the decorator that turns a formula into a jitted public function.
Names are imported on first use: the checks of plain values need no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jdml.ops.decorators import checked, public
    from jdml.ops.numerics import ball, log1p_sum_exp, log_sum_exp, safe_norm, safe_sqrt, sphere
    from jdml.ops.pairwise import cosines, distances, similarities, squared_distances
    from jdml.ops.reductions import (
        ReduceFn,
        mean,
        mean_nonzero,
        reduce_groups,
        reduce_terms,
        total,
        trimmed_mean,
    )
    from jdml.ops.tiled_pairs import pair_sums

_MODULES = ("decorators", "numerics", "pairwise", "reductions", "tiled_pairs")

__all__ = [
    "ReduceFn",
    "ball",
    "checked",
    "cosines",
    "distances",
    "log1p_sum_exp",
    "log_sum_exp",
    "mean",
    "mean_nonzero",
    "pair_sums",
    "public",
    "reduce_groups",
    "reduce_terms",
    "safe_norm",
    "safe_sqrt",
    "similarities",
    "sphere",
    "squared_distances",
    "total",
    "trimmed_mean",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in __all__:
        for module in _MODULES:
            names = vars(importlib.import_module(f"jdml.ops.{module}"))
            if name in names:
                return globals().setdefault(name, names[name])
    raise AttributeError(f"module 'jdml.ops' has no attribute {name!r}")
