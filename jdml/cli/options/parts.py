"""The parts of a recipe as options: what was typed of each field, and nothing of the others."""

import ast
import dataclasses
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

import tyro

from jdml import registry
from jdml.ops.checks import check_fields
from jdml.recipes import METHODS, Method, Recipe, RecipeError
from jdml.recipes.config import Config
from jdml.recipes.parsing import parse_settings

Typed = dict[str, Any]
"""What was typed of a part, by field."""
OPTIONS = {
    "BatchConfig.classes": "classes-per-batch",
    "BatchConfig.size": "batch-size",
    "EvaluationConfig.every": "evaluate-every",
    "LossConfig.memory_size": "memory-size",
    "LossConfig.name": "loss",
    "LossConfig.settings": "loss-setting",
    "LossConfig.weight": "loss-weight",
    "NetworkConfig.name": "model",
    "OptimizerConfig.lr_multipliers": "lr-multiplier",
    "OptimizerConfig.name": "optimizer",
    "ProxyConfig.clip_norm": "proxy-clip-norm",
    "ProxyConfig.clip_value": "proxy-clip-value",
    "ProxyConfig.init": "proxy-init",
    "ProxyConfig.on_sphere": "proxies-on-sphere",
    "ProxyConfig.per_class": "proxies-per-class",
}
"""Fields whose option has another name than the field."""
ALIASES = {"learning_rate": ("--lr",)}
CHOICES = {
    "LossConfig.name": Literal[registry.pair_losses() + registry.proxy_losses()],
}
"""Fields whose choices are the names of records."""
SHORT = 12
"""Letters of choices that the help lists in front of an option's text."""
NOT_DEFINING = "does not change what is computed: a run resumes with another value"
"""Stands on a field that does not define a run."""


@functools.cache
def field_docs(kind: Any) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, those that it inherits among them."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__dataclass_fields__" not in vars(each):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, doc in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                if isinstance(doc.value, ast.Constant) and isinstance(field.target, ast.Name):
                    docs[field.target.id] = " ".join(str(doc.value.value).split())
    return docs


def options_of(group: Any, *, without: tuple[str, ...] = (), shown: bool = True) -> Any:
    """Let tyro read what is typed of a group of options: stands on a field of a command's dataclass.

    Args:
        group: a part of a recipe or a dataclass of options, whose values the help shows.
        without: fields that are no options of the command.
        shown: whether the help shows values.

    Returns:
        An annotation, by which the field becomes what was typed: values by field, the others absent.
    """
    return tyro.conf.arg(constructor=_typed_dict(group, without, shown))


def _typed_dict(group: Any, without: tuple[str, ...] = (), shown: bool = True) -> Any:
    """Return a ``TypedDict`` whose keys, all optional, are the fields of a group."""
    kind: Any = type(group)
    hints, docs = get_type_hints(kind, include_extras=True), field_docs(kind)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        name, hint, value = field.name, hints[field.name], getattr(group, field.name)
        if isinstance(value, Config):
            fields[name] = _typed_dict(value, without, shown)
            continue
        own = getattr(hint, "__metadata__", ())
        helps = next((each.help for each in own if hasattr(each, "help")), None)
        hint = hint.__origin__ if get_origin(hint) is Annotated else hint
        if name in without or Method in (hint, *get_args(hint)):
            continue  # --method, which changes more than this field
        hint = _of_field(CHOICES, kind, name, _without_none(hint))
        told = isinstance(value, str | int | float) and value not in (0, "", "none") and shown
        text = _plain(docs.get(name, helps or ""))
        text = text.partition(" Default: ")[0] if told else text
        fields[name] = Annotated[
            hint,
            tyro.conf.arg(
                name=_of_field(OPTIONS, kind, name, None),
                aliases=ALIASES.get(name),
                help=_with_choices(text, hint),
                help_behavior_hint=f"(default: {value})" if told else "",
                metavar=_metavar(hint),
            ),
        ]
    return TypedDict(kind.__name__, fields, total=False)  # type: ignore


def _of_field(table: Mapping[str, Any], kind: type, name: str, otherwise: Any) -> Any:
    """Return what a table has of a dataclass's field, or of the class that it inherits it from."""
    keys = (f"{each.__name__}.{name}" for each in kind.__mro__)
    return next((table[key] for key in keys if key in table), otherwise)


def typed() -> Any:
    """Return the default of a field of ``options_of``: nothing typed."""
    return dataclasses.field(default_factory=dict)


def make_groups(command: Any) -> None:
    """Make dataclasses of the groups of a command's options from what was typed of them."""
    hints: dict[str, Any] = get_type_hints(type(command))
    for name, kind in hints.items():
        value = getattr(command, name)
        if isinstance(value, dict) and isinstance(kind, type) and dataclasses.is_dataclass(kind):
            object.__setattr__(command, name, kind(**value))


def _metavar(hint: Any) -> str | None:
    """Return a short name of what is typed."""
    if get_origin(hint) is Literal:
        return "WORD" if len(",".join(map(str, get_args(hint)))) > SHORT else None
    names = {
        int: "N",
        float: "X",
        str: "TEXT",
        tuple[str, ...]: "TEXT ...",
        tuple[int, ...]: "N ...",
    }
    return names.get(hint)


def _plain(text: str) -> str:
    """Return a docstring as help: without markup, and with None called the default."""
    return text.replace("``", "").replace("None: ", "Default: ")


def _with_choices(text: str, hint: Any) -> str:
    """Add choices that neither the metavar nor the text lists."""
    choices = [str(each) for each in get_args(hint)] if get_origin(hint) is Literal else []
    listed = all(choice in text for choice in choices)
    if _metavar(hint) is None or listed:
        return text
    return f"{text} {', '.join(choices)}."


def _without_none(hint: Any) -> Any:
    """Return what may be typed of a field: None is what is not typed, and mappings are NAME=VALUE."""
    union = get_origin(hint) in (Union, types.UnionType)
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if union else [hint]
    return tuple[str, ...] if get_origin(kinds[0]) is Mapping else kinds[0]


def with_typed(recipe: Recipe, typed: Mapping[str, Typed]) -> Recipe:
    """Return a recipe with what was typed of its parts.

    Args:
        recipe: the recipe.
        typed: by part.

    Returns:
        The recipe.

    Raises:
        ValueError: values that are out of range or contradict each other, as typed.
    """
    with as_typed():
        return recipe.replace(
            **{name: _values(getattr(recipe, name), part) for name, part in typed.items()}
        )


def typed_parts(command: Any) -> dict[str, Typed]:
    """Return what was typed of a recipe in a command's options, by part."""
    return {field.name: getattr(command, field.name) for field in dataclasses.fields(Recipe)}


def _values(part: Config, typed: Typed) -> dict[str, Any]:
    """Return the values that were typed: NAME=VALUE take the place of those of the same name."""
    values: dict[str, Any] = {}
    for name, value in typed.items():
        own = getattr(part, name)
        if isinstance(own, Config):
            value = _values(own, value)
        elif isinstance(value, tuple) and isinstance(own, Mapping):
            option, patterns = option_of(type(part), name), name == "lr_multipliers"
            value = {**own, **parse_settings(value, option, patterns=patterns)}
        values[name] = value
    return values


def option_of(kind: type, name: str) -> str:
    """Return a field's option.

    Example:
        >>> from jdml.recipes import LossConfig
        >>> option_of(LossConfig, "settings"), option_of(LossConfig, "miner")
        ('--loss-setting', '--miner')
    """
    return f"--{_of_field(OPTIONS, kind, name, name.replace('_', '-'))}"


def check_options(group: Any) -> None:
    """Refuse values of a dataclass of options, naming each as it is typed."""
    check_fields(group, lambda name: option_of(type(group), name))


def parts_of(recipe: Recipe) -> Iterator[tuple[str, Config]]:
    """Yield the parts of a recipe, and the parts of these, by dotted path."""
    for field in dataclasses.fields(recipe):
        part = getattr(recipe, field.name)
        yield field.name, part
        for inner in dataclasses.fields(part):
            if isinstance(getattr(part, inner.name), Config) and inner.name != "method":
                yield f"{field.name}.{inner.name}", getattr(part, inner.name)


@functools.cache
def _options_by_field() -> dict[str, str]:
    """Return the option of each field that a message may name."""
    options = {
        "loss": "--loss",
        "method": "--method",
        "network": "--model",
        "optimizer": "--optimizer",
    }
    for path, part in parts_of(Recipe()):
        for field in dataclasses.fields(part):
            option = option_of(type(part), field.name)
            options.setdefault(field.name, option)
            options[f"{path}.{field.name}"] = options[f"{type(part).__name__}.{field.name}"] = (
                option
            )
    for kind in METHODS.values():
        for field in dataclasses.fields(kind):
            options[f"{kind.__name__}.{field.name}"] = f"--method-setting {field.name}"
    return options


@contextmanager
def as_typed() -> Iterator[None]:
    """Name fields of a recipe as options in what is wrong with it."""
    options = _options_by_field()
    try:
        yield
    except RecipeError as error:
        raise ValueError(error.with_names(lambda name: options.get(name, name))) from error
    except (TypeError, ValueError) as error:
        name, _, wrong = str(error).partition(" ")
        raise ValueError(f"{options.get(name, name)} {wrong}") from error


def to_argv(options: Any, *, without: tuple[str, ...] = ()) -> list[str]:
    """Return the words of a command line that stand for options, without those at their defaults.

    Args:
        options: a command's dataclass, whose groups are dataclasses or what was typed of a recipe's parts.
        without: fields that are left out.

    Returns:
        The words.

    Example:
        >>> from jdml.cli.train import Train
        >>> to_argv(Train(loss={"name": "triplet"}, optimizer={"learning_rate": 1e-4}))
        ['--loss', 'triplet', '--learning-rate', '0.0001']
    """
    words: list[str] = []
    kinds = dict(parts_of(Recipe()))
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        group = dataclasses.is_dataclass(value)
        if field.name in without or not group and _is_default(field, value):
            continue
        if isinstance(value, dict):
            words += _words_of_typed(value, kinds, field.name, without)
        elif group:
            words += to_argv(value, without=without)
        else:
            words += _words(option_of(type(options), field.name), value)
    return words


def _words_of_typed(
    typed: Typed, kinds: Mapping[str, Config], path: str, without: tuple[str, ...]
) -> list[str]:
    words: list[str] = []
    for name, value in typed.items():
        if isinstance(value, dict):
            words += _words_of_typed(value, kinds, f"{path}.{name}", without)
        elif f"{path}.{name}" not in without:
            words += _words(option_of(type(kinds[path]), name), value)
    return words


def _words(option: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    if isinstance(value, list | tuple):
        return [option, *map(str, value)]
    return [option, str(value)]


def _is_default(field: Any, value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return bool(value == field.default)


def defining(options: Any) -> dict[str, Any]:
    """Return what of options defines a run, as JSON has it: files by what they hold."""
    hints = get_type_hints(type(options), include_extras=True)
    return {
        field.name: _by_content(getattr(options, field.name))
        for field in dataclasses.fields(options)
        if NOT_DEFINING not in getattr(hints[field.name], "__metadata__", ())
    }


def _by_content(value: Any) -> Any:
    if isinstance(value, Path):
        return hashlib.sha256(value.read_bytes()).hexdigest()[:16]
    return list(value) if isinstance(value, tuple) else value


@dataclasses.dataclass(frozen=True)
class MethodOptions:
    """What is made of the loss."""

    method: Literal[("plain", *sorted(METHODS))] = "plain"  # type: ignore[valid-type]
    """ccp: proxies for one problem after another; needs --validation. nir: a flow around each proxy."""
    method_setting: tuple[str, ...] = ()
    """The method's own numbers, such as pool_size=7 (ccp), weight=0.02 (nir)."""
