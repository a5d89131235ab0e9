"""The sources, read and not run: markup of docstrings, no circular imports, typed calls."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import jdml
from jdml.losses import assignment, comparison, potential

PACKAGE = Path(jdml.__file__).parent

# Markup of docstrings: code stands in double backticks; a command's help, which is shown as it is, has none.

# In single backticks, neither a role's nor a link's.
SINGLE = re.compile(r"(?<![`:\\\w])`[^`]+`(?![`_])")


def wrong_markup(source: str) -> list[str]:
    """Return what stands in single backticks in a docstring, as ``line: what``."""
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


# No circles: a file of `jdml/` never needs, through others, what needs it, wherever the import stands.


def import_graph(package: Path) -> dict[str, set[str]]:
    """The files that each file imports: at the top, inside functions, for type checkers alone."""
    files = {name_of(path, package): path for path in sorted(package.rglob("*.py"))}
    return {name: set(imported(path, name, files)) - {name} for name, path in files.items()}


def name_of(path: Path, package: Path) -> str:
    """A file's module; of a package's own file the package."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, name: str, files: Mapping[str, Path]) -> Iterator[str]:
    """The files that a file imports from; a name that is no file is one of its package's own file."""
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
    """The sets of files each of which leads to each of the others."""
    reached = {start: reachable(graph, start) for start in graph}
    together = {frozenset(b for b in found if a in reached[b]) for a, found in reached.items()}
    return together - {frozenset()}


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Where the imports of a file lead, itself only if they lead back."""
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph[name]
    return found


def test_the_imports_of_files_make_no_circle():
    assert circles(import_graph(PACKAGE)) == set()


def test_a_circle_is_caught_wherever_its_imports_stand(tmp_path):
    package = tmp_path / "jdml"
    for name, code in {
        "__init__.py": "",
        "ops/__init__.py": "from jdml.ops.ranks import sort",
        "ops/ranks.py": "def sort():\n    from ..losses import pairs",
        "losses/__init__.py": "",
        "losses/pairs.py": "if TYPE_CHECKING:\n    from jdml import memory\nimport jdml.losses.terms",
        "losses/terms.py": "from jdml.losses import pairs as p\nfrom . import VERSION",
        "memory.py": "from jdml.ops import mean",
        "data.py": "from jdml.memory import push\nfrom jdml.ops.ranks import sort",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(code)
    names = ("ops", "ops.ranks", "losses.pairs", "losses.terms", "memory")
    assert circles(import_graph(package)) == {frozenset(f"jdml.{name}" for name in names)}


# What an editor and a type checker see of losses: the options that they hand on. Of calls: `tests/typing`.

TYPED = {
    comparison.compare: comparison.CompareOptions,
    assignment.assign: assignment.AssignOptions,
    potential.charge: potential.ChargeOptions,
}


@pytest.mark.parametrize("function", TYPED, ids=lambda function: function.__name__)
def test_typed_options_are_the_keywords_of_their_function(function):
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
def test_a_loss_is_typed_by_the_options_that_it_spells_out(name):
    loss = getattr(jdml.losses, name)
    written = inspect.signature(loss.__wrapped__).parameters
    options = {p.annotation for p in written.values() if p.kind is p.VAR_KEYWORD}
    handed_on = set(inspect.signature(loss).parameters) - set(written)
    assert handed_on == {key for option in options for key in get_args(option)[0].__annotations__}
