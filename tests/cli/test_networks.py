"""Custom networks on the command line."""

import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jdml.cli
from jdml import training

NETS = """
import equinox as eqx, flax.linen as nn, jax, jax.numpy as jnp
from flax import nnx

class OfLinen(nn.Module):
    dim: int
    dtype: type = jnp.float32

    @nn.compact
    def __call__(self, x, deterministic=True):
        x = nn.BatchNorm(use_running_average=deterministic)(nn.Conv(4, (4, 4), 4, dtype=self.dtype)(x))
        return nn.Dense(self.dim)(nn.Dropout(0.1, deterministic=deterministic)(x.mean((1, 2))))

class OfNnx(nnx.Module):
    def __init__(self, dim, seed):
        rngs = nnx.Rngs(seed)
        self.conv, self.norm = nnx.Conv(3, 4, (4, 4), rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.drop, self.head = nnx.Dropout(0.1, rngs=rngs), nnx.Linear(4, dim, rngs=rngs)

    def __call__(self, x):
        return self.head(self.drop(self.norm(self.conv(x)).mean((1, 2))))

class OfEquinox(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, dim, key):
        first, second = jax.random.split(key)
        self.conv, self.drop = eqx.nn.Conv2d(3, 4, 4, 4, key=first), eqx.nn.Dropout(0.1)
        self.norm, self.head = eqx.nn.BatchNorm(4, "rows", mode="batch"), eqx.nn.Linear(4, dim, key=second)

    def __call__(self, image, state, *, key):
        drawn, _ = jax.random.split(key)
        x, state = self.norm(self.conv(image), state)
        return self.head(self.drop(x.mean((1, 2)), key=drawn)), state

def of_equinox(dim, seed):
    return eqx.nn.make_with_state(OfEquinox)(dim, jax.random.key(seed))

def of_functions(dim, image_size):
    def init(key, images):
        return {"kernel": jax.random.normal(key, (3 * image_size**2, dim))}
    return init, lambda params, images: images.reshape(len(images), -1) @ params["kernel"]

def wide(width):
    return OfLinen(width)

def other():
    return OfLinen(9)
"""


BATCH = "--classes-per-batch 2 --samples-per-class 3".split()
OTHERS = ("OfNnx", "of_equinox", "of_functions")
"""One network of each library; ``tests/training`` tests their differences."""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """Write a module of custom networks into the working directory."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)


@pytest.mark.parametrize(
    # Other libraries.
    "made",
    ["OfLinen", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def test_custom_network_trains_embeds_and_searches(capsys, animals, nets, made, train_images):
    words = ("--data", "folder", "--data-dir", animals, "--model", f"nets:{made}", *BATCH)
    code, out, err = train_images(*words, "--out", "run")
    assert (code, err) == (0, "")
    assert f"nets:{made}: " in out
    assert "jdml weights convert" not in out
    trained = training.load("run")
    vectors = trained.embed(animals)
    assert vectors.shape == (32, 4)
    assert (
        json.loads(Path("run/config.json").read_text())["recipe"]["network"]["name"]
        == f"nets:{made}"
    )
    for command in ("embed run animals", "export run --out e.safetensors", "export run --out e.stablehlo",
                    "embed e.safetensors animals --out from_file.npz",
                    "search run animals/ant/0.jpg --gallery animals -k 1"):  # fmt: skip
        assert jdml.cli.main(command.split()) == 0
    shown = capsys.readouterr().out
    assert "  animals/" in shown
    for file in ("animals.npz", "from_file.npz"):
        np.testing.assert_array_equal(np.load(file)["embeddings"], vectors)
    program = jax.export.deserialize(bytearray(Path("e.stablehlo").read_bytes()))
    photographs = trained.images_of(animals)[:3]
    np.testing.assert_allclose(program.call(photographs), vectors[:3], atol=1e-6)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("nets:wide", "nets:wide .*width"),
        ("nets:other", "--dim .* 9, .*nets:other"),
        ("nets:missing", "nets:missing"),
        ("nets:NETS", "NETS"),
        ("nets:of_functions --dtype bfloat16", "--dtype .*nets:of_functions"),
        ("nets:OfNnx --weights nets.py", "--weights .*nets:OfNnx"),
        ("nets", "--model .*'nets'"),
    ],
)
def test_custom_networks_that_do_not_fit_are_refused(train_images, animals, nets, words, names):
    code, _, err = train_images("--data-dir", animals, *BATCH, "--model", *words.split())
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(names, err), err
