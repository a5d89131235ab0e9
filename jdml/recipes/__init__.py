"""Recipes: how each paper trains its method on each data set, as values that the protocols read.

`recipe("pfml", "cub")` is the method's objective with its optimizer, batches, schedule and network head. Everything can
be replaced (`dataclasses.replace`): a recipe is a starting point that is written down, not a rule.
"""

from jdml.recipes.base import Problems, Recipe, make_optimizer
from jdml.recipes.papers import OF_PAIRS, RECIPES, recipe, settings_of
from jdml.recipes.shared import DATASETS

__all__ = [
    "DATASETS",
    "OF_PAIRS",
    "RECIPES",
    "Problems",
    "Recipe",
    "make_optimizer",
    "recipe",
    "settings_of",
]
