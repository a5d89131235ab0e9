"""Tables as commands print them."""

from collections.abc import Sequence
from typing import Any

WIDE = 300


def print_table(
    title: str | None, columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int = WIDE
) -> None:
    """Print a table of a column of names and columns of values; one that is too wide for the screen on its side."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    if not console.is_terminal or console.width > width:
        console = Console(width=width)
    table = _table(title, columns, rows)
    needed = Measurement.get(console, console.options.update(max_width=WIDE), table).maximum
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
        table.add_column(
            Text(str(column)), justify="right" if i else "left", no_wrap=i > 0, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(f"{v:.4f}" if isinstance(v, float) else str(v)) for v in row))
    return table
