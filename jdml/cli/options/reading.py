"""Options: read as they are typed, and written as words again."""

import ast
import dataclasses
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Mapping, Sequence
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

Typed = dict[str, Any]
"""What was typed of a part of a recipe, by field."""
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
ALIASES = {"learning_rate": ("--lr",), "k": ("-k",)}
CHOICES = {"LossConfig.name": Literal[registry.pair_losses() + registry.proxy_losses()]}
"""Fields whose choices are the names of records."""
SHORT = 12
"""Letters of choices that the help lists in front of an option's text."""
NOT_DEFINING = "does not change what is computed: a run resumes with another value"
"""Stands on a field that does not define a run."""
METAVARS = {
    int: "N",
    float: "X",
    str: "TEXT",
    tuple[str, ...]: "TEXT ...",
    tuple[int, ...]: "N ...",
}


class Help(str):
    """An option's help that is computed: stands on its field."""


class Part(NamedTuple):
    """A part of a recipe as options of a command: stands on a field of type ``Typed``."""

    values: Any
    without: tuple[str, ...] = ()
    defaults: bool = True


def empty_part() -> Any:
    """Return the default of a part: nothing typed."""
    return dataclasses.field(default_factory=dict)


# Reading


def read(kind: Any, words: Sequence[str], prog: str) -> Any:
    """Return a command's dataclass as it is typed; what cannot be read ends the process."""
    return make(kind, parse(kind, words, prog))


def parse(kind: Any, words: Sequence[str], prog: str) -> Typed:
    """Return what was typed of a command's options, and nothing of the others, by field and group."""
    settings: Any = {"prog": prog, "args": words, "config": (tyro.conf.OmitArgPrefixes,)}
    return dict(tyro.cli(_typed_dict(kind), description=inspect.getdoc(kind), **settings))


def make(kind: Any, values: Typed) -> Any:
    """Return a command's dataclass of what was typed."""
    own = {field.name: type(_default(field)) for field in dataclasses.fields(kind)}
    groups = {name: group for name, group in own.items() if dataclasses.is_dataclass(group)}
    return kind(**{n: groups[n](**v) if n in groups else v for n, v in values.items()})


def _groups(kind: Any, values: Any = None) -> dict[str, Part]:
    """Return the groups of the options of a dataclass, by field: parts of a recipe, and dataclasses of their own."""
    hints, groups = get_type_hints(kind, include_extras=True), {}
    for field in dataclasses.fields(kind):
        own = getattr(hints[field.name], "__metadata__", ())
        value = _default(field) if values is None else getattr(values, field.name)
        part = next((each for each in own if isinstance(each, Part)), None)
        if part is not None:
            groups[field.name] = part
        elif dataclasses.is_dataclass(value):
            groups[field.name] = Part(value)
    return groups


def paths(kind: Any, part: Part | None = None) -> dict[str, tuple[str, ...]]:
    """Return for each option of a command the group and the field where its value stands."""
    groups = _groups(kind, part and part.values)
    places: dict[str, tuple[str, ...]] = {}
    for field in dataclasses.fields(kind):
        name = field.name
        if name in groups:
            inner = groups[name]
            below = paths(
                type(inner.values), inner._replace(without=part.without) if part else inner
            )
            places |= {option: (name, *path) for option, path in below.items()}
        elif part is None or name not in part.without:
            places |= dict.fromkeys((option_of(kind, name), *ALIASES.get(name, ())), (name,))
    return places


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


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


def _typed_dict(kind: Any, part: Part | None = None) -> Any:
    """Return a ``TypedDict`` whose keys are the fields of a dataclass: optional, but for those without a default."""
    hints, groups = get_type_hints(kind, include_extras=True), _groups(kind, part and part.values)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        name, hint = field.name, hints[field.name]
        own = getattr(hint, "__metadata__", ())
        hint = hint.__origin__ if get_origin(hint) is Annotated else hint
        value = getattr(part.values, name) if part else _default(field)
        if name in groups:
            inner = groups[name]
            inner = inner._replace(without=part.without, defaults=part.defaults) if part else inner
            fields[name] = _typed_dict(type(inner.values), inner)
        elif part is None or name not in part.without:
            defaults = part is None or part.defaults
            fields[name] = _option(kind, name, hint, value, own, defaults)
    return TypedDict(kind.__name__, fields, total=False)  # type: ignore


def _option(kind: Any, name: str, hint: Any, value: Any, own: Sequence[Any], defaults: bool) -> Any:
    """Return a field as tyro reads it."""
    hint = _of_field(CHOICES, kind, name, _without_none(hint))
    required = value is dataclasses.MISSING
    default = " ".join(map(str, value)) if isinstance(value, tuple) else value
    if (
        not defaults
        or not isinstance(default, str | int | float | Path)
        or default in (0, "", "none")
    ):
        default = None
    text = next((each for each in own if isinstance(each, Help)), field_docs(kind).get(name, ""))
    text = text.replace("``", "").replace("None: ", "Default: ")
    text = text if default is None else text.partition(" Default: ")[0]
    metavar = METAVARS.get(hint)
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
    if required:
        return Required[Annotated[hint, tyro.conf.Positional, argument]]
    if tyro.conf.UseAppendAction in own:
        return Required[Annotated[hint, tyro.conf.UseAppendAction, argument]]
    return Annotated[hint, argument]


def _of_field(table: Mapping[str, Any], kind: type, name: str, otherwise: Any) -> Any:
    """Return what a table has of a dataclass's field, or of the class that it inherits it from."""
    keys = (f"{each.__name__}.{name}" for each in kind.__mro__)
    return next((table[key] for key in keys if key in table), otherwise)


def _without_none(hint: Any) -> Any:
    """Return what may be typed of a field: None is what is not typed, and mappings are NAME=VALUE."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = Union[tuple(each for each in get_args(hint) if each is not type(None))]  # noqa: UP007
    return tuple[str, ...] if get_origin(hint) is Mapping else hint


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


# Writing


def changed_options(options: Any) -> Typed:
    """Return what of a command's options is no default, by field and group."""
    values: Typed = {}
    for field in dataclasses.fields(options):
        value, default = getattr(options, field.name), _default(field)
        if dataclasses.is_dataclass(value):
            value, default = changed_options(value), {}
        if value != default:
            values[field.name] = value
    return values


def to_argv(options: Any) -> list[str]:
    """Return the words of a command line that stand for options, without those at their defaults.

    Example:
        >>> from jdml.cli.train import Train
        >>> to_argv(Train(loss={"name": "triplet"}, optimizer={"learning_rate": 1e-4}))
        ['--loss', 'triplet', '--learning-rate', '0.0001']
    """
    return _words(type(options), changed_options(options))


def _words(kind: Any, changed: Typed, part: Part | None = None) -> list[str]:
    groups, words = _groups(kind, part and part.values), []
    for name, value in changed.items():
        option = option_of(kind, name)
        if name in groups:
            words += _words(type(groups[name].values), value, groups[name])
        elif isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words += [option, *map(str, value if isinstance(value, tuple) else [value])]
    return words


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
