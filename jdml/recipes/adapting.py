"""From a recipe to what of its network stays, and how fast the rest learns by depth."""

import re
from collections.abc import Iterable

from jdml import adapt
from jdml.recipes.base import BACKBONE, Recipe, RecipeError, check_blocks

HEAD = "head"
"""The embedding layer of every network that has a backbone."""
ALL_BUT_HEAD = f"(?!{HEAD}(?:/|$)).*"


def frozen_pattern(recipe: Recipe, names: Iterable[str]) -> str | None:
    """Tell which parameters of the network stay.

    Args:
        recipe: the recipe.
        names: the first names of the network's parameters.

    Returns:
        A pattern of their paths, see :func:`jdml.adapt.matching`; None where all learn.

    Raises:
        ValueError: a network without a head of its own, or with fewer blocks.

    Example:
        >>> frozen_pattern(Recipe(freeze="backbone"), ["stem", "head"])
        '(?!head(?:/|$)).*'
        >>> frozen_pattern(Recipe(network="vit_s16", last_blocks=1), ["patches", "block0", "block1", "norm", "head"])
        'block0|patches'
    """
    names = list(names)
    if recipe.freeze == BACKBONE:
        if HEAD not in names:
            raise RecipeError(
                f"{{freeze}} backbone needs a network whose embedding layer is called {HEAD}, got one of "
                f"{', '.join(names)}: write a pattern of what is to stay"
            )
        return ALL_BUT_HEAD
    if recipe.last_blocks is None:
        return recipe.freeze
    before, blocks = check_blocks(recipe, "last_blocks")
    depth = adapt.depths(names, before, blocks)
    there = max(depth.values(), default=0) - 1
    if recipe.last_blocks >= there:
        raise RecipeError(
            f"{{last_blocks}} must be below the network's {there} blocks, got {recipe.last_blocks}"
        )
    stay = [name for name in names if depth[name] <= there - recipe.last_blocks]
    return "|".join(map(re.escape, sorted(stay)))


def lora_pattern(recipe: Recipe) -> str:
    r"""Tell which arrays of the network learn changes of low rank.

    Args:
        recipe: the recipe.

    Returns:
        A pattern of their paths.

    Raises:
        ValueError: a network of which no blocks are known.

    Example:
        >>> lora_pattern(Recipe(network="vit_s16", lora=8))
        '(?:block\\d+).*/kernel'
    """
    if recipe.lora_paths is not None:
        return recipe.lora_paths
    _, blocks = check_blocks(recipe, "lora", ": of others {lora_paths} says what changes")
    return f"(?:{blocks}).*/kernel"
