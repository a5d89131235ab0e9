"""The tables of the studies' pages are what the commands beside them print of the runs that are kept."""

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.options import Kept

pytestmark = pytest.mark.slow

STUDIES = (
    "omniglot.main",
    "cub_crops.main",
    "cub_crops.finetuned",
    "eps_omniglot.main",
    "recommended.main",
    "ideas.main",
)


def rows_of(text: str) -> dict[tuple[str, ...], str]:
    """The rows that have figures with a spread or an interval, by these."""
    cells = {line: [cell.strip() for cell in line.split("|")] for line in text.splitlines()}
    figures = {
        tuple(cell for cell in row if re.search(r"\d ± \d|\d\]", cell)): line
        for line, row in cells.items()
        if line.startswith("|")
    }
    return {row: line for row, line in figures.items() if row}


@pytest.mark.parametrize("study", STUDIES)
def test_every_row_that_a_command_prints_stands_on_its_page(
    study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"experiments.{study}")
    made: dict[str, Any] = {"table": True, "out": tmp_path}
    asked = {field.name for field in dataclasses.fields(module.Settings)}
    kept = asked & ({"table"} if issubclass(module.Settings, Kept) else {*made})
    settings = module.Settings(**{name: made[name] for name in kept})
    printed = rows_of(module.main(settings) or capsys.readouterr().out)
    page = (Path(module.__file__).parent / "README.md").read_text()
    assert len(printed) >= 8
    assert not [line for row, line in printed.items() if row not in rows_of(page)]
