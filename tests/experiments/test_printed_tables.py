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
    "letters.reasons",
    "recommended.main",
    "recommended.whole",
    "ideas.main",
)


def tables_of(text: str) -> list[str]:
    """The tables, without the spaces that align them."""
    lines = [re.sub(r" +|-{3,}", " ", line) if line[:1] == "|" else "" for line in text.split("\n")]
    return [own.strip("\n") for own in re.split(r"\n{2,}", "\n".join(lines)) if own.strip()]


@pytest.mark.parametrize("study", STUDIES)
def test_every_table_that_a_command_prints_stands_on_its_page(
    study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"experiments.{study}")
    made: dict[str, Any] = {"table": True, "out": tmp_path}
    asked = {field.name for field in dataclasses.fields(module.Settings)}
    kept = asked & ({"table"} if issubclass(module.Settings, Kept) else {*made})
    settings = module.Settings(**{name: made[name] for name in kept})
    printed = tables_of(module.main(settings) or capsys.readouterr().out)
    page = tables_of((Path(module.__file__).parent / "README.md").read_text())
    assert len(printed) >= 2
    assert not [table for table in printed if table not in page]
