"""Generated folders, lists, arrays, damaged runs and command lines: read equally by every command, or refused."""

import contextlib
import gc
import inspect
import io
import json
import logging
import re
import shutil
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hunt import file_strategies as files
from hunt.generated import generated
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import jdml.cli
from jdml import data, report, training

pytestmark = pytest.mark.slow  # trains, embeds and searches each

TRAIN = "train --split none --model small --dim 2 --image-size 8 --steps 1 --seed 0 --batch-size 3 --quiet"
PACKAGE = Path(jdml.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def without_logs():
    """Disable logging: some file names are not text, which a worker cannot send to the main process."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def command(*words: object) -> SimpleNamespace:
    """Run a command like in a terminal; return its exit code, output and errors. A refusal is one line."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                code = jdml.cli.main([str(word) for word in words])
            except SystemExit as stop:
                code = stop.code
    printed, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert code in (0, 1, 2), (code, errors)
    if code == 2 and not errors.startswith("╭"):  # tyro frames its own
        assert errors.count("\n") == 1, errors
        assert ": error: " in errors
    return SimpleNamespace(code=code, out=printed, err=errors)


def attempt(function: Any, *arguments: Any, **options: Any) -> Any:
    """Return a function's result, or the error with which the library refuses its input by name."""
    try:
        return function(*arguments, **options)
    except (ValueError, TypeError, OSError) as error:
        refusal = error
    if isinstance(refusal, OSError) and refusal.filename is not None:  # the system names a file
        return refusal
    raised_in = traceback.extract_tb(refusal.__traceback__)[-1].filename
    assert PACKAGE in Path(raised_in).parents, f"not refused by the library: {refusal!r}"
    places = [value for value in (*arguments, *options.values()) if isinstance(value, Path)]
    names = {str(file.relative_to(place.parent)) for place in places for file in place.rglob("*")}
    names |= {*map(str, places)}
    if function.__module__.startswith("jdml"):
        names |= set(inspect.signature(function).parameters)
    pattern = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names)
    assert re.search(pattern, str(refusal)), f"names nothing: {refusal!r}"
    return refusal


def refused(result: Any) -> bool:
    return isinstance(result, Exception)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name).resolve()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Write a folder of nine images of three classes."""
    place = tmp_path_factory.mktemp("work") / "photos"
    classes = ("ant", "bees", "fly")
    tree = [((name, f"{n}.png"), 3 * n + len(name)) for name in classes for n in range(3)]
    files.build(place, [files.Entry(path, "png", number) for path, number in tree])
    return place


@pytest.fixture(scope="module")
def run(tmp_path_factory, photos) -> Path:
    """Train a small network; its folder has all files that a run may have."""
    place = tmp_path_factory.mktemp("runs") / "run"
    done = command(*TRAIN.split(), "--data-dir", photos, "--out", place)
    assert done.code == 0, done.err
    scores = {"step": 1, "test class": {"R@1": 0.5, "MAP@R": 0.25}}  # --split none has none
    (place / "metrics.json").write_text(json.dumps(scores))
    return place


def check_readers(place: Path, beside: Path, run: Path) -> None:
    """Check that Python and all commands read the same images at a path, or refuse it."""
    loaded = attempt(data.load, "folder", data_dir=place, split="all", check_files=False)
    checked = attempt(data.check, "folder", place)
    assert refused(loaded) <= bool(checked.problems), loaded
    shown = command("data", "check", "folder", place, "--quiet", "--json", beside / "check.json")
    if shown.code == 2:
        assert refused(loaded), shown.err
    else:
        problems = json.loads((beside / "check.json").read_text())["problems"]
        assert (shown.code, len(problems)) == (bool(checked.problems), len(checked.problems))
    embedded = beside / "e.npz"
    done = command("embed", run, place, "--out", embedded, "--quiet")
    assert embedded.exists() == (done.code == 0), done.err
    names = np.load(embedded)["files"].tolist() if done.code == 0 else []
    if not refused(loaded):
        named = [str(Path(file).absolute()) for file in loaded.images.files]
        there = [name for name in named if Path(name).is_file()]
        whole = [name for name in there if not refused(attempt(decoded, Path(name)))]
        missing = len(there) < len(named)  # then nothing is embedded
        assert sorted(names) == ([] if missing else sorted(whole)), done.err
        assert checked.decoded == len(set(there))
        check_labels(loaded, named, embedded)
    if names:
        found = beside / "found.json"
        words = ("--gallery", place, "-k", 9, "--json", found, "--quiet")
        assert command("search", run, names[0], *words).code == 0
        (answer,) = json.loads(found.read_text())
        assert answer["query"] == names[0]
        assert {hit["file"] for hit in answer["hits"]} <= set(names) - {names[0]}


def decoded(file: Path) -> np.ndarray:
    return data.ImageFiles([file])[0]


def labels_of(loaded: data.Dataset) -> list[str]:
    view = next(iter(loaded.views))
    return [loaded.class_names[view][number] for number in loaded.views[view]]


def check_labels(loaded: data.Dataset, named: list[str], embedded: Path) -> None:
    """Check that each embedded file has the label with which it was loaded."""
    if embedded.exists():
        saved = np.load(embedded)
        written = zip(saved["files"].tolist(), saved["labels"].tolist(), strict=True)
        labels = [label.rstrip("\0") for label in labels_of(loaded)]  # NumPy's texts have none
        assert set(written) <= set(zip(named, labels, strict=True))


@generated(few=10, share=0.04, tree=files.trees())
def test_folders(run, tree):
    with temporary_folder() as root:
        place = root / "photos"
        place.mkdir()
        files.build(place, tree)
        before = sorted(map(str, place.rglob("*")))
        check_readers(place, root, run)
        assert sorted(map(str, place.rglob("*"))) == before


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Write a folder of images that lists refer to."""
    place = tmp_path_factory.mktemp("images")
    names = files.FILES[:5] + files.FILES[11:20]
    files.build(place, [files.Entry((name,), "png", n) for n, name in enumerate(names)])
    return place


@generated(few=12, share=0.05, case=st.data(), damage=st.booleans())
def test_lists(images, run, case, damage):
    names = sorted(file.name for file in images.iterdir() if file.suffix in (".png", ".jpg"))
    listed = case.draw(files.file_lists(names))
    file = images / f"list{listed.suffix}"
    file.write_bytes(case.draw(files.damaged(listed.text)) if damage else listed.text)
    try:
        if not damage:
            check_list(file, listed.rows)
        with temporary_folder() as beside:
            check_readers(file, beside, run)
    finally:
        file.unlink()


def check_list(file: Path, rows: list[tuple[str, str, str]]) -> None:
    """Check that each image has the label and the part in the list."""
    parts = {split for _, _, split in rows}
    loaded = attempt(data.load, "folder", file, "all", check_files=False)
    lone = parts & {"query", "gallery"} and not {"query", "gallery"} <= parts
    if lone or "-1" in {label.strip() for _, label, _ in rows}:  # which is no class
        assert refused(loaded)
        return
    labels = zip(map(str, loaded.images.files), labels_of(loaded), strict=True)
    assert dict(labels) == {
        str(file.parent / name): unicodedata.normalize("NFC", label.strip())
        for name, label, _ in rows
    }
    for split in parts - {""}:
        part = data.load("folder", file, split, check_files=False)
        expected = {str(file.parent / name) for name, _, of in rows if of == split}
        assert set(map(str, part.images.files)) == expected


@generated(few=8, share=0.015, case=st.data())
def test_arrays(run, images, case):
    """Arrays are scored, reported and searched without NaN in the output, or refused."""
    arrays = case.draw(files.sets_of_arrays() | files.consistent_arrays())
    with temporary_folder() as place:
        file = place / "e.npz"
        np.savez(file, **arrays)
        if case.draw(st.integers(0, 4)) == 4:
            file.write_bytes(case.draw(files.damaged(file.read_bytes())))
        measured = command("evaluate", file, "--recall-at", 1, "--json", place / "m.json")
        if measured.code == 0:
            scores = json.loads((place / "m.json").read_text())
            numbers = [v for values in scores.values() for v in np.ravel(values)]
            most = {float: 1, int: len(arrays["embeddings"])}
            assert all(0 <= v <= most[type(v.item())] for v in numbers), scores
        runs = attempt(report.read_runs, file)
        if not refused(runs):
            page = report.html_report(runs, place / "r.html", projections=("pca",))
            (script,) = re.findall(r'"application/json" id="data">(.*?)<', page.read_text(), re.S)
            json.loads(script, parse_constant=pytest.fail)
        done = command("search", run, images / "0.png", "--gallery", file, "--quiet")
        assert done.code == 2 or not refused(runs), runs


def damage_a_file(draw: Any, place: Path) -> None:
    """Generate damage to, or the removal of, one file of a run's folder."""
    known = sorted(file for file in place.rglob("*") if file.is_file())
    own = [file for file in known if file.parent == place]
    file = draw(st.sampled_from(own) | st.sampled_from(known))
    way = draw(st.sampled_from(["alter", "alter", "alter", "damage", "remove", "folder"]))
    if way in ("remove", "folder"):
        file.unlink()
        if way == "folder":
            file.mkdir()
    elif way == "damage" or file.suffix == ".npz":
        file.write_bytes(draw(files.damaged(file.read_bytes())))
    elif file.suffix == ".safetensors":
        with contextlib.suppress(Exception), safe_open(file, "numpy") as opened:
            tensors, described = load_file(file), opened.metadata()
            name = draw(st.sampled_from(sorted(tensors)))
            tensors[name] = draw(files.arrays().filter(lambda array: array.dtype.kind in "fiu"))
            key = draw(st.sampled_from(sorted(described)))
            described[key] = json.dumps(draw(files.altered(json.loads(described[key]))))
            if draw(st.booleans()):
                tensors = load_file(file)
            save_file(tensors, file, described)
    else:
        content = file.read_bytes()
        lines = content.splitlines() if file.suffix == ".jsonl" else [content]
        with contextlib.suppress(ValueError):
            new = [json.dumps(draw(files.altered(json.loads(line)))) for line in lines]
            file.write_text("\n".join(new))


# Orbax leaves threads behind that no longer find an event loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@generated(few=10, share=0.03, case=st.data(), number=st.integers(0, 9))
def test_damaged_runs(run, photos, case, number):
    with temporary_folder() as root:
        place = root / "run"
        shutil.copytree(run, place)
        for _ in range(case.draw(st.integers(1, 2))):
            damage_a_file(case.draw, place)
        attempt(training.load, place)
        if number == 8:
            attempt(training.load, place, which="last")
        runs = attempt(report.read_runs, place)
        compared = command("compare", place, "--csv", root / "c.csv")
        if refused(runs):
            assert compared.code == 2
        else:
            attempt(report.html_report, runs, root / "r.html")
        if number == 9:
            command(*TRAIN.split(), "--data-dir", photos, "--out", place)
        if number >= 8:
            gc.collect()  # collects reads that Orbax leaves unfinished


@pytest.fixture(scope="module")
def work(photos, run):
    """Make a working directory with inputs for every command."""
    place = photos.parent
    np.savez(place / "e.npz", embeddings=np.eye(6, 3, dtype=np.float32), labels=np.arange(6) % 2)
    (place / "t.csv").write_text("file,label\nphotos/ant/0.png,x\nphotos/bees/0.png,y\n")
    (place / "names.txt").write_text("ant\nbees\n")
    records = [
        {"name": name, "job": {"lr": lr, "seed": 0}, "metrics": {"R@1": lr}}
        for name, lr in (("a", 0.1), ("b", 0.2))
    ]
    (place / "r.jsonl").write_text("\n".join(map(json.dumps, records)))
    shutil.copytree(run, place / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("COLUMNS", "200")
        yield place


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", files.COMMANDS)
@generated(few=3, share=0.003, case=st.data(), random=st.randoms(use_true_random=False))
def test_command_lines(work, name, case, random):
    """The order of options makes no difference; a refusal writes nothing, and existing files do not change."""
    options = case.draw(files.command_lines(name))
    before = contents(work)
    results = []
    for _ in range(2):
        done = command(*name.split(), *(word for option in options for word in option))
        after = contents(work)
        for file in after.keys() - before.keys():
            file.unlink()
            assert done.code != 2, file
        assert {file: after.get(file) for file in before} == before
        results.append((done.code, done.out))
        random.shuffle(options)
    assert results[0] == results[1]
