"""A network that is adapted: frozen in parts, slow by depth, changed by low ranks; saved, resumed, read again."""

import dataclasses
import functools
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from PIL import Image

import jdml
from jdml import adapt, data, models
from jdml.models.tensors import replacing
from jdml.recipes import Recipe, make_optimizer
from jdml.registry import NETWORKS
from jdml.training import WithLora, create_state, fit, load, train
from jdml.training.by_recipe import make_network, pattern_of
from jdml.training.kept import FeatureFeed, _content

pytestmark = pytest.mark.slow


def run(toy, out_dir=None, **settings):
    given = {"steps": 3, "evaluate": toy.spread, "evaluate_every": 3, "progress": False}
    parts = settings.pop("model", toy.model), toy.objective, optax.adam(1e-2), toy.data
    return fit(*parts, toy.batches(), out_dir=out_dir, **{**given, **settings})


class Two(nn.Module):
    """Two layers and a head, without statistics."""

    @nn.compact
    def __call__(self, images, *, train=False):
        x = images.reshape(len(images), -1)
        for name in ("block0", "block1"):
            x = nn.relu(nn.Dense(5, name=name)(x))
        return nn.Dense(2, name="head")(x)


def test_patterns_name_whole_parts_of_paths():
    params = {"block1": {"kernel": 1, "bias": 1}, "block10": {"kernel": 1}, "blocks": [1, 1]}

    def named(pattern):
        marks = jax.tree.leaves(adapt.matching(params, pattern))
        return [path for path, mark in zip(adapt.paths(params), marks, strict=True) if mark]

    assert named("block1") == ["block1/bias", "block1/kernel"]
    assert named(".*/kernel") == ["block1/kernel", "block10/kernel"]
    assert named("blocks/0|block10") == ["block10/kernel", "blocks/0"]
    assert named("(?!block1(?:/|$)).*") == ["block10/kernel", "blocks/0", "blocks/1"]
    assert named(None) == named("block") == []
    with pytest.raises(ValueError, match=r"freeze must be .*, 'x' names none of 5: block1/bias, "):
        adapt.check_pattern("freeze", "x", params)
    with pytest.raises(ValueError, match=r"pattern must be a regular expression, got '\('"):
        adapt.matching(params, "(")
    with pytest.raises(TypeError, match="pattern must be a text, got a int"):
        adapt.matching(params, 3)


def test_what_is_frozen_stays_and_costs_nothing(toy, tmp_path, identical):
    """Bit for bit, without moments, beside an average."""
    settings = {"freeze": "block0|block1/bias", "ema": 0.9, "model": Two()}
    start, end = (run(toy, steps=steps, **settings).state for steps in (0, 3))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), start.params, end.params)
    stays = adapt.matching(start.params["model"], settings["freeze"])
    assert moved == {"model": jax.tree.map(lambda stay: not stay, stays), "proxies": True}
    shapes = {leaf.shape for leaf in jax.tree.leaves(end.opt_state)}
    assert (9, 5) not in shapes  # block0's kernel
    assert (5, 5) in shapes


@pytest.mark.parametrize("way", ["frozen", "lora"])
def test_a_run_goes_on_and_is_read_as_any(toy, tmp_path, identical, way):
    lora = WithLora(Two(), 1, "block1", also="block0/bias|head")
    settings = {
        "frozen": {"model": Two(), "freeze": "block0|block1/bias"},
        "lora": {"model": lora},
    }[way]
    told = []
    settings = {"ema": 0.9, "checkpoint_every": 1, "tell": told.append, **settings}
    run(toy, tmp_path / "run", **{**settings, "steps": 2})
    whole = run(toy, tmp_path / "whole", **settings)
    again = run(toy, tmp_path / "run", longer=True, **settings)
    assert identical(again.state, whole.state)
    learns = {"frozen": "37 of the network's 92", "lora": "27 of the network's 102"}[way]
    assert told[0].startswith(f"learns {learns} parameters; memory: parameters 0.0 MB, optimizer")
    params = again.best_params["model"]
    params = lora.merged(params) if way == "lora" else params
    for which in ("best", "last"):
        read = load(tmp_path / "run", which=which, model=Two())
        chex.assert_trees_all_close(read.params, params, rtol=1e-6, atol=1e-7)
    embedded = Two().apply({"params": params}, toy.data.images / np.float32(255))
    np.testing.assert_allclose(again.embedder(toy.data.images), embedded, atol=1e-6)
    freeze = f"{settings.get('freeze', 'head')}|block0/kernel"
    with pytest.raises(ValueError, match=r"fit.freeze: .*there, \".*block0/kernel\" now"):
        run(toy, tmp_path / "run", **{**settings, "freeze": freeze})


def test_a_frozen_layer_has_no_gradient_in_the_program(toy):
    """The products of the two first layers are computed once, forwards."""

    def products(freeze):
        optimizer = optax.sgd(1.0)
        spec = jdml.training.make_train_step(Two(), toy.objective, optimizer, freeze=freeze)
        images = toy.data.images[:8]
        state = create_state(Two(), toy.objective, optimizer, images, seed=0, freeze=freeze)
        return str(spec.trace(state, images, toy.data.labels[:8]).jaxpr).count("dot_general")

    assert (products(None), products("block.*")) == (3 + 3 + 2, 3 + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": "BatchNorm_0"}, "freeze: the running statistics of 2 frozen parts change"),
        ({"freeze": "Conv"}, "freeze must be a pattern of parameters' paths, 'Conv' names none"),
        ({"freeze": "["}, "pattern must be a regular expression"),
    ],
)
def test_what_cannot_be_frozen(toy, settings, message):
    with pytest.raises(ValueError, match=message):
        run(toy, **settings)


def parts_of(name):
    model = models.create(
        name, dim=8, **({"freeze_batch_norm": True} if NETWORKS[name].batch_norm else {})
    )
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    return model, jax.eval_shape(model.init, jax.random.key(0), images)["params"]


@pytest.mark.parametrize(
    ("name", "blocks", "before", "after"),
    [
        ("vit_s16", 12, "class_token patches positions", "head norm"),
        ("dinov2_s14_reg", 12, "class_token patches positions registers", "head norm"),
        ("clip_b32", 12, "class_token norm_before patches positions", "head norm projection"),
        ("siglip_b16", 12, "patches positions", "head norm pool"),
        ("efficientnet_lite0", 16, "stem", "head top"),
        ("resnet50", 16, "stem_conv stem_norm", "head"),
        ("bn_inception", 10, "conv1_7x7_s2 conv2_3x3 conv2_3x3_reduce", "head"),
    ],
)
def test_the_depth_of_every_part_of_a_network(name, blocks, before, after):
    _, params = parts_of(name)
    depth = adapt.depths(params, *NETWORKS[name].blocks)
    assert set(depth.values()) == set(range(blocks + 2))
    assert sorted(n for n in depth if depth[n] == 0) == before.split()
    assert sorted(n for n in depth if depth[n] == blocks + 1) == after.split()


def test_learning_rates_by_depth():
    """BEiT's: the head 1, the last block d, …, patches d^(L + 1)."""
    plan = Recipe(loss="proxy_anchor", network="vit_s16", layer_decay=0.5, rate=1.0, rule="sgd")
    names = ["patches", "block0", "block1", "block10", "norm", "head"]
    params = {"model": {name: jnp.zeros(1) for name in names}, "proxies": jnp.zeros(1)}
    optimizer = make_optimizer(plan, ("proxies",), steps_per_epoch=1)
    updates, _ = optimizer.update(
        jax.tree.map(jnp.ones_like, params), optimizer.init(params), params
    )
    factors = [-float(updates["model"][name][0]) for name in names]
    assert factors == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1]
    assert float(updates["proxies"][0]) == -100
    with pytest.raises(
        ValueError, match="blocks must be a pattern of the model's parts, 'layer' n"
    ):
        adapt.scale_by_depth(0.5, "stem", "layer").update(params, optax.EmptyState())


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    labels = np.arange(24) % 3
    images = rng.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
    return data.Dataset("pictures", images, labels.astype(np.int32))


TINY = {"width": 8, "depth": 2, "heads": 2, "patch": 8, "grid": 2}
PLAN = Recipe(loss="proxy_anchor", network="vit_s16", dim=4, batch=8, steps=2, rate=1e-2)


def tiny(plan, pictures, out_dir=None, **settings):
    model = models.create("vit_s16", dim=4).clone(**TINY)
    return train(plan, pictures, model=model, out_dir=out_dir, progress=False, **settings)


def test_the_last_blocks_of_a_network(pictures):
    plan = dataclasses.replace(PLAN, last_blocks=1)
    start, end = (tiny(dataclasses.replace(plan, steps=n), pictures).state for n in (0, 2))
    moved = {
        name: not all(jax.tree.leaves(jax.tree.map(np.array_equal, part, after)))
        for (name, part), after in zip(
            start.params["model"].items(), end.params["model"].values(), strict=True
        )
    }
    stay = {"patches", "positions", "class_token", "block0"}
    assert moved == {name: name not in stay for name in start.params["model"]}
    with pytest.raises(ValueError, match="last_blocks must be below the network's 2 blocks, got 2"):
        tiny(dataclasses.replace(PLAN, last_blocks=2), pictures)
    with pytest.raises(ValueError, match="got small: of others lora_paths says what changes"):
        make_network(Recipe(network="small", lora=2), pictures)
    lite = Recipe(network="efficientnet_lite0", last_blocks=1)
    assert make_network(lite, pictures).freeze_batch_norm
    pattern = pattern_of(lite, make_network(lite, pictures), pictures)
    learns = adapt.split(
        *(
            f(parts_of("efficientnet_lite0")[1])
            for f in (dict, lambda p: adapt.matching(p, pattern))
        )
    )[0]
    first = {path.split("/")[0] for path in adapt.paths(learns)}
    assert {name.rpartition("_")[0] or name for name in first} == {"stage6_block0", "top", "head"}


def test_low_ranks_change_nothing_at_first(pictures, tmp_path):
    """Kernels of attention and MLP learn factors; the run's file is one of the network."""
    plan = dataclasses.replace(PLAN, lora=2, lora_alpha=4.0)
    start = tiny(dataclasses.replace(plan, steps=0), pictures)
    params, network = start.state.params["model"], start.embedder.model
    own = {name: part for name, part in params.items() if name != "lora"}
    images = pictures.images[:4] / np.float32(255)
    alone = jax.jit(network.base.apply)({"params": own}, images)
    chex.assert_trees_all_equal(jax.jit(network.apply)({"params": params}, images), alone)
    end = tiny(plan, pictures, tmp_path)
    after = end.state.params["model"]
    stay = {name for name in own if name != "head"}
    chex.assert_trees_all_equal(*({n: p[n] for n in stay} for p in (params, after)))
    assert sorted(after["lora"]) == ["block0", "block1"]
    assert sorted(after["lora"]["block0"]) == ["attention", "dense0", "dense1"]
    assert sorted(after["lora"]["block0"]["attention"]) == ["key", "out", "query", "value"]
    shapes = jax.tree.map(np.shape, after["lora"]["block0"]["attention"]["out"]["kernel"])
    assert shapes == {"a": (8, 2), "b": (2, 8)}
    assert (np.asarray(after["lora"]["block1"]["dense0"]["kernel"]["b"]) != 0).any()
    trained = load(tmp_path, model=network.base)
    assert set(trained.params) == set(own)
    np.testing.assert_allclose(
        trained.embed(pictures.images), jdml.sphere(end.embedder(pictures.images)), atol=1e-6
    )


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


def test_one_of_several_processes_writes_features(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("jdml.training.kept.writes", lambda: False)
    settings = {"model": Two(), "freeze": "block.*", "kept_views": 1}
    assert run(toy, tmp_path, **settings).history[-1]["step"] == 3
    assert list((tmp_path / "features").iterdir()) == []


def test_features_that_a_disk_has_no_room_for(toy, tmp_path, monkeypatch):
    """A process that wrote them to a mapped file would end without a word."""
    free = shutil.disk_usage(tmp_path)._replace(free=(1 << 20) + 2 * 40 * 5 * 4 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with pytest.raises(OSError, match="No space left on device: '.*/features'"):
        run(toy, features=tmp_path / "features", model=Two(), freeze="block.*", kept_views=1)
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
    ("made", "width"), [(Two, 5), (of_nnx, 5), (of_equinox, 5), (of_functions, 2 * 5)]
)
def test_features_are_kept_of_anyone_s_network(toy, tmp_path, made, width):
    """Each step is the one on images, on a mesh too, and only the head moves."""
    explicit = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    settings = {"model": made(), "freeze": "(?!head/).*", "evaluate_every": 1, "log_every": 1}
    each = run(toy, **settings)
    mesh = explicit if made is of_functions else None
    kept = run(toy, tmp_path, kept_views=1, mesh=mesh, **settings)
    (file,) = (tmp_path / "features").iterdir()
    assert np.load(file).shape == (40, 1, width)
    chex.assert_trees_all_close(kept.state.params, each.state.params, rtol=1e-4, atol=1e-6)
    for name in ("loss", "spread"):
        told = ([record[name] for record in result.history] for result in (kept, each))
        np.testing.assert_allclose(*told, rtol=1e-4)
    start = run(toy, **{**settings, "steps": 0}).state.params["model"]
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
def test_networks_of_which_no_features_are_kept(toy, head, message):
    with pytest.raises(ValueError, match=message):
        run(toy, model=Odd(head), freeze="(.*/)?body.*", kept_views=1)


def test_low_ranks_by_hand():
    rng = np.random.default_rng(0)
    w, a, b = (rng.normal(size=shape) for shape in ((2, 3, 4), (6, 2), (2, 4)))
    made = adapt.lora_merged({"w": jnp.asarray(w), "v": 1}, {"w": {"a": a, "b": b}}, 0.5)
    np.testing.assert_allclose(made["w"], w + 0.5 * (a @ b).reshape(w.shape), rtol=1e-5)
    assert made["v"] == 1
    factors = functools.partial(adapt.lora_factors, jax.random.key(0), {"v": jnp.ones(3)}, 2)
    with pytest.raises(ValueError, match="pattern must name kernels, 'v' names vectors alone"):
        factors("v")
    with pytest.raises(ValueError, match="pattern must be a pattern of parameters' paths, 'w' nam"):
        factors("w")
    with pytest.raises(TypeError, match="params must be nested dictionaries, got a list"):
        adapt.lora_factors(jax.random.key(0), [1], 2, "w")
    with pytest.raises(TypeError, match="params must be nested dictionaries, got others within"):
        adapt.lora_factors(jax.random.key(0), {"w": [jnp.ones((2, 2))]}, 2, ".*")


def test_what_a_module_calls_value_keeps_its_name():
    eqx = pytest.importorskip("equinox", reason="names its arrays: pip install equinox")

    class Attention(eqx.Module):
        value: jax.Array
        query: jax.Array

    class Net(eqx.Module):
        part: Attention

    net = Net(Attention(jnp.ones(1), jnp.ones(1)))
    assert adapt.paths(net) == ["part/value", "part/query"]
    for settings, error, message in (
        ({"rank": 0}, ValueError, "rank must be >= 1, got 0"),
        ({"alpha": -1.0}, ValueError, "alpha must be > 0, got -1.0"),
        ({"paths": 1}, TypeError, "pattern must be a text, got a int"),
    ):
        with pytest.raises(error, match=message):
            WithLora(Two(), **{"rank": 1, "paths": "block0", **settings})


def test_low_ranks_of_anyone_s_network_beside_weights(toy):
    """What pretrained weights are for knows nothing of the factors."""
    model = WithLora(Two(), 1, "block1", also="block0/bias|head")

    def ones(variables):
        return {"params": jax.tree.map(jnp.ones_like, variables["params"])}

    start, end = (
        run(toy, model=model, steps=n, pretrained=ones).state.params["model"] for n in (0, 2)
    )
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), start, end)
    assert float(start["block0"]["kernel"].sum()) == 45
    assert moved["block0"] == {"kernel": False, "bias": True}
    assert moved["block1"] == {"kernel": False, "bias": False}
    assert moved["lora"] == {"block1": {"kernel": {"a": True, "b": True}}}
