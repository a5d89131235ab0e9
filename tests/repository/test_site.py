"""The site's makers: pictures are what they say, pages are complete, the checks of the built site see what is wrong."""

import inspect
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import jdml

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

from maker import __main__ as build  # noqa: E402
from maker import checks, compiled, pages, records, speed, stamps  # noqa: E402
from maker.scene import move, start, to_plane, to_sphere  # noqa: E402
from maker.subjects import subjects  # noqa: E402

pytestmark = pytest.mark.slow

SUBJECTS = subjects()


@pytest.fixture(scope="module")
def motions():
    return {name: move(SUBJECTS[name]) for name in ("triplet_loss", "easy_positive")}


def test_every_loss_and_miner_has_a_page_and_a_picture():
    losses = {name for name in jdml.losses.__all__ if name.endswith("_loss")}
    rules = {
        name
        for name in pages.public_names("mining")
        if inspect.signature(getattr(jdml.mining, name)).return_annotation is jdml.mining.Miner
    } - {"chain"}
    assert SUBJECTS.keys() == losses | rules | {"center_regularizer"}
    assert rules == {name for name, subject in SUBJECTS.items() if subject.miner}


def test_the_map_keeps_its_points():
    plane = np.random.default_rng(0).uniform(-1.3, 1.3, (50, 2))
    np.testing.assert_allclose(to_plane(to_sphere(plane)), plane, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(to_sphere(plane), axis=1), 1, atol=1e-6)


def test_the_first_picture_shows_what_it_says(motions):
    """The triplet loss merges the two modes of a class; with easy positives they stay apart."""
    _, _, modes = start()

    def gap(points):
        return np.linalg.norm(points[modes == 0].mean(0) - points[modes == 1].mean(0))

    plain, easy = motions["triplet_loss"].path, motions["easy_positive"].path
    assert gap(plain[0]) == gap(easy[0]) > 1.4
    assert gap(plain[-1]) < 0.1
    assert gap(easy[-1]) > 1.0


def test_a_motion_begins_at_the_start_and_has_a_force(motions):
    points, labels, _ = start()
    for name, motion in motions.items():
        np.testing.assert_allclose(motion.path[0], to_plane(points), atol=1e-6)
        assert np.isfinite(motion.path).all()
        assert np.isfinite(motion.force).all()
        assert np.abs(motion.force).max() > 0
        assert (motion.pairs is not None) == (name == "easy_positive")
    assert motions["easy_positive"].pairs.positive.sum(1).max() == 1
    assert np.bincount(labels).tolist() == [20, 20, 20]


def test_signatures_name_functions():
    for loss in (jdml.triplet_loss, jdml.proxy_anchor_loss):
        text = str(inspect.signature(loss))
        assert "= jdml.sphere" in text
        assert "<function" not in text
        assert inspect.signature(loss).parameters["normalize"].default is jdml.sphere
    tidy = runpy.run_path(str(DOCS / "conf.py"))["function_names"]
    assert (
        tidy("(x, n=<function sphere>, m=<function _own at 0x7f>)") == "(x, n=jdml.sphere, m=_own)"
    )


def test_every_public_symbol_has_words():
    for symbol in pages.symbols():
        if pages.directive(symbol) == "autodata":
            assert pages.words_about(symbol)
        else:
            assert pages.summary(symbol), symbol


def functions():
    """Public functions, and the methods of public classes that have words of their own, by name."""
    for symbol in pages.symbols():
        value, kind = pages.lookup(symbol), pages.directive(symbol)
        if kind == "autofunction":
            yield symbol, value
        for name in vars(value) if kind == "autoclass" else ():
            method = getattr(value, name)
            own = inspect.isfunction(method) or inspect.ismethod(method)
            if own and method.__doc__ and not name.startswith("_"):
                yield f"{symbol}.{name}", method


def test_docstrings_of_functions_begin_with_a_verb():
    """In the imperative: no article, no name before a colon, no third person."""
    named = dict(functions())
    assert {"jdml.losses.triplet_loss", "jdml.training.Trained.embed"} <= named.keys()
    for symbol, function in named.items():
        first = inspect.getdoc(function).split()[0].rstrip(",")
        assert first.isalpha(), symbol
        assert first[0].isupper(), symbol
        assert not first.endswith("s") or first in {"Pass", "Express"}, symbol
        assert first not in {"The", "A", "An", "How", "What", "Whether", "Where", "Which"}, symbol
        assert first not in {"Two", "From", "In", "This", "Under", "Nothing"}, symbol


@pytest.mark.parametrize("name", ["triplet_loss", "proxy_anchor_loss", "nir_loss"])
def test_a_page_of_a_loss_has_its_parts(name):
    page = pages.loss_page(SUBJECTS[name])
    assert page.startswith(f"# {name}\n")
    assert f"autofunction:: jdml.losses.{name}" in page
    assert f"pictures/{name}.svg" in page
    assert "## Cost" in page
    if name != "nir_loss":
        assert "## What it takes" in page
        assert "pytorch-metric-learning" in page
    assert "## Results on record" in page


def test_tables_hold_what_is_on_record():
    row = next(row for row in records.record("losses")["rows"] if row["loss"] == "triplet")
    assert f"{row['milliseconds']['jdml']:.2f}" in records.cost("triplet_loss")
    assert records.record("losses")["environment"]["date"] in speed.page()
    for name in compiled.DEVICES:
        rows = records.record(f"compiled_{name}")["rows"]
        assert all(f"| {row['what']} | {row['devices']} |" in compiled.page() for row in rows)
    for name in (name for name in records.benchmarks() if name.startswith("accelerator_")):
        told, sections = "\n".join(compiled.of_run(name)), records.record(name)["rows"]
        by_size = [row for part in compiled.RUN[3:] for row in sections.get(part, ())]
        assert all(f"\n| {row['what']} |" in told for row in by_size), name
    for name, subject in SUBJECTS.items():  # of every loss what it costs
        assert subject.miner or name in pages.COSTS or records.cost(name), name
    assert "ResNet-50" in records.flow_cost()
    study = records.results
    assert study.COLUMNS[0].shown.title in records.rows_of("easy_positive")
    assert all(column.runs.folder in records.best() for column in study.COLUMNS)
    methods = {part for c in study.COLUMNS for m in study.values(c) for part in m.split(" + ")}
    assert set(records.METHODS.values()) <= methods


def test_links_out_of_docs_lead_to_pages_of_the_site():
    for name, link in (("guides/memory.md", "../"), ("choose.md", "")):
        assert f"](../{link}experiments/omniglot/README.md)" in (DOCS / name).read_text()
        assert f"]({link}experiments/omniglot/README.md)" in build.on_site(name)


def test_studies_link_pages():
    texts = dict(pages.study_pages())
    assert "](../nir/README.md)" in texts["experiments/omniglot/README.md"]
    assert "](nir/README.md)" in texts["experiments/README.md"]


def site(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_dead_links_are_found(tmp_path):
    a = '<a href="b.html#here">x</a><a href="https://jdml.example">y</a><img src="none.png">'
    b = '<p id="here"></p><a href="#gone">x</a><a href="a.html">y</a><a href="c.html">z</a>'
    assert checks.dead_links(site(tmp_path, a_html=a, b_html=b)) == [
        "a.html: none.png",
        "b.html: #gone",
        "b.html: c.html",
    ]


def test_missing_symbols_are_found(tmp_path):
    page = site(tmp_path, a_html='<dt id="jdml.losses.triplet_loss">')
    wanted = ["jdml.losses.triplet_loss", "jdml.losses.new_loss"]
    assert checks.undocumented(page, wanted) == ["jdml.losses.new_loss"]


def test_search_is_tried_by_stems(tmp_path):
    pytest.importorskip("sphinx", reason="the site's search is Sphinx's (the docs extra)")
    index = {"docnames": ["a", "b"], "terms": {"collaps": [0, 1], "class": 1}, "titleterms": {}}
    page = site(tmp_path, searchindex_js=f"Search.setIndex({json.dumps(index)})")
    assert checks.found_by_search(page, "class collapse") == {"b"}
    assert checks.found_by_search(page, "hard negatives") == set()


def test_a_stamp_is_of_what_code_does(tmp_path):
    file = tmp_path / "a.py"
    file.write_text('def f():\n    """Words."""\n    return 1\n')
    before = stamps.meaning([file])
    file.write_text('def f():\n    """Other words."""\n    # and why\n    return 1\n')
    assert stamps.meaning([file]) == before
    file.write_text('def f():\n    """Words."""\n    return 2\n')
    assert stamps.meaning([file]) != before
