"""The tables of the studies' pages are what the commands beside them print of the runs that are kept."""

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.options import Kept

pytestmark = pytest.mark.slow

ALL_OF_DIGITS = ("methods", "noise", "foils", "epoch", "sweeps")
STUDIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("omniglot.main", {}),
    ("cub_crops.main", {}),
    ("cub_crops.finetuned", {}),
    ("eps_omniglot.main", {}),
    ("eps_mnist.main", {}),
    ("letters.reasons", {}),
    ("recommended.main", {}),
    ("recommended.whole", {}),
    ("ideas.main", {}),
    ("ccp_mnist.main", {"parts": ("methods", "batch")}),
    ("ccp_mnist.main", {"data": "mnist"}),
    ("mpa.main", {"data": "digits"}),
    ("mpa.main", {"data": "mnist"}),
    ("mpa.main", {"data": "omniglot"}),
    ("nir.main", {"parts": ("methods", "ablations")}),
    ("nir.main", {"parts": ("methods", "ablations"), "data": "omniglot"}),
    ("nir.main", {"data": "crops"}),
    ("potential_fields.main", {"parts": ALL_OF_DIGITS}),
    ("potential_fields.main", {"parts": ("methods", "noise"), "data": "mnist"}),
    ("potential_fields.main", {"parts": ("methods", "noise"), "data": "omniglot"}),
    ("pfml_needs.main", {"task": "letters", "parts": ("few",)}),
)
DIFFERENCES = tuple(
    {"task": "letters", "parts": ("few",), "at": at}
    for at in (("alpha=1.0",), ("alpha=1.0", "proxies=3"))
)
"""Of these pages show what factors add, and the settings once."""


def tables_of(text: str) -> list[str]:
    """The tables, without the spaces that align them."""
    lines = [re.sub(r" +|-{3,}", " ", line) if line[:1] == "|" else "" for line in text.split("\n")]
    return [own.strip("\n") for own in re.split(r"\n{2,}", "\n".join(lines)) if own.strip()]


@pytest.mark.parametrize(("study", "own"), STUDIES, ids=lambda value: str(value))
def test_every_table_that_a_command_prints_stands_on_its_page(
    study: str, own: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"experiments.{study}")
    made: dict[str, Any] = {"table": True, "out": tmp_path}
    asked = {field.name for field in dataclasses.fields(module.Settings)}
    runs_are_there = issubclass(module.Settings, Kept) or study.startswith("pfml_needs")
    kept = asked & ({"table"} if runs_are_there else {*made})
    settings = module.Settings(**{name: made[name] for name in kept}, **own)
    printed = tables_of(module.main(settings) or capsys.readouterr().out)
    page = tables_of((Path(module.__file__).parent / "README.md").read_text())
    assert len(printed) >= 2
    assert not [table for table in printed if table not in page]


@pytest.mark.parametrize("own", DIFFERENCES, ids=lambda own: " ".join(own["at"]))
def test_what_factors_add_where_others_are_fixed_stands_on_its_page(own: dict[str, Any]) -> None:
    from experiments.pfml_needs import main as study

    differences, settings = tables_of(study.main(study.Settings(table=True, **own)))
    page = (Path(study.__file__).parent / "README.md").read_text()
    assert differences in tables_of(page)
    assert len(settings.splitlines()) == 2 + 16 // 2 ** len(own["at"])
    with pytest.raises(SystemExit, match="--at alpha=3: no run is there; they are at alpha=1.0"):
        study.main(study.Settings(table=True, **{**own, "at": ("alpha=3",)}))
