"""The site's generators: pages are complete, the first picture is right, checks of a built site find faults."""

import ast
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import jdml

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "docs"))

from maker import checks, every_table, pages, records, speed, stamps  # noqa: E402
from maker.scene import move, start  # noqa: E402
from maker.subjects import levels, subjects  # noqa: E402

SUBJECTS = subjects()
ITEMS = [item for paper in every_table.papers().values() for item in paper.items]


def test_every_loss_and_miner_has_a_page():
    losses = {name for name in jdml.losses.__all__ if name.endswith("_loss")}
    functions = [getattr(jdml.mining, name) for name in pages.public_names("mining")]
    returned = {f.__name__: inspect.signature(f).return_annotation for f in functions}
    miners = {name for name, kind in returned.items() if kind is jdml.mining.Miner}
    assert SUBJECTS.keys() == losses | miners - {"chain"} | {"center_regularizer"}


@pytest.mark.slow  # every loss of the site
def test_every_loss_is_larger_where_all_embeddings_coincide():
    assert levels().keys() == {name for name in SUBJECTS if name in pages.PAIRS + pages.PROXIES}
    assert levels()["triplet_loss"] == (pytest.approx(0.1), 0.0)
    assert [name for name, (collapsed, apart) in levels().items() if not apart < collapsed] == []


@pytest.mark.slow  # thousands of steps
def test_first_picture_matches_its_caption():
    """The triplet loss merges the two modes of a class; with easy positives they stay apart."""
    _, _, modes = start()

    def gap(points):
        return np.linalg.norm(points[modes == 0].mean(0) - points[modes == 1].mean(0))

    plain, easy = (move(SUBJECTS[name]).path for name in ("triplet_loss", "easy_positive"))
    assert gap(plain[0]) == gap(easy[0]) > 1.4
    assert gap(plain[-1]) < 0.1
    assert gap(easy[-1]) > 1.0


def test_speed_page_matches_the_record():
    rows = records.record("losses")["rows"]
    triplet = next(row for row in rows if row["loss"] == "triplet")
    assert f"{triplet['milliseconds']['jdml']:.2f}" in records.cost("triplet_loss")
    assert records.record("losses")["environment"]["date"] in speed.page()


def test_every_table_names_existing_tests_and_recorded_numbers():
    for item in ITEMS:
        for test in item.tests:
            file, function = test.split("::")
            tree = ast.parse((REPOSITORY / file).read_text())
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert function in names, f"{item.what}: {test}"
    page = every_table.page()
    assert "{" not in page
    assert all(f"| {item.what} |" in page for item in ITEMS)
    with pytest.raises(ValueError, match="record"):
        every_table.number("eps_mnist|triplett|seen R@1")


def test_checks_of_a_built_site_find_faults(tmp_path):
    one = '<a href="b.html#here">x</a><a href="https://jdml.example">y</a><img src="none.png">'
    two = '<p id="here"></p><dt id="jdml.f"><a href="#gone">x</a><a href="c.html">z</a>'
    (tmp_path / "a.html").write_text(one)
    (tmp_path / "b.html").write_text(two)
    dead = ["a.html: none.png", "b.html: #gone", "b.html: c.html"]
    assert checks.dead_links(tmp_path) == dead
    assert checks.undocumented(tmp_path, ["jdml.f", "jdml.g"]) == ["jdml.g"]


def test_stamp_changes_with_code_only(tmp_path):
    file = tmp_path / "a.py"

    def stamp(text):
        file.write_text(text)
        return stamps.meaning([file])

    before = stamp('def f():\n    """Words."""\n    return 1\n')
    assert stamp('def f():\n    """Other."""\n    # why\n    return 1\n') == before
    assert stamp('def f():\n    """Words."""\n    return 2\n') != before
