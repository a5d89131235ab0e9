"""What `jdml train` says and chooses before the first step, and a run of no step."""

import json

import numpy as np
import optax
import pytest
from flax import linen as nn

import jdml
from jdml import data, objectives, training

pytestmark = pytest.mark.slow
WORDS = "--dim 4 --steps 1 --quiet --workers 1".split()


def test_photographs_without_weights(photos, jdml_command):
    done = jdml_command("train", "--data-dir", photos, *WORDS)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("small: 93,732 parameters, images 64×64×3")
    assert "3x6 an epoch" in lines[1]
    assert lines[2] == "a batch has 45 pairs of one class, which triplet learns from"
    assert (
        "note: images are cut to 64 pixels, which fit the network small: --image-size for others"
        in lines
    )
    at = next(i for i, line in enumerate(lines) if "pretrained weights" in line)
    convert, again = (line.split() for line in lines[at + 1 : at + 3])
    assert (
        " ".join(convert)
        == "jdml weights convert resnet50.pth --arch resnet50 --out resnet50.safetensors"
    )
    assert again[:2] == ["jdml", "train"]
    assert "--weights resnet50.safetensors" in " ".join(again)
    # Both are commands that are read to the file that is not there.
    assert "resnet50.pth" in jdml_command(*convert[1:]).err
    assert "--weights must be a file" in jdml_command(*again[1:]).err


@pytest.mark.parametrize(
    "typed", [["--image-size", "16"], ["--model", "small", "--image-size", "16"]]
)
def test_a_size_that_was_typed_is_not_told(photos, jdml_command, typed):
    done = jdml_command("train", "--data-dir", photos, *WORDS, *typed)
    assert "images are cut" not in done.out
    assert "pretrained weights" in done.out
    assert "--model" not in done.out.partition("jdml train")[2].partition("\n")[0]


def test_what_needs_no_hint_has_none(jdml_command):
    done = jdml_command("train", "--steps", 1, "--dim", 2, "--quiet")
    assert done.code == 0, done.err
    assert "note" not in done.out


@pytest.mark.parametrize(("typed", "fits"), [("64x4", "3x4"), ("1000", "18"), ("2x40", "2x6")])
def test_a_batch_larger_than_the_data_shrinks(photos, jdml_command, typed, fits):
    size = ["--image-size", 16, "--batch", typed]
    done = jdml_command("train", "--data-dir", photos, *WORDS, *size)
    assert done.code == 0, done.err
    assert f"note: --batch is {fits}, not {typed}: 18 images of 3 classes train" in done.out


@pytest.mark.parametrize(
    "more", [[], ["--schedule", "cosine"], ["--loss", "proxy_anchor"], ["--validation", ".3"]]
)
def test_no_steps_score_the_start(jdml_command, tmp_path, more):
    words = ["train", "--dim", 4, "--quiet", *more]
    done = jdml_command(*words, "--steps", 0, "--out", tmp_path)
    assert done.code == 0, done.err
    scores = json.loads((tmp_path / "metrics.json").read_text())
    assert scores["step"] == training.load(tmp_path).step == 0
    alone = jdml_command(*words, "--steps", 0)
    assert f"{scores['test digit']['R@1']:.4f}" in alone.out
    if not more:
        assert jdml_command(*words, "--steps", 2, "--out", tmp_path).code == 0
        assert training.load(tmp_path).step == 2


def test_fit_of_no_steps_gives_back_the_start():
    class Points(nn.Module):
        @nn.compact
        def __call__(self, x, *, train):
            return nn.Dense(2)(x)

    points = data.Dataset("points", np.eye(4, dtype=np.float32), np.arange(4) // 2)
    result = training.fit(
        Points(), objectives.pair(jdml.triplet_loss), optax.sgd(1.0), points, data.RandomBatchSampler(4, 4),
        steps=0, evaluate=lambda embedder: {"mean": float(embedder(points.images).mean())}, progress=False,
    )  # fmt: skip
    assert (result.stopped, int(result.state.step), len(result.history)) == ("steps", 0, 1)
    assert result.history[0]["mean"] == pytest.approx(result.embedder(points.images).mean())
