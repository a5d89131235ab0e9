"""Options of commands: dataclasses, and parts of recipes, which tyro reads from words."""

import ast
import dataclasses
import functools
import hashlib
import inspect
import textwrap
import types
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro

from jdml import registry
from jdml.ops.checks import check_fields
from jdml.recipes.config import parse_settings

Typed = dict[str, Any]
"""The typed values of a part of a recipe, by field."""
OPTIONS = {
    "BatchConfig.classes": "classes-per-batch",
    "BatchConfig.size": "batch-size",
    "EvaluationConfig.every": "evaluate-every",
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
ALIASES = {"learning_rate": ("--lr",), "k": ("-k",)}
CHOICES = {"LossConfig.name": Literal[registry.pair_losses() + registry.proxy_losses()]}
"""Fields whose choices are the names of records."""
SHORT = 12
"""Letters of choices that the help lists in front of an option's text."""
NOT_DEFINING = "does not change what is computed: a run resumes with another value"
"""Marks a field that does not define a run."""
NO_OPTION = "is no option"
"""Marks such a field."""
METAVARS = {
    int: "N",
    float: "X",
    str: "TEXT",
    Mapping: "NAME=VALUE ...",
    tuple[str, ...]: "TEXT ...",
    tuple[int, ...]: "N ...",
}


class Part(NamedTuple):
    """Marks a field of type ``Typed`` whose options are the fields of a part of a recipe."""

    values: Any
    without: tuple[str, ...] = ()
    defaults: bool = True


def empty_part() -> Any:
    """Return the default of a part, and of a mapping: nothing typed."""
    return dataclasses.field(default_factory=dict)


def read(kind: Any, words: Sequence[str], prog: str) -> Any:
    """Return a command's dataclass as it is typed, and checked; unreadable words end the process."""
    settings: Any = {"prog": prog, "args": words, "config": (tyro.conf.OmitArgPrefixes,)}
    typed = tyro.cli(typed_dict(kind), description=inspect.getdoc(kind), **settings)
    values = _read_mappings(kind, dict(typed))
    for name, _, default, group in _fields(kind):
        if group is not None and group.values is default:
            values[name] = type(default)(**values.get(name, {}))
    if hasattr(kind, "words"):
        values["words"] = tuple(words)
    made = kind(**values)
    for group in (made, *filter(dataclasses.is_dataclass, values.values())):
        check_fields(group, functools.partial(option_of, type(group)))
    return made


def _read_mappings(kind: Any, typed: Typed, part: Part | None = None) -> Typed:
    """Return typed values with those of mappings read from NAME=VALUE; what is typed later replaces what is earlier."""
    for name, hint, _, group in _fields(kind, part):
        if name in typed and group is not None:
            typed[name] = _read_mappings(type(group.values), typed[name], group)
        elif name in typed and _plain_type(hint) is Mapping:
            option, repeats = option_of(kind, name), typed.pop(name)
            if repeats:
                parsed = [parse_settings(words, option) for words in repeats]
                typed[name] = dict(ChainMap(*reversed(parsed)))
    return typed


def _fields(kind: Any, part: Part | None = None) -> Iterator[tuple[str, Any, Any, Part | None]]:
    """Yield the name, the type and the default of each option; for a group of options also the group."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        name, hint = field.name, hints[field.name]
        marks = getattr(hint, "__metadata__", ())
        if NO_OPTION in marks or (part is not None and name in part.without):
            continue
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        value = getattr(part.values, name) if part else default
        group = next((mark for mark in marks if isinstance(mark, Part)), None)
        if group is None and dataclasses.is_dataclass(value):
            group = part._replace(values=value) if part else Part(value)
        yield name, hint, value, group


def fields_of(kind: Any, part: Part | None = None) -> Iterator[tuple[type, str]]:
    """Yield the class and the name of each field of a command, and of its groups, that is an option."""
    for name, _, _, group in _fields(kind, part):
        if group is None:
            yield kind, name
        else:
            yield from fields_of(type(group.values), group)


@functools.cache
def _field_docs(kind: Any) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, also of inherited ones."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__dataclass_fields__" not in vars(each):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for field, doc in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                text = ast.literal_eval(doc.value)
                docs[ast.unparse(field.target)] = " ".join(text.split())
    return docs


def typed_dict(kind: Any, part: Part | None = None) -> Any:
    """Return a ``TypedDict`` of a dataclass's options, which are optional unless they have no default."""
    fields = {
        name: _option(kind, name, hint, value, part is None or part.defaults)
        if group is None
        else typed_dict(type(group.values), group)
        for name, hint, value, group in _fields(kind, part)
    }
    made: Any = TypedDict(kind.__name__, fields, total=False)  # type: ignore  # fields that no source has
    made.__module__ = "builtins"  # or tyro searches this file for texts, which takes long
    return made


def _option(kind: Any, name: str, hint: Any, value: Any, defaults: bool) -> Any:
    """Return a field as tyro reads it."""
    marks = getattr(hint, "__metadata__", ())
    hint = _of_field(CHOICES, kind, name, _plain_type(hint))
    required = value is dataclasses.MISSING
    default = " ".join(map(str, value)) if isinstance(value, tuple) else value
    if (
        not defaults
        or not isinstance(default, str | int | float | Path)
        or default in (0, "", "none")
    ):
        default = None
    text = _field_docs(kind).get(name, "").replace("``", "").replace("None: ", "Default: ")
    text = text.replace("{datasets}", ", ".join(sorted(registry.DATASETS)))
    text = text if default is None else text.partition(" Default: ")[0]
    metavar, repeats = METAVARS.get(hint), hint is Mapping or tyro.conf.UseAppendAction in marks
    hint = tuple[tuple[str, ...], ...] if hint is Mapping else hint
    if get_origin(hint) is Literal:
        choices = list(map(str, get_args(hint)))
        metavar = "WORD" if len(",".join(choices)) > SHORT else None
        if metavar and not all(choice in text for choice in choices):
            text = f"{text} {', '.join(choices)}."
    argument = tyro.conf.arg(
        name=None if required else _of_field(OPTIONS, kind, name, None),
        aliases=ALIASES.get(name),
        help=text,
        help_behavior_hint="" if default is None else f"(default: {default})",
        metavar=name.upper() + " ..." * (get_origin(hint) is tuple) if required else metavar,
    )
    if required or repeats:
        kind_of_option = tyro.conf.Positional if required else tyro.conf.UseAppendAction
        return Required[Annotated[hint, kind_of_option, argument]]
    return Annotated[hint, argument]


def _of_field(table: Mapping[str, Any], kind: type, name: str, otherwise: Any) -> Any:
    """Return a table's entry of a dataclass's field, also of an inherited one."""
    keys = (f"{each.__name__}.{name}" for each in kind.__mro__)
    return next((table[key] for key in keys if key in table), otherwise)


def _plain_type(hint: Any) -> Any:
    """Return the type of what may be typed, which is never None; ``Mapping`` without the types of its values."""
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    if get_origin(hint) in (Union, types.UnionType):
        hint = Union[tuple(each for each in get_args(hint) if each is not type(None))]  # noqa: UP007
    return Mapping if get_origin(hint) is Mapping else hint


def option_of(kind: type, name: str) -> str:
    """Return a field's option."""
    return f"--{_of_field(OPTIONS, kind, name, name.replace('_', '-'))}"


def defining(*groups: Any) -> dict[str, Any]:
    """Return the options of some groups that define a run, as JSON has them: files by their content."""
    values: dict[str, Any] = {}
    for group in groups:
        for name, hint, value, _ in _fields(type(group), Part(group)):
            if NOT_DEFINING in getattr(hint, "__metadata__", ()):
                continue
            if isinstance(value, Path):
                value = hashlib.sha256(value.read_bytes()).hexdigest()[:16]
            values[name] = value
    return values
