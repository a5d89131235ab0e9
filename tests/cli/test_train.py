"""`jdml train` on data in memory: scores, stopping, output folder and devices."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from jdml import training


def test_proxy_loss_stops_early(jdml_main, tmp_path):
    options = (
        "--loss soft_triple --proxies-per-class 2 --dim 4 --classes-per-batch 4 --samples-per-class 4 "
        "--optimizer sgd --lr 1e-9 --weight-decay 1e-4 "
        "--validation 0.3 --evaluate-every 2 --patience 1 --steps 50 --quiet"
    )
    code, out, err = jdml_main("train", *options.split(), "--out", tmp_path)
    assert code == 0, err
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] < 50
    best = max(lines, key=lambda line: line["digit/MAP@R"])["step"]
    assert json.loads((tmp_path / "metrics.json").read_text())["step"] == best
    train, held_out, test = (
        int(count.replace(",", "")) for count in re.findall(r"([\d,]{3,})(?= images| of)", out)[:3]
    )
    assert (train + held_out, test) == (1198, 599)


@pytest.mark.slow  # three runs, of two programs each
def test_devices_and_micro_batches_change_nothing(jdml_main, tmp_path):
    """Six steps on one device and on two are the same, also resumed on the other."""
    words = "train --loss multi_similarity --optimizer sgd --lr 1e-3 --freeze-batch-norm --steps 6"
    words = f"{words} --dim 8 --batch-size 32 --quiet".split()
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
        if name != "again":  # which finds the run finished
            assert re.search(rf"\b{devices} of 2\b.*\b{32 // devices}\b", out)
    np.testing.assert_allclose(shown["all"], shown["one"], atol=2e-3)
    assert shown["again"] == shown["all"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert not {"devices", "micro_batch", "sampled_classes"} & set(config)


@pytest.mark.parametrize(
    ("asked", "there"),
    [(None, 2), pytest.param("3", 3, marks=pytest.mark.slow)],  # another run
)
def test_device_count_divides_the_cpu(asked, there):
    """A single process divides its CPU, unless its user has set the number of devices."""
    program = (
        "import jax; from jdml.cli.option_groups import DeviceOptions; options = DeviceOptions(devices=2);"
        "options.join(); print(jax.device_count(), end=' '); options.build(32)"
    )
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    if asked:
        env["JAX_NUM_CPU_DEVICES"] = asked
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**env, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.match(rf"{there} 2 of {there}\b.*\b16\b", ended.stdout)


@pytest.mark.parametrize("more", ["--loss proxy_anchor --validation .3", ""])
def test_zero_steps_score_the_initial_network(jdml_command, tmp_path, more):
    words = ["train", "--dim", 4, "--quiet", "--out", tmp_path, *more.split()]
    done = jdml_command(*words, "--steps", 0)
    assert done.code == 0, done.err
    scores = json.loads((tmp_path / "metrics.json").read_text())
    assert scores["step"] == training.load(tmp_path).step == 0
    assert f"{scores['test digit']['R@1']:.4f}" in done.out
    if not more:
        assert jdml_command(*words, "--steps", 2).code == 0
        assert training.load(tmp_path).step == 2
        done = jdml_command(*words, "--steps", 1)
        assert done.code == 2
        assert re.search(r"\bsteps\b.*\b2\b.*\b1\b", done.err), done.err
