"""The parts of a recipe have this in common: plain values, checked when made, written as JSON and read again."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

from jdml.ops.checks import Constraint, check_fields, did_you_mean


class RecipeError(ValueError):
    """Values of a recipe that are out of range or contradict each other.

    Attributes:
        template: the message, fields' names in braces, with their class where other classes have them, too.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        super().__init__(self.with_names(lambda name: name.rpartition(".")[2]))

    def with_names(self, name: Callable[[str], str]) -> str:
        """Return the message with each field renamed.

        Args:
            name: from a field's name to what its user calls it.

        Returns:
            The message.
        """
        return re.sub(r"\{([\w.]+)\}", lambda match: name(match[1]), self.template)


@dataclasses.dataclass(frozen=True)
class Config:
    """A frozen dataclass of plain values, which are checked by their types and by the constraints on the fields."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__hash__ = Config.__hash__  # type: ignore[method-assign]  # or dataclass hashes mappings, too

    def __post_init__(self) -> None:
        for name, kind in _parts(type(self)):
            part = getattr(self, name)
            if not isinstance(part, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got a {type(part).__name__}")
        try:
            check_fields(self)
        except ValueError as error:
            name, _, wrong = str(error).partition(" ")
            if name == "name":
                name = type(self).__name__.removesuffix("Config").lower()
            else:
                name = f"{type(self).__name__}.{name}"
            raise RecipeError(f"{{{name}}} {wrong}") from None

    def __hash__(self) -> int:
        plain = (v for v in vars(self).values() if not isinstance(v, Mapping))
        return hash((type(self), *plain))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values.

        Args:
            **changes: new values by field; of a field that is itself a part, a mapping changes some of its values.

        Returns:
            The copy.

        Raises:
            TypeError: a field that there is not, or a value of another kind.
            ValueError: a value out of range.
        """
        for name, change in changes.items():
            part = getattr(self, name, None)
            if isinstance(part, Config) and isinstance(change, Mapping):
                changes[name] = part.replace(**change)
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON has them: numbers, words, lists, dictionaries."""
        return {name: _as_json(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` returned; an absent field has its default.

        Args:
            values: by name.

        Returns:
            The recipe, or the part of one.

        Raises:
            TypeError: values that are no mapping.
            ValueError: an unknown name.
        """
        known = known_fields(cls.__name__, cls, values)
        nested = {name: kind.from_json(known[name]) for name, kind in _parts(cls) if name in known}
        return cls(**{**known, **nested})


def _parts(kind: type[Config]) -> list[tuple[str, type[Config]]]:
    """Return the fields that are themselves parts, and their classes."""
    kinds = ((field.name, field.type) for field in dataclasses.fields(kind))
    return [(name, k) for name, k in kinds if isinstance(k, type) and issubclass(k, Config)]


def check(name: str, value: Any, constraint: Constraint) -> None:
    """Apply a constraint; what is wrong is wrong of the recipe."""
    try:
        constraint(name, value)
    except (TypeError, ValueError) as error:
        raise RecipeError(str(error)) from None


def check_regex(name: str, pattern: str | None) -> None:
    """Refuse what is no regular expression."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise RecipeError(
            f"{{{name}}} must be a regular expression, got {pattern!r}: {error}"
        ) from error


def set_field(config: Config, name: str, value: Any) -> None:
    """Set a field of a frozen dataclass while it is made."""
    object.__setattr__(config, name, value)


def known_fields(called: str, kind: type, values: Any) -> dict[str, Any]:
    """Return a copy of values, after checking that a dataclass has fields of their names."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{called} must be values by name, got a {type(values).__name__}")
    names = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in names:
            raise ValueError(
                f"{called} has no {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}"
            )
    return dict(values)


def _as_json(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _as_json(part) for name, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, tuple) else value
