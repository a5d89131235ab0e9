"""Static checks of the sources: markup of docstrings, no circular imports, typed options."""

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import jdml
from jdml.losses import assignment, comparison, potential

PACKAGE = Path(jdml.__file__).parent

# Markup of docstrings: code is in double backticks; a command's help, which is shown as text, has none.

# Text in single backticks that is neither a role nor a link.
SINGLE = re.compile(r"(?<![`:\\\w])`[^`]+`(?![`_])")


def wrong_markup(source: str) -> list[str]:
    """Return text in single backticks in docstrings, as ``line: text``."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        body = node.body if isinstance(getattr(node, "body", None), list) else []
        marks = "`" if any(getattr(part, "name", "") == "execute" for part in body) else SINGLE
        for statement in body:
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    prose = re.sub(r"^ *>>>(?:.*\n?)+?(?:\n|\Z)", "\n", text, flags=re.M)
                    wrong += [f"{statement.lineno}: {m[0]}" for m in re.finditer(marks, prose)]
    return wrong


def test_docstrings_have_code_in_double_backticks():
    for file in sorted(PACKAGE.rglob("*.py")):
        assert wrong_markup(file.read_text()) == [], file
    assert wrong_markup('"""Of `x`."""') == ["1: `x`"]
    assert wrong_markup('class C:\n    """Of ``x``."""\n    def execute(self): ...')
    assert wrong_markup('"""Of ``x``, :func:`fit` and `a page <https://jax.dev>`_."""') == []


# No circular imports between files of `jdml/`, at the top or inside functions.


def import_graph(package: Path) -> dict[str, set[str]]:
    """Return the files that each file imports: at the top, inside functions, for type checkers only."""
    files = {name_of(path, package): path for path in sorted(package.rglob("*.py"))}
    return {name: set(imported(path, name, files)) - {name} for name, path in files.items()}


def name_of(path: Path, package: Path) -> str:
    """Return a file's module; for a package's own file the package."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, name: str, files: Mapping[str, Path]) -> Iterator[str]:
    """Return the files that a file imports from; any other name is in the package's own file."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            prefix = ".".join(above) if node.level else ""
            module = ".".join(filter(None, [prefix, node.module]))
            for alias in node.names:
                inside = f"{module}.{alias.name}"
                yield from [m for m in (inside, module) if m in files][:1]


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of files that import each other in a circle."""
    reached = {start: reachable(graph, start) for start in graph}
    together = {frozenset(b for b in found if a in reached[b]) for a, found in reached.items()}
    return together - {frozenset()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the files that a file imports, directly or not; the file itself only if it is in a circle."""
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph[name]
    return found


def test_no_circular_imports():
    assert circles(import_graph(PACKAGE)) == set()


def test_circular_imports_at_any_level_are_found(tmp_path):
    package = tmp_path / "jdml"
    for name, code in {
        "__init__.py": "",
        "ops/__init__.py": "from jdml.ops.soft_rank import sort",
        "ops/soft_rank.py": "def sort():\n    from ..losses import pairs",
        "losses/__init__.py": "",
        "losses/pairs.py": "if TYPE_CHECKING:\n    from jdml import memory\nimport jdml.losses.terms",
        "losses/terms.py": "from jdml.losses import pairs as p\nfrom . import VERSION",
        "memory.py": "from jdml.ops import mean",
        "data.py": "from jdml.memory import push\nfrom jdml.ops.soft_rank import sort",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(code)
    names = ("ops", "ops.soft_rank", "losses.pairs", "losses.terms", "memory")
    assert circles(import_graph(package)) == {frozenset(f"jdml.{name}" for name in names)}


# The types of the losses' shared options, for editors and type checkers. `tests/typing` checks calls.

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
    assert list(options.__annotations__) == list(taken)
    assert options.__required_keys__ == frozenset()


@pytest.mark.parametrize(
    "name",
    [name for name in jdml.losses.__all__ if hasattr(getattr(jdml.losses, name), "__wrapped__")],
)
def test_typed_options_match_each_loss(name):
    loss = getattr(jdml.losses, name)
    written = inspect.signature(loss.__wrapped__).parameters
    options = {p.annotation for p in written.values() if p.kind is p.VAR_KEYWORD}
    handed_on = set(inspect.signature(loss).parameters) - set(written)
    assert handed_on == {key for option in options for key in get_args(option)[0].__annotations__}


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


def literal_defaults(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield the parameters, or fields, of a function or class whose defaults are written as literals."""
    defaults: list[tuple[str, ast.expr | None]] = []
    match node:
        case ast.FunctionDef(args=args):
            by_position = [*args.posonlyargs, *args.args][-len(args.defaults) or None :]
            pairs = [*zip(by_position, args.defaults, strict=False)]
            pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
            defaults = [(parameter.arg, default) for parameter, default in pairs]
        case ast.ClassDef(body=body):
            fields = [each for each in body if isinstance(each, ast.AnnAssign)]
            defaults = [(ast.unparse(field.target), field.value) for field in fields]
    for name, default in defaults:
        with contextlib.suppress(ValueError, TypeError):  # no literal, or one that may change
            value = ast.literal_eval(default) if default is not None else None
            if value not in PLAIN_DEFAULTS and name not in OTHER_MEANINGS:
                yield name, value


def repeated_defaults(sources: Mapping[str, str]) -> dict[tuple[str, object], list[str]]:
    """Return the defaults that more than one function or class writes, with these."""
    owners: dict[tuple[str, object], list[str]] = {}
    for file, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            for default in literal_defaults(node):
                owners.setdefault(default, []).append(f"{file}: {node.name}")
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


def stored_names(node: ast.AST) -> list[str]:
    """Return the names that a node introduces."""
    match node:
        case ast.FunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.arg():
            return [node.arg]
        case ast.Name(ctx=ast.Store()):
            return [node.id]
        case ast.Attribute(ctx=ast.Store()):
            return [node.attr]
    return []


def test_names_and_docstrings_are_plain():
    wrong = []
    for file in sorted(file for folder in PLAIN for file in folder.rglob("*.py")):
        wrong += [f"{file.name}" for word in file.stem.split("_") if word in NO_NAMES]
        for node in ast.walk(ast.parse(file.read_text())):
            for name in stored_names(node):
                wrong += [
                    f"{file.name}: {name}" for word in name.split("_") if word.lower() in NO_NAMES
                ]
            match node:
                case ast.Expr(ast.Constant(str(text))) if text.lstrip().startswith(NO_OPENINGS):
                    wrong.append(f"{file.name}: {text.partition(chr(10))[0]}")
    assert not wrong
