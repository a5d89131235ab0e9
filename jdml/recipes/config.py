"""The base class of a recipe's parts: plain values, checked when made, read from text or JSON, written as JSON."""

import ast
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from jdml.ops.checks import check_fields, no_setting


class RecipeError(ValueError):
    """Values of a recipe that are out of range or contradict each other.

    Attributes:
        template: the message, fields' names in braces, with their class where other classes have them, too.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        super().__init__(self.with_names(lambda name: name.rpartition(".")[2]))

    def with_names(self, name: Callable[[str], str]) -> str:
        """Return the message with other names of fields, such as those of options."""
        return re.sub(r"\{([\w.]+)\}", lambda match: name(match[1]), self.template)


@dataclasses.dataclass(frozen=True)
class Config:
    """A frozen dataclass of plain values, which are checked by their types and by the constraints on the fields."""

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as error:
            name, _, wrong = str(error).partition(" ")
            kind = type(self).__name__
            name = kind.removesuffix("Config").lower() if name == "name" else f"{kind}.{name}"
            raise RecipeError(f"{{{name}}} {wrong}") from None
        for name, value in [*vars(self).items()]:
            object.__setattr__(self, name, _plain(name, value))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values.

        Args:
            **changes: new values by field; of a field that is itself a part, a mapping changes some of its values.

        Returns:
            The copy.

        Raises:
            TypeError: an unknown field, or a value of another kind.
            ValueError: a value out of range.
        """
        for name, change in changes.items():
            part = getattr(self, name, None)
            if isinstance(part, Config) and isinstance(change, Mapping):
                changes[name] = part.replace(**change)
        return dataclasses.replace(self, **changes)

    def to_json(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return the values as JSON has them: numbers, words, lists, dictionaries.

        Args:
            defaults: whether values that equal their field's default are included.

        Returns:
            The values by name.
        """
        usual = {} if defaults else vars(type(self)())
        return {
            name: _as_json(value, defaults)
            for name, value in vars(self).items()
            if defaults or value != usual[name]
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` returned; an absent field has its default.

        Args:
            values: by name.

        Returns:
            The recipe, or the part of one.

        Raises:
            TypeError: no values by name.
            ValueError: an unknown name.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"{cls.__name__} must be values by name, got {values!r}")
        kinds: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(cls)}
        parts = dict(values)
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(no_setting(cls.__name__.removesuffix("Config"), name, kinds))
            if isinstance(kinds[name], type) and issubclass(kinds[name], Config):
                parts[name] = kinds[name].from_json(value)
        return cls(**parts)


def parse_settings(settings: Iterable[str], option: str) -> dict[str, Any]:
    """Read ``name=value`` settings; values are Python literals, or words without quotes."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.rpartition("=")
        if name in parsed:
            raise ValueError(f"{option} has {name} twice: {setting!r} is one more")
        is_word = value.replace("+", "_").isidentifier() and value not in ("True", "False", "None")
        try:
            if not equals:
                raise ValueError
            parsed[name] = value if is_word else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(
                f"{option} must be name=value, such as margin=0.2; got {setting!r}"
            ) from None
    return parsed


def parse_named(text: str, called: str) -> tuple[str, dict[str, Any]]:
    """Read a name with optional settings after a colon."""
    name, _, settings = text.strip().partition(":")
    return name, parse_settings(settings.split(",") if settings else (), f"{called} {name}")


def _as_json(value: Any, defaults: bool) -> Any:
    if isinstance(value, Config):
        return value.to_json(defaults=defaults)
    if isinstance(value, Mapping):
        return {name: _as_json(part, defaults) for name, part in value.items()}
    return [_as_json(part, defaults) for part in value] if isinstance(value, tuple) else value


def _plain(name: str, value: Any) -> Any:
    """Return a value as one that JSON has, lists as tuples, or a part as it is; refuse others."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # arrays and numbers of NumPy and JAX
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}[{key!r}]", part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_plain(name, part) for part in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{name} must be a finite number, got {value}")
    if value is None or isinstance(value, bool | int | float | str | Config):
        return value
    raise TypeError(
        f"{name} must be a plain value (a number, a word, a list of such), got a {type(value).__name__}: "
        "jdml.training.train(objective=…) takes an objective of your own"
    )
