"""Recipes: how each paper trains its method on each data set, as plain values.

``recipe("pfml", "cub")`` is the method's loss with its optimizer, batches, schedule and network head. Everything can
be replaced (``dataclasses.replace``): a recipe is a starting point that is written down, not a rule.
:func:`jdml.training.train` makes a run of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jdml.recipes.base import Recipe, with_method
from jdml.recipes.beginning import recommended
from jdml.recipes.ccp import with_problems
from jdml.recipes.nir import with_nir
from jdml.recipes.papers import OF_PAIRS, RECIPES, recipe, settings_of
from jdml.recipes.shared import DATASETS
from jdml.registry import Problems as Problems
from jdml.registry import Regularizer as Regularizer

if TYPE_CHECKING:
    from jdml.recipes.objective import make_objective
    from jdml.recipes.optimizer import make_optimizer
    from jdml.recipes.sampler import make_sampler

_MAKERS = {
    "make_objective": "jdml.recipes.objective",
    "make_optimizer": "jdml.recipes.optimizer",
    "make_sampler": "jdml.recipes.sampler",
}

__all__ = [
    "DATASETS",
    "OF_PAIRS",
    "RECIPES",
    "Recipe",
    "make_objective",
    "make_optimizer",
    "make_sampler",
    "recipe",
    "recommended",
    "settings_of",
    "with_method",
    "with_nir",
    "with_problems",
]


def __getattr__(name: str) -> Any:
    """Import what makes parts of a recipe when it is first used: recipes alone need no JAX."""
    if name in _MAKERS:
        return getattr(importlib.import_module(_MAKERS[name]), name)
    raise AttributeError(f"module 'jdml.recipes' has no attribute {name!r}")
