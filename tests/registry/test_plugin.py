"""A plugin's registrations are available everywhere: in recipes, on the command line, in its help."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def output(*words: object, code: int = 0) -> str:
    """Return the output of ``jdml WORDS``."""
    import jdml.cli

    text, wrong = io.StringIO(), contextlib.suppress(SystemExit)  # raised by the help
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), wrong:
        assert jdml.cli.main([str(word) for word in words]) == code, text.getvalue()
    return text.getvalue()


def train(out: str, *words: object) -> dict:
    """Train with these options, and return the recipe of the run."""
    data = "--data bars --data-dir . --model linear --dim 4 --validation 0.2".split()
    output("train", *data, *words, "--evaluate-every", 1, "--quiet", "--out", out)
    return json.loads(Path(out, "config.json").read_text())["recipe"]


def check() -> None:
    """Use every registered thing through the public commands."""
    import my_plugin

    import jdml

    my_plugin.register()
    text = output("train", "--help")
    assert all(name in text for name in ("soft_contrastive", "bars", "shrinking"))
    assert "labellings" in output("--help")
    assert output("labellings", "bars") == "place side\n"
    assert "32" in output("data", "check", "bars", ".")
    assert len(jdml.data.load("bars", ".", split="test")) == 32
    assert jdml.models.create("linear", dim=3).dim == 3

    setting = ("--loss-setting", "margin=0.3", "--miner", "eps+mine_near:radius=0.5")
    recipe = train("run", "--loss", "soft_contrastive", *setting, "--labels", "side", "--steps", 1)
    loss, network = recipe["loss"], recipe["network"]
    assert (loss["name"], loss["settings"]) == ("soft_contrastive", {"margin": 0.3})
    assert (network["name"], loss["miner"]) == ("linear", "eps+mine_near:radius=0.5")
    wrong = output("train", "--loss", "soft_contrastive", "--loss-setting", "m=1", code=2)
    assert "margin" in wrong
    output("embed", "run", "bars:.", "--split", "test", "--quiet", "--out", "embedded.npz")
    assert np.load("embedded.npz")["embeddings"].shape == (32, 4)

    method = "--method shrinking --method-setting factor=0.5 --steps 2".split()
    recipe = train("shrunk", *method)
    assert recipe["loss"]["method"] == {"name": "shrinking", "factor": 0.5}
    log = [json.loads(line) for line in Path("shrunk/log.jsonl").read_text().splitlines()]
    assert [line["shrunk"] for line in log if "shrunk" in line] == [1, 2]
    (run,) = jdml.report.read_runs("shrunk")
    assert run.settings["loss.method.factor"] == 0.5


@pytest.mark.slow  # commands in processes of their own
def test_plugin_registrations_are_available_everywhere(tmp_path: Path) -> None:
    """Run in a new process, as registrations cannot be undone."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    check()
