"""Static checks of the sources: typed options, sizes, defaults, names."""

import ast
import contextlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import jdml
from jdml.losses import assignment, comparison, potential

PACKAGE = Path(jdml.__file__).parent

# The types of the losses' shared options, for editors and type checkers. mypy checks that losses and calls take them.

TYPED = {
    comparison.compare: comparison.CompareOptions,
    assignment.assign: assignment.AssignOptions,
    potential.charge: potential.ChargeOptions,
}


@pytest.mark.parametrize("function", TYPED, ids=lambda function: function.__name__)
def test_typed_options_match_the_functions_keywords(function):
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    taken = {p.name: hints[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    options = TYPED[function]
    assert get_type_hints(options) == taken
    assert options.__required_keys__ == frozenset()


def test_calls_and_values_stay_small():
    """At most 14 parameters a function, but of two with many options of the field, and 20 fields a dataclass."""
    large = []
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count, most = sum(each.arg not in ("self", "cls") for each in named), 14
            elif isinstance(node, ast.ClassDef):
                count, most = sum(isinstance(each, ast.AnnAssign) for each in node.body), 20
            else:
                continue
            if count > most and node.name not in ("compare", "evaluate_retrieval"):
                large.append(f"{file.name}: {node.name} has {count}")
    assert not large


# A default is written once: what hands a setting on takes its default from the function that has it.

PLAIN_DEFAULTS = {None, True, False, -1, (), ""}
# Parameters of one name and one default that mean different things.
OTHER_MEANINGS = {"dim", "k", "labels", "negative_margin", "on_bad_image", "temperature"}


def repeated_defaults(sources: Mapping[str, str]) -> dict[tuple[str, object], list[str]]:
    """Return the literal defaults that more than one function or dataclass writes, with these."""
    owners: dict[tuple[str, object], list[str]] = {}
    for file, node in (
        (f, node) for f, text in sources.items() for node in ast.walk(ast.parse(text))
    ):
        defaults: list[tuple[str, Any]] = []
        match node:
            case ast.FunctionDef(args=args):
                pairs = [*zip(args.args[::-1], args.defaults[::-1], strict=False)]
                pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
                defaults = [(parameter.arg, default) for parameter, default in pairs]
            case ast.ClassDef(body=body):
                fields = [each for each in body if isinstance(each, ast.AnnAssign)]
                defaults = [(ast.unparse(field.target), field.value) for field in fields]
        for name, default in defaults:
            with contextlib.suppress(ValueError, TypeError):  # no literal, or one that may change
                value = ast.literal_eval(default) if default is not None else None
                if value not in PLAIN_DEFAULTS and name not in OTHER_MEANINGS:
                    owners.setdefault((name, value), []).append(f"{file}: {node.name}")
    return {default: places for default, places in owners.items() if len(places) > 1}


def test_each_default_is_written_once():
    sources = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert repeated_defaults(sources) == {}
    options = "class Options:\n    rate: float = 0.1\n"
    assert repeated_defaults({"a": options, "b": "def f(x, rate=0.1, *, y=2): ..."}) == {
        ("rate", 0.1): ["a: Options", "b: f"]
    }


# Names and docstrings are plain English: these words are no names, and no docstring has one of these openings.

NO_NAMES = set(
    "beside brought compared found given handed kept looked seen told whatever written".split()
)
NO_OPENINGS = ("What ", "Where ", "Of ", "So many ")
PLAIN = [
    PACKAGE,
    *(PACKAGE.parent / f for f in ("benchmarks", "docs", "experiments", "notebooks", "tools")),
]


def test_names_and_docstrings_are_plain():
    wrong = []
    for file in sorted(file for folder in PLAIN for file in folder.rglob("*.py")):
        wrong += [file.name] * bool(NO_NAMES & {*file.stem.split("_")})
        for node in ast.walk(ast.parse(file.read_text())):
            fields = () if isinstance(node, ast.keyword) else ("name", "arg", "id", "attr")
            for name in (str(getattr(node, field, "")) for field in fields):
                if NO_NAMES & {*name.lower().split("_")}:
                    wrong.append(f"{file.name}: {name}")
            match node:
                case ast.Expr(ast.Constant(str(text))) if text.lstrip().startswith(NO_OPENINGS):
                    wrong.append(f"{file.name}: {text.partition(chr(10))[0]}")
    assert not wrong
