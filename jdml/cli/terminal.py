"""What commands print: tables, and the log's lines above a progress bar."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

WIDE = 300


def print_table(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    width: int = WIDE,
) -> None:
    """Print a table: the first column is names, never markup, the others are numbers, floats with four digits.

    A pipe or a file has no width of its own: nothing is cut there. What is too wide for a terminal stands on its side.
    """
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
    console.print(table)


def width_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """Return how wide a table is that nothing limits."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10 * WIDE)
    return Measurement.get(console, console.options, _table(None, columns, rows)).maximum


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


class _Lines(logging.Handler):
    """Prints messages above the progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(record.getMessage())


@contextlib.contextmanager
def log_lines(name: str) -> Iterator[None]:
    """Print what a logger reports above the progress bar."""
    logger, handler = logging.getLogger(name), _Lines(logging.INFO)
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
