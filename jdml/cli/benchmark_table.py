"""Our rows of ``jdml benchmark`` and the paper's beside them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from jdml.recipes.paper_comparison import PaperRow

Rows = dict[str, dict[str, float]]


def over(runs: Sequence[Rows], statistic: Callable[[Any], Any]) -> Rows:
    """A statistic over seeds of each row's metrics.

    Args:
        runs: the rows of each seed.
        statistic: of the values of all seeds.

    Returns:
        The rows; those of one seed as they are.
    """
    if len(runs) == 1:
        return runs[0]
    return {
        row: {name: float(statistic([rows[row][name] for rows in runs])) for name in values}
        for row, values in runs[0].items()
    }


def show(
    title: str,
    runs: Sequence[Rows],
    paper: Sequence[PaperRow] = (),
    below: Sequence[str] = (),
    called: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print our rows and the papers', in percent.

    Args:
        title: of the table.
        runs: ours, of each seed.
        paper: the papers' rows.
        below: lines under the table.
        called: what rows are called in the table, where it is not their name.
    """
    from jdml.cli.terminal import print_table

    means, spreads = over(runs, np.mean), over(runs, partial(np.std, ddof=1))
    names = [name for name in next(iter(means.values())) if name not in ("queries", "step")]

    def shown(row: str, name: str) -> str:
        mean = f"{100 * means[row][name]:.1f}"
        return mean if len(runs) == 1 else f"{mean} ± {100 * spreads[row][name]:.1f}"

    table: list[list[Any]] = [
        [called.get(row, row), *(shown(row, name) for name in names)] for row in means
    ]
    for name, values in (row for each in paper for row in each.rows.items()):
        table.append([name, *(f"{values[n]:.1f}" if n in values else "–" for n in names)])
    print_table(title, ["%", *names], table)
    for line in below:
        print(line)
