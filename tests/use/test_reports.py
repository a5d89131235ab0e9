"""`jdml report`, `compare` and `sweep` on runs and files."""

import json
import re
import shlex
import shutil

import pytest
from cli.photos import draw_photos
from report.files import content

from jdml.cli.commands import COMMANDS

pytest.importorskip("jinja2")


def test_report_shows_the_images_that_were_scored(run, tmp_path, succeed):
    shown = succeed("report", run.folder, "--out", tmp_path / "r.html")
    assert re.search(r"report: .*r\.html \(0\.\d MB\)", shown)
    page = content(tmp_path / "r.html")
    (images,) = page["sets"]
    assert images["count"] == 18
    names = images["views"]["class"]["names"]
    assert names == ["kind3", "kind4", "kind5"]  # not trained on
    assert len(images["pictures"]) == 18
    assert {chart["name"] for chart in page["curves"]} >= {"loss", "grad_norm"}
    text = (tmp_path / "r.html").read_text()
    assert "jdml train --data-dir" in text
    assert "test class R@1" in text


def test_report_of_moved_images_names_the_run_and_takes_source(run, photos, tmp_path, succeed):
    moved = shutil.copytree(run.folder, tmp_path / "moved")
    config = json.loads((moved / "config.json").read_text())
    config["provenance"]["data_dir"] = str(tmp_path / "gone")
    (moved / "config.json").write_text(json.dumps(config))
    shown = succeed("report", moved, "--out", tmp_path / "r.html")
    assert "moved" in shown
    assert content(tmp_path / "r.html")["embeddings"] == []
    succeed("report", moved, "--source", photos, "--out", tmp_path / "r.html")
    assert content(tmp_path / "r.html")["sets"][0]["count"] == 18


def test_report_of_embeddings_in_a_file(run, photos, tmp_path, succeed):
    succeed("embed", run.folder, photos, "--out", tmp_path / "e.npz", "--quiet")
    succeed(
        "report", tmp_path / "e.npz", run.folder, "--out", tmp_path / "r.html", "--thumbnails", 9
    )
    page = content(tmp_path / "r.html")
    assert [look["name"] for look in page["embeddings"]] == ["e", "photos"]
    assert [images["count"] for images in page["sets"]] == [36, 18]
    assert sum(len(images["pictures"]) for images in page["sets"]) <= 9


@pytest.mark.slow  # three sweeps and a page
def test_sweep_trains_missing_runs_and_compares_all(tmp_path, succeed):
    out = tmp_path / "s"
    words = f"sweep --dim 4 --steps 2 --quiet --out {out} --set".split()
    shown = succeed(*words, "loss=triplet,proxy_anchor")
    table, _, next_command = shown.partition("next: ")
    assert next_command.startswith(f"jdml report {out}")
    assert "test digit" not in table  # held-out rows choose
    assert table.index("triplet-0") < table.index("proxy_anchor-0")
    assert max(map(len, table.splitlines())) <= 120
    assert succeed("compare", out) == table
    assert "test digit R@1" in succeed("compare", out, "--metric", "test digit R@1")
    scores = json.loads((out / "triplet-0" / "metrics.json").read_text())
    last = json.loads((out / "triplet-0" / "log.jsonl").read_text().splitlines()[-1])
    assert scores["validation digit"]["R@1"] == last["digit/R@1"]
    assert json.loads((out / "sweep.json").read_text()) == ["triplet-0", "proxy_anchor-0"]
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/metrics.json")}
    assert len(times) == 2
    succeed(*words, "loss=triplet", "--seeds", 2)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert (out / "triplet-1").is_dir()
    shutil.rmtree(out / "triplet-0")
    succeed(*words, "loss=triplet,proxy_anchor")
    assert (out / "triplet-0" / "metrics.json").is_file()
    scores = out / "proxy_anchor-0" / "metrics.json"
    assert scores.stat().st_mtime_ns == times[scores]
    config = json.loads((out / "proxy_anchor-0" / "config.json").read_text())
    assert config["recipe"]["loss"]["name"] == "proxy_anchor"
    assert shlex.split(config["provenance"]["command"])[:2] == ["jdml", "train"]
    succeed("report", out, "--out", tmp_path / "r.html")
    page = content(tmp_path / "r.html")
    assert [look["name"] for look in page["embeddings"]] == ["triplet-0", "proxy_anchor-0"]
    proxied = page["embeddings"][1]
    assert [name for *_, name in proxied["maps"]["pca"]["proxies"]] == list("0123456789")
    assert len(proxied["proxies"]) == 2


@pytest.mark.parametrize(
    ("typed", "shares"),
    [
        ("lr=1e-4,1e-3", {0.2}),
        ("lr=1e-4,1e-3 --validation .3", {0.3}),
        ("lr=1e-4,1e-3 --select-on test", {0.0}),
        ("lr=1e-4,1e-3 --data-dir PHOTOS", {0.0}),
        ("validation=0,0.3", {0, 0.3}),
    ],
)
def test_validation_share_of_a_sweep(tmp_path, typed, shares):
    """It is 0 for photographs with a validation part."""
    for part in ("train", "val", "test") if "PHOTOS" in typed else ():
        draw_photos(tmp_path / "photos" / part, 2, 2)
    words = typed.replace("PHOTOS", str(tmp_path / "photos")).split()
    sweep = COMMANDS["sweep"].read(["--out", str(tmp_path), "--set", *words])
    assert {run.data.validation for run in sweep.runs().values()} == shares


@pytest.mark.slow  # two runs, and the same again
def test_sweep_continues_after_a_run_that_is_not_finite(tmp_path, succeed):
    words = "sweep --set lr=1e38,1e-3 --optimizer sgd --loss contrastive --normalize none --dim 4 --steps 9 --quiet"
    for _ in range(2):  # the second call finds both runs finished
        shown = succeed(*words.split(), "--out", tmp_path)
        assert re.search(r"failed: 1e38-0: .*(loss|grad_norm)", shown)
        assert (tmp_path / "1e-3-0" / "metrics.json").is_file()
    succeed("compare", tmp_path)


@pytest.mark.slow  # two sweeps
def test_sweep_refuses_runs_of_changed_data(tmp_path, jdml_command, succeed):
    birds = draw_photos(tmp_path / "birds", 2, 12, 16)
    words = "sweep --loss triplet --image-size 16 --batch-size 4 --dim 4 --steps 1 --quiet --set lr=1e-3"
    words = f"{words} --select-on test --split images --out {tmp_path / 's'} --data-dir".split()
    succeed(*words, birds)
    shutil.copy(birds / "kind0/0.png", birds / "kind0/more.png")
    done = jdml_command(*words, birds)
    assert (done.code, "1e-3-0" in done.err) == (2, True)


def test_report_of_a_fold_has_no_training_classes(run, photos):
    """A fold's proxies belong to three quarters of the classes, renumbered: they are shown on the map only."""
    from jdml.report import Run
    from jdml.report.images import attach_images

    options = {"dataset": "folder", "data_dir": str(photos)}
    for protocol, known in (("conventional", True), ("mlrc", False)):
        config = {"benchmark": {**options, "protocol": protocol}}
        looked_at, note = attach_images(Run("fold", path=run.folder, config=config), None, None)
        assert note == ""
        assert len(looked_at.data) == 18
        assert (looked_at.train is not None) == known
