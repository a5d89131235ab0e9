"""Recipes: how each paper trains its method on each data set, as plain values.

`recipe("pfml", "cub")` is the method's loss with its optimizer, batches, schedule and network head. Everything can
be replaced (`dataclasses.replace`): a recipe is a starting point that is written down, not a rule.
:func:`jdml.training.train` makes a run of it.
"""

from typing import TYPE_CHECKING, Any

from jdml.recipes.base import Problems, Recipe, Regularizer
from jdml.recipes.ccp import with_problems
from jdml.recipes.nir import with_nir
from jdml.recipes.papers import METHODS, OF_PAIRS, RECIPES, recipe, settings_of
from jdml.recipes.shared import DATASETS

if TYPE_CHECKING:
    from jdml.recipes.optimizer import make_optimizer

__all__ = [
    "DATASETS",
    "METHODS",
    "OF_PAIRS",
    "RECIPES",
    "Problems",
    "Recipe",
    "Regularizer",
    "make_optimizer",
    "recipe",
    "settings_of",
    "with_nir",
    "with_problems",
]


def __getattr__(name: str) -> Any:
    """Import what needs optax when it is first used: recipes alone are light."""
    if name == "make_optimizer":
        from jdml.recipes.optimizer import make_optimizer

        return make_optimizer
    raise AttributeError(f"module 'jdml.recipes' has no attribute {name!r}")
