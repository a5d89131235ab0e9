"""Mistakes on the command line: each is refused before any work, in words that name the wrong one.

A row is a command and the names in its message, in this order: the option or the path that is wrong, then what to
write instead.
"""

import re

import numpy as np
import pytest
from cli.photos import draw_photos


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make folders and files, most of them with something wrong."""
    root = tmp_path_factory.mktemp("places")
    draw_photos(root / "photos")
    draw_photos(root / "one", 1, 3)
    draw_photos(root / "three", 3, 3)
    draw_photos(root / "layout" / "train", 3, 2)
    draw_photos(root / "layout" / "val", 1, 2)
    (root / "file").write_text("")
    (root / "names.txt").write_text("kind0\nkind9\n")
    (root / "empty").mkdir()
    np.savez(root / "e.npz", embeddings=np.eye(4, 2, dtype=np.float32), labels=np.arange(4) % 2)
    return {path.name.split(".")[0]: path for path in root.iterdir()}


UNREADABLE = [
    ("train --optimzer adam", "--optimzer", "--optimizer"),
    ("train --lr fast", "--lr", "fast"),
    ("sweep --select-on train --set lr=1 --out s", "--select-on", "validation"),
    ("data check .", "name", "folder"),
]
"""Refused by tyro, which prints what it may have been in a box."""
WORDS = [
    ("paint", "COMMAND", "'paint'"),
    ("trian", "COMMAND", "train"),
    ("data chekc", "COMMAND", "data check"),
    ("train --model=resnet", "--model", "resnet"),
    ("train --data mnst", "--data", "mnist"),
    ("train --miner easy_positve", "--miner", "easy_positive"),
    ("train --miner semi_hard:foo=1", "--miner semi_hard", "margin"),
    ("train --loss-setting margn=1", "--loss-setting", "margin"),
    ("train --lr-multiplier beta=fast", "--lr-multiplier", "beta"),
    ("train --method nir --method-setting wait=1", "--method-setting", "weight"),
    ("sweep --set los=triplet --out s", "--set", "loss"),
]
NUMBERS = [
    ("train --seed 4294967296", "--seed"),
    ("train --lr 0", "--learning-rate"),
    ("train --steps -1", "--steps"),
    ("train --devices 3", "--devices"),
    ("train --validation 0.0001", "--validation"),
    ("train --lr-warmup-steps 2000", "--lr-warmup-steps", "--steps"),
    ("train --batch-size 1", "batch", "10x6"),
    ("train --processes 2", "processes", "coordinator"),
    ("sweep --set lr=1,-1 --out s", "--learning-rate"),
    ("evaluate {e} --recall-at 0", "--recall-at"),
    ("data check folder {photos} --sample 0", "--sample"),
]
DATA = [
    ("train --data-dir {one}", "{one}", "test"),
    ("train --data-dir {three}", "test", "--split"),
    ("train --data-dir {photos} --split images --test-share .1", "test", "--test-share"),
    ("train --data-dir {layout}", "validation", "--split"),
    ("train --data-dir {layout} --split images", "--split", "train"),
    ("train --data-dir {layout} --validation .2", "--validation"),
    ("train --data-dir {empty}", "{empty}"),
    ("train --data-dir {file}", "{file}"),
    ("train --data-dir /no/such", "/no/such"),
    ("train --data cub --data-dir /no/such", "images.txt", "/no/such"),
    ("train --data nothing_there:rows", "nothing_there:rows"),
    ("train --data digits --data-dir {photos}", "--data-dir", "--data folder"),
    ("train --labels colour", "--labels", "parity"),
    ("train --data-dir {photos} --classes-file {names}", "kind9", "kind0"),
    ("train --data-dir {photos} --classes-file {photos}/kind0/0.png", "UTF-8"),
    ("train --data-dir {photos} --out {photos}", "--out", "{photos}"),
    ("train --out {file}/run", "--out", "{file}"),
    ("benchmark --dataset inshop", "--data-dir"),
    ("benchmark --dataset folder --data-dir {layout}", "{layout}", "test"),
    ("benchmark --dataset folder --data-dir {photos} --method ccp --image-size 32", "folds", "3"),
    ("data check cub nowhere", "DIR", "nowhere"),
    ("embed {empty} {photos} --out e.npz", "{empty}", "config.json"),
    ("embed {empty} {photos} --out e.txt", "--out", ".npz"),
    ("search {empty} {file}", "--gallery"),
    ("export {empty} --out m.pb", "--out", ".safetensors"),
    ("evaluate {e} --json=", "--json"),
    ("evaluate {e} --json no/m.json", "no/m.json"),
    ("evaluate nowhere.npz", "nowhere.npz"),
    ("report nowhere", "run", "nowhere"),
    ("report . --out r.pdf", "--out", ".html"),
    ("compare", "RUN"),
    ("compare . --csv r.txt", "--csv", ".csv"),
    ("compare . --markdown r.csv", "--markdown", ".md"),
    ("sweep --set lr=1", "--out"),
    ("train --out s3://bucket/run", "--out", "s3:/bucket/run"),
]
BENCHMARK = "benchmark --dataset folder --data-dir {photos}"
SEARCH = "search {empty} {file} --gallery {photos}"
TOGETHER = [
    ("benchmark --validation 0.25 --protocol mlrc", "--validation", "conventional"),
    ("train --split images", "--split", "digits"),
    ("train --data-dir {photos} --test-share .5", "--test-share", "--split classes"),
    ("train --loss proxy_anchor --miner eps", "--miner", "proxy_anchor"),
    ("train --sampled-classes 4", "--sampled-classes", "triplet"),
    ("train --patience 3 --validation .2 --monitor R@1", "--monitor", "digit/MAP@R", "'R@1'"),
    ("train --evaluate-every 5", "--evaluate-every", "--validation"),
    ("train --method ccp", "--method ccp", "--validation"),
    ("train --pooling gem", "--pooling", "--model eps"),
    ("train --freeze backbone", "--freeze backbone", "head"),
    ("train --lora-alpha 2", "--lora-alpha", "--lora"),
    ("train --batch-size 8 --classes-per-batch 2", "--classes-per-batch", "--samples-per-class"),
    ("benchmark --label-noise .2 --protocol mlrc", "--label-noise", "conventional"),
    (f"{BENCHMARK} --method eps --proxies-per-class 2", "--proxies-per-class", "pair"),
    (f"{BENCHMARK} --backbone vit_s16 --pooling max", "--pooling", "--backbone vit_s16"),
    (f"{BENCHMARK} --method ccp --method-setting loss=arcface", "loss", "contrastive"),
    (f"{BENCHMARK} --method mpa --method-setting weight=1", "--method-setting", "mpa"),
    ("sweep --set lr --out s", "--set", "'lr'"),
    (f"{SEARCH} --max-distance auto --rerank expand", "--max-distance", "--rerank"),
]


@pytest.fixture
def typed(places, jdml_command, tmp_path, monkeypatch):
    """Type a row's command in an empty folder; return what it printed, and the names of the row."""

    def call(row):
        monkeypatch.chdir(tmp_path)
        words, *names = row
        done = jdml_command(*[word.format(**places) for word in words.split()])
        assert not list(tmp_path.iterdir())
        return done, tuple(name.format(**places) for name in names)

    return call


@pytest.mark.parametrize("row", UNREADABLE, ids=lambda row: row[0])
def test_words_that_are_no_options_or_choices(row, typed):
    done, names = typed(row)
    assert (done.code, done.out) == (2, "")
    for name in names:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", done.err), done.err


@pytest.mark.parametrize("row", [*WORDS, *NUMBERS, *DATA, *TOGETHER], ids=lambda row: row[0])
def test_mistakes(row, typed):
    """Each is refused in one line with the names in this order; a line about devices is allowed."""
    done, names = typed(row)
    line = ".*".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names)
    assert (done.code, done.err.count("\n")) == (2, 1), (done.out, done.err)
    assert not done.out or " devices " in done.out
    assert re.match(rf"jdml[\w ]*: error: .*{line}", done.err), done.err
