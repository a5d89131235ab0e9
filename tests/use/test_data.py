"""User-defined splits; skipped and wrong files are counted or refused, also by `jdml data check`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli.photos import TINY, draw_photos

from jdml import data
from jdml.data.folder import read_folder
from jdml.data.splits import resplit
from jdml.runs.embedding_io import read_embeddings


def test_resplit(photos):
    listing = read_folder(photos)
    for rule, share, train, test in (("classes", 0.34, 24, 12), ("images", None, 30, 6)):
        parts = resplit(listing, rule, seed=1, share=share).splits
        sizes = {name: len(rows) for name, rows in parts.items()}
        assert sizes == {"train": train, "test": test, "all": 36}
    for rule, share, name in (("half", None, "rule"), ("images", 1, "share")):
        with pytest.raises(ValueError, match=rf"^{name}\b"):
            resplit(listing, rule, share=share)


def test_data_check_counts_and_names_problems(tmp_path, jdml_main):
    root = draw_photos(tmp_path / "photos", 4, 2)
    code, out, err = jdml_main("data", "check", "folder", root, "--quiet")
    assert (code, err) == (0, "")
    assert re.search(r"decoded: 8\b", out)
    assert "wrong" not in out
    for name in ("kind0/a.heic", "kind1/b.HEIC", "kind2/notes.txt", ".hidden/c.png", "lost.png"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"?")
    listing = read_folder(root)
    assert len(listing.files) == 8
    lone, convertible, other = listing.notes
    assert lone.startswith("1 image ")
    assert re.match(r"2 files .*2 \.heic.*\.jpg", convertible)
    assert re.match(r"1 file .*1 \.txt", other)
    (root / "kind3" / "1.png").write_bytes(b"no image")
    for name, problems in (
        ("folder", (r"2\b", r"1 of 8\b")),
        ("cub", (r"cub\b.*\bimages\.txt\b",)),
    ):
        code, out, _ = jdml_main("data", "check", name, root, "--quiet")
        assert code == 1
        assert all(re.search(f"wrong: {problem}", out) for problem in problems), out


# The same images in a table: every command reads them like those of the folder.


@pytest.fixture(scope="module")
def table(photos, tmp_path_factory):
    """Write the photographs into a Parquet file."""
    arrow = pytest.importorskip("pyarrow", reason="reads tables: pip install 'jdml[parquet]'")
    from pyarrow import parquet

    listing = read_folder(photos)
    rows = {
        "image": [file.read_bytes() for file in listing.files],
        "label": [listing.names["class"][number] for number in listing.views["class"].tolist()],
    }
    file = tmp_path_factory.mktemp("table") / "table.parquet"
    parquet.write_table(arrow.table(rows), file, row_group_size=7)
    return file


def scores(printed: str) -> str:
    (line,) = re.findall("^ *test class .*", printed, re.M)
    return line


def test_table_trains_and_is_searched_like_the_folder(
    table, photos, run, tmp_path, succeed, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shown = succeed("train", "--data", table, *TINY, "--out", "run")
    assert scores(shown) == scores(run.out)
    assert f"next: jdml embed run {table} --split test" in shown
    for source in (table, photos):
        succeed("embed", "run", source, "--out", f"{source.stem}.npz", "--quiet")
    one, other = (read_embeddings(Path(f"{source.stem}.npz")) for source in (table, photos))
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-6)
    np.testing.assert_array_equal(one.labels, other.labels)
    assert one.files[3] == f"{table}[3]"
    query = ("search", "run", f"{table}[3]", "-k", 2, "--out", "found.png", "--json", "found.json")
    succeed(*query, "--gallery", table, "--quiet")  # of images, not of embeddings
    searched = json.loads(Path("found.json").read_text())
    succeed(*query, "--gallery", f"{table.stem}.npz", "--quiet")
    (answer,) = json.loads(Path("found.json").read_text())
    assert [answer] == searched
    assert len(answer["hits"]) == 2
    assert all(hit["file"] != answer["query"] for hit in answer["hits"])
    assert Path("found.png").exists()
    checked = data.check("folder", table)
    assert (checked.problems, checked.decoded) == ((), 36)
    succeed("report", "run", "--out", "report.html")
    assert "data:image/webp" in Path("report.html").read_text()
