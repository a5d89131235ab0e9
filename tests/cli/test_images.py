"""`jdml train` on image files: augmentations, pretrained weights, In-shop's gallery, damaged files."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from cli.photos import draw_noise
from flax.traverse_util import flatten_dict

from jdml import models, registry
from jdml.cli.commands import COMMANDS
from jdml.cli.train import TrainingRun
from jdml.models import weights
from jdml.models.io import write_tensors
from jdml.training import load


def test_recommended_recipe_run_is_not_extended(train_images, animals, tmp_path):
    """Its schedule ends at its steps, and its warm-up is a share of them."""
    for steps, code in (3, 0), (40, 2):
        done = train_images("--data-dir", animals, "--out", tmp_path / "run", "--steps", steps)
        assert done[0] == code, done
    assert "steps" in done[2]


# Weights


def test_head_wider_than_its_features_is_initialized_at_random(jdml_main, animals, tmp_path):
    """If the initialization was typed, it is refused before any work."""
    file = tmp_path / "resnet18.safetensors"
    write_tensors(file, {}, {weights.ARCHITECTURE: "resnet18"})
    wide = f"--image-size 16 --data-dir {animals} --model resnet18 --weights {file} --dim 513"
    run = TrainingRun(COMMANDS["train"].read(wide.split()).resolve())
    assert run.recipe.network.head_init == "random"
    assert run.notes
    code, _, err = jdml_main("train", *wide.split(), "--head-init", "principal")
    assert (code, "error: --head-init principal, --dim 513: " in err) == (2, True)


@pytest.fixture
def tiny_transformer(monkeypatch):
    """Replace a large transformer in its record by a small one."""
    tiny = {"width": 8, "depth": 1, "heads": 2, "hidden": 16, "patch": 8, "grid": 2}
    record = registry.NETWORKS["vit_s16"]
    small = dataclasses.replace(record, settings={**record.settings, **tiny})
    # --weights accepts only names of the library: one of them is small here.
    monkeypatch.setitem(registry.NETWORKS, "vit_s16", small)


def write_weights(file, net, metadata, factor=1.0):
    variables = net.init(jax.random.key(0), np.zeros((1, 24, 24, 3), np.float32))
    arrays = {
        name: factor * np.asarray(leaf)
        for name, leaf in flatten_dict(variables, sep="/").items()
        if not name.startswith("params/head")
    }
    write_tensors(file, arrays, metadata)
    return arrays


@pytest.mark.slow  # compiles a transformer
@pytest.mark.usefixtures("tiny_transformer")
def test_network_is_configured_by_its_weights_file(train_images, jdml_main, animals, tmp_path):
    """Another grid, another activation and bicubic resampling; without a name on file by the other settings.

    The first image, from which shapes would be read, is damaged.
    """
    network = "vit_s16"
    settings = {"resampling": "transformers", "activation": "quick_gelu", "grid": 3}
    net = models.create(network, dim=4, **settings)
    file, run = tmp_path / "w.safetensors", tmp_path / "run"
    metadata = {weights.ARCHITECTURE: network, weights.SETTINGS: json.dumps(settings)}
    arrays = write_weights(file, net, metadata)
    (animals / "ant" / "0.jpg").write_bytes(b"no image")
    data = "--classes-per-batch 2 --samples-per-class 3 --on-bad-image skip --steps 0".split()
    data += ["--data-dir", animals]
    words = (*data, "--model", network, "--weights", file, "--out", run)
    code, _, err = train_images(*words)
    assert (code, err) == (0, "")
    trained = load(run)
    assert trained.model == net
    held = flatten_dict({"params": trained.params}, sep="/")
    for name, array in arrays.items():
        np.testing.assert_array_equal(held[name], array)
    assert jdml_main("embed", run, animals, "--out", tmp_path / "e.npz")[0] == 0
    assert train_images(*words)[0] == 0
    write_weights(file, net, metadata, factor=2.0)
    code, _, err = train_images(*words)
    assert code == 2
    assert "weights" in err


# Galleries and damaged files


def test_inshop_is_scored_in_its_gallery(train_images, tmp_path):
    rows = [
        (f"img/{item}/{i}.jpg", f"id_{item:08}", status)
        for item, statuses in enumerate((("train",) * 4, ("train",) * 4, ("query", "gallery") * 2))
        for i, status in enumerate(statuses)
    ]
    lines = [" ".join(row) for row in rows]
    text = "\n".join([str(len(rows)), "image_name item_id evaluation_status", *lines])
    (tmp_path / "list_eval_partition.txt").write_text(text)
    draw_noise(tmp_path / path for path, _, _ in rows)
    code, out, err = train_images("--data", "inshop", "--data-dir", tmp_path, "--batch-size", 4)
    assert code == 0, err
    assert "R@30" in out
    assert "test item" in out


def test_damaged_training_images_are_skipped_and_counted(train_images, animals, tmp_path):
    (animals / "ant" / "3.jpg").write_bytes(b"no image")
    words = ("--data-dir", animals, "--batch-size", 16, "--augmentation", "mlrc")
    code, out, err = train_images(*words, "--on-bad-image", "skip", "--out", tmp_path / "run")
    assert code == 0, err
    assert "left out" in out.partition("scored on")[2]  # again at the end
    last = (tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["bad_images"] == 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["augmentation"] == "mlrc"
    assert not {"workers", "data_dir", "out"} & set(config)


def test_stopped_run_resumes_with_skip_after_its_images_moved(train_images, animals, tmp_path):
    (animals / "dog" / "3.jpg").write_bytes(b"no image")  # scored, not trained on
    options = ("--data", "folder", "--batch-size", 8, "--out", tmp_path / "run")
    code, _, err = train_images(*options, "--data-dir", animals)
    assert (code, err.count("\n"), "3.jpg" in err) == (2, 1, True)
    moved = animals.rename(tmp_path / "moved")
    code, _, err = train_images(*options, "--data-dir", moved, "--on-bad-image", "skip")
    assert code == 0, err
    (moved / "ant" / "0.jpg").rename(moved / "ant" / "zero.jpg")
    code, _, err = train_images(*options, "--data-dir", moved, "--on-bad-image", "skip")
    assert code == 2
    assert "data_checksum" in err
