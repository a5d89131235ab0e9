"""Options of commands: dataclasses, and parts of recipes, read from words by tyro and written as words again."""

import ast
import dataclasses
import functools
import hashlib
import inspect
import textwrap
import types
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
METAVARS = {
    int: "N",
    float: "X",
    str: "TEXT",
    Mapping: "NAME=VALUE ...",
    tuple[str, ...]: "TEXT ...",
    tuple[int, ...]: "N ...",
}


class Help(str):
    """Marks a field with a help text that is computed."""


class Part(NamedTuple):
    """Marks a field of type ``Typed`` whose options are the fields of a part of a recipe."""

    values: Any
    without: tuple[str, ...] = ()
    defaults: bool = True


def empty_part() -> Any:
    """Return the default of a part, and of a mapping: nothing typed."""
    return dataclasses.field(default_factory=dict)


# Reading


def read(kind: Any, words: Sequence[str], prog: str) -> Any:
    """Return a command's dataclass as it is typed; unreadable words end the process."""
    return make(kind, parse(kind, words, prog))


def parse(kind: Any, words: Sequence[str], prog: str) -> Typed:
    """Return the typed values of a command's options, by group and field."""
    settings: Any = {"prog": prog, "args": words, "config": (tyro.conf.OmitArgPrefixes,)}
    typed = dict(tyro.cli(_typed_dict(kind), description=inspect.getdoc(kind), **settings))
    return _read_mappings(kind, typed)


def _read_mappings(kind: Any, typed: Typed, part: Part | None = None) -> Typed:
    """Return typed values with those of mappings read from NAME=VALUE."""
    for name, hint, _, group in _fields(kind, part):
        if name in typed and group is not None:
            typed[name] = _read_mappings(type(group.values), typed[name], group)
        elif name in typed and _plain_type(hint) is Mapping:
            typed[name] = parse_settings(typed[name], option_of(kind, name))
    return typed


def make(kind: Any, values: Typed) -> Any:
    """Make a command's dataclass of its typed values, and check them; errors name the options."""
    own = {field.name: type(_default(field)) for field in dataclasses.fields(kind)}
    groups = {name: group for name, group in own.items() if dataclasses.is_dataclass(group)}
    made = kind(**{n: groups[n](**v) if n in groups else v for n, v in values.items()})
    for group in (made, *(getattr(made, name) for name in groups)):
        check_fields(group, functools.partial(option_of, type(group)))
    return made


def _fields(kind: Any, part: Part | None = None) -> Iterator[tuple[str, Any, Any, Part | None]]:
    """Yield the name, the type and the default of each option; for a group of options also the group."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        name, hint = field.name, hints[field.name]
        if part is not None and name in part.without:
            continue
        value = getattr(part.values, name) if part else _default(field)
        marks = getattr(hint, "__metadata__", ())
        group = next((mark for mark in marks if isinstance(mark, Part)), None)
        if group is None and dataclasses.is_dataclass(value):
            group = part._replace(values=value) if part else Part(value)
        yield name, hint, value, group


def paths(kind: Any, part: Part | None = None) -> dict[str, tuple[str, ...]]:
    """Return for each option of a command, and each alias, the group and the field of its value."""
    places: dict[str, tuple[str, ...]] = {}
    for name, _, _, group in _fields(kind, part):
        if group is None:
            places |= dict.fromkeys((option_of(kind, name), *ALIASES.get(name, ())), (name,))
        else:
            inner = paths(type(group.values), group)
            places |= {option: (name, *path) for option, path in inner.items()}
    return places


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


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


def _typed_dict(kind: Any, part: Part | None = None) -> Any:
    """Return a ``TypedDict`` of a dataclass's options, which are optional unless they have no default."""
    fields = {
        name: _option(kind, name, hint, value, part is None or part.defaults)
        if group is None
        else _typed_dict(type(group.values), group)
        for name, hint, value, group in _fields(kind, part)
    }
    return TypedDict(kind.__name__, fields, total=False)  # type: ignore


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
    text = next((mark for mark in marks if isinstance(mark, Help)), _field_docs(kind).get(name, ""))
    text = text.replace("``", "").replace("None: ", "Default: ")
    text = text if default is None else text.partition(" Default: ")[0]
    metavar = METAVARS.get(hint)
    hint = tuple[str, ...] if hint is Mapping else hint
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
    if tyro.conf.UseAppendAction in marks:
        return Required[Annotated[hint, tyro.conf.UseAppendAction, argument]]
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
    """Return a field's option.

    Example:
        >>> from jdml.recipes import LossConfig
        >>> option_of(LossConfig, "settings"), option_of(LossConfig, "miner")
        ('--loss-setting', '--miner')
    """
    return f"--{_of_field(OPTIONS, kind, name, name.replace('_', '-'))}"


# Writing


def changed_options(options: Any, kind: Any = None) -> dict[tuple[str, ...], Any]:
    """Return the values of a command's options, or of another it extends, that are no defaults, by group and field."""
    kind = kind or type(options)

    def at(values: Any, path: tuple[str, ...]) -> Any:
        for name in path:
            values = values.get(name, {}) if isinstance(values, dict) else getattr(values, name)
        return values

    default = kind()
    values = {path: at(options, path) for path in paths(kind).values()}
    return {path: value for path, value in values.items() if value != at(default, path)}


def to_argv(options: Any) -> list[str]:
    """Return the words of a command line for options, without those at their defaults.

    Example:
        >>> from jdml.cli.train import Train
        >>> to_argv(Train(loss={"name": "triplet"}, optimizer={"learning_rate": 1e-4}))
        ['--loss', 'triplet', '--learning-rate', '0.0001']
    """
    # Of several names of one field the first is no alias.
    names = {path: option for option, path in reversed(paths(type(options)).items())}
    words = []
    for path, value in changed_options(options).items():
        if isinstance(value, bool):
            words.append(names[path] if value else names[path].replace("--", "--no-", 1))
            continue
        if isinstance(value, dict):
            value = tuple(f"{name}={each}" for name, each in value.items())
        words += [names[path], *map(str, value if isinstance(value, tuple) else [value])]
    return words


def defining(*groups: Any) -> dict[str, Any]:
    """Return the options of some groups that define a run, as JSON has them: files by their content."""
    return {
        name: _by_content(value)
        for group in groups
        for name, hint, value, _ in _fields(type(group), Part(group))
        if NOT_DEFINING not in getattr(hint, "__metadata__", ())
    }


def _by_content(value: Any) -> Any:
    if isinstance(value, Path):
        return hashlib.sha256(value.read_bytes()).hexdigest()[:16]
    return list(value) if isinstance(value, tuple) else value
