"""Features of a frozen backbone, computed once and kept: those of the network and the images, of anyone's network."""

import dataclasses
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

import jdml
from jdml import data, models
from jdml.models.tensors import replacing
from jdml.recipes import Recipe
from jdml.training import load, train
from jdml.training.kept import FeatureFeed, _content

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pooling", ["average", "gem"])
def test_features_of_a_frozen_backbone_are_computed_once(pictures, tmp_path, pooling, monkeypatch):
    """The same head as of images at each step; read again where they were kept; the run is one of the network."""
    fill, named = FeatureFeed._fill, []

    def seen(feed, *parts):
        named.extend((tmp_path / "kept").glob("features/*"))
        fill(feed, *parts)

    monkeypatch.setattr(FeatureFeed, "_fill", seen)
    plan = Recipe(network="small", dim=4, batch=8, steps=3, rate=1e-2, loss="proxy_anchor")
    plan = dataclasses.replace(plan, freeze="backbone", pooling=pooling)
    told = []
    settings = {"progress": False, "validation": pictures, "evaluate_every": 1, "tell": told.append}
    kept = train(plan, pictures, out_dir=tmp_path / "kept", **settings)
    assert named == []  # nothing large is left by a process that is killed meanwhile
    (file,) = (tmp_path / "kept" / "features").iterdir()
    features = np.load(file)
    assert features.shape == (24, 1, {"average": 64, "gem": 2 * 64}[pooling])
    assert told[0].startswith(f"learns {260 + (pooling == 'gem')} of the network's ")
    if pooling == "average":
        each = train(dataclasses.replace(plan, kept_views=0), pictures, **settings)
        chex.assert_trees_all_close(kept.state.params, each.state.params, rtol=1e-3, atol=1e-5)
        scores = ([r["MAP@R"] for r in result.history] for result in (kept, each))
        np.testing.assert_allclose(*scores, atol=1e-3)
        np.save(file, 1 - features)  # they are read, not computed
        settings["validation"] = None
        again = train(plan, pictures, features=file.parent, **settings)
        assert abs(again.history[0]["loss"] - kept.history[0]["loss"]) > 1e-3
        alone = train(plan, pictures, progress=False)  # without a folder they are in memory
        chex.assert_trees_all_close(alone.state.params, kept.state.params, rtol=1e-4)
    trained = load(tmp_path / "kept")
    few, all_ = (kept.embedder(images) for images in (pictures.images[:5], pictures.images))
    np.testing.assert_allclose(few, all_[:5], atol=1e-6)
    np.testing.assert_allclose(trained.embed(pictures.images), jdml.sphere(all_), atol=1e-6)
    with pytest.raises(ValueError, match="kept_views must be 1 of images in memory"):
        train(dataclasses.replace(plan, kept_views=2), pictures, progress=False)


def test_features_are_of_the_arrays_they_were_computed_of():
    images = np.zeros((3, 4, 4, 3), np.uint8)
    assert _content(images) == _content(images.copy())
    assert _content(images) != _content(images + np.uint8(1))


def test_one_of_several_processes_writes_features(fit_toy, tmp_path, monkeypatch, two):
    monkeypatch.setattr("jdml.training.kept.writes", lambda: False)
    settings = {"model": two, "freeze": "block.*", "kept_views": 1}
    assert fit_toy(tmp_path, **settings).history[-1]["step"] == 3
    assert list((tmp_path / "features").iterdir()) == []


def test_features_that_a_disk_has_no_room_for(fit_toy, tmp_path, monkeypatch, two):
    """A process that wrote them to a mapped file would end without a word."""
    free = shutil.disk_usage(tmp_path)._replace(free=(1 << 20) + 2 * 40 * 5 * 4 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with pytest.raises(OSError, match="No space left on device: '.*/features'"):
        fit_toy(features=tmp_path / "features", model=two, freeze="block.*", kept_views=1)
    assert list((tmp_path / "features").iterdir()) == []


def test_two_runs_write_the_same_features_at_once(tmp_path):
    file = tmp_path / "features.npy"
    with replacing(file, shared=True) as first:
        with replacing(file, shared=True) as second:
            np.save(second, np.ones(9))
        np.save(first, np.ones(9))
    assert list(tmp_path.iterdir()) == [file]
    np.testing.assert_array_equal(np.load(file), np.ones(9))


def test_kept_features_are_those_of_the_images_and_of_the_network(tmp_path):
    """Not of files of these names in another folder, or before; nor of a network with the same parameters."""

    def written(folder, seed):
        (tmp_path / folder).mkdir(exist_ok=True)
        files = [tmp_path / folder / f"{n}.png" for n in range(4)]
        pixels = np.random.default_rng(seed).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
        for file, image in zip(files, pixels, strict=True):
            Image.fromarray(image).save(file)
        images = data.ImageFiles(files, data.conventional(8))
        return data.Dataset(folder, images, np.array([0, 0, 1, 1], np.int32))

    def kept(plan):
        embedded = []

        def evaluate(embedder):
            embedded.append(embedder(test.images))
            return {}

        folder = tmp_path / "features"
        pooling = plan.pooling or "average"
        model = models.SmallConvNet(plan.dim, (8,), pooling=pooling, freeze_batch_norm=True)
        settings = {"features": folder, "evaluate": evaluate, "progress": False}
        result = train(plan, train_set, model=model, **settings)
        np.testing.assert_allclose(embedded[-1], result.embedder(test.images), atol=1e-6)
        return len(list(folder.iterdir()))

    train_set, test = written("train", 0), written("test", 1)
    plan = Recipe(network="small", dim=4, batch=(2, 2), steps=1, freeze="backbone", loss="triplet")
    assert kept(plan) == 2
    assert kept(dataclasses.replace(plan, dim=3)) == 2
    assert kept(dataclasses.replace(plan, pooling="max")) == 4
    test = written("test", 2)
    assert kept(plan) == 5
    assert kept(dataclasses.replace(plan, kept_views=2)) == 6
    (views,) = (x for x in map(np.load, (tmp_path / "features").iterdir()) if x.shape[1] == 2)
    assert views.shape == (4, 2, 8)
    assert (views[:, 0] != views[:, 1]).any(-1).all()


def of_nnx():
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.body, self.head = nnx.Linear(9, 5, rngs=rngs), nnx.Linear(5, 2, rngs=rngs)

        def __call__(self, images):
            return self.head(nnx.relu(self.body(images.reshape(len(images), -1))))

    return Net()


def of_equinox():
    eqx = pytest.importorskip("equinox", reason="trains its modules: pip install equinox")

    class Net(eqx.Module):
        body: eqx.nn.Linear
        head: eqx.nn.Linear

        def __call__(self, image):
            return self.head(jax.nn.relu(self.body(image.reshape(-1))))

    keys = jax.random.split(jax.random.key(0))
    return Net(eqx.nn.Linear(9, 5, key=keys[0]), eqx.nn.Linear(5, 2, key=keys[1]))


def of_functions():
    """Compiled as a whole, in half precision, and with a head that takes what it gets twice."""
    keys = jax.random.split(jax.random.key(0))
    params = {
        "body": jax.random.normal(keys[0], (9, 5)) / 3,
        "head": [jax.random.normal(keys[1], (5, 5)) / 3, jnp.ones((5, 2))],
    }

    @jax.jit
    def apply(params, images):
        x = images.reshape(len(images), -1).astype(jnp.bfloat16)
        x = jax.nn.relu(x @ params["body"].astype(jnp.bfloat16))
        return (x + jax.nn.relu(x @ params["head"][0])) @ params["head"][1]

    return lambda key, images: params, apply


@pytest.mark.parametrize(
    ("made", "width"), [(None, 5), (of_nnx, 5), (of_equinox, 5), (of_functions, 2 * 5)]
)
def test_features_are_kept_of_anyone_s_network(fit_toy, two, tmp_path, made, width):
    """Each step is the one on images, on a mesh too, and only the head moves; None is Flax's two layers."""
    explicit = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    model = made() if made else two
    settings = {"model": model, "freeze": "(?!head/).*", "evaluate_every": 1, "log_every": 1}
    each = fit_toy(**settings)
    mesh = explicit if made is of_functions else None
    kept = fit_toy(tmp_path, kept_views=1, mesh=mesh, **settings)
    (file,) = (tmp_path / "features").iterdir()
    assert np.load(file).shape == (40, 1, width)
    chex.assert_trees_all_close(kept.state.params, each.state.params, rtol=1e-4, atol=1e-6)
    for name in ("loss", "spread"):
        told = ([record[name] for record in result.history] for result in (kept, each))
        np.testing.assert_allclose(*told, rtol=1e-4)
    start = fit_toy(**{**settings, "steps": 0}).state.params["model"]
    same = jax.tree.map(np.array_equal, start, kept.state.params["model"])
    head = jax.tree.leaves(same.pop("head"))
    assert all(jax.tree.leaves(same))
    assert not any(head)


class Both(nn.Module):
    """A body and a head, as one operation where they are rematerialized."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="head")(nn.Dense(2, name="body")(x))


HEADS = {
    "images": lambda x, train: nn.Dense(2, name="body")(nn.Dense(2, name="head")(x)),
    "rows": lambda x, train: (
        nn.Dense(2, name="head")(nn.Dense(2, name="body")(x).mean(0)) + x[:, :2]
    ),
    "checkpoint": lambda x, train: nn.remat(Both)(name="both")(x),
    "mean": lambda x, train: nn.Dense(2, name="head")(
        nn.Dense(2, name="body")(x) - nn.Dense(2, name="body_mean")(x).mean(0)
    ),
    "scale": lambda x, train: nn.Dense(2, name="head")(nn.Dense(2, name="body")(x)) * (2.0 - train),
    "norm": lambda x, train: nn.BatchNorm(not train, name="head")(nn.Dense(2, name="body")(x)),
    "plain norm": lambda x, train: nn.Dense(2, name="head")(
        nn.BatchNorm(not train, use_scale=False, use_bias=False, name="head_norm")(
            nn.Dense(2, name="body")(x)
        )
    ),
    "dropout before": lambda x, train: nn.Dense(2, name="head")(
        nn.Dropout(0.5, deterministic=not train)(nn.Dense(2, name="body")(x))
    ),
    "dropout": lambda x, train: nn.Dropout(0.5, deterministic=not train)(
        nn.Dense(2, name="head")(nn.Dense(2, name="body")(x))
    ),
}


class Odd(nn.Module):
    """A network with a head of which no features can be kept."""

    head: str

    @nn.compact
    def __call__(self, images, *, train=False):
        return HEADS[self.head](images.reshape(len(images), -1), train)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            "images",
            r"kept_views: what learns takes the images themselves \(in JAX's dot_general\), so",
        ),
        (
            "checkpoint",
            r"what learns takes the images themselves \(in JAX's (remat2|checkpoint)\), s",
        ),
        ("mean", "what comes before anything that learns must make of an image the same in any"),
        (
            "rows",
            r"takes \[\[2\], \[1009, 2\]\] of 1009 images; without kept_views \(None; 0 in a recipe\) ",
        ),
        ("norm", "kept_views: what learns must be the same in training and evaluation, without"),
        ("scale", "kept_views: what learns must be the same in training and evaluation, withou"),
        ("plain norm", "kept_views: what learns must be the same in training and evaluation, wi"),
        ("dropout before", "kept_views: what learns must be the same in training and evaluation"),
        ("dropout", "kept_views: what learns must be the same in training and evaluation, with"),
    ],
)
def test_networks_of_which_no_features_are_kept(fit_toy, head, message):
    with pytest.raises(ValueError, match=message):
        fit_toy(model=Odd(head), freeze="(.*/)?body.*", kept_views=1)
