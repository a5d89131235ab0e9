"""The commands, one record each, and the tables that they print."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdml.registry import resolve


@dataclass(frozen=True)
class Command:
    """A command of ``jdml``."""

    name: str
    options: str
    help: str
    example: str
    computes: bool = True

    def read(self, words: Sequence[str]) -> Any:
        """Return its options as they are typed; unreadable words end the process."""
        from jdml.cli.options import read

        return read(resolve(self.options), words, f"jdml {self.name}")

    def recipe_options(self) -> dict[str, str]:
        """Return the option of each field of a recipe that has one, by the names that errors have for it."""
        from jdml.cli.options import fields_of, option_of

        names: dict[str, str] = {}
        for kind, name in fields_of(resolve(self.options)):
            if hasattr(kind, "to_json"):
                part = kind.__name__.removesuffix("Config").lower()
                for known in (part if name == "name" else name, f"{kind.__name__}.{name}"):
                    names[known] = option_of(kind, name)
        return names


COMMANDS: dict[str, Command] = {
    name: Command(name, **values)
    for name, values in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
"""Every command by its name, in the order of the help."""

WIDE = 300
"""Letters of the widest table."""
HELP = """usage: jdml {group}COMMAND [OPTIONS]

{summary}commands:
{commands}

examples:
{examples}

`jdml {group}COMMAND --help` explains the options of a command{more}."""
SUMMARY = (
    "Deep metric learning: train embeddings, use them, measure them, look at them, see a demo.\n\n"
)
MORE = """, `jdml --version` prints the version.

Compiled programs are cached, at most 1 GiB, in `jdml` of the user's cache folder: set JDML_CACHE to another folder or
to `off`"""


def overview(group: str = "") -> str:
    """Return the help of ``jdml``, or of the commands that begin with a word; empty if none does."""
    start = f"{group} " if group else ""
    commands = {name: command for name, command in COMMANDS.items() if name.startswith(start)}
    if not commands:
        return ""
    width = max(map(len, commands))
    return HELP.format(
        group=start,
        summary="" if group else SUMMARY,
        commands="\n".join(f"  {n:{width}}  {command.help}" for n, command in commands.items()),
        examples="\n".join(f"  {command.example}" for command in commands.values()),
        more="" if group else MORE,
    )


def print_table(
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int = WIDE
) -> None:
    """Print a table of a column of names and columns of values; one that is too wide for the screen on its side."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal or console.width > width:
        console = Console(width=width)
    table = _table(title, columns, rows)
    needed = console.measure(table, options=console.options.update(max_width=WIDE)).maximum
    if needed > console.width and len(rows) < len(columns):
        first, *others = zip(columns, *rows, strict=True)
        table = _table(title, first, others)
    elif needed > console.width:
        console = Console(width=needed)
    console.print(table)


def _table(title: str | None, columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title and Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    for i, column in enumerate(columns):
        side: Any = "right" if i else "left"
        table.add_column(Text(str(column)), justify=side, no_wrap=i > 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(f"{v:.4f}" if isinstance(v, float) else str(v)) for v in row))
    return table
