"""The tests themselves: they pin no sentences, and patch nothing inside the package without a reason."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MOST_WORDS = 6


def pinned(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of patterns (``match=``) of more words than an argument's name needs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            words = re.findall(r"[^\W\d_]{2,}", " ".join(map(str, texts)))
            if len(words) > MOST_WORDS:
                yield node.value.lineno


def patched(tree: ast.Module, lines: list[str]) -> Iterator[int]:
    """Yield the lines that replace something of the package, unless a comment there or above says why."""
    own = {"jdml", "experiments"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in own:
            own |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            own |= {a.asname for a in node.names if a.asname and a.name.partition(".")[0] in own}
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr="setattr" | "setitem" | "object"), [target, *_]):
                name = ast.unparse(target).strip("'\"").partition(".")[0]
                commented = any("#" in line for line in lines[node.lineno - 2 : node.end_lineno])
                if name in own and not commented:
                    yield node.lineno


@pytest.mark.parametrize("folder", sorted({path.parent for path in TESTS.rglob("*.py")}), ids=str)
def test_tests_pin_no_sentences_and_patch_nothing_without_a_reason(folder):
    for path in sorted(folder.glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        assert list(pinned(tree)) == [], f"{path}: match= names an argument, it quotes no sentence"
        assert list(patched(tree, text.splitlines())) == [], f"{path}: use public names"


def test_a_pinned_sentence_and_a_patch_are_found():
    code = """
from jdml.data import rows
import jdml.metrics as m
with pytest.raises(ValueError, match="labels must have one entry for each row"):
    monkeypatch.setattr(rows, "MANY", 5)
with pytest.raises(ValueError, match=r"^labels\\\\b"):
    monkeypatch.setattr("jdml.data.rows.MANY", 5)  # nothing else reaches it
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setitem(m.TABLE, "a", 1)
"""
    tree = ast.parse(code)
    assert list(pinned(tree)) == [4]
    assert list(patched(tree, code.splitlines())) == [5, 9]
