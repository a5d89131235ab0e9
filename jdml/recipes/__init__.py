"""Recipes: how each paper trains its method on each data set, as plain values in six parts.

``recipe("pfml", "cub")`` is the method's loss with its optimizer, batches, schedule and network head. Everything can
be replaced (``replace``): a recipe is a starting point that is written down, not a rule.
:func:`jdml.training.train` makes a run of it.
"""

from jdml.recipes.batch import BatchConfig
from jdml.recipes.ccp import CCPConfig
from jdml.recipes.config import RecipeError
from jdml.recipes.loss import METHODS, LossConfig, Method, ProxyConfig
from jdml.recipes.network import FinetuneConfig, NetworkConfig
from jdml.recipes.nir import NIRConfig
from jdml.recipes.optimizer import OptimizerConfig
from jdml.recipes.papers import RECIPES, recipe, settings_of
from jdml.recipes.recipe import DATASETS, EvaluationConfig, Recipe, recommended

__all__ = [
    "DATASETS",
    "METHODS",
    "RECIPES",
    "BatchConfig",
    "CCPConfig",
    "EvaluationConfig",
    "FinetuneConfig",
    "LossConfig",
    "Method",
    "NIRConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "ProxyConfig",
    "Recipe",
    "RecipeError",
    "recipe",
    "recommended",
    "settings_of",
]
