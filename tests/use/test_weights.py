"""`jdml train --weights RUN`: a run that begins with another one's parameters."""

import json
import re

import numpy as np
import pytest
from cli.photos import TINY

import jdml
from jdml import training
from jdml.runs.run_files import read_model


@pytest.fixture
def begin(photos, tmp_path, jdml_command):
    """Begin a run of no steps with a run's parameters; return the arrays and the output."""

    def call(weights, *words):
        out = tmp_path / "new"
        own = ("--data-dir", photos, *TINY, "--steps", 0, "--out", out, "--weights", weights)
        done = jdml_command("train", *own, *words)
        assert done.code == 0, done.err
        return read_model(out / "model.safetensors")[0], done

    return call


@pytest.mark.parametrize("exported", [False, True])
def test_run_begins_with_the_parameters_of_another(run, begin, tmp_path, succeed, exported):
    weights = run.folder
    if exported:
        weights = tmp_path / "model.safetensors"
        succeed("export", run.folder, "--out", weights)
    expected, _ = read_model(run.folder / "model.safetensors")
    found, _ = begin(weights)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert re.fullmatch(r"[0-9a-f]{16}", config["weights"])
    assert config["embedding"]["network"] == "small"
    assert set(config["versions"]) == {"jdml", "jax", "flax", "optax", "numpy"}


def test_head_of_another_size_begins_anew(run, begin, caplog):
    expected, _ = read_model(run.folder / "model.safetensors")
    found, done = begin(run.folder, "--dim", 3)
    head = [name for name in found if name.startswith("params/head/")]
    assert {found[name].shape[-1] for name in head} == {3}
    for name in found.keys() - {*head}:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert "head" in done.out + done.err + caplog.text


def test_network_of_another_shape_and_the_own_folder_are_refused(
    run, photos, tmp_path, jdml_command
):
    words = ("train", "--data-dir", photos, *TINY, "--weights", run.folder, "--out")
    done = jdml_command(*words, run.folder)
    assert (done.code, "--weights " in done.err) == (2, True), done.err
    done = jdml_command(*words, tmp_path / "new", "--model", "eps")
    assert (done.code, str(run.folder) in done.err) == (2, True), done.err


def test_fit_begins_with_a_run_and_its_proxies_of_the_same_size(tmp_path, caplog):
    digits = jdml.data.load("digits").relabel("digit")
    recipe = jdml.recipes.Recipe().replace(
        loss={"name": "proxy_anchor"},
        network={"name": "small", "dim": 4},
        batch={"size": 16, "steps": 2},
    )
    training.train(recipe, digits, run=tmp_path / "a", progress=False)
    expected, _ = read_model(tmp_path / "a" / "model.safetensors")
    none = recipe.replace(batch={"steps": 0})
    for classes in (10, 5):
        some = digits.select(np.asarray(digits.labels) < classes)
        state = training.pretrained(tmp_path / "a")
        params = training.train(none, some, state=state, seed=1, progress=False).state.params
        kernel = params["model"]["head"]["embedding"]["kernel"]
        np.testing.assert_array_equal(kernel, expected["params/head/embedding/kernel"])
        if classes == 10:
            np.testing.assert_array_equal(params["proxies"], expected["objective/proxies"])
    assert params["proxies"].shape[0] == 5
    assert "proxies" in caplog.text
    margin = none.replace(
        loss={"name": "margin", "learn_beta": "shared"}
    )  # a scalar, which the run has not
    training.train(margin, digits, state=training.pretrained(tmp_path / "a"), progress=False)
    assert "beta" in caplog.text
    with pytest.raises(FileNotFoundError, match=r"^load\b"):
        training.pretrained(tmp_path / "none")
