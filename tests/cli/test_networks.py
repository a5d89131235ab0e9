"""Custom networks on the command line."""

import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jdml.cli
from jdml import training

NETS = """
import flax.linen as nn, jax, jax.numpy as jnp

class OfLinen(nn.Module):
    dim: int
    dtype: type = jnp.float32

    @nn.compact
    def __call__(self, x, deterministic=True):
        x = nn.BatchNorm(use_running_average=deterministic)(nn.Conv(4, (4, 4), 4, dtype=self.dtype)(x))
        return nn.Dense(self.dim)(nn.Dropout(0.1, deterministic=deterministic)(x.mean((1, 2))))

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


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """Write a module of custom networks into the working directory."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)


# tests/models has networks of other libraries
@pytest.mark.parametrize("made", ["OfLinen", pytest.param("of_functions", marks=pytest.mark.slow)])
def test_custom_network_trains_embeds_and_searches(capsys, animals, nets, made, train_images):
    words = ("--data", "folder", "--data-dir", animals, "--model", f"nets:{made}", *BATCH)
    code, out, err = train_images(*words, "--out", "run")
    assert (code, err) == (0, "")
    assert f"nets:{made}, " in out
    assert "jdml weights convert" not in out
    trained = training.load("run")
    vectors = trained.embed(animals)
    assert vectors.shape == (32, 4)
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
        ("nets:other", "--dim .*nets:other"),
        ("nets:missing", "nets:missing"),
        ("nets:NETS", "NETS"),
        ("nets:of_functions --dtype bfloat16", "--dtype .*nets:of_functions"),
        ("nets", "--model .*'nets'"),
    ],
)
def test_custom_networks_that_do_not_fit_are_refused(train_images, animals, nets, words, names):
    code, _, err = train_images("--data-dir", animals, *BATCH, "--model", *words.split())
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(names, err), err
