"""Mistakes on the command line: each refused before any work, in one line, with the names that were typed."""

import errno
import os
import re
import shutil

import pytest

from jdml.cli import messages


@pytest.fixture(scope="module")
def places(tmp_path_factory, draw, photos):
    """Folders in which something is wrong."""
    root = tmp_path_factory.mktemp("places")
    draw(root / "one", 1, 3)
    draw(root / "three", 3, 3)
    layout = root / "layout"
    draw(layout / "train", 3, 2)
    draw(layout / "val", 1, 2)
    draw(root / "lone" / "train", 3, 2)
    draw(root / "lone" / "test", 3, 1)
    (root / "file").write_text("")
    (root / "names.txt").write_text("kind0\nkind9\n")
    (root / "empty").mkdir()
    return {path.name.split(".")[0]: path for path in root.iterdir()} | {"photos": photos}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        # names
        ("train --loss tripplet", "--loss must be one of arcface, .*, got 'tripplet'; did you mean triplet"),
        ("train --learning-rate 1", "there is no option --learning-rate; did you mean --lr?"),
        ("train --optimiser sgd", "there is no option --optimiser; did you mean --optimizer?"),
        ("data check .", r"NAME is missing before \.: write folder \."),
        ("data check folder --dir .", "DIR is written without --dir"),
        ("data check folder --data-dir .", "there is no option --data-dir; see --help"),
        ("train --model=resnet", "--model must be one of bn_inception, .*; did you mean resnet"),
        ("train --miner easy_positve", "got 'easy_positve'; did you mean easy_positive?"),
        ("train --loss-setting margn=1", "has no setting 'margn'; .*; did you mean margin?"),
        ("train --method nir --method-setting wait=1", "nir has no setting 'wait'; it has blocks, conditioning"),
        ("trian", "COMMAND must be one of .*, got 'trian'; did you mean train?"),
        ("data chekc", "got 'data chekc'; did you mean data check?"),
        ("data check cubs .", "NAME must be one of cars, cub, .*; did you mean cub?"),
        # data
        ("train --data-dir {one}", "one has 1 class: at least two are needed, a folder of images each"),
        ("train --data-dir {three}", "the test part has 1 class: whatever is found there is right"),
        ("train --data-dir {layout}", "the validation part has 1 class: whatever is found"),
        ("train --data-dir {lone}", "the test part has no two images of one class: nothing there"),
        ("train --seed 4294967296", "--seed must be from 0 to 4294967295, got 4294967296"),
        ("train --seed -1", "--seed must be from 0 to 4294967295, got -1"),
        ("train --data-dir {layout} --split images", "--split is not for .*, which says itself what trains"),
        ("train --data-dir {empty}", "empty: expected a folder for each class, found none"),
        ("train --data-dir {file}", "folder needs a folder of classes: .*file is none"),
        ("train --data-dir /no/such", "folder needs a folder of classes: /no/such is none"),
        ("train --data folder", "--data-dir must be the folder of the folder files, got None"),
        ("train --data digits --data-dir {photos}", "--data-dir is not for digits"),
        ("train --data-dir {photos} --classes-file {names}", "1 of 2 are no classes: kind9"),
        ("train --data-dir {photos} --classes-file {empty}", "--classes-file must be a file"),
        ("train --data-dir {photos} --test-share .5", "--test-share needs --split classes or"),
        ("train --data-dir {photos} --model eps --image-size 224", "at 224 pixels its dense layer has 103 million"),
        ("train --data-dir {photos} --image-size 100000", "--image-size 100000 at --batch 16x4 needs .* GiB"),
        ("train --data-dir {photos} --memory 1000", "--memory must be at most the 18 images"),
        ("train --data-dir {photos} --batch 9x1", "--batch 3x1 has no two images of one class: circle"),
        # options that nothing reads
        ("train --split images", "--split is for image files; digits lies in memory"),
        ("train --proxies-per-class 2", "--proxies-per-class is for proxy losses; triplet is a pair"),
        ("train --proxies-lr-factor 2", "--proxies-lr-factor is for proxy losses"),
        ("train --loss potential_field --proxies-per-class 0 --proxies-lr-factor 9", "--proxies-lr-factor needs"),
        ("train --features there", "--features needs --freeze backbone, of which features are kept"),
        (
            "train --data-dir {photos} --freeze backbone --kept-views 3 --augmentation none",
            "--kept-views 3 keeps augmented views: --augmentation none leaves one",
        ),
        ("train --loss arcface --proxies-per-class 0", "--proxies-per-class must be positive .0 for"),
        ("benchmark --method mpa --proxies-per-class 0 --dry-run", "must be at least 1, got 0"),
        ("train --evaluate-every 5", "--evaluate-every needs --validation"),
        ("train --log-every 5", "--log-every needs --out"),
        ("train --tensorboard", "--tensorboard needs --out"),
        ("train --method-setting weight=1", "--method-setting needs --method nir or --method ccp"),
        ("train --input-stats vit_s16_dino", "--input-stats needs --weights"),
        ("train --pooling gem", "--pooling is not for --model eps, which has its own"),
        # methods
        ("train --method nir --loss triplet", "--method nir is for proxy losses, such as proxy_anchor"),
        ("train --method ccp --loss arcface", "--method ccp is for pair losses, such as contrastive"),
        ("train --method ccp", "--method ccp needs --validation"),
        ("train --memory 1000000000", "--memory 1000000000 needs 238 GiB, this machine has"),
        ("train --warmup 2000", "--warmup must be below --steps, 1000, got 2000"),
        ("train --loss triplet --learn-beta class", "--learn-beta is for --loss margin, with --met"),
        ("train --loss margin --beta-lr-factor 2", "--beta-lr-factor needs --learn-beta"),
        ("train --label-noise 1", "--label-noise must be from 0 to below 1, got 1"),
        ("train --out {file}", "--out must be a folder, .*file is a file"),
        ("train --out {file}/run", "--out must be a folder, .*file in it is a file"),
        # benchmark
        (
            "benchmark --dataset folder --data-dir {photos} --method ccp --image-size 32",
            "ablations a third: at least 4 classes must train, got 3",
        ),
        ("benchmark --method eps --proxies-per-class 2 --dry-run", "eps is one of pairs"),
        ("benchmark --dry-run --loss-setting alpa=2", "has no setting 'alpa'; .*did you mean alpha"),
        ("benchmark --dry-run --seeds 0", "--seeds must be at least 1, got 0"),
        ("benchmark --label-noise .2 --protocol mlrc --dry-run", "--label-noise is for the conv"),
        # embed, search, export
        ("embed {empty} {photos} --out e.npz", "is not the folder of a run: it has no config.json"),
        ("embed nowhere {photos} --out e.npz", "run must be the folder of a run, nowhere does not"),
        ("embed {empty} {photos} --out e.txt", "--out must end in .npz or .npy or .parquet, got e.txt"),
        ("embed {empty} {photos} --out no/e.npz", "--out must lie in a folder that exists"),
        ("embed {empty} {photos} --data-dir {photos}", "given by its name alone, such as cub; .* needs n"),
        ("embed {empty} digits --data-dir {photos}", "given by its name alone, such as cub; digits ne"),
        ("search {empty} {file} --gallery e.npz --labels kind", "e.npz was embedded with the labels it"),
        ("search {empty} {file} --gallery e.npz --data-dir {photos}", "its name alone, such as cub; e.n"),
        ("search {empty} {file}", "--gallery is missing: a folder of images, or a .npz file"),
        ("search {empty} {file} --gallery {photos} -k 0", "-k must be at least 1, got 0"),
        ("search {empty} {file} --gallery {photos} --max-distance auto --rerank expand", "give a number"),
        ("search {empty} {file} --gallery {photos} --max-distance -1", "--max-distance must be at l"),
        ("export {empty} --out m.onnx", "--out must end in .safetensors or .stablehlo, got m.onnx"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(jdml_command, places, tmp_path, monkeypatch, typed, message):
    monkeypatch.chdir(tmp_path)
    done = jdml_command(*[word.format(**places) for word in typed.split()])
    assert done.code == 2, done.out
    assert re.search(message, done.err), done.err
    assert done.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_sources_that_are_none(run, photos, jdml_command, tmp_path):
    for source, message in (
        ("cubb:/data", "or a data set such as cub:FOLDER; cubb:/data is none; did you mean cub?"),
        (str(tmp_path), "has no images in it"),
    ):
        done = jdml_command("embed", run.folder, source, "--out", tmp_path / "e.npz")
        assert done.code == 2
        assert message in done.err
    done = jdml_command(
        "embed", run.folder, photos / "kind0", "--split", "test", "--out", tmp_path / "e.npz"
    )
    assert "--split test needs classes, each a folder" in done.err
    done = jdml_command("search", run.folder, "no.jpg", "--gallery", photos)
    assert "QUERY must be an image or a folder of images, no.jpg does not exist" in done.err


def test_a_full_disk_leaves_nothing_half_written(run, photos, tmp_path, monkeypatch, jdml_command):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for words in (
        ("embed", run.folder, photos, "--quiet", "--out", tmp_path / "e.npz"),
        ("export", run.folder, "--out", tmp_path / "m.safetensors"),
    ):
        done = jdml_command(*words)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "no space left on the device" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_disk_that_fills_up_in_training_keeps_the_checkpoint_before(
    tmp_path, monkeypatch, jdml_command
):
    words = "train --model eps --dim 2 --batch 2x4 --checkpoint-every 2 --quiet --out".split()
    free, saves = shutil.disk_usage, []

    def filling(path):
        saves.append(path)
        return free(path) if len(saves) < 2 else free(path)._replace(free=1 << 20)

    monkeypatch.setattr(shutil, "disk_usage", filling)
    done = jdml_command(*words, tmp_path / "run", "--steps", "6")
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert re.search(r"checkpoints: no space left on the device", done.err)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["2"]
    assert jdml_command(*words, tmp_path / "run", "--steps", "6").code == 0


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/runs"), "/runs: no permission"),
        (NotADirectoryError(errno.ENOTDIR, "x", "/a/b"), "/a/b: a part of the path is a file, expected a folder"),
        (FileExistsError(errno.EEXIST, "x", "/a"), "/a: it is a file, expected a folder"),
        (ValueError("data_dir must be\n  a folder"), "--data-dir must be a folder"),
    ],
)  # fmt: skip
def test_errors_are_told_in_one_line(error, line):
    assert messages.told(error) == line


def test_version_and_module(jdml_command):
    import subprocess
    import sys

    import jdml

    done = jdml_command("--version")
    assert (done.code, done.out) == (0, f"jdml {jdml.__version__}\n")
    again = [sys.executable, "-m", "jdml", "--version"]
    assert subprocess.run(again, capture_output=True, text=True).stdout == done.out


def test_choices_are_sorted():
    """Where a command lists names, they stand in the order of the alphabet."""
    import dataclasses
    from typing import get_type_hints

    from jdml.cli.commands import COMMANDS

    for name, record in COMMANDS.items():
        command = record.kind
        hints = get_type_hints(command)
        for field in dataclasses.fields(command):
            known = messages.choices(hints[field.name])
            if field.name == "loss":  # pair losses, then proxy losses
                continue
            assert list(known) == sorted(known), f"{name}.{field.name}"


def test_compiled_programs_are_kept_unless_switched_off(tmp_path, monkeypatch):
    import jax

    from jdml.training import compiled_programs

    monkeypatch.setenv("JDML_CACHE", "off")
    assert compiled_programs.keep_compiled_programs() is None
    names = (
        "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
        "jax_compilation_cache_max_size",
    )  # fmt: skip
    before = {name: jax.config.values[name] for name in names}
    monkeypatch.setenv("JDML_CACHE", str(tmp_path / "cache"))
    jax.config.update("jax_compilation_cache_dir", "a folder of the user's choice")
    try:
        assert compiled_programs.keep_compiled_programs() is None
        jax.config.update("jax_compilation_cache_dir", None)
        assert compiled_programs.keep_compiled_programs() == tmp_path / "cache"
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "cache")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    monkeypatch.delenv("JDML_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled_programs.user_cache() == tmp_path or os.name != "posix"


@pytest.mark.parametrize("words", [("data", "--help"), ("data",), ("weights", "-h")])
def test_a_word_that_commands_begin_with_lists_them(jdml_command, words):
    done = jdml_command(*words)
    assert done.code == 0
    assert done.out.startswith(f"usage: jdml {words[0]} COMMAND")
    assert "jdml data check folder photos" in done.out or "jdml weights convert" in done.out
