"""Every notebook runs, in under a minute of an idle machine's time, and prints what is stored in it."""

import re
import resource
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store import HERE, NOTEBOOKS, execute, printed, tidy

NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?")
SECONDS = 120  # of both cores together


def assert_like(shown: str, found: str) -> None:
    """The same words; numbers within a fifth, or one: training differs a little from machine to machine."""
    assert NUMBER.sub("#", found) == NUMBER.sub("#", shown)
    for wanted, got in zip(NUMBER.findall(shown), NUMBER.findall(found), strict=True):
        wanted, got = (float(value.replace("−", "-")) for value in (wanted, got))
        assert abs(got - wanted) <= max(1.0, 0.2 * abs(wanted)), f"stored {shown}\nprinted {found}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_prints_what_is_stored(name):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    notebook = execute(name)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    stored = nbformat.read(HERE / f"{name}.ipynb", 4)
    assert_like(printed(stored), printed(notebook))
    pictures = [
        sum("image/png" in o.get("data", ()) for c in n.cells for o in c.get("outputs", ()))
        for n in (stored, notebook)
    ]
    assert pictures[0] == pictures[1] > 0
    assert after.ru_utime - before.ru_utime < SECONDS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_is_stored_is_free_of_noise(name):
    file = HERE / f"{name}.ipynb"
    notebook = nbformat.read(file, 4)
    assert nbformat.writes(tidy(notebook)) + "\n" == file.read_text()
    assert "0x7f" not in printed(notebook)
    assert file.stat().st_size < 600_000


def test_other_numbers_are_caught():
    assert_like("R@1 50.0 in 3 problems", "R@1 55.0 in 4 problems")
    for printed_instead in ("R@1 20.0 in 3 problems", "R@2 50.0 in 3 rounds", "R@1 50.0"):
        with pytest.raises(AssertionError):
            assert_like("R@1 50.0 in 3 problems", printed_instead)
