"""Every notebook runs on small digits, in under a minute of an idle machine's time, and prints what it did when stored.

What it shows is of MNIST, and of the same code: its cells print the same words.

Its first cell is tried alone, with a pip and an nvidia-smi that are made up.
"""

import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from quick import QUICK
from store import HERE, NOTEBOOKS, begin, execute, first_cell, printed, repository, tidy

NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?")
SECONDS = 120  # of both cores together
CACHE = {  # compiled programs are shared with the tests, as in tests/conftest.py
    "JAX_COMPILATION_CACHE_DIR": str(HERE.parent / "build" / "programs"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}


def words(printed_there: str) -> str:
    """Return printed text without the numbers."""
    return re.sub(" +", " ", NUMBER.sub("#", printed_there))


def assert_like(shown: str, output: str) -> None:
    """The same words; numbers within a fifth, or one: training differs a little from machine to machine."""
    assert words(output) == words(shown)
    for wanted, got in zip(NUMBER.findall(shown), NUMBER.findall(output), strict=True):
        wanted, got = (float(value.replace("−", "-")) for value in (wanted, got))
        assert abs(got - wanted) <= max(1.0, 0.2 * abs(wanted)), f"stored {shown}\nprinted {output}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_prints_what_it_did(name, monkeypatch):
    for variable, value in (QUICK | CACHE).items():
        monkeypatch.setenv(variable, value)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    notebook = execute(name, SMALL=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    stored = nbformat.read(HERE / f"{name}.ipynb", 4)
    assert_like(stored.metadata["small"], printed(notebook))
    pictures = [
        sum("image/png" in o.get("data", ()) for c in n.cells for o in c.get("outputs", ()))
        for n in (stored, notebook)
    ]
    assert pictures[0] == pictures[1] > 0
    assert after.ru_utime - before.ru_utime < SECONDS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_is_stored_is_of_mnist_and_of_these_cells(name):
    stored = nbformat.read(HERE / f"{name}.ipynb", 4)
    assert "of 28 by 28 pixels" in printed(stored)
    assert words(printed(stored)) == words(stored.metadata["small"])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_is_stored_is_free_of_noise(name):
    file = HERE / f"{name}.ipynb"
    notebook = nbformat.read(file, 4)
    assert nbformat.writes(tidy(notebook)) + "\n" == file.read_text()
    assert "0x7f" not in printed(notebook)
    assert file.stat().st_size < 300_000


def test_other_numbers_are_caught():
    assert_like("R@1 50.0 in 3 problems", "R@1 55.0 in 4 problems")
    for printed_instead in ("R@1 20.0 in 3 problems", "R@2 50.0 in 3 rounds", "R@1 50.0"):
        with pytest.raises(AssertionError):
            assert_like("R@1 50.0 in 3 problems", printed_instead)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_begins_with_the_one_cell_and_the_repositorys_address(name):
    text = (HERE / f"{name}.py").read_text()
    assert begin(name, text, repository()) == text, "run notebooks/store.py --start"
    there = begin(name, text, "https://github.com/someone/some")
    assert (
        f"colab.research.google.com/github/someone/some/blob/main/notebooks/{name}.ipynb" in there
    )
    assert '\nADDRESS = "git+https://github.com/someone/some"' in there
    elsewhere = begin(name, there, "https://codeberg.org/someone/some")
    assert "colab" not in elsewhere.split("# %%")[1]
    assert begin(name, elsewhere, repository()) == text


def test_the_first_cell_knows_the_oldest_jax_that_will_do():
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    oldest = re.search(r">= \[(\d+), (\d+)\]", first_cell("")).groups()
    assert f"jax>={'.'.join(oldest)}.0" in project["dependencies"]


ADDRESS = "https://example.org/jdml"
FAKE_PIP = """
import pathlib, shutil, sys

site = pathlib.Path(__file__).parent
(site / "asked").write_text("\\n".join(sys.argv[1:]))
if (site / "broken").exists():
    sys.exit("no network")
shutil.copytree(site.parent / "jdml_grain", site, dirs_exist_ok=True)
if "==" not in sys.argv[-1]:
    for old in [*site.glob("jax"), *site.glob("jax-*")]:
        shutil.rmtree(old)
    shutil.copytree(site.parent / "newest", site, dirs_exist_ok=True)
"""


def put(site: Path, name: str, version: str) -> None:
    """A module that tells its version, as an installed one does."""
    (site / name).mkdir(parents=True)
    code = f"__version__ = '{version}'\n\n\ndef devices():\n    return ['of {version}']\n"
    (site / name / "__init__.py").write_text(code)
    (site / f"{name}-{version}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (site / f"{name}-{version}.dist-info" / "METADATA").write_text(metadata)


class Place:
    """An empty folder, and a Python that has nothing but a pip that was made up."""

    def __init__(self, folder: Path):
        self.site, self.here, self.bin = folder / "site", folder / "empty", folder / "bin"
        for made in (self.site, self.here, self.bin):
            made.mkdir()
        (self.site / "pip.py").write_text(FAKE_PIP)
        for name, version in {"jdml": "0.2.0", "grain": "0.2.15"}.items():
            put(folder / "jdml_grain", name, version)
        put(folder / "newest", "jax", "0.12.0")

    def graphics(self, answer: str) -> None:
        (self.bin / "nvidia-smi").write_text(f"#!/bin/sh\necho '{answer}'\n")
        (self.bin / "nvidia-smi").chmod(0o755)

    def run(self, address: str = ADDRESS, before: str = "") -> tuple[list[str], str, str]:
        """Run the first cell: what pip was asked for, what is printed, and the sentence it ends with."""
        environment = {"PYTHONPATH": str(self.site), "PATH": str(self.bin)}
        done = subprocess.run(
            [sys.executable, "-S", "-c", f"{before}\n{first_cell(address)}"],
            cwd=self.here,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert bool(done.returncode) == bool(done.stderr)
        asked = self.site / "asked"
        return asked.read_text().split("\n") if asked.exists() else [], done.stdout, done.stderr


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


JDML = f"jdml[train,flows,tfds] @ git+{ADDRESS}"
NO_DRIVER = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("card", "jax", "plugin", "wanted"),
    [
        ("", "", "", "jax"),
        (NO_DRIVER, "", "", "jax"),
        ("550.54.15, 7.5", "", "", "jax[cuda12]"),
        ("580.65.06, 9.0", "", "", "jax[cuda13]"),
        ("580.65.06, 6.0", "", "", "jax[cuda12]"),  # a card that CUDA 13 has left
        ("", "0.10.1", "", "jax==0.10.1"),
        ("", "0.9.0rc1", "", "jax==0.9.0rc1"),
        ("", "0.8.3", "", "jax"),
        ("580.65.06, 9.0", "0.10.1", "", "jax[cuda13]==0.10.1"),
        ("580.65.06, 9.0", "0.10.1", "jax_cuda12_plugin", "jax[cuda12]==0.10.1"),
        ("580.65.06, 9.0", "0.4.30", "jax_cuda12_plugin", "jax[cuda12]"),
    ],
)
def test_the_first_cell_asks_for_the_jax_of_the_machine(place, card, jax, plugin, wanted):
    if card:
        place.graphics(card)
    for name in filter(None, ("jax" if jax else "", plugin)):
        put(place.site, name, jax)
    asked, printed_there, ended = place.run()
    assert asked == ["install", "-q", JDML, wanted]
    version = jax if "==" in wanted else "0.12.0"
    assert printed_there == f"pip install {JDML} {wanted}\n['of {version}']\n"
    assert ended == ""
    (place.site / "asked").unlink()
    assert place.run() == ([], f"['of {version}']\n", "")  # once more


@pytest.mark.parametrize(
    ("jax", "card", "restart"),
    [("0.4.30", "", True), ("0.10.1", "550.54.15, 7.5", True), ("0.10.1", "", False)],
)
def test_the_first_cell_says_when_the_runtime_must_begin_again(place, jax, card, restart):
    put(place.site, "jax", jax)
    if card:
        place.graphics(card)
    _, printed_there, ended = place.run(before="import jax")
    assert ended.startswith("Restart the runtime") == restart == ("['of" not in printed_there)
    assert place.run()[1:] == (f"['of {jax if card or not restart else '0.12.0'}']\n", "")


def test_the_first_cell_never_asks_for_a_mere_name(place):
    put(place.site, "jax", "0.10.1")
    asked, _, ended = place.run(address="")
    assert asked == []
    assert "ADDRESS" in ended
    assert "next to this notebook" in ended


def test_small_digits_need_no_tensorflow(place):
    asked, _, _ = place.run(before="SMALL = True")
    assert asked[2] == JDML.replace(",tfds", "")


@pytest.mark.parametrize("where", [".", "..", "../..", "jdml"])
def test_the_first_cell_finds_a_checkout(place, where):
    place.here = place.here / "checkout" / "notebooks"
    checkout = place.here / where
    (checkout / "jdml" / "registry").mkdir(parents=True)
    asked, printed_there, _ = place.run(address="")
    assert asked[2] == f"jdml[train,flows,tfds] @ {checkout.resolve().as_uri()}"
    assert printed_there.endswith("['of 0.12.0']\n")


def test_the_first_cell_shows_why_pip_did_not(place):
    (place.site / "broken").touch()
    assert place.run()[2] == "no network\n\n"
