"""The tables of the studies' README.md and RECORD.md equal those that their commands print of the recorded runs."""

import dataclasses
import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments import results
from experiments.study import RecordOptions

ALL_OF_DIGITS = ("methods", "noise", "foils", "epoch", "sweeps")
STUDIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("omniglot.main", {}),
    ("cub_crops.main", {}),
    ("cub_crops.finetuned", {}),
    ("eps_omniglot.main", {}),
    ("eps_mnist.main", {}),
    ("letters.main", {}),
    ("letters.factors", {}),
    ("letters.reasons", {}),
    ("recommended.main", {}),
    ("recommended.whole", {}),
    ("ideas.main", {}),
    ("ideas_on.main", {}),
    ("ccp_mnist.main", {"parts": ("methods", "batch")}),
    ("ccp_mnist.main", {"data": "mnist"}),
    ("mpa.main", {"data": "digits"}),
    ("mpa.main", {"data": "mnist"}),
    ("mpa.main", {"data": "omniglot"}),
    ("nir.actnorm", {}),
    ("nir.decide", {}),
    ("nir.main", {"parts": ("methods", "ablations")}),
    ("nir.main", {"parts": ("methods", "ablations"), "data": "omniglot"}),
    ("nir.main", {"data": "crops"}),
    ("potential_fields.main", {"parts": ALL_OF_DIGITS}),
    ("potential_fields.main", {"parts": ("methods", "noise"), "data": "mnist"}),
    ("potential_fields.main", {"parts": ("methods", "noise"), "data": "omniglot"}),
    ("pfml_needs.main", {"task": "letters", "parts": ("few",)}),
    ("ccp_letters.main", {}),
    ("ccp_mnist.branch", {}),
)
ABRIDGED = {"ccp_letters.main": 1, "ccp_mnist.branch": 1, "letters.main": 5, "letters.factors": 13}
"""Tables of which the page shows a part or none."""


def tables_of(text: str) -> list[str]:
    """Return the tables, without the spaces that align them."""
    lines = [re.sub(r" +|-{3,}", " ", line) if line[:1] == "|" else "" for line in text.split("\n")]
    return [own.strip("\n") for own in re.split(r"\n{2,}", "\n".join(lines)) if own.strip()]


def pages_of(folder: Path) -> str:
    """Return the text of a study's pages."""
    return "\n\n".join(page.read_text() for page in sorted(folder.glob("R*.md")))


@pytest.mark.slow  # every study
@pytest.mark.parametrize(("study", "own"), STUDIES, ids=lambda value: str(value))
def test_page_has_every_table_that_the_command_prints(
    study: str, own: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"experiments.{study}")
    made = module.Settings(**own)
    asked = {field.name for field in dataclasses.fields(made)}
    out = getattr(made, "out", None)
    changes: dict[str, Any] = {"table": True}
    if out is not None and out.suffix == ".jsonl":  # figures are drawn next to it
        changes["out"] = Path(shutil.copy(out, tmp_path))
    elif not isinstance(made, RecordOptions):
        changes["out"] = tmp_path
    made = dataclasses.replace(made, **{name: changes[name] for name in asked & {*changes}})
    printed = tables_of(module.main(made) or capsys.readouterr().out)
    page = tables_of(pages_of(Path(module.__file__).parent))
    assert printed
    assert len([table for table in printed if table not in page]) == ABRIDGED.get(study, 0)


def test_overview_page_has_the_table_of_all_studies() -> None:
    page = tables_of(pages_of(results.HERE))
    assert not [table for table in tables_of(results.table()) if table not in page]


# The page of ideas has the tables that its command prints.
WITH_RECORD = sorted({page.parent.name for page in results.HERE.glob("*/RECORD.md")} - {"ideas"})


@pytest.mark.parametrize("study", WITH_RECORD)
def test_numbers_of_a_summary_table_are_in_the_record(study: str) -> None:
    folder = results.HERE / study
    text = (folder / "RECORD.md").read_text()
    rows = re.findall(r"^\|.*", (folder / "README.md").read_text(), re.MULTILINE)
    numbers = re.findall(r"\d+\.\d+(?: ± \d+\.\d+| \[[^\]]+\])?", "\n".join(rows))
    assert not [number for number in numbers if number not in text]
