"""The command line, as a person uses it: names, help, mistakes, training, devices."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import jdml.cli
from jdml import losses, mining
from jdml.cli.train import Train
from jdml.recipes.words import build_miner
from jdml.registry import LOSSES, MINERS

pytestmark = pytest.mark.slow


# Names


def test_every_loss_has_a_name():
    public = {name.removesuffix("_loss") for name in losses.__all__ if name.endswith("_loss")}
    assert public - {"nir"} == set(LOSSES)  # nir needs a flow


@pytest.mark.parametrize("name", MINERS)
def test_every_miner_can_be_built(name):
    assert callable(build_miner(name, dim=8))


def test_miner_chains():
    built = build_miner("eps+semi_hard:margin=0.3", dim=8)
    assert built == mining.chain(mining.easy_positive(), mining.semi_hard_negative(margin=0.3))
    built = build_miner("eps + multi_similarity_negative:epsilon=0.2", dim=8)
    ms = mining.multi_similarity_pairs(epsilon=0.2, mine_positives=False)
    assert built == mining.chain(mining.easy_positive(), ms)
    built = build_miner("distance_weighted", dim=8)
    assert built == mining.distance_weighted_negative(dim=8)
    assert build_miner("none", dim=8) is None


# Help and mistakes


def test_help_of_all_commands(jdml_main):
    code, out, _ = jdml_main("--help")
    assert code == 0
    for command in jdml.cli.COMMANDS:
        assert command in out
        code, text, _ = jdml_main(*command.split(), "--help")
        assert code == 0
        assert "xample" in text
        assert "jdml " + command in text


@pytest.mark.parametrize("words", ["data --help", "data", "help data", "weights -h"])
def test_help_of_a_group_of_commands(jdml_main, words):
    code, out, err = jdml_main(*words.split())
    assert (code, err) == (0, "")
    name = words.replace("help", "").split()[0].strip("-")
    assert f"usage: jdml {name} COMMAND" in out
    for command in jdml.cli.COMMANDS:
        assert (f"  {command} " in out) == command.startswith(f"{name} ")


def test_help_of_a_command_by_its_name(jdml_main):
    assert "--loss" in jdml_main("help", "train")[1]
    assert "COMMAND must be one of" in jdml_main("help", "paint")[2]


@pytest.mark.parametrize(
    "words", ["--help", "train --help", "data check --help", "data --help", "paint"]
)
def test_nobody_reads_on(words):
    """As in `jdml --help | head -1`, whose reader is gone before anything is written."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "jdml", *words.split()],
            stdout=closed, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    wrong = words == "paint"
    assert ended.returncode == (2 if wrong else 141)
    assert ended.stderr.count("\n") == wrong


def test_there_may_be_nowhere_to_write():
    """As in `jdml --version >&-`."""
    command = f"{sys.executable} -m jdml --version >&-"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paint"], "COMMAND must be one of demo, train, .*, weights convert, got 'paint'"),
        (
            ["weights", "paint"],
            "COMMAND must be one of .*, got 'weights paint'; did you mean weights con",
        ),
        (
            ["train", "--miner", "eps+foo"],
            "--miner must be none or a chain of eps, distance_weighted",
        ),
        (["train", "--miner", "semi_hard:foo=1"], "--miner semi_hard: "),
        (["train", "--miner", "semi_hard:margin"], "--miner semi_hard must be name=number"),
        (
            ["train", "--loss-setting", "alpha=1"],
            "triplet_loss has no setting 'alpha'; it has margin",
        ),
        (["train", "--loss-setting", "margin"], "--loss-setting must be name=number"),
        (["train", "--loss", "proxy_anchor", "--miner", "eps"], "--miner is for pair losses"),
        (["train", "--loss", "proxy_anchor", "--memory", "64"], "--memory is for pair losses"),
        (["train", "--batch", "8y4"], "--batch must be CLASSESxSAMPLES"),
        (["train", "--batch", "11x1"], "--batch 10x1 has no two images of one class"),
        (["train", "--batch", "1"], "--batch 1 has no two images of one class"),
        (["train", "--labels", "colour"], "--labels must be one of digit, parity, got 'colour'"),
        (["train", "--train-classes", "3", "12"], "--train-classes must be classes .* got 12"),
        (["train", "--validation", "1"], "--validation must be from 0 to below 1"),
        (["train", "--patience", "3"], "--patience needs --validation"),
        (["train", "--validation", "0.002"], "--validation 0.002 holds out 2 images, no two of a"),
        (["train", "--validation", "0.0001"], "--validation 0.0001 holds out 0 images"),
        (["train", "--image-size", "99"], "--image-size is not for digits"),
        (["train", "--data", "omniglot", "--image-size", "0"], "--image-size must be at least 1"),
        (["train", "--monitor", "digit/R@1"], "--monitor needs --patience"),
        (
            ["train", "--patience", "3", "--validation", ".2", "--monitor", "R@1"],
            "--monitor must be one of digit/MAP@R",
        ),
        (["train", "--lr", "0"], "--lr must be positive, got 0"),
        (["train", "--steps", "-1"], "--steps must not be negative, got -1"),
        (
            ["train", "--freeze", "backbone"],
            "--freeze backbone needs a network whose embedding lay",
        ),
        (["train", "--last-blocks", "2"], "--last-blocks needs a --model with blocks .*, got eps"),
        (["train", "--lora-alpha", "2"], "--lora-alpha needs --lora, a rank"),
        (["train", "--data", "inshop"], "--data-dir must be the folder of the inshop files"),
        (["train", "--data", "omniglot", "--data-dir", "/no/such"], "omniglot needs"),
    ],
)
def test_mistakes_are_one_line(jdml_main, arguments, message):
    import re

    code, out, err = jdml_main(*arguments)
    assert code == 2
    assert out == ""
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("option", "listed"), [("--loss", "multi_similarity"), ("--data", "omniglot")]
)
def test_invalid_names_list_the_valid_ones(jdml_main, option, listed):
    code, _, err = jdml_main("train", option, "foo")
    assert code == 2
    assert listed in err


# train


def test_train_scores_seen_and_unseen_classes(jdml_main, tmp_path):
    options = (
        "--labels parity --train-classes 0 1 2 3 --miner eps+semi_hard --dim 2 --steps 2 --quiet"
    )
    code, out, err = jdml_main("train", *options.split(), "--out", tmp_path / "run")
    assert code == 0, err
    assert err == ""
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(metrics) == {"step", "seen digit", "seen parity", "unseen digit", "unseen parity"}
    assert metrics["step"] == 2
    for row in set(metrics) - {"step"}:
        assert row in out
        assert 0 < metrics[row]["R@1"] <= 1


def test_train_proxy_loss_stops_early(jdml_main, tmp_path):
    options = (
        "--loss soft_triple --proxies-per-class 2 --dim 4 --batch 4x4 --optimizer sgd --lr 1e-9 --weight-decay 1e-4 "
        "--validation 0.3 --evaluate-every 2 --patience 1 --steps 50 --quiet"
    )
    code, _, err = jdml_main("train", *options.split(), "--out", tmp_path)
    assert code == 0, err
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] < 50
    best = max(lines, key=lambda line: line["digit/MAP@R"])["step"]
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == best


def test_train_refuses_the_folder_of_another_run(jdml_main, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({**Train(dim=3).config(), "fit": {"steps": 7}})
    )
    (tmp_path / "log.jsonl").write_text('{"step": 7}\n')
    code, _, err = jdml_main("train", "--dim", 2, "--out", tmp_path)
    assert code == 2
    assert "another configuration" in err
    assert "dim: 3 there, 2 now" in err


def test_devices_and_micro_batches_change_nothing(jdml_main, tmp_path):
    """Smooth enough that six steps of one device and of two are the same; gone on with on the other."""
    loss = ["--loss", "multi_similarity", "--optimizer", "sgd", "--lr", "1e-3"]
    words = [
        "train",
        *loss,
        "--freeze-batch-norm",
        "--steps",
        6,
        "--dim",
        8,
        "--batch",
        32,
        "--quiet",
    ]
    shown = {}
    for name, more in {
        "one": ["--devices", 1],
        "all": ["--devices", "all", "--micro-batch", 8, "--out", tmp_path / "run"],
        "again": ["--devices", 1, "--out", tmp_path / "run"],
    }.items():
        code, out, err = jdml_main(*words, *more)
        assert code == 0, err
        shown[name] = [float(word) for word in out.split() if word.replace(".", "").isdigit()][-12:]
        devices = 2 if name == "all" else 1
        assert f"{devices} of 2 devices (cpu), {32 // devices} rows of a batch of 32 on each" in out
    np.testing.assert_allclose(shown["all"], shown["one"], atol=2e-3)
    assert shown["again"] == shown["all"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert not {"devices", "micro_batch", "sampled_classes"} & set(config)


@pytest.mark.parametrize(("said", "there"), [(None, 2), ("3", 3)])
def test_a_number_makes_devices_of_a_cpu(said, there):
    """A process alone divides its CPU, unless its user has said how many devices it is."""
    program = (
        "import jax; from jdml.cli.options.machines import Machines; machines = Machines(devices='2');"
        "machines.join(); print(jax.device_count(), *machines.mesh(32)[1])"
    )
    unsaid = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    told = {"JAX_NUM_CPU_DEVICES": said} if said else {}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**unsaid, **told, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = f"{there} 2 of {there} devices (cpu), 16 rows of a batch of 32 on each"
    assert ended.stdout.strip() == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--devices", "3"], "--devices must be from 1 to 2, which there are, got 3"),
        (["--devices", "many"], "--devices must be a number or all, got 'many'"),
        (["--micro-batch", "0"], "--micro-batch must be at least 1, got 0"),
        (["--sampled-classes", "4"], "--sampled-classes is for proxy losses; triplet is a pair"),
        (["--processes", "2"], "coordinator, processes and process belong together"),
    ],
)
def test_wrong_devices(jdml_main, words, message):
    code, _, err = jdml_main("train", *words)
    assert code == 2
    assert message in err
