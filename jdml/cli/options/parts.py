"""Parts of a recipe as options: what was typed of them, put into a recipe."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jdml.cli.options.reading import Typed, option_of
from jdml.recipes import METHODS, Recipe, RecipeError
from jdml.recipes.config import Config, parse_settings


def apply_options(recipe: Recipe, values: Mapping[str, Typed]) -> Recipe:
    """Return a recipe with what was typed of its parts; what is wrong names the options."""
    with naming_options():
        return recipe.replace(
            **{name: _values(getattr(recipe, name), part) for name, part in values.items()}
        )


def part_options(command: Any) -> dict[str, Typed]:
    """Return what was typed of a recipe in a command's options, by part."""
    return {field.name: getattr(command, field.name) for field in dataclasses.fields(Recipe)}


def _values(part: Config, values: Typed) -> dict[str, Any]:
    """Return the values that were typed: NAME=VALUE take the place of those of the same name."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        own = getattr(part, name)
        if isinstance(own, Config):
            value = _values(own, value)
        elif isinstance(value, tuple) and isinstance(own, Mapping):
            option, patterns = option_of(type(part), name), name == "lr_multipliers"
            value = {**own, **parse_settings(value, option, patterns=patterns)}
        changed[name] = value
    return changed


@functools.cache
def _options_by_field() -> dict[str, str]:
    """Return the option of each field that a message may name."""
    options = {"loss": "--loss", "method": "--method", "network": "--model"}
    options["optimizer"] = "--optimizer"
    parts = {field.name: getattr(Recipe(), field.name) for field in dataclasses.fields(Recipe)}
    parts["loss.proxies"] = Recipe().loss.proxies
    for path, part in parts.items():
        for field in dataclasses.fields(part):
            option = option_of(type(part), field.name)
            options.setdefault(field.name, option)
            for of in (path, type(part).__name__):
                options[f"{of}.{field.name}"] = option
    for kind in METHODS.values():
        for field in dataclasses.fields(kind):
            options[f"{kind.__name__}.{field.name}"] = f"--method-setting {field.name}"
    return options


@contextmanager
def naming_options() -> Iterator[None]:
    """Name fields of a recipe as options in what is wrong with it."""
    options = _options_by_field()
    try:
        yield
    except RecipeError as error:
        raise ValueError(error.with_names(lambda name: options.get(name, name))) from error
    except (TypeError, ValueError) as error:
        name, _, wrong = str(error).partition(" ")
        raise ValueError(f"{options.get(name, name)} {wrong}") from error
