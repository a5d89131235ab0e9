"""Tables for people."""

from collections.abc import Sequence
from typing import Any

WIDE = 300


def print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table: the first column is names, the others are numbers, floats with four digits."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(f"{v:.4f}" if isinstance(v, float) else str(v) for v in row))
    console = Console()
    # A pipe or a file has no width of its own: nothing is cut there.
    console.print(table, width=None if console.is_terminal else WIDE)
