"""The identity of a run: its folder is resumed only with the same parts, in any process and order."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax.numpy as jnp
import optax
import pytest
from training import custom_parts
from training.custom_parts import CONFIG, DATA, RECIPE, TAGS, Net, run

import jdml
from jdml.runs.identity import fingerprint

RUN = "import sys; from training.custom_parts import run; run(sys.argv[1], int(sys.argv[2]))"


def with_rates(rates):
    return RECIPE.replace(optimizer={"lr_multipliers": rates})


def other_labels():
    labels = DATA.labels.copy()
    labels[:2] = labels[1::-1]
    return dataclasses.replace(DATA, labels=labels)


@pytest.fixture(scope="module")
def has_checkpoint(tmp_path_factory):
    """A run of two steps, in this process."""
    folder = tmp_path_factory.mktemp("runs") / "begun"
    run(folder, 2)
    return folder


@pytest.mark.slow  # two processes
def test_run_resumes_in_another_process_and_order(tmp_path):
    for step, seed in ((1, "1"), (2, "2")):  # sets have another order in each
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", RUN, str(tmp_path), str(step)]
        done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    rates = RECIPE.optimizer.lr_multipliers
    rates, note = (dict(reversed(d.items())) for d in (rates, CONFIG["note"]))
    changes = {"recipe": with_rates(rates), "config": {"note": note}}
    changes["objective"] = custom_parts.objective_of(custom_parts.triplet, *reversed(TAGS))
    result = run(tmp_path, 3, **changes)
    assert [record["step"] for record in result.history] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"recipe": with_rates({"proxies": 9.0})}, r"lr_multipliers"),
        ({"recipe": RECIPE.replace(evaluation={"nmi": True})}, r"recipe\.evaluation\.nmi"),
        ({"config": {"note": {**CONFIG["note"], "b": 3}}}, r"note\.b"),
        ({"seed": 1}, r"seed"),
        ({"train": other_labels()}, r"data|labels"),
        ({"train": dataclasses.replace(DATA, images=DATA.images + 1)}, r"data|images"),
        ({"model": Net(dim=5)}, r"model|embedding|params"),
        ({"objective": custom_parts.objective_of(custom_parts.contrastive, *TAGS)}, r"objective"),
        ({"objective": custom_parts.objective_of(custom_parts.triplet, "one")}, r"objective"),
        ({"preprocess": custom_parts.thirds}, r"preprocess"),
        ({"optimizer": optax.adam(0.1)}, r"optimizer|opt_state"),
    ],
)
def test_resume_refuses_other_parts(has_checkpoint, changes, names):

    def times():
        files = (
            file for file in has_checkpoint.rglob("*") if file.is_file() and file.name != ".lock"
        )
        return {file: file.stat().st_mtime_ns for file in files}

    before = times()
    with pytest.raises(ValueError, match=rf"^folder\b.*\b(?:{names})\b"):
        run(has_checkpoint, 2, **changes)
    assert times() == before


def test_fingerprints_differ_by_settings():
    """Of closures, partial functions and schedules."""

    def lossy(margin):
        return lambda x: jnp.maximum(x - margin, 0)

    assert fingerprint(lossy(0.1)) == fingerprint(lossy(0.1)) != fingerprint(lossy(0.2))
    partials = [functools.partial(jdml.triplet_loss, margin=margin) for margin in (0.1, 0.2)]
    schedules = [optax.adam(optax.cosine_decay_schedule(1e-3, n)) for n in (10, 20)]
    for one, other in (partials, schedules):
        assert fingerprint(one) != fingerprint(other)
