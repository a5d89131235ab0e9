"""A run on images that is killed with SIGKILL several times ends like an uninterrupted one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jdml.cli

pytestmark = pytest.mark.slow  # three runs, one of them in a process of its own


def command(animals: Path, folder: Path, workers: int) -> list[str]:
    options = (
        "train --data folder --model eps --dim 2 --image-size 16 --classes-per-batch 2 --samples-per-class 4 "
        "--steps 30 --on-bad-image skip "
        "--validation 0.2 --evaluate-every 10 --patience 100 --checkpoint-every 5 --quiet "
        "--loss contrastive --memory-size 12 --miner eps --weight-decay 1e-4 --devices 1"
    )
    files = ["--data-dir", str(animals), "--out", str(folder), "--workers", str(workers)]
    return [*options.split(), *files]


def start(words: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "jdml", *words],
        env={
            **os.environ,
            "JAX_NUM_CPU_DEVICES": "2",  # as in this process, otherwise the bits differ
            "PYTHONPATH": str(Path(jdml.cli.__file__).parents[2]),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def records(folder: Path) -> list[dict]:
    """The log, without what depends on the clock."""
    path = folder / "log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return [{k: v for k, v in r.items() if k not in ("seconds", "input_wait")} for r in whole]


def final_arrays(folder: Path) -> list[np.ndarray]:
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        step = manager.latest_step()
        items = ocp.args.Composite(state=ocp.args.StandardRestore())
        return [np.asarray(x) for x in jax.tree.leaves(manager.restore(step, args=items)["state"])]


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
def test_killed_run_ends_like_an_uninterrupted_one(capsys, animals, tmp_path):
    """Killed in the middle, resumed with another number of workers, with damaged files: the same bits.

    Here it is resumed in the tests' process; in one of its own with `make kills`.
    """
    for path in (animals / "bee" / "3.jpg", animals / "ant" / "0.jpg", animals / "dog" / "1.jpg"):
        path.write_bytes(b"no image")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    killed = start(command(animals, broken, 2))
    while not any(record["step"] >= 8 for record in records(broken)):
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    said = []
    for folder, workers in (broken, 3), (whole, 1):
        code = jdml.cli.main(command(animals, folder, workers))
        shown = capsys.readouterr()
        assert code == 0, shown.err
        said.append(re.sub(r"--workers \d", "", shown.out.replace(str(folder), "")))
    assert said[0] == said[1]
    pairs = zip(final_arrays(broken), final_arrays(whole), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert (broken / "metrics.json").read_text() == (whole / "metrics.json").read_text()
    assert records(broken) == records(whole)
    assert 1 <= records(whole)[-1]["bad_images"] <= 2  # of the images that are not held out
