"""Runs as commands leave them in folders."""

import json


def write_run(folder, config, scores=None, log=()):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in log) + '{"st')
    if scores is not None:
        (folder / "metrics.json").write_text(json.dumps(scores))
    return folder


def train_config(**changes):
    return {
        "data": "digits",
        "loss": "triplet",
        "lr": 0.001,
        "seed": 0,
        "fit": {"steps": 4, "seed": 0},
        "fingerprint": {"objective": "a"},
        "versions": {"jdml": "1"},
        "started": {"command": "jdml train --lr 0.001", "data_dir": None},
        **changes,
    }
