"""The same images at every door, or a sentence: folders, lists, arrays, runs' folders and command lines as drawn."""

import contextlib
import io
import json
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optax
import pytest
from hunt import folders
from hypothesis import given
from hypothesis import strategies as st

import jdml.cli
import jdml.training
from jdml import data, report
from jdml.cli import messages
from jdml.cli.compare import Compare
from jdml.cli.data import Check
from jdml.cli.embed import Embed
from jdml.cli.evaluate import Evaluate
from jdml.cli.options.train import TrainOptions
from jdml.cli.search import _of_file
from jdml.cli.training_data import read_training_data
from jdml.data.folder import read_folder
from jdml.data.images import decode
from jdml.data.labelled import in_one_form
from jdml.data.loading import read_path
from jdml.data.source import name_of, read_source
from jdml.data.table import read_table
from jdml.models.tensors import write_tensors
from jdml.report import looking, read_runs
from jdml.report.data_of_run import with_data
from jdml.training import trained_model
from jdml.training.checkpoint import RunFolder
from jdml.training.embedded import read_embeddings
from jdml.training.run_files import read_model, write_json
from jdml.training.trained_model import Trained

SENTENCES = (ValueError, TypeError, OSError)
"""What a door raises where it refuses."""


class Mean(Trained):
    """A model that is nothing but the mean colour, behind the real reading of images."""

    def embed(self, source: Any, *, on_bad_image: str = "stop", **_: Any) -> np.ndarray:
        images = self.images_of(source)
        images.stops = on_bad_image == "stop"
        vectors = np.asarray(images[:], np.float32).reshape(len(images), -1, 3).mean(1)
        vectors[list(images.bad)] = np.nan
        return vectors


def mean_model(*_: Any, **__: Any) -> Mean:
    empty: dict[str, Any] = {}
    crop = data.conventional(8)
    return Mean(
        None,
        empty,
        empty,
        empty,
        (),
        0,
        empty,
        None,
        None,
        crop,
        {"shape": [8, 8, 3], "dtype": "uint8"},
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def without_a_network():
    """Commands read as they do, and compute nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jdml.training, "load", mean_model)
        patch.setenv("COLUMNS", "200")
        # What is logged names files, and some of these are no text, which workers cannot hand on.
        patch.setattr(logging.getLogger("jdml"), "disabled", True)
        patch.setattr(trained_model, "_log", SimpleNamespace(warning=lambda *_: None))
        yield


def run(*words: object) -> SimpleNamespace:
    """Run a command with streams such as a terminal's: its code, what it printed and what it said."""
    return _told(lambda: jdml.cli.main([str(word) for word in words]))


def execute(command: Any) -> SimpleNamespace:
    """The same of a command whose words were read before, which takes half of the time."""

    def main() -> int:
        try:
            return command.execute() or 0
        except SENTENCES as error:
            print(f"jdml: error: {messages.told(error)}", file=sys.stderr)
            return 2

    return _told(main)


def _told(main: Any) -> SimpleNamespace:
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
        for _ in range(2)
    )
    if main.__name__ == "<lambda>":
        out.reconfigure(errors="strict")
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
    shown, said = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert code in (0, 1, 2), (code, said)
    if code == 2 and not said.startswith("╭"):
        assert said.count("\n") == 1, said
        assert ": error: " in said
        assert "error: 'utf-8' codec" not in said
    return SimpleNamespace(code=code, out=shown, err=said)


def told(door: Any, *arguments: Any, **options: Any) -> Any:
    """What a door gives, or the sentence with which it refuses."""
    try:
        return door(*arguments, **options)
    except SENTENCES as error:
        found = error
    assert len(str(found)) > 10, repr(found)
    return found


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name).resolve()


def refused(found: Any) -> bool:
    return isinstance(found, Exception)


def at_every_door(place: Path, beside: Path, *, typed: bool) -> None:
    """All doors see the same images at a place, or all refuse it."""
    listing = told(read_folder, place)
    path = told(read_path, place)
    source = told(read_source, str(place), None)
    loaded = told(data.load, "folder", data_dir=place, split="all", check_files=False)
    assert refused(listing) == refused(loaded), (listing, loaded)
    assert refused(source) >= refused(path), (source, path)
    checked = told(data.check, "folder", place)
    assert refused(listing) <= bool(checked.problems), listing
    file = beside / "check.json"
    if typed:
        shown = run("data", "check", "folder", place, "--quiet", "--json", file)
    else:
        shown = execute(Check("folder", place, quiet=True, json=file))
    if shown.code == 2:
        assert refused(listing), shown.err
    else:
        assert shown.code == bool(checked.problems)
        assert len(json.loads(file.read_text())["problems"]) == len(checked.problems)
    embedded = beside / "e.npz"
    if typed:
        done = run("embed", "RUN", place, "--out", embedded, "--quiet")
    else:
        done = execute(Embed(Path("RUN"), str(place), embedded, quiet=True))
    if refused(source):
        assert (done.code, embedded.exists()) == (2, False)
    if refused(path):
        return
    seen = sorted(name_of(file) for file in path.files)
    there = [file for file in path.files if file.is_file()]
    damaged = {name_of(file) for file in there if refused(told(decode, file.read_bytes()))}
    whole = sorted({*map(name_of, there)} - damaged)
    if not refused(listing) and path.listing is not None:
        assert seen == sorted(name_of(listing.files[row]) for row in listing.splits["all"])
        assert seen == sorted(map(name_of, loaded.images.files))
        assert checked.decoded == len(there)
        assert bool(damaged) == any("images are damaged" in line for line in checked.problems)
        if len(there) == len(seen):
            trains(place, seen)
    if refused(source):
        return
    assert seen == sorted(source.files)
    assert (done.code == 0) == bool(whole), done.err
    if whole:
        written = read_embeddings(embedded)
        assert sorted(written.files.tolist()) == whole
        if source.labels is not None:
            kept = [file in whole for file in source.files.tolist()]
            assert written.labels.tolist() == source.labels[kept].tolist()
    if whole and typed:
        searched(place, beside, whole)


def searched(place: Path, beside: Path, whole: list[str]) -> None:
    """A search finds images of the place, and never the query itself."""
    file = beside / "found.json"
    done = run("search", "RUN", whole[0], "--gallery", place, "-k", 9, "--json", file, "--quiet")
    assert done.code == 0, done.err
    (answer,) = json.loads(file.read_text())
    assert answer["query"] == whole[0]
    assert all(hit["file"] in whole[1:] for hit in answer["found"])


def trains(place: Path, seen: list[str]) -> None:
    """What `jdml train` reads: all of the images, each in one part."""
    for split in (None, "none", "images"):
        options = TrainOptions(data="folder", data_dir=place, split=split, image_size=8)
        found = told(read_training_data, options, 0)
        if refused(found):
            continue
        tests = [part for test in found.tests.values() for part in test if part is not None]
        parts = {
            id(part): part for part in (found.train, found.validation, *tests) if part is not None
        }
        assert seen == sorted(
            name_of(file) for part in parts.values() for file in part.images.files
        )


@folders.cases(60, 4000)
@given(folders.trees(), st.integers(0, 9))
def test_a_tree_is_the_same_images_at_every_door(tree, number):
    with folder() as root:
        place = root / "photos"
        place.mkdir()
        folders.build(place, tree)
        before = sorted(map(str, place.rglob("*")))
        at_every_door(place, root, typed=number == 9)
        assert sorted(map(str, place.rglob("*"))) == before


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A folder of images that lists name."""
    place = tmp_path_factory.mktemp("images")
    for number, name in enumerate(folders.NAMES[:5] + folders.NAMES[11:20]):
        (place / name).write_bytes(folders.content("png", number))
    return place


def written(place: Path, listed: bytes, suffix: str) -> Path:
    file = place / f"list{suffix}"
    file.write_bytes(listed)
    return file


@folders.cases(60, 3000)
@given(st.data(), st.integers(0, 9))
def test_a_list_is_read_as_it_is_meant(images, drawn, number):
    files = sorted(file.name for file in images.iterdir() if file.suffix in (".png", ".jpg"))
    listed = drawn.draw(folders.lists(files))
    file = written(images, listed.text, listed.suffix)
    try:
        parts = {split for _, _, split in listed.rows}
        found = told(read_table, file)
        if parts & {"query", "gallery"} and not {"query", "gallery"} <= parts:
            assert refused(found)
        else:
            meant = {
                str(images / name): in_one_form(label.strip()) for name, label, _ in listed.rows
            }
            names = found.names["class"]
            ids = found.views["class"].tolist()
            assert dict(zip(map(str, found.files), (names[n] for n in ids), strict=True)) == meant
            for split in parts - {""}:
                rows = {str(images / name) for name, _, of in listed.rows if of == split}
                assert {str(found.files[row]) for row in found.splits[split]} == rows
        with folder() as beside:
            at_every_door(file, beside, typed=number == 9)
    finally:
        file.unlink()


@folders.cases(40, 2000)
@given(st.data())
def test_a_list_that_was_spoilt_is_read_or_told(images, drawn):
    files = sorted(file.name for file in images.iterdir() if file.suffix in (".png", ".jpg"))
    listed = drawn.draw(folders.lists(files))
    file = written(images, drawn.draw(folders.spoilt(listed.text)), listed.suffix)
    try:
        with folder() as beside:
            at_every_door(file, beside, typed=False)
    finally:
        file.unlink()


@folders.cases(40, 1500)
@given(st.data())
def test_arrays_of_any_kind_are_measured_or_told(drawn):
    names = drawn.draw(
        st.lists(
            st.sampled_from(
                [
                    "labels",
                    "files",
                    "model",
                    "x",
                    "gallery_embeddings",
                    "gallery_labels",
                    "self_index",
                ]
            ),
            max_size=3,
            unique=True,
        )
    )
    arrays = {name: drawn.draw(folders.arrays()) for name in ("embeddings", *names)}
    if drawn.draw(st.booleans()):
        arrays["embeddings"] = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    with folder() as place:
        file = place / "e.npz"
        np.savez(file, **arrays)
        if drawn.draw(st.integers(0, 4)) == 0:
            file.write_bytes(drawn.draw(folders.spoilt(file.read_bytes())))
        read = told(read_embeddings, file)
        measured = execute(Evaluate(file, recall_at=(1,), json=str(place / "m.json")))
        if measured.code == 0:
            found = json.loads((place / "m.json").read_text())
            assert all(
                0 <= value <= 4 for values in found.values() for value in np.ravel(values)
            ), found
        runs = told(read_runs, file)
        assert refused(read) == refused(runs), (read, runs)
        if not refused(runs):
            looked = looking.look_at(runs[0], labels=None, projections=("pca",), most=9)
            json.dumps(
                looking.looks_as_data([looked], 4, 999)
                if isinstance(looked, looking.Look)
                else looked,
                allow_nan=False,
            )
        if not refused(read):
            assert refused(told(_of_file, file, mean_model(), drawn=False)) == bool(read.model)


@pytest.fixture(scope="module")
def a_run(tmp_path_factory) -> Path:
    """A run of a small network, with all that a run's folder may hold."""
    place = tmp_path_factory.mktemp("runs") / "run"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 1)).astype(np.uint8)
    train = data.Dataset("toy", pixels, np.arange(8) % 2)
    sampler = data.RandomBatchSampler(8, 8)
    objective = jdml.objectives.pair(jdml.triplet_loss)
    config = {
        "data": "toy",
        "recipe": {"loss": "triplet", "lr": 0.1},
        "seed": 0,
        "started": {"command": "jdml train", "data_dir": None},
    }
    jdml.training.fit(
        jdml.models.create("small", dim=2),
        objective,
        optax.sgd(0.1),
        train,
        sampler,
        steps=1,
        out_dir=place,
        config=config,
        log_every=1,
        progress=False,
    )
    write_json(place / "metrics.json", {"step": 1, "test class": {"R@1": 0.5, "MAP@R": 0.25}})
    write_json(place / "resources.json", {"memory_mib": 70.5})
    return place


def spoil(drawn: Any, place: Path) -> None:
    """Damage one file of a run's folder."""
    files = sorted(file for file in place.rglob("*") if file.is_file())
    whole = [file for file in files if file.parent == place]
    file = drawn.draw(st.sampled_from(whole) | st.sampled_from(files))
    way = drawn.draw(st.sampled_from(["change", "change", "change", "spoil", "gone", "folder"]))
    if way == "gone":
        file.unlink()
    elif way == "folder":
        file.unlink()
        file.mkdir()
    elif way == "spoil" or (file.suffix == ".npz"):
        file.write_bytes(drawn.draw(folders.spoilt(file.read_bytes())))
    elif file.suffix == ".safetensors":
        _change_model(drawn, file)
    else:
        _change_json(drawn, file)


def _change_model(drawn: Any, file: Path) -> None:
    with contextlib.suppress(ValueError):
        tensors, described = read_model(file)
        if drawn.draw(st.booleans()):
            described = drawn.draw(folders.changed(described))
        else:
            name = drawn.draw(st.sampled_from(sorted(tensors)))
            tensors[name] = drawn.draw(folders.arrays().filter(lambda x: x.dtype.kind in "fiu"))
        write_tensors(file, tensors, {"jdml": json.dumps(described)})


def _change_json(drawn: Any, file: Path) -> None:
    lines = file.read_bytes().splitlines() if file.suffix == ".jsonl" else [file.read_bytes()]
    with contextlib.suppress(ValueError):
        made = [json.dumps(drawn.draw(folders.changed(json.loads(line)))) for line in lines]
        file.write_text("\n".join(made))


# Orbax leaves threads behind that find no event loop any more.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@folders.cases(60, 3000)
@given(st.data(), st.integers(0, 9))
def test_a_damaged_run_is_read_or_told(a_run, drawn, number):
    with folder() as root:
        place = root / "run"
        shutil.copytree(a_run, place)
        for _ in range(drawn.draw(st.integers(1, 2))):
            spoil(drawn, place)
        told(trained_model.load, place)
        if number == 0:
            told(trained_model.load, place, which="last")
        if number == 1:
            config = json.loads((a_run / "config.json").read_text())
            told(lambda: RunFolder(place, config).close())
        runs = told(read_runs, place)
        compared = execute(Compare((str(place),), csv=root / "c.csv"))
        if refused(runs):
            assert compared.code == 2
        else:
            told(report.html_report, [with_data(run)[0] for run in runs], root / "r.html")


@pytest.fixture(scope="module")
def at_work(tmp_path_factory):
    """A working directory with something for every command, and no training after the first line."""
    place = tmp_path_factory.mktemp("work")
    folders.build(
        place,
        [
            folders.Entry(("photos", name, f"{n}.png"), "png", 3 * n + len(name))
            for name in ("ant", "bees", "fly")
            for n in range(3)
        ],
    )
    np.savez(place / "e.npz", embeddings=np.eye(6, 3, dtype=np.float32), labels=np.arange(6) % 2)
    (place / "t.csv").write_text("file,label\nphotos/ant/0.png,x\nphotos/bees/0.png,y\n")
    (place / "names.txt").write_text("ant\nbees\n")
    records = [
        {"name": name, "job": {"lr": lr, "seed": 0}, "metrics": {"R@1": lr}}
        for name, lr in (("a", 0.1), ("b", 0.2))
    ]
    (place / "r.jsonl").write_text("\n".join(map(json.dumps, records)))

    def stopped(run: Any) -> None:
        run.summary()
        raise ValueError("stopped before the first step, for the hunt")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("jdml.cli.training_run.TrainingRun.run", stopped)
        yield place


@folders.cases(40, 1500)
@given(folders.command_lines(), st.randoms(use_true_random=False))
def test_words_of_a_command_are_obeyed_in_any_order_or_told(at_work, line, random):
    words, options = line
    before = {file: file.read_bytes() for file in at_work.rglob("*") if file.is_file()}
    first = run(*words, *(word for option in options for word in option))
    made = {file for file in at_work.rglob("*") if file.is_file()} - before.keys()
    if first.code == 2:
        assert not made
    for file in made:
        file.unlink()
    random.shuffle(options)
    again = run(*words, *(word for option in options for word in option))
    assert (again.code, again.out) == (first.code, first.out)
    for file in {file for file in at_work.rglob("*") if file.is_file()} - before.keys():
        file.unlink()
    assert all(file.read_bytes() == content for file, content in before.items())
