"""The recipes: every method trains on every data set's settings, and the optimizer does what is written."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import recipes
from jdml.recipes import RECIPES, CCPConfig, LossConfig, OptimizerConfig, Recipe, recipe
from jdml.training.train_recipe import make_optimizer

CLASSES, DIM = 6, 8
KEY = jax.random.key(7)
BATCH = jax.random.normal(jax.random.key(0), (24, DIM)), jnp.arange(24) % CLASSES


@pytest.mark.parametrize("method", RECIPES)
def test_mlrc_gives_all_methods_the_same_settings(method):
    one_each = method in ("proxy_anchor", "proxy_nca_pp", "soft_triple")  # CCP's §2.1
    proxies = ("32x1", 1) if one_each else ("32", 0)
    expected = ("8x4", 0) if recipe(method, "cub").loss.kind == "pair" else proxies
    on_sphere = method in ("nir", "nir_baseline", "pfml", "cpml")
    for dataset in recipes.DATASETS:
        own, shared = recipe(method, dataset), recipe(method, dataset, protocol="mlrc")
        assert (str(shared.batch), shared.finetune.backbone_freeze_epochs) == expected
        assert (shared.network.dim, shared.network.pooling) == (128, "average")
        assert (shared.optimizer.learning_rate, shared.optimizer.schedule) == (1e-5, "constant")
        assert shared.optimizer.lr_multipliers == own.optimizer.lr_multipliers
        assert shared.loss.method == own.loss.method
        assert shared.loss.normalize == ("sphere" if on_sphere else "ball")


def test_mlrc_losses_normalize_into_the_ball():
    """Short vectors are not lengthened, like in retrieval."""
    x, y = 0.1 * BATCH[0][:4], jnp.array([0, 0, 1, 1])
    actual = recipe("contrastive", "cub", protocol="mlrc").loss.build(2, DIM).loss({}, x, y)[0]
    margins = {"positive_margin": 0.0, "negative_margin": 0.3841}
    expected = jdml.contrastive_loss(x, y, normalize=jdml.ball, **margins)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    large = recipe("soft_triple", "sop", protocol="mlrc").loss.build(2, DIM)
    assert large.init(jax.random.key(0))["proxies"].shape == (2, 1, DIM)  # their -S


def test_mlrc_soft_triple_divides_by_gamma():
    """CCP's and the protocol's programs both use 1/γ, so for large γ the similarity is nearly the centres' mean."""
    plans = [recipe("soft_triple", name, protocol="mlrc") for name in recipes.DATASETS]
    assert [plan.loss.settings["gamma"] for plan in plans] == [0.1, 19.18, 47.9, 0.1]
    x, y = jax.random.normal(KEY, (CLASSES, DIM)), jnp.arange(CLASSES)
    centres = jax.random.normal(jax.random.key(1), (CLASSES, 10, DIM))
    plan = plans[1].loss
    loss = plan.build(CLASSES, DIM).loss({"proxies": centres}, x, y)[0]
    regularizer = plan.settings["tau"] * jdml.losses.center_regularizer(centres)
    similarities = jnp.einsum("bd,ckd->bck", jdml.ball(x), jdml.ball(centres)).mean(-1)
    logits = plan.settings["scale"] * (similarities - plan.settings["margin"] * jnp.eye(CLASSES))
    expected = -jax.nn.log_softmax(logits)[y, y].mean() + regularizer
    np.testing.assert_allclose(loss, expected, rtol=0.01)


def test_memory_sizes_of_ccps_tables():
    """3 and 25 batches on CUB and Cars196, 100 and 400 on In-shop, 400 and 1,400 on SOP, after 1,000 steps."""
    for size, batches in (("S", (3, 3, 400, 100)), ("L", (25, 25, 1400, 400))):
        for dataset, number in zip(recipes.DATASETS, batches, strict=True):
            made = recipe("xbm", dataset, protocol="mlrc", size=size, loss="contrastive")
            assert (made.loss.memory_size, made.loss.memory_start_step) == (32 * number, 1000)


def test_mlrc_proxy_nca_pp_divides_cosines_by_a_tenth():
    made = recipe("proxy_nca_pp", "cub", protocol="mlrc").loss.replace(normalize="sphere")
    x, p = jdml.sphere(BATCH[0]), jdml.sphere(jax.random.normal(KEY, (CLASSES, 1, DIM)))
    loss = made.build(CLASSES, DIM).loss({"proxies": p}, x, BATCH[1])[0]
    logits = jax.nn.log_softmax(x @ p[:, 0].T / 0.1)
    np.testing.assert_allclose(loss, -logits[jnp.arange(24), BATCH[1]].mean(), rtol=1e-5)


def test_nir_presets_paper_and_released():
    printed, released = (recipe("nir", "cars", preset=name) for name in ("paper", "released"))
    methods = [made.loss.method for made in (printed, released)]
    assert [(nir.flow, nir.of_mean) for nir in methods] == [("paper", True), ("released", False)]
    assert (printed.optimizer.weight_decay, released.optimizer.weight_decay) == (4e-3, 4e-4)
    baseline = recipe("nir_baseline", "cars", preset="released")
    assert baseline.optimizer.lr_multipliers["proxies"] == 2000
    deep = recipe("nir", "cub", blocks=15, width=64, conditioning="mid")  # Table 4b
    assert deep.loss.method.flow_settings == {"conditioning": "mid", "num_blocks": 15, "hidden": 64}


def test_ccp_presets_paper_and_released():
    paper, released = (recipe("ccp", "cub", preset=name) for name in ("paper", "released"))
    assert paper.loss.method == CCPConfig()
    assert released.loss.method == CCPConfig(
        restore=False, anchor_first=False, initial_proxies="origin", in_batch_weight=0.1
    )
    x, y = BATCH

    def parts(plan):
        objective = plan.loss.build(CLASSES, DIM)
        return set(objective.loss(objective.init(jax.random.key(0)), x, y)[1])

    assert "in_batch_loss" not in parts(paper)
    assert "in_batch_loss" in parts(released)
    assert recipe("ccp", "sop", preset="released").optimizer.learning_rate == 1e-4
    mixed = recipe("ccp", "sop", preset="released", restore=True, single=True, loss="triplet")
    assert mixed.loss.method.restore
    assert mixed.loss.method.initial_proxies == "origin"
    assert mixed.loss.method.patience > 10_000


@pytest.mark.parametrize("loss", ["proxy_anchor", "proxy_nca_margin", "soft_triple"])
def test_nir_baseline_is_nir_without_the_flow(loss):
    with_flow = recipe("nir", "cub", loss=loss, weight=0.5)
    without = recipe("nir_baseline", "cub", loss=loss).replace(
        loss={"weight": 0.5}, finetune={"backbone_freeze_epochs": 1}
    )
    assert with_flow.replace(loss={"method": None, "weight": 0.5}) == without
    assert without.optimizer.lr_multipliers == {"proxies": 4000.0}
    base = without.loss.build(CLASSES, DIM)
    params = base.init(jax.random.key(0))
    value, _ = base.loss(params, *BATCH)
    alone = getattr(jdml, f"{loss}_loss")(*BATCH, params["proxies"])
    np.testing.assert_allclose(value, 0.5 * alone, rtol=1e-5)
    assert recipe("nir_baseline", "cub").finetune.backbone_freeze_epochs == 0


def updates_of(plan, sizes, steps_per_epoch, **leaves):
    """Return the updates of a model and its proxies by step, for gradients of these sizes."""
    leaf = jnp.ones(1)
    params = {"model": {"conv": leaf, "head": leaf}, "proxies": leaf, **leaves}
    roles = tuple(role for role in params if role != "model")
    optimizer = make_optimizer(plan, roles, steps_per_epoch)

    def step(state, size):
        grads = jax.tree.map(lambda p: size * jnp.ones_like(p), params)
        updates, state = optimizer.update(grads, state, params)
        return state, updates

    run = jax.jit(lambda sizes: jax.lax.scan(step, optimizer.init(params), sizes)[1])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], run(jnp.asarray(sizes)))


@pytest.mark.parametrize("method", ["proxy_anchor", "nir", "pfml"])
def test_backbone_is_unchanged_by_the_warm_up(method):
    """Until its first step neither decay nor moments change it, and that step has the full rate."""
    plan = recipe(method, "cars").replace(
        optimizer={"learning_rate": 1e-4}, finetune={"backbone_freeze_epochs": 1}
    )
    conv = updates_of(plan, [8.0, 8.0, 8.0, 0.2], steps_per_epoch=3)["model"]["conv"]
    assert conv[:3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(conv[3], -1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("schedule", "warmup", "frozen", "per_epoch", "rates"),
    [
        ("step:every=2", 0, 0, 1, [0.1, 0.1, 0.05, 0.05, 0.025]),
        ("step:every=2", 0, 1, 1, [0, 0.1, 0.05, 0.05, 0.025]),
        ("step:every=1,factor=0.1", 2, 0, 3, [0.05, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001]),
    ],
)
def test_rates_decay_by_the_runs_epochs_after_a_warm_up(schedule, warmup, frozen, per_epoch, rates):
    """The backbone is frozen first in the second plan; the head's rate decays from the start."""
    plan = Recipe().replace(
        loss={"name": "proxy_anchor"},
        finetune={"backbone_freeze_epochs": frozen},
        optimizer={"learning_rate": 0.1, "schedule": schedule, "lr_warmup_steps": warmup},
    )
    model = updates_of(plan, [1.0] * len(rates), per_epoch)["model"]
    np.testing.assert_allclose(-model["conv"], rates, rtol=1e-4)
    rates[0] = rates[0] or 0.1
    np.testing.assert_allclose(-model["head"], rates, rtol=1e-4)


def test_learning_rates_by_path_and_clipping_by_role():
    """A pattern of paths scales what it names alone; a norm for each role lets no other role's gradient count."""
    optimizer = OptimizerConfig(
        "sgd",
        0.1,
        lr_multipliers={"(?!head).*": 3.0, "proxies": 10.0},
        clip_global_norm={"model": 2.0, ".*": 1.0},
    )
    plan = Recipe(loss=LossConfig("proxy_anchor"), optimizer=optimizer)
    updates = updates_of(plan, [8.0], steps_per_epoch=1)
    each = 2.0 / np.sqrt(2)  # two parameters share the model's norm
    np.testing.assert_allclose(updates["model"]["conv"], [-0.3 * each], rtol=1e-6)
    np.testing.assert_allclose(updates["model"]["head"], [-0.1 * each], rtol=1e-6)
    np.testing.assert_allclose(updates["proxies"], [-1.0], rtol=1e-6)


@pytest.mark.parametrize("rule", ["adam", "adamw"])
def test_weight_decay_applies_to_model_and_named_roles(rule):
    decay = OptimizerConfig(rule, weight_decay=0.5, weight_decay_roles=("proxies",))
    plan = Recipe(loss=LossConfig("proxy_anchor"), optimizer=decay)
    updates = updates_of(plan, [0.0], steps_per_epoch=1, flow=jnp.ones(1))
    assert updates["model"]["head"][0] < 0
    assert updates["proxies"][0] < 0
    assert updates["flow"][0] == 0


def test_pair_loss_of_bfloat16_network_multiplies_in_bfloat16(monkeypatch):
    """Loss and gradient are those of float32 products, also with a memory."""
    x, y = BATCH[0].astype(jnp.bfloat16).astype(jnp.float32), BATCH[1]
    plain = LossConfig("multi_similarity", memory_size=48)
    found = {}
    for dtype in ("float32", "bfloat16"):
        objective = plain.build(CLASSES, DIM, dtype=dtype)
        state = objective.update_state(objective.init_state(), x[::-1], y[::-1])

        def loss(x, objective=objective, state=state):
            return objective.loss({}, x, y[: len(x)], state=state)

        found[dtype] = jax.jit(jax.value_and_grad(loss, has_aux=True))(x)
    single, half = found.values()
    chex.assert_trees_all_equal(single[0], half[0])
    # The gradients by the batch and by the memory are rounded separately.
    assert jnp.linalg.norm(half[1] - single[1]) < 2**-8 * jnp.linalg.norm(single[1])
    for wrong in (x.astype(jnp.int32), x.astype(complex)):
        with pytest.raises(TypeError, match=r"^embeddings\b"):
            loss(wrong)
    assert jnp.isfinite(loss(jnp.full_like(x, jnp.finfo(jnp.float32).max))[0])
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")  # the target of the program
    text = jax.jit(loss).lower(x[:19]).as_text()  # a size that forces a new trace
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 2
    assert all(line.count("bf16") == 2 for line in products)


def test_eps_triplets_are_squared_and_averaged_over_all():
    """One triplet per anchor, including those with a hinge of 0, like the original program."""
    x, y = BATCH
    for method, positive in (
        ("triplet", jdml.mining.random_positive()),
        ("eps_triplet", jdml.mining.easy_positive()),
    ):
        mine = jdml.mining.chain(positive, jdml.mining.semi_hard_negative(0.2))
        kept = mine(
            KEY, jdml.ops.distances(jdml.sphere(x), jdml.sphere(x)), jdml.mining.all_pairs(y)
        )
        squares = np.asarray(jdml.ops.squared_distances(jdml.sphere(x), jdml.sphere(x)))
        pull, push = (np.where(side, squares, 0).sum(1) for side in kept)
        actual = recipe(method, "cub").loss.build(CLASSES, DIM).loss({}, x, y, key=KEY)[0]
        np.testing.assert_allclose(actual, np.maximum(pull - push + 0.2, 0).mean(), rtol=1e-4)


@pytest.mark.parametrize("method", ["margin", "eps_margin"])
def test_beta_of_each_class_is_learned(method):
    plan = recipe(method, "cub").replace(loss={"settings": {"beta": 1.0}})
    objective = plan.loss.build(CLASSES, DIM)
    params = objective.init(KEY)
    np.testing.assert_array_equal(params["beta"], np.ones(CLASSES))
    slope = jax.grad(lambda p: objective.loss(p, *BATCH, key=KEY)[0])(params)["beta"]
    assert np.abs(slope).max() > 0


def test_batch_depends_on_the_backbone():
    for method, batches in (("pfml", ("100", "180")), ("ccp", ("24x4", "32x4"))):
        for name, batch in zip(("resnet50", "bn_inception"), batches, strict=True):
            assert str(recipe(method, "cub", backbone=name).batch) == batch


def test_pfml_presets_paper_and_found():
    x, y = jnp.eye(4)[:, :2] + jnp.eye(4)[:, 2:], jnp.array([0, 0, 1, 1])
    values = {}
    for preset, alpha, most in (("tuned", 1.0, 5.0), ("paper", 4.0, None)):
        made = recipe("pfml", "cub", preset=preset)
        assert (made.loss.proxies.clip_value, made.loss.proxies.clip_norm) == (most, None)
        objective = made.loss.build(2, 2)
        params = objective.init(jax.random.key(0))
        values[preset] = objective.loss(params, x, y)[0]
        expected = jdml.potential_field_loss(
            x, y, params["proxies"], delta=0.2, alpha=alpha, reduce_fn=jnp.sum
        )
        np.testing.assert_allclose(values[preset], expected, rtol=1e-6)
    assert values["tuned"] != values["paper"]


@pytest.mark.parametrize(
    ("clip", "entry"), [({}, 8.0), ({"clip_norm": 4.0}, 2.0), ({"clip_value": 5.0}, 5.0)]
)
def test_proxy_gradients_are_clipped_by_vector_or_by_entry(clip, entry):
    optimizer = {"name": "sgd", "learning_rate": 1.0, "lr_multipliers": {}, "weight_decay": 0.0}
    plan = recipe("pfml", "cub").replace(loss={"proxies": clip}, optimizer=optimizer)
    updates = updates_of(plan, [8.0], steps_per_epoch=1, proxies=jnp.ones((2, 4)))
    np.testing.assert_allclose(updates["proxies"], [[-entry] * 4])
