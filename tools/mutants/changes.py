"""Small faults that can be put into a source file: each a span of its text, and what stands there instead."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path

COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATIONS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# The other of two functions that are taken for one another.
OTHER = {
    a: b
    for pair in (
        ("min", "max"),
        ("minimum", "maximum"),
        ("argmin", "argmax"),
        ("nanmin", "nanmax"),
        ("sum", "mean"),
        ("any", "all"),
        ("zeros", "ones"),
        ("zeros_like", "ones_like"),
        ("floor", "ceil"),
        ("sin", "cos"),
        ("logical_and", "logical_or"),
        ("pmax", "pmin"),
        ("psum", "pmean"),
    )
    for a, b in (pair, pair[::-1])
}
# Keywords that only guard against what cannot be, or say where a warning points.
EXEMPT_KEYWORDS = {"strict", "stacklevel"}


@dataclass(frozen=True)
class Change:
    """One fault: in ``file``, within ``where``, ``before`` is replaced by ``after``."""

    room: str
    file: str
    where: str
    kind: str
    statement: str
    before: str
    after: str
    count: int  # how many before it are alike in all of the above
    line: int
    # The lines of the statement that holds it, and of its function; the span in the file, in bytes.
    statement_lines: tuple[int, int]
    function_lines: tuple[int, int] | None
    span: tuple[int, int]

    @property
    def key(self) -> tuple:
        """Return the key that identifies it after other lines of the file changed."""
        return self.file, self.where, self.kind, self.statement, self.before, self.after, self.count

    def record(self) -> dict:
        """Return its record."""
        lines = ("statement_lines", "function_lines", "span")
        return {name: value for name, value in asdict(self).items() if name not in lines}

    def apply(self, source: bytes) -> bytes:
        """The file with this fault."""
        return source[: self.span[0]] + self.after.encode() + source[self.span[1] :]


@dataclass(frozen=True)
class Inside:
    """The place of a node."""

    where: str = ""
    function: ast.FunctionDef | None = None
    statement: ast.stmt | None = None
    last: bool = False  # the function's last statement


NOT_CODE = ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr
NOT_CODE_FIELDS = {"annotation", "returns", "decorator_list", "exc", "cause", "bases"}


def number(value: float) -> Iterator[tuple[str, str]]:
    yield "constant + 1", repr(value + 1)
    if value:
        yield "constant to 0", "0" if isinstance(value, int) else "0.0"
        yield "constant negated", f"({-value!r})"


def in_call(call: ast.Call) -> Iterator[tuple[str, str]]:
    """Yield faulty versions of a call."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    text = ast.unparse
    if name in OTHER:
        new = ast.parse(text(call), mode="eval").body
        if isinstance(new.func, ast.Attribute):
            new.func.attr = OTHER[name]
        else:
            new.func.id = OTHER[name]
        yield f"{name} to {OTHER[name]}", text(new)
    if name == "where" and len(call.args) == 3:
        a, b, c = map(text, call.args)
        yield "where's branches swapped", f"{text(function)}({a}, {c}, {b})"
    if name == "stop_gradient" and call.args:
        yield "stop_gradient dropped", f"({text(call.args[0])})"
    if name == "astype" and isinstance(function, ast.Attribute):
        yield "astype dropped", f"({text(function.value)})"
    for i, word in enumerate(call.keywords):
        if word.arg and word.arg not in EXEMPT_KEYWORDS:
            new = ast.parse(text(call), mode="eval").body
            del new.keywords[i]
            yield f"{word.arg}= dropped", text(new)


def in_expression(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield faulty versions of an expression: kind and text."""
    text = ast.unparse
    match node:
        case ast.Compare(ops=[op]):
            other = COMPARISONS[type(op)]
            yield f"to {other}", f"({text(node.left)} {other} {text(node.comparators[0])})"
        case ast.BinOp(op=op) if type(op) in OPERATIONS:
            sides = node.left, node.right
            words = any(
                isinstance(side, ast.JoinedStr)
                or isinstance(side, ast.Constant)
                and (side.value is None or isinstance(side.value, str))
                for side in sides
            )
            if not words:
                other = OPERATIONS[type(op)]()
                yield (
                    f"to {type(other).__name__}",
                    f"({text(ast.BinOp(sides[0], other, sides[1]))})",
                )
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield f"{type(node.op).__name__} dropped", f"({text(operand)})"
        case ast.Constant(value=bool() as value):
            yield f"to {not value}", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield from number(value)
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"to {type(other).__name__.lower()}", f"({text(ast.BoolOp(other, node.values))})"
        case ast.IfExp():
            yield "branches swapped", f"({text(ast.IfExp(node.test, node.orelse, node.body))})"
        case ast.Call():
            yield from in_call(node)


def in_statement(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield faulty versions of a statement."""
    match node:
        case ast.If(orelse=[]):
            yield "guard dropped" if isinstance(node.body[-1], ast.Raise) else "if dropped", "pass"
        case ast.Raise():
            yield "raise dropped", "pass"
        case ast.Expr(value=ast.Call()):
            yield "call dropped", "pass"
        case ast.AugAssign(op=op) if type(op) in OPERATIONS and not isinstance(
            node.value, ast.JoinedStr
        ):
            other = ast.AugAssign(node.target, OPERATIONS[type(op)](), node.value)
            yield f"to {type(other.op).__name__} =", ast.unparse(other)
        case ast.Continue():
            yield "continue to break", "break"
        case ast.Break():
            yield "break dropped", "pass"


class Finder:
    """Walks a file, and keeps what could be changed in it."""

    def __init__(self, room: str, file: str, source: bytes) -> None:
        self.room, self.file, self.lines = room, file, source.splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, self.lines))]
        self.results: list[Change] = []
        self.alike: Counter[tuple] = Counter()

    def add(self, node: ast.AST, kind: str, after: str, inside: Inside) -> None:
        """Keep one change of ``node``."""
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        before = b"".join(self.lines)[begin:end].decode()
        first = self.lines[inside.statement.lineno - 1].decode().strip()
        key = self.file, inside.where, kind, first, before, after
        function = inside.function
        change = Change(
            self.room,
            *key,
            count=self.alike[key],
            line=node.lineno,
            statement_lines=own_lines(inside.statement),
            function_lines=(function.lineno, function.end_lineno) if function else None,
            span=(begin, end),
        )
        self.alike[key] += 1
        self.results.append(change)

    def visit(self, node: ast.AST, inside: Inside) -> None:
        """Look at a node and below it: not at annotations, assertions, messages, exports."""
        if isinstance(node, NOT_CODE) or is_for_readers(node):
            return
        if isinstance(node, ast.stmt):
            inside = replace(inside, statement=node)
            for kind, after in in_statement(node):
                self.add(node, kind, after, inside)
            if isinstance(node, ast.Return) and not inside.last:
                self.add(node, "return dropped", "pass", inside)
        elif isinstance(node, ast.expr):
            for kind, after in in_expression(node):
                self.add(node, kind, after, inside)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = replace(inside, where=f"{inside.where}.{node.name}".strip("."))
        if isinstance(node, ast.FunctionDef):
            inside = replace(inside, function=node)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in NOT_CODE_FIELDS:
                    last = isinstance(node, ast.FunctionDef) and child is node.body[-1]
                    self.visit(child, replace(inside, last=last))


def is_for_readers(node: ast.AST) -> bool:
    """Whether a statement says something to readers or to a type checker alone."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def own_lines(statement: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, without those of the statements within it."""
    body = getattr(statement, "body", None)
    if not body:
        return statement.lineno, statement.end_lineno
    return statement.lineno, max(statement.lineno, body[0].lineno - 1)


@cache
def changes(root: Path, room: str, file: str) -> list[Change]:
    """All changes of a file, in its order."""
    source = (root / file).read_bytes()
    finder = Finder(room, file, source)
    finder.visit(ast.parse(source), Inside())
    return finder.results


def code_lines(root: Path, file: str) -> int:
    """How many statements a file holds, without those for readers."""
    nodes = ast.walk(ast.parse((root / file).read_bytes()))
    return len({n.lineno for n in nodes if isinstance(n, ast.stmt) and not is_for_readers(n)})
