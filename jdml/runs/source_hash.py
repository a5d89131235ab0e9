"""A function as its author wrote it, in words that are the same under every version of Python."""

import ast
import functools
import linecache
import types
import warnings
from collections.abc import Iterator
from typing import NamedTuple

UNSEEN = ("annotation", "ctx", "kind", "returns", "type_comment", "type_params")
"""Fields of a syntax tree that change nothing in what a function computes."""


class Written(NamedTuple):
    """What a function does, apart from the values that it finds.

    Attributes:
        words: its arguments and statements, or its byte code where no source tells them.
        names: what it may read from its module.
    """

    words: tuple[str, ...]
    names: tuple[str, ...]


def written(function: types.FunctionType) -> Written:
    """Read a function: its syntax without layout, comments, docstrings and annotations.

    Args:
        function: with source or without.

    Returns:
        Words and names. A function without source, or whose file was changed since it was imported, counts by its byte
        code, which another minor version of Python has otherwise.

    Example:
        >>> one, two, other = lambda x: x + 1, lambda x: (x+1), lambda x: x - 1
        >>> written(one) == written(two), written(one) == written(other)
        (True, False)
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    node = _node(code, source)
    instructions = _instructions(code)
    if node is None:
        return instructions
    body = node.body if isinstance(node.body, list) else [node.body]
    seen = [part for part in (node.args, *body) if not _is_text(part)]
    named = {n.id for part in seen for n in _walk(part) if isinstance(n, ast.Name)}
    names = tuple(name for name in instructions.names if name in named)  # no local ones
    return Written(tuple(word for part in seen for word in _words(part)), names)


Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _node(code: types.CodeType, source: str) -> Node | None:
    """Where in its file a function stands, if the file still says what was compiled."""
    parsed = _parsed(source, code.co_filename)
    if parsed is None:
        return None
    functions, compiled = parsed
    if not any(
        other.co_firstlineno == code.co_firstlineno and _instructions(other) == _instructions(code)
        for other in compiled
    ):
        return None
    candidates = [n for n in functions if _begins(n, code)]
    if len(candidates) == 1:
        return candidates[0]
    # Lambdas in one line: the innermost that has all instructions.
    candidates = [n for n in candidates if _has(n, code)]
    return max(candidates, key=lambda n: (n.lineno, n.col_offset), default=None)


@functools.lru_cache(maxsize=16)
def _parsed(source: str, file: str) -> tuple[list[Node], list[types.CodeType]] | None:
    """All functions of a file, as written and as compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were given at import
        try:
            functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Node)]
            return functions, list(_inside(compile(source, file, "exec", dont_inherit=True)))
        except (SyntaxError, ValueError):  # a cell that awaits, a file that is no longer Python
            return None


def _begins(node: Node, code: types.CodeType) -> bool:
    """Whether a function of this name begins in this line, with its decorators."""
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min(part.lineno for part in (node, *node.decorator_list))
    return node.name == code.co_name and first == code.co_firstlineno


def _has(node: Node, code: types.CodeType) -> bool:
    """Whether the body of a lambda is where all instructions come from."""
    body = node.body
    assert isinstance(body, ast.expr)
    assert body.end_lineno is not None
    assert body.end_col_offset is not None
    first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    places = [
        first <= (line, column) and (end, end_column) <= last
        for line, end, column, end_column in code.co_positions()
        if line and end and column is not None and end_column
    ]
    return bool(places) and all(places)


def _words(node: ast.AST) -> Iterator[str]:
    """A syntax tree in words; empty fields, which come and go between versions, are none."""
    yield type(node).__name__
    for field, parts in _fields(node):
        yield field
        for part in parts:
            yield from _words(part) if isinstance(part, ast.AST) else [repr(part)]
    yield "end"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for _, parts in _fields(node):
        for part in parts:
            if isinstance(part, ast.AST):
                yield from _walk(part)


def _fields(node: ast.AST) -> Iterator[tuple[str, list[object]]]:
    for field, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [] if value is None else [value]
        parts = [part for part in parts if not _is_text(part)]
        if isinstance(node, ast.JoinedStr):
            parts = _joined(parts)
        if parts and field not in UNSEEN:
            yield field, parts


def _joined(parts: list[ast.AST]) -> list[object]:
    """The parts of an f-string, whose text Python 3.12 cuts at doubled braces and ends with nothing."""
    joined: list[object] = []
    for part in parts:
        text = part.value if isinstance(part, ast.Constant) else None
        if isinstance(text, str) and joined and isinstance(joined[-1], str):
            joined[-1] += text
        elif text != "":
            joined.append(part if text is None else text)
    return joined


def _is_text(node: object) -> bool:
    """Whether a statement is a constant alone: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inside(constant)


def _instructions(code: types.CodeType) -> Written:
    """Instructions and constants of a code object and of those within it, and the names that they use."""
    words: list[str] = []
    names: set[str] = set()
    for part in _inside(code):
        words += [part.co_code.hex(), *map(_constant, part.co_consts), *part.co_names]
        names.update(part.co_names)
    return Written(tuple(words), tuple(sorted(names)))


def _constant(value: object) -> str:
    """A constant as text; a set's in one order in every process."""
    if isinstance(value, types.CodeType):
        return value.co_name
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)
