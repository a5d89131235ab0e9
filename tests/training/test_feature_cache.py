"""The feature cache of a frozen backbone: computed once, for these images and this network, for any network."""

import re
import shutil
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

import jdml
from jdml import data, models
from jdml.recipes import LossConfig, NetworkConfig, Recipe
from jdml.training import Evaluation, Frozen, default_preprocess, load, train
from jdml.training.train_recipe import with_finetuning


def features_of(toy, model, images, folder):
    """Train the toy's head on cached features; return the folder's files."""
    model = Frozen(model, "block.*", cached_views=1, cache_folder=folder)
    toy.fit(model=model, train=SimpleNamespace(images=images, labels=toy.data.labels), steps=1)
    return list(folder.iterdir())


def test_features_of_a_frozen_backbone_are_computed_once(pictures, tmp_path, caplog):
    """The head equals one trained on images; features are read from the folder; the run has the whole network."""
    plan = Recipe(LossConfig("proxy_anchor"), NetworkConfig("small", dim=4)).replace(
        finetune={"freeze": "backbone"},
        batch={"size": 8, "steps": 3},
        optimizer={"learning_rate": 1e-2},
    )
    model = models.SmallConvNet(4, (8,), freeze_batch_norm=True)
    settings = {"progress": False, "model": model}
    watched = {"validation": pictures, "evaluation": Evaluation(every=1), **settings}
    caplog.set_level("INFO", "jdml.training")
    cached = train(plan, pictures, run=tmp_path / "run", **watched)
    (file,) = (tmp_path / "run" / "features").iterdir()
    assert np.load(file).shape == (24, 1, 8)
    line = next(line for line in caplog.messages if line.startswith("memory"))
    assert re.search(r"\b36 of [\d,]+ parameters\b", line)
    each = train(plan.replace(finetune={"cached_views": 0}), pictures, **watched)
    chex.assert_trees_all_close(cached.state.params, each.state.params, rtol=1e-3, atol=1e-5)
    scores = ([r["MAP@R"] for r in result.history] for result in (cached, each))
    np.testing.assert_allclose(*scores, atol=1e-3)
    few, every = (cached.embedder(images) for images in (pictures.images[:5], pictures.images))
    np.testing.assert_allclose(few, every[:5], atol=1e-6)
    embedded = load(tmp_path / "run").embed(pictures.images)
    np.testing.assert_allclose(embedded, jdml.sphere(every), atol=1e-6)
    np.save(file, 1 - np.load(file))  # changed features show that they are read
    own = with_finetuning(plan, model, pictures, default_preprocess, cache_folder=file.parent)
    again = train(plan, pictures, model=own, evaluation=Evaluation(every=1), progress=False)
    assert abs(again.history[0]["loss"] - cached.history[0]["loss"]) > 1e-3
    alone = train(plan, pictures, **settings)  # without a folder features are in memory
    chex.assert_trees_all_close(alone.state.params, cached.state.params, rtol=1e-4)
    with pytest.raises(ValueError, match=r"^cached_views\b"):
        train(plan.replace(finetune={"cached_views": 2}), pictures, **settings)


def test_incomplete_features_are_not_in_the_folder(toy, two, tmp_path):
    """A killed process leaves no large file; other images get another file."""
    folder = tmp_path / "features"

    class Watched(toy.on_disk):
        def __getitem__(self, rows):
            assert not list(folder.glob("*"))
            return super().__getitem__(rows)

    for images in (Watched(toy.data.images), toy.data.images):
        assert len(features_of(toy, two, images, folder)) == 1
    assert len(features_of(toy, two, 255 - toy.data.images, folder)) == 2


def test_only_the_first_process_writes_features(toy, two, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert features_of(toy, two, toy.data.images, tmp_path / "features") == []


def test_features_that_do_not_fit_the_disk_are_refused(toy, two, tmp_path, monkeypatch):
    """The system would kill a process that writes them to a mapped file."""
    free = shutil.disk_usage(tmp_path)._replace(free=(1 << 20) + 2 * 40 * 5 * 4 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with pytest.raises(OSError, match=r"/features\b"):
        features_of(toy, two, toy.data.images, tmp_path / "features")
    assert list((tmp_path / "features").iterdir()) == []


def test_cache_depends_on_images_and_network(toy, noise_files, tmp_path):
    """Changed files, another network with the same parameters and other views get new features; a head does not."""
    files = [tmp_path / f"test{n}.png" for n in range(4)]
    for file, source in zip(files, noise_files, strict=False):
        shutil.copy(source, file)
    on_disk = data.ImageFiles(noise_files, data.conventional(8))

    def count(images=on_disk, views=1, dim=2, pooling="average"):
        """Train, evaluate on the files, and count the features' files."""
        test = data.ImageFiles(files, data.conventional(8))
        model = models.SmallConvNet(dim, (8,), pooling=pooling, freeze_batch_norm=True)
        toy.fit(
            model=Frozen(model, "(?!head/).*", cached_views=views, cache_folder=tmp_path / "cache"),
            objective=jdml.objectives.pair(jdml.contrastive_loss),
            train=SimpleNamespace(images=images, labels=toy.data.labels),
            function=lambda embed: {"spread": float(embed(test).std())},
            steps=1,
        )
        return len(list((tmp_path / "cache").iterdir()))

    assert count() == count(dim=3) == 2  # of training and test images
    assert count(pooling="max") == 4
    Image.new("RGB", (9, 9)).save(files[0])
    assert count() == 5
    assert count(views=2) == 6
    (views,) = (x for x in map(np.load, (tmp_path / "cache").iterdir()) if x.shape[1] == 2)
    assert views.shape == (40, 2, 8)
    assert (views[:, 0] != views[:, 1]).any(-1).all()
    pictures = [Image.new("RGB", (8 + n, 9), (6 * n, 0, 0)) for n in range(40)]
    rows = list(zip(pictures, toy.data.labels, strict=True))
    assert count(data.from_rows(rows, transform=data.conventional(8)).images) == 7


def of_functions():
    """Return a backbone in half precision, and a head."""
    kernel = jax.random.normal(jax.random.key(0), (9, 5)) / 3

    @jax.jit
    def features(params, images):
        x = images.reshape(len(images), -1).astype(jnp.bfloat16)
        return jax.nn.relu(x @ params["kernel"].astype(jnp.bfloat16))

    backbone = (lambda key, images: {"kernel": kernel}, features)
    head = (lambda key, x: {"kernel": jnp.ones((5, 2))}, lambda params, x: x @ params["kernel"])
    return models.WithHead(backbone, head)


class Spherical(nn.Module):
    """A network that computes something around its head."""

    @nn.compact
    def __call__(self, images, train=False):
        x = nn.relu(nn.Dense(5, name="body")(images.reshape(len(images), -1)))
        scale = self.param("scale", nn.initializers.constant(2.0), (5,))
        return jdml.sphere(nn.Dense(2, name="head")(scale * x))


@pytest.mark.parametrize("make", [of_functions, Spherical])
def test_steps_on_features_equal_those_on_images(fit_toy, tmp_path, make):
    """Also on a mesh; only the head changes."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    settings = {"every": 1, "log_every": 1}
    each, cached = (Frozen(make(), "(?!head/).*", cached_views=views) for views in (None, 1))
    start = fit_toy(steps=0, model=each).state.params["model"]
    each = fit_toy(**settings, model=each)
    cached = fit_toy(tmp_path, mesh=mesh, model=cached, **settings)
    (file,) = (tmp_path / "features").iterdir()
    assert np.load(file).shape == (40, 1, 5)
    chex.assert_trees_all_close(cached.state.params, each.state.params, rtol=1e-4, atol=1e-6)
    for name in ("loss", "spread"):
        values = ([record[name] for record in result.history] for result in (cached, each))
        np.testing.assert_allclose(*values, rtol=1e-4)
    same = jax.tree.map(np.array_equal, start, cached.state.params["model"])
    assert not any(jax.tree.leaves(same.pop("head")))
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize(
    ("pattern", "settings", "name"),
    [
        ("Dense_0", {"cached_views": 1}, "cached_views"),  # batch norm learns, too
        ("BatchNorm_0", {}, "pattern"),  # training changes its running statistics
        ("Conv", {}, "pattern"),  # is not there
    ],
)
def test_what_cannot_be_cached_or_frozen_is_refused(toy, pattern, settings, name):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        toy.fit(model=Frozen(toy.model, pattern, **settings), steps=1)
