"""One dialect for docstrings: code in double backticks, entries in lower case, no markup in a command's help."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import jdml

PACKAGE = Path(jdml.__file__).parent
# In single backticks, neither a role's nor a link's.
SINGLE = re.compile(r"(?<![`:\\\w])`[^`]+`(?![`_])")
ENTRY = re.compile(r"(?:\*{0,2}[\w.]+(?:, )?)+(?: \([^)]*\))?: +(\S+(?: \S\S)?)")
# An ordinary word, or an article before one; sizes (`B, C`) and names stay as they are.
CAPITAL = re.compile(
    r"(?!None|True|False|Adam|Markov)[A-Z][a-z]+(?:-[a-z]+)*(?:[ ,.;:']|$)|A (?:[A-Za-z]{2}|`)"
)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """The line and text of each docstring, those of attributes too, and whether a command's help shows it."""
    for node in ast.walk(tree):
        body = node.body if isinstance(getattr(node, "body", None), list) else []
        for statement in body:
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    shown = any(getattr(part, "name", "") == "execute" for part in body)
                    yield statement.lineno, text, shown


def otherwise(source: str) -> list[str]:
    """What of a file is in another dialect, as ``line: what``."""
    wrong = []
    for line, text, shown in docstrings(ast.parse(source)):
        first, _, rest = text.partition("\n")
        text = "\n".join([first, textwrap.dedent(rest)])
        prose = re.sub(r"^ *>>>(?:.*\n?)+?(?:\n|\Z)", "\n", text, flags=re.M)
        marks = r"`" if shown else SINGLE
        wrong += [f"{line}: {mark[0]}" for mark in re.finditer(marks, prose)]
        for section in re.findall(r"^(?:Args|Attributes|Raises):\n((?: .*\n?)+)", prose, re.M):
            entries = [ENTRY.match(entry) for entry in re.findall(r"^ {4}(\S.*)", section, re.M)]
            wrong += [
                f"{line}: {entry[0]}" for entry in entries if entry and CAPITAL.match(entry[1])
            ]
    return wrong


@pytest.mark.parametrize("room", sorted(path.name for path in PACKAGE.iterdir()))
def test_docstrings_are_of_one_dialect(room):
    files = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))
    assert [f"{file}:{what}" for file in files for what in otherwise(file.read_text())] == []


@pytest.mark.parametrize(
    ("docstring", "what"),
    [
        ("Of `x`.", "1: `x`"),
        ("Of `a`b`.", "1: `a`"),
        ("Line.\n\n    Args:\n        x, y: The numbers.\n    ", "1: x, y: The nu"),
        ("Line.\n\n    Raises:\n        ValueError: A wrong one.\n    ", "1: ValueError: A wr"),
    ],
)
def test_another_dialect_is_caught(docstring, what):
    assert otherwise(f'"""{docstring}"""') == [what]


def test_markup_in_a_command_is_caught():
    command = 'class C:\n    """Of ``x``."""\n    def execute(self): ...'
    assert otherwise(command)


@pytest.mark.parametrize(
    "docstring",
    [
        "Of ``x``, :func:`fit` and `a page <https://jax.dev>`_.",
        "Line.\n\n    Args:\n        x: T, D or K ≥ 1.\n        **rest: None, or Adam's ``b2``.\n    ",
        "Line.\n\n    Returns:\n        The number.\n\n    Example:\n        >>> '`x`'\n        '`x`'\n    ",
    ],
)
def test_the_dialect_is_not(docstring):
    assert otherwise(f'"""{docstring}"""') == []
