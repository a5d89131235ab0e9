"""Objectives: their loss, parameters, memory and nesting."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import objectives
from jdml.ops import ball
from jdml.recipes import LossConfig
from jdml.registry import LOSSES

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)
Y = jnp.array([0, 0, 1, 1, 2, 2])
KEY = jax.random.key(0)


def test_pair_is_the_loss_with_its_settings() -> None:
    objective = objectives.pair(jdml.triplet_loss, margin=0.3, normalize=None)
    assert objective.init(KEY) == {}
    loss, metrics = objective.loss({}, X, Y, where=Y < 2)
    assert loss == jdml.triplet_loss(X, Y, margin=0.3, normalize=None, where=Y < 2)
    assert metrics["loss"] == loss


def test_pair_can_learn_proxies() -> None:
    start = jnp.eye(3, X.shape[1])
    objective = objectives.pair(jdml.proxy_anchor_loss, learned={"proxies": start})
    value, _ = objective.loss(objective.init(KEY), X, Y % 3)
    assert value == jdml.proxy_anchor_loss(X, Y % 3, start)
    objectives.pair(lambda x, y, *proxies, **settings: jnp.sum(x))


def test_pair_passes_the_key_to_random_miners() -> None:
    objective = objectives.pair(jdml.triplet_loss, mine=jdml.mining.random_positive())
    assert jnp.isfinite(objective.loss({}, X, Y, key=KEY)[0])
    with pytest.raises(ValueError, match=r"^key\b"):
        objective.loss({}, X, Y)
    words = jax.random.key_data(KEY)
    assert objective.loss({}, X, Y, key=words)[0] == objective.loss({}, X, Y, key=KEY)[0]
    for key in (0, "a", words[:1]):
        with pytest.raises(TypeError, match=r"^key\b"):
            objective.loss({}, X, Y, key=key)


def test_learned_boundaries_get_gradients_and_are_logged_by_their_mean() -> None:
    objective = objectives.pair(jdml.margin_loss, learned={"beta": jnp.array([1.0, 1.2, 1.4])})
    gradient, metrics = jax.grad(objective.loss, has_aux=True)(objective.init(KEY), X, Y)
    assert gradient["beta"].shape == (3,)
    assert (gradient["beta"] != 0).any()
    assert metrics["beta"] == pytest.approx(1.2)


PROXY = functools.partial(objectives.proxy, num_classes=3, dim=4)


@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (objectives.pair, jdml.info_nce_loss),
        (objectives.pair, jdml.sup_con_loss),
        (PROXY, jdml.normalized_softmax_loss),
        (PROXY, jdml.proxy_nca_pp_loss),
    ],
)
def test_learned_temperature_stays_positive_and_is_logged(build, loss) -> None:
    """Even under steps that would lead a plain number through 0."""
    objective, logged = build(loss, learned={"temperature": 0.07}), []
    params = objective.init(KEY)
    for rate in (0.0, 1.0, 30.0, 30.0):
        (_, metrics), slope = jax.value_and_grad(objective.loss, has_aux=True)(params, X, Y)
        chex.assert_tree_all_finite((metrics, slope))
        assert rate == 0 or slope["temperature"] != 0
        moved = params["temperature"] - rate * jnp.sign(slope["temperature"])
        params = {**params, "temperature": moved}
        logged.append(float(metrics["temperature"]))
    assert logged[0] == logged[1] == pytest.approx(0.07)
    assert logged[2] != logged[1]
    assert min(logged) > 0


@pytest.mark.parametrize("start", [0.0, -1.0, np.nan, np.float32(-1), jnp.float32(0)])
def test_learned_hyper_parameter_that_the_loss_refuses_is_refused(start: object) -> None:
    with pytest.raises(ValueError, match=r"^learned\['temperature'\]"):
        objectives.pair(jdml.info_nce_loss, learned={"temperature": start})
    with pytest.raises(ValueError, match=r"^learned\['scale'\]"):
        PROXY(jdml.cosface_loss, learned={"scale": start})
    with pytest.raises(ValueError, match=r"^temperature\b"):
        jdml.info_nce_loss(X, Y, temperature=start)  # a concrete number of JAX as well


@pytest.mark.parametrize("per_class", [1, 3])
def test_proxies_start_on_the_sphere_and_are_learned(per_class: int) -> None:
    objective = PROXY(jdml.soft_triple_loss, proxies_per_class=per_class)
    params = objective.init(KEY)
    chex.assert_shape(params["proxies"], (3, per_class, 4))
    np.testing.assert_allclose(jnp.linalg.norm(params["proxies"], axis=-1), 1, rtol=1e-6)
    gradient = jax.grad(lambda p: objective.loss(p, X, Y)[0])(params)
    chex.assert_tree_all_finite(gradient)
    assert (gradient["proxies"] != 0).any()


@pytest.mark.parametrize("ids", [None, np.array([3, 1, 4, 8, 5, -1])])
def test_memory_compares_with_past_batches_but_not_with_itself(ids) -> None:
    """Nor with older copies of a sample, which have its id; a row without an id is excluded by index only."""
    settings = {"positive_margin": -1.0, "negative_margin": 1.5}
    pair = objectives.pair(jdml.contrastive_loss, **settings)
    objective = objectives.with_memory(pair, 12, 4, weight=0.5)
    old = -X[::-1]
    # Each batch ends with a masked row.
    older, x = (jnp.concatenate([rows, jnp.full((1, 4), jnp.nan)]) for rows in (old, X))
    y, where = jnp.append(Y, 0), jnp.arange(7) < 6
    old_ids, new = (None, None) if ids is None else (np.append(ids[::-1], 9), np.append(ids, 9))
    state = objective.update_state(objective.init_state(), older, 2 - y, where, ids=old_ids)
    loss, metrics = objective.loss({}, x, y, where=where, state=state, ids=new)
    past = functools.partial(
        jdml.contrastive_loss,
        X,
        Y,
        references=jnp.concatenate([old, X]),
        reference_labels=jnp.concatenate([2 - Y, Y]),
        self_index=jnp.arange(6, 12),
        **settings,
    )
    expected = past()
    if ids is not None:
        expected = past(ids=ids, reference_ids=np.concatenate([ids[::-1], ids]))
        assert abs(expected - past()) > 1e-3
    np.testing.assert_allclose(metrics["memory_loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(loss, pair.loss({}, X, Y)[0] + 0.5 * expected, rtol=1e-5)


def test_loss_without_ids_can_have_a_memory() -> None:
    def near(embeddings, labels, *, where=None, references=None, **of_references):
        against = embeddings if references is None else references
        return jnp.mean(jnp.square(embeddings[:, None] - against[None]))

    def plain(
        embeddings, labels, *, where=None, references=None, reference_labels=None, self_index=None
    ):
        return near(embeddings, labels, references=references)

    objective = objectives.with_memory(objectives.pair(plain), 12, 4)
    ids = jnp.arange(len(X))
    state = objective.update_state(objective.init_state(), X, Y, ids=ids)
    expected = objectives.with_memory(objectives.pair(near), 12, 4).loss({}, X, Y, state=state)[0]
    np.testing.assert_allclose(objective.loss({}, X, Y, state=state, ids=ids)[0], expected)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64])
def test_memory_is_stored_in_the_requested_dtype(dtype) -> None:
    with jax.enable_x64(dtype == jnp.float64):
        x = jnp.asarray(np.random.default_rng(3).normal(size=(6, 4)), dtype)
        pair = objectives.pair(jdml.contrastive_loss)
        objective = objectives.with_memory(pair, 12, 4, dtype=dtype)
        state = objective.update_state(objective.init_state(), x, Y)
        assert state.memory.embeddings.dtype == dtype
        np.testing.assert_array_equal(state.memory.embeddings[:6], x)
        assert objective.loss({}, x, Y, state=state)[0].dtype == pair.loss({}, x, Y)[0].dtype


QUICK = ("triplet", "proxy_anchor", "potential_field")


@pytest.mark.parametrize(
    # Programs of other losses.
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in LOSSES],
)
def test_parameters_are_float32_with_x64_enabled(name) -> None:
    with jax.enable_x64(True):
        objective = LossConfig(name).build(3, dim=4)
        params, state = objective.init(KEY), objective.init_state()
        leaves = jax.tree.leaves((params, state))
        assert {leaf.dtype for leaf in leaves if leaf.dtype.kind == "f"} <= {np.dtype(np.float32)}
        assert objective.loss(params, X, Y, key=KEY, state=state)[0].dtype == jnp.float32


def test_memory_starts_after_its_warm_up() -> None:
    plain = objectives.pair(jdml.contrastive_loss)
    objective = objectives.with_memory(plain, 12, 4, warmup=2)
    state, losses = objective.init_state(), []
    for _ in range(3):
        losses.append(objective.loss({}, X, Y, state=state)[0])
        state = objective.update_state(state, X, Y)
    alone = plain.loss({}, X, Y)[0]
    assert losses[0] == losses[1] == alone
    assert losses[2] > alone


TRIPLETS = objectives.pair(jdml.triplet_loss)
REFUSED = [
    (lambda: objectives.pair("triplet"), TypeError, "loss_fn"),
    (lambda: objectives.proxy(jdml.proxy_anchor_loss, 0, 4), ValueError, "num_classes"),
    (lambda: objectives.proxy(jdml.proxy_anchor_loss, 3, 4, 0), ValueError, "proxies_per_class"),
    (
        lambda: objectives.proxy(jdml.soft_triple_loss, 3, 4, sampled_classes=0),
        ValueError,
        "sampled_classes",
    ),
    (lambda: objectives.with_memory(TRIPLETS, 0, 4), ValueError, "capacity"),
    (lambda: objectives.with_memory(TRIPLETS, 8, 4, weight=-1), ValueError, "weight"),
    (
        lambda: objectives.with_memory(objectives.with_memory(TRIPLETS, 8, 4), 8, 4),
        ValueError,
        "objective",
    ),
    (lambda: objectives.as_anchor_objective(jdml.contrastive_loss, 0), ValueError, "num_anchors"),
    (
        lambda: objectives.as_proxy_objective(jdml.contrastive_loss, 2, 2, in_batch_weight=-1.0),
        ValueError,
        "in_batch_weight",
    ),
    (
        lambda: objectives.as_anchor_objective(jdml.contrastive_loss, 4, negativ_margin=0.5),
        TypeError,
        ".*negativ_margin",
    ),
    (lambda: objectives.pair(jdml.triplet_loss, margn=0.3), TypeError, ".*margn"),
    (lambda: objectives.proxy(jdml.proxy_nca_loss, 2, 2, scal=3.0), TypeError, ".*scal"),
]


@pytest.mark.parametrize(("build", "error", "name"), REFUSED)
def test_wrong_settings_are_refused(build, error, name) -> None:
    with pytest.raises(error, match=rf"^{name}\b"):
        build()


def test_monitor_adds_its_metrics_to_the_loss() -> None:
    monitor = functools.partial(jdml.losses.field_activity, delta=0.5, alpha=1.0)
    objective = objectives.proxy(
        jdml.potential_field_loss, 3, 4, 2, monitor=monitor, delta=0.5, alpha=1.0
    )
    params = objective.init(jax.random.key(0))
    x, y = jax.random.normal(jax.random.key(1), (6, 4)), jnp.arange(6) % 3
    value, metrics = jax.jit(objective.loss)(params, x, y, where=jnp.arange(6) < 5)
    assert set(metrics) == {"loss", "attracting", "repelling", "force"}
    plain = jdml.potential_field_loss(x[:5], y[:5], params["proxies"], delta=0.5, alpha=1.0)
    np.testing.assert_allclose(value, plain, rtol=1e-5)
    assert 0 < metrics["attracting"] <= 1
    of_five = jax.jit(objective.loss)(params, x[:5], y[:5])[1]
    chex.assert_trees_all_close(metrics, of_five, rtol=1e-5)
    settings = {"delta": 0.5, "alpha": 1.0, "normalize": None}
    derived = objectives.proxy(  # the monitor takes its settings from the loss's
        jdml.potential_field_loss,
        3,
        4,
        2,
        monitor=jdml.losses.field_activity,
        reduce_fn=jnp.sum,
        **settings,
    )
    _, actual = derived.loss(params, x, y)
    expected = jdml.losses.field_activity(x, y, params["proxies"], **settings)
    chex.assert_trees_all_close({name: actual[name] for name in expected}, expected)


# Eq. 4.10: the references of a batch are anchor images that the network embeds with it.

MARGINS = {"positive_margin": 0.0, "negative_margin": 0.5}
OBJECTIVE = objectives.as_anchor_objective(jdml.contrastive_loss, 4, **MARGINS)
POINTS = jax.random.normal(jax.random.key(0), (10, 2))
LABELS = jnp.array([0, 0, 1, 1, 0, 1, 0, 1, 1, 0])


def test_anchor_loss_equals_proxy_loss_at_the_anchors_embeddings() -> None:
    """The gradients are equal, too."""
    by_proxies = objectives.as_proxy_objective(jdml.contrastive_loss, 2, 2, 2, **MARGINS)

    def of_proxies(proxies, x):
        return by_proxies.loss({"proxies": proxies.reshape(2, 2, 2)}, x, LABELS[4:])[0]

    expected, (of_anchors, of_batch) = jax.value_and_grad(of_proxies, (0, 1))(
        POINTS[:4], POINTS[4:]
    )
    actual, gradient = jax.value_and_grad(lambda x: OBJECTIVE.loss({}, x, LABELS)[0])(POINTS)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient[:4], of_anchors, atol=1e-6)
    np.testing.assert_allclose(gradient[4:], of_batch, atol=1e-6)
    in_batch = jdml.contrastive_loss(POINTS, LABELS, normalize=ball, **MARGINS)
    assert abs(actual - in_batch) > 1e-3  # the plain contrastive loss differs


def test_empty_batch_slots_are_ignored() -> None:
    where = jnp.arange(10) % 4 != 1
    hidden = jnp.where(where[:, None], POINTS, jnp.nan)
    masked = OBJECTIVE.loss({}, hidden, LABELS, where=where)[0]
    left = where.tolist()
    fewer = objectives.as_anchor_objective(jdml.contrastive_loss, sum(left[:4]), **MARGINS)
    np.testing.assert_allclose(masked, fewer.loss({}, POINTS[where], LABELS[where])[0], rtol=1e-5)


@pytest.mark.parametrize(
    "objective",
    [
        objectives.as_proxy_objective(jdml.contrastive_loss, 8, 2),
        objectives.proxy(jdml.proxy_anchor_loss, 8, 2, sampled_classes=4),
    ],
)
def test_numpy_labels_are_checked_against_the_classes(objective) -> None:
    params, key = objective.init(jax.random.key(0)), jax.random.key(1)
    vectors, labels = np.eye(2, dtype=np.float32), np.array([3, 7])
    value = objective.loss(params, vectors, labels, key=key)[0]
    assert objective.loss(params, vectors, labels.astype(">i8"), key=key)[0] == value
    for wrong in (8, 2**32):
        with pytest.raises(ValueError, match=rf"^labels\[1\] is {wrong}"):
            objective.loss(params, vectors, np.array([3, wrong]), key=key)
    with pytest.raises(TypeError, match=r"^labels\b"):
        objective.loss(params, vectors, [3, 7], key=key)


def test_memory_requires_a_loss_with_references() -> None:
    vectors, labels = np.eye(3, dtype=np.float32), np.array([0, 1, 0])
    for inner in (
        objectives.as_anchor_objective(jdml.contrastive_loss, 2),
        objectives.as_proxy_objective(jdml.contrastive_loss, 2, 3),
        objectives.pair(jdml.potential_field_loss),
    ):
        objective = objectives.with_memory(inner, 8, 3)
        params, state = objective.init(jax.random.key(0)), objective.init_state()
        with pytest.raises(TypeError, match="references"):
            objective.loss(params, vectors, labels, state=state)


@pytest.mark.parametrize("options", [{}, {"anchor_block": 4}])
def test_mining_activity_is_the_share_that_a_miner_keeps(options):
    x, y = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32), np.arange(12) % 5
    apart = np.linalg.norm(x[:, None] - x[None], axis=-1)
    before = jdml.mining.all_pairs(jnp.asarray(y))
    mine = jdml.mining.trusted_negative(margin=0.5)
    after = mine(None, jnp.asarray(apart), before)
    complete = [np.asarray(p.positive.any(1) & p.negative.any(1)) for p in (before, after)]
    numbers = [
        np.asarray(p.positive).sum(1) + np.asarray(p.negative).sum(1) for p in (before, after)
    ]
    objective = objectives.pair(
        jdml.triplet_loss, mine=mine, normalize=None, monitor=jdml.losses.mining_activity, **options
    )
    metrics = objective.loss({}, x, y)[1]
    assert 0 < metrics["mined_pairs"] < metrics["mined_anchors"] <= 1
    np.testing.assert_allclose(
        (metrics["mined_anchors"], metrics["mined_pairs"]),
        (complete[1].sum() / complete[0].sum(), numbers[1][complete[1]].sum() / numbers[0].sum()),
        rtol=1e-6,
    )
