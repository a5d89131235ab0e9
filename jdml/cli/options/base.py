"""What every part of a command's options has in common."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, get_type_hints

from jdml.recipes import Recipe
from jdml.recipes.base import RecipeError
from jdml.registry.constraints import check_fields

ASIDE = "does not change what is computed: a run goes on with another"
"""Stands on a field that does not define a run."""
IN_RECIPE = "the recipe says it"
"""Stands on a field that the run's recipe holds in its own words."""
FIELDS_AS_TYPED = {
    "network": "--model",
    "rate": "--lr",
    "rate_warmup": "--warmup",
    "rule": "--optimizer",
    "settings": "--loss-setting",
    "start": "--proxies-start",
}
"""What fields of a recipe are called on the command line, where it is another name."""


def as_help(text: str) -> Any:
    """Stands on a field whose help is read from the records."""
    import tyro

    return tyro.conf.arg(help=text)


def flag(name: str) -> str:
    """A field as it is typed.

    Example:
        >>> flag("data_dir"), flag("rate")
        ('--data-dir', '--lr')
    """
    return FIELDS_AS_TYPED.get(name, f"--{name.replace('_', '-')}")


@contextmanager
def as_typed() -> Iterator[None]:
    """Let what is wrong with a recipe be told in the words of the command line."""
    try:
        yield
    except RecipeError as error:
        raise ValueError(error.called(flag)) from error


@dataclasses.dataclass(frozen=True)
class Part:
    """Options that change for one reason.

    A command is a dataclass that inherits from its parts. What they do, they do together: each calls the part before
    it (``super()``) and adds its own.
    """

    def check(self) -> None:
        """Refuse numbers out of range, by the constraints on their fields, and options that do not go together.

        Raises:
            ValueError: naming them as typed.
        """
        check_fields(self, flag)

    def settled(self) -> Self:
        """Return the options with the defaults that depend on others, after checking them."""
        self.check()
        return self

    def changes(self, base: Recipe) -> dict[str, Any]:
        """Give what was typed of a recipe: fields by name.

        Args:
            base: the recipe that is changed.
        """
        return {}

    def defining(self) -> dict[str, Any]:
        """Give what defines a run beside its recipe, as JSON has it: files by what they hold."""
        return {name: _by_content(value) for name, value in self._fields(ASIDE, IN_RECIPE)}

    def told(self) -> dict[str, Any]:
        """Give all that defines a run as it was typed, JSON-able."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in self._fields(ASIDE)
        }

    def _fields(self, *without: str) -> Iterator[tuple[str, Any]]:
        """Fields and their values, but for those on which one of some words stands."""
        hints = get_type_hints(type(self), include_extras=True)
        for field in dataclasses.fields(self):
            if not {*without} & {*getattr(hints[field.name], "__metadata__", ())}:
                yield field.name, getattr(self, field.name)

    def typed(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Give the values of some options that were typed, by the names of a recipe's fields.

        Args:
            fields: from options to fields.
        """
        given = {field: getattr(self, option) for option, field in fields.items()}
        return {field: value for field, value in given.items() if value is not None}


def _by_content(value: Any) -> Any:
    if isinstance(value, Path):
        from jdml.cli.start_of_run import file_digest

        return file_digest(value)
    return list(value) if isinstance(value, tuple) else value
