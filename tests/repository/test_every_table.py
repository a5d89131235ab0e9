"""The record of every table and figure: it is complete, its tests and commands exist, its numbers are on record."""

import argparse
import ast
import contextlib
import importlib
import io
import re
import runpy
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "docs"))

from maker import every_table  # noqa: E402

PAPERS = every_table.papers()
ITEMS = [(name, item) for name, paper in PAPERS.items() for item in paper.items]
COMMANDS = sorted({command for _, item in ITEMS for command in item.commands})
NUMBERED = {  # as they stand in the papers' text
    "ccp": {"Eq.": ["3.1", "3.2", "3.3", *(f"4.{n}" for n in range(1, 12))], "Prop.": ["4.1", "4.2"],
            "Cor.": ["4.3"], "Lemma": ["4.4"]},
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_no_number_is_missing_and_none_is_there_twice(name: str) -> None:
    paper = PAPERS[name]
    found: dict[str, list[str]] = {}
    for item in paper.items:
        found.setdefault(item.kind, []).extend(item.numbers)
    assert {kind: len(numbers) for kind, numbers in found.items()} == dict(paper.counts)
    for kind, numbers in found.items():
        assert len(set(numbers)) == len(numbers), kind
        if kind != "§":
            first_to_last = [str(n) for n in range(1, paper.counts[kind] + 1)]
            assert set(numbers) == set(NUMBERED.get(name, {}).get(kind, first_to_last)), kind


def test_counts_are_those_of_the_papers() -> None:
    counts = {name: sum(paper.counts.values()) for name, paper in PAPERS.items()}
    assert counts == {"ccp": 50, "eps": 27, "mpa": 31, "nir": 23, "pfml": 44}
    assert len(PAPERS["pfml"].items) == 25  # the proofs' equations 7 to 26 are one row


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((REPOSITORY / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    for _, item in ITEMS:
        for test in item.tests:
            file, function = test.split("::")
            assert function in functions(file), f"{item.what}: {test}"


def test_every_row_says_how_or_why_not() -> None:
    for _, item in ITEMS:
        assert item.needs in every_table.NEEDS, item
        assert item.made or item.came, item
        assert (item.needs == "") == (not item.made), item
        words = re.sub(r"\{[^{}]*\}|`[^`]*`|\]\([^)]*\)", "", item.came)
        assert not re.search(r"\d[.,]\d", words), f"{item.what}: numbers are read from the record"


def test_every_number_is_on_record() -> None:
    page = every_table.page()
    assert "{" not in page
    assert page.count("\n| ") == len(ITEMS) + 2 * len(PAPERS)  # with a head and a line below it
    assert re.search(r"with EPS \d\d\.\d\xa0±\xa0\d", page)
    with pytest.raises(ValueError, match="no run on record"):
        every_table.number("eps_mnist|triplett|seen R@1")


class Parsed(Exception):
    """A script has read its arguments."""


def parse_script(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a script of benchmarks/ read its arguments, and go no further."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *arguments: object) -> None:
        parse(self, *arguments)  # type: ignore[call-overload]
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.syspath_prepend(str((REPOSITORY / words[0]).parent))
    before = set(sys.modules)
    with pytest.raises(Parsed):
        runpy.run_path(str(REPOSITORY / words[0]), run_name="__main__")
    for name in (
        set(sys.modules) - before
    ):  # scripts of other folders have siblings of the same names
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent.name == "benchmarks":
            del sys.modules[name]


def parse_jdml(words: list[str], tmp_path: Path) -> None:
    """Read a command's options, and check them as it would before its first step."""
    import tyro

    from jdml.cli import messages
    from jdml.cli.benchmark import Benchmark
    from jdml.cli.commands import COMMANDS as known
    from jdml.recipes import make_objective

    count = 2 if " ".join(words[:2]) in known else 1
    kind = known[" ".join(words[:count])].kind
    (tmp_path / "FILE").touch()
    given = [str(tmp_path / word) if word in ("DIR", "FILE") else word for word in words[count:]]
    messages.check_words(kind, given)
    options = tyro.cli(kind, args=given, config=(tyro.conf.PositionalRequiredArgs,))
    if isinstance(options, Benchmark):
        options.check()
        make_objective(options.recipe(), 2)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_given(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tyro

    program, *words = shlex.split(command)
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            if program == "jdml":
                parse_jdml(words, tmp_path)
            elif words[0] == "-m":
                settings = importlib.import_module(words[1]).Settings
                tyro.cli(settings, args=words[2:])
            else:
                parse_script(words, monkeypatch)
    except SystemExit as stop:
        pytest.fail(f"{command}: {stop}\n{told.getvalue()}")


def test_a_command_that_cannot_be_given_is_caught(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--method-setting: nir has no setting 'depht'"):
        parse_jdml(
            shlex.split("benchmark --method nir --dry-run --method-setting depht=2"), tmp_path
        )
    with pytest.raises(ValueError, match="--label-noise is for the conventional protocol"):
        parse_jdml(shlex.split("benchmark --protocol mlrc --label-noise 0.1"), tmp_path)
