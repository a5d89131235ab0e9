"""Write run folders like the commands do, and read a page's data."""

import json
import re


def write_run(folder, config, scores=None, log=()):
    """Write a run whose log ends in an incomplete record, as after a kill."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log) + '{"st')
    if scores is not None:
        (folder / "metrics.json").write_text(json.dumps(scores))
    return folder


def train_config(*, loss="triplet", lr=0.001, **changes):
    """Return the config.json of `jdml train`."""
    return {
        "data": "digits",
        "recipe": {"loss": {"name": loss}, "optimizer": {"learning_rate": lr}},
        "seed": 0,
        "fit": {"steps": 4, "seed": 0},
        "fingerprint": {"objective": "a"},
        "versions": {"jdml": "1"},
        "provenance": {"command": "jdml train --lr 0.001", "data_dir": None},
        **changes,
    }


def content(page):
    """Return the data that a page's script reads."""
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    (script,) = re.findall(pattern, page.read_text(), re.S)
    return json.loads(script)
