"""jdml: deep metric learning in JAX.

Pure, jitted losses, miners and retrieval metrics that fit into any JAX training code, and the training loop, data
sets and experiments that reproduce five papers with them. Light to import: every room is imported on first use, and
JAX with it.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from jdml.registry import LOSSES, REGULARIZERS

if TYPE_CHECKING:
    from jdml import adapt as adapt
    from jdml import ccp as ccp
    from jdml import cli as cli
    from jdml import compilation_cache as compilation_cache
    from jdml import data as data
    from jdml import distributed as distributed
    from jdml import fields, losses, memory, metrics, mining, ops
    from jdml import flows as flows
    from jdml import gallery as gallery
    from jdml import models as models
    from jdml import objectives as objectives
    from jdml import optim as optim
    from jdml import recipes as recipes
    from jdml import registry as registry
    from jdml import report as report
    from jdml import runs as runs
    from jdml import studies as studies
    from jdml import testing as testing
    from jdml import training as training
    from jdml.compilation_cache import keep_compiled_programs
    from jdml.gallery import Gallery
    from jdml.losses import *
    from jdml.metrics import evaluate_retrieval, nearest
    from jdml.mining import Pairs, all_pairs, chain, easy_positive
    from jdml.ops import ball, checked, mean, mean_nonzero, sphere, total, trimmed_mean

__version__ = "0.2.0"

_ROOMS = [each.name for each in pkgutil.iter_modules(__path__) if not each.name.startswith("_")]
_ROOMS_OF_FLAT_NAMES = ("losses", "metrics", "mining", "ops", "gallery", "compilation_cache")

__all__ = [
    "Gallery",
    "Pairs",
    "all_pairs",
    "ball",
    "both_ways",
    "chain",
    "checked",
    "easy_positive",
    "evaluate_retrieval",
    "fields",
    "keep_compiled_programs",
    "losses",
    "matryoshka",
    "mean",
    "mean_nonzero",
    "memory",
    "metrics",
    "mining",
    "nearest",
    "ops",
    "sphere",
    "total",
    "trimmed_mean",
]

if not TYPE_CHECKING:  # which knows the names from above, and refuses others
    __all__ += [f"{name}_loss" for name in LOSSES] + list(REGULARIZERS)

    def __getattr__(name: str) -> Any:
        """Import a room, or the room of a flat name, when it is first used."""
        if name in _ROOMS:
            return importlib.import_module(f"jdml.{name}")
        if name in __all__:
            for room in _ROOMS_OF_FLAT_NAMES:
                module = importlib.import_module(f"jdml.{room}")
                if name in module.__all__:
                    return globals().setdefault(name, getattr(module, name))
        raise AttributeError(f"module 'jdml' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
