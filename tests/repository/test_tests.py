"""Rules for tests: no pinned sentences, and no patch inside the package without a reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MOST_WORDS = 6


def pinned(tree: ast.Module) -> list[int]:
    """Return the lines of patterns (``match=``, also in tables of parameters) with more than ``MOST_WORDS`` words."""
    nodes = list(ast.walk(tree))
    patterns = [n.value for n in nodes if isinstance(n, ast.keyword) and n.arg == "match"]
    names = {n.id for part in patterns for n in ast.walk(part) if isinstance(n, ast.Name)}
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(attr="parametrize"), [columns, ast.List(rows), *_]):
                columns = re.findall(r"\w+", ast.unparse(columns))
                for row in rows:
                    cells = row.args if isinstance(row, ast.Call) else getattr(row, "elts", [row])
                    pairs = zip(columns, cells, strict=False)
                    patterns += [cell for column, cell in pairs if column in names]
    return sorted(pattern.lineno for pattern in patterns if is_long(pattern))


def is_long(pattern: ast.expr) -> bool:
    """Return whether a pattern has too many words."""
    texts = [part.value for part in ast.walk(pattern) if isinstance(part, ast.Constant)]
    return len(re.findall(r"[^\W\d_]\w+", " ".join(map(str, texts)))) > MOST_WORDS


def patched(tree: ast.Module, lines: list[str]) -> Iterator[int]:
    """Yield the lines that patch the package without a comment on the line or above."""
    own = {"jdml", "experiments"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in own:
            own |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            own |= {a.asname for a in node.names if a.asname and a.name.partition(".")[0] in own}
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        match node:
            case ast.Call(ast.Attribute(attr=name), [target, *_]) if name in PATCHES:
                changed = [target]
            case ast.Assign(targets):
                changed = [part for part in targets if isinstance(part, ast.Attribute)]
        for target in changed:
            name = ast.unparse(target).strip("'\"").partition(".")[0]
            commented = any("#" in line for line in lines[node.lineno - 2 : node.end_lineno])
            if name in own and not commented:
                yield node.lineno


PATCHES = {"setattr", "setitem", "delattr", "delitem", "object"}


@pytest.mark.parametrize("folder", sorted({path.parent for path in TESTS.rglob("*.py")}), ids=str)
def test_no_pinned_sentences_and_no_patch_without_a_reason(folder):
    for path in sorted(folder.glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        assert pinned(tree) == [], f"{path}: match= names an argument, it quotes no sentence"
        assert list(patched(tree, text.splitlines())) == [], f"{path}: use public names"


def test_pinned_sentences_and_patches_are_found():
    code = """
from jdml.data import rows
import jdml.metrics as m
with pytest.raises(ValueError, match="labels must have one entry for each row"):
    monkeypatch.setattr(rows, "MANY", 5)
with pytest.raises(ValueError, match=r"^labels\\\\b"):
    monkeypatch.setattr("jdml.data.rows.MANY", 5)  # nothing else reaches it
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setitem(m.TABLE, "a", 1)
    rows.MANY = 5
    rows = own.MANY = m.MANY = 1
@pytest.mark.parametrize("name", ["labels", "labels must have one entry for each row"])
@pytest.mark.parametrize(("one", "name"), [pytest.param(3, "weights must be zero or more for each row")])
def test(one, name):
    with pytest.raises(ValueError, match=rf"^{name}"):
        f(one, "weights must be zero or more for each row")
"""
    tree = ast.parse(code)
    assert pinned(tree) == [4, 12, 13]
    assert sorted(patched(tree, code.splitlines())) == [5, 9, 10, 11]
