"""One optimizer per role, no parameter without a role, and anchored weights inside optax's wrappers."""

import inspect
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from jdml import optim
from jdml.optim import add_anchored_weights, backbone_and_head, partition_by_role, set_anchor

PARAMS = {"model": {"a": jnp.ones(2), "b": jnp.ones(3)}, "proxies": jnp.ones((2, 2))}
ROLES = {"model": "model", "proxies": "proxies"}
TRANSFORMS = {"model": optax.sgd(0.1), "proxies": optax.sgd(10.0)}


@pytest.mark.parametrize(
    "roles", [ROLES, lambda params: {name: name for name in params}], ids=["prefix", "function"]
)
def test_each_role_learns_at_its_own_rate(roles) -> None:
    transform = partition_by_role(TRANSFORMS, roles)
    update = jax.jit(transform.update)
    updates, _ = update(jax.tree.map(jnp.ones_like, PARAMS), transform.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["model"]["b"], -0.1)
    np.testing.assert_allclose(updates["proxies"], -10.0)


def test_roles_may_be_nested() -> None:
    roles = {"model": {"a": "model", "b": "proxies"}, "proxies": "proxies"}
    transform = partition_by_role(TRANSFORMS, roles)
    updates, _ = transform.update(PARAMS, transform.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["model"]["a"], -0.1)
    np.testing.assert_allclose(updates["model"]["b"], -10.0)


# Every transformation with its updates for gradients of 2 and weights of 1; a new one is added by a line.
TRANSFORMATIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "partition_by_role": (partition_by_role(TRANSFORMS, ROLES), {"a": -0.2, "proxies": -20.0}),
    "clip_by_vector_norm": (
        optim.clip_by_vector_norm(0.5),
        {"a": 0.5 / np.sqrt(2), "proxies": 0.5 / np.sqrt(2)},
    ),
    "retract_to_sphere": (
        optax.chain(optax.scale(0.5), optim.retract_to_sphere()),
        {"a": 1 / np.sqrt(2) - 1, "proxies": 1 / np.sqrt(2) - 1},
    ),
    "add_anchored_weights": (add_anchored_weights(0.25), {"a": 2.25, "proxies": 2.25}),
}


class Variants(chex.TestCase):
    """The same updates and state, compiled or not, on NumPy arrays or on a device."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.named_parameters(*((name, name) for name in TRANSFORMATIONS))
    def test_property(self, name: str) -> None:
        tx, expected = TRANSFORMATIONS[name]
        params = jax.tree.map(np.asarray, PARAMS)
        state = tx.init(params)
        if name == "add_anchored_weights":
            state = set_anchor(state, jax.tree.map(np.zeros_like, params))
        grads = jax.tree.map(lambda p: 2 * p, params)
        updates, after = self.variant(tx.update)(grads, state, params)
        chex.assert_tree_all_finite(updates)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
        chex.assert_trees_all_equal_structs(after, state)
        np.testing.assert_allclose(updates["model"]["a"], expected["a"], rtol=1e-6)
        np.testing.assert_allclose(updates["proxies"], expected["proxies"], rtol=1e-6)


def test_every_transformation_is_registered() -> None:
    functions = inspect.getmembers(optim, inspect.isfunction)
    own = [(name, f) for name, f in functions if f.__module__ == "jdml.optim" and name[0] != "_"]
    made = {name for name, f in own if "GradientTransformation" in str(inspect.signature(f))}
    assert made == set(TRANSFORMATIONS)


DEEP = {"model": {"a": "model"}, "proxies": "proxies"}


def by_role(roles: Any, **settings: Any) -> Any:
    return partition_by_role(TRANSFORMS, roles, **settings).init(PARAMS)


def anchored(anchor: Any) -> Any:
    return set_anchor(add_anchored_weights(1.0).init(PARAMS), anchor)


def without_params(tx: Any) -> Any:
    return tx.update(PARAMS, tx.init(PARAMS))


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: by_role({"model": "model"}), ValueError, "proxies"),
    (lambda: by_role(DEEP), ValueError, r"model'\]\['b"),
    (lambda: by_role(ROLES | {"proxies": "flow"}), ValueError, r"\['proxies'\]"),
    (lambda: by_role(ROLES | {"proxies": None}), ValueError, r"\['proxies'\]"),
    (lambda: by_role(ROLES, waiting={"flow": 3}), ValueError, "waiting"),
    (lambda: by_role(ROLES, waiting={"model": -1}), ValueError, r"waiting\['model'\]"),
    (lambda: by_role(ROLES, waiting={"model": 0.5}), TypeError, r"waiting\['model'\]"),
    (lambda: optim.clip_by_vector_norm(0), ValueError, "max_norm"),
    (lambda: add_anchored_weights(-1.0), ValueError, "strength"),
    (lambda: without_params(add_anchored_weights(1.0)), ValueError, "params"),
    (lambda: without_params(optim.retract_to_sphere()), ValueError, "params"),
    (lambda: set_anchor(optax.adam(1.0).init(PARAMS), PARAMS), ValueError, "opt_state"),
    (lambda: anchored(PARAMS | {"proxies": jnp.ones(3)}), ValueError, "params"),
]


@pytest.mark.parametrize(("call", "error", "name"), REFUSED)
def test_refusals(call: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=name):
        call()


def test_clip_by_vector_norm_keeps_directions():
    vectors = jnp.array([[[3e30, 4e30], [0.3, 0.4]], [[0.0, 0.0], [-5.0, 0.0]]])
    tx = optim.clip_by_vector_norm(2.5)
    clipped, _ = tx.update({"proxies": vectors}, tx.init(None))
    expected = [[[1.5, 2.0], [0.3, 0.4]], [[0.0, 0.0], [-2.5, 0.0]]]
    np.testing.assert_allclose(clipped["proxies"], expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("most", [0.1, 1e-2, 1e-3])
def test_clip_by_vector_norm_of_large_vectors_in_any_dtype(dtype, most):
    tx = optim.clip_by_vector_norm(most)
    clipped, _ = tx.update(jnp.array([[6e4, 6e4]], dtype), tx.init(None))
    assert clipped.dtype == dtype
    close = 4 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(clipped, np.float64)), most, rtol=close)


def test_retraction_keeps_vectors_on_the_sphere():
    tx = optax.chain(optax.adam(0.5), optim.retract_to_sphere())
    params = {"proxies": jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 4)), jnp.float32)}
    params = jax.tree.map(lambda p: p / jnp.linalg.norm(p, axis=-1, keepdims=True), params)
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(jax.tree.map(jnp.sin, params), state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(jnp.linalg.norm(params["proxies"], axis=-1), 1, rtol=1e-6)
    still = optim.retract_to_sphere()
    away, _ = still.update(-params["proxies"], still.init(params), params["proxies"])
    np.testing.assert_array_equal(away, jnp.zeros((3, 2, 4)))  # a step to the origin is not made


RULES = {
    "adam": optax.adam(1e-2),
    "coupled decay": optax.chain(optax.add_decayed_weights(0.1), optax.adam(1e-2)),
    "decoupled decay": optax.adamw(1e-2, weight_decay=0.1),
    "momentum": optax.sgd(optax.linear_schedule(1.0, 0.1, 5), momentum=0.9),
}


@pytest.mark.parametrize("name", RULES)
def test_waiting_role_starts_with_a_fresh_optimizer_state(name: str) -> None:
    """Earlier gradients leave no moments, bias correction, decay or schedule steps."""
    rule = RULES[name]
    transform = partition_by_role(
        {"backbone": rule, "head": rule, "proxies": rule},
        backbone_and_head,
        waiting={"backbone": 3},
    )
    params = {"model": {"conv": jnp.ones(2), "head": jnp.ones(2)}, "proxies": jnp.ones(2)}
    state, update = transform.init(params), jax.jit(transform.update)
    for step in range(3):
        grads = jax.tree.map(lambda p: 40.0 * jnp.ones_like(p), params)
        updates, state = update(grads, state, params)
        assert not updates["model"]["conv"].any(), step
        assert updates["model"]["head"].all()
        assert updates["proxies"].all()
        params = optax.apply_updates(params, updates)
    fresh, moments = {"conv": params["model"]["conv"]}, rule.init({"conv": params["model"]["conv"]})
    for step in range(4):
        grads = jax.tree.map(lambda p, pair=step: (1.0 + pair) * jnp.ones_like(p), params)
        updates, state = update(grads, state, params)
        expected, moments = rule.update({"conv": grads["model"]["conv"]}, moments, fresh)
        np.testing.assert_allclose(updates["model"]["conv"], expected["conv"], rtol=1e-6)
        params, fresh = (
            optax.apply_updates(*pair) for pair in ((params, updates), (fresh, expected))
        )


def test_scalars_and_updates_of_none():
    updates = {"beta": jnp.array(3.0), "p": jnp.array([[3.0, 4.0]]), "none": None}
    params = {"beta": jnp.array(1.0), "p": jnp.array([[1.0, 0.0]]), "none": None}
    clip, retract = optim.clip_by_vector_norm(1.0), optim.retract_to_sphere()
    cut, _ = clip.update(updates, clip.init(params))
    assert cut["beta"] == 1
    np.testing.assert_allclose(cut["p"], [[0.6, 0.8]], rtol=1e-6)
    back, _ = retract.update(updates, retract.init(params), {**params, "none": jnp.ones(2)})
    assert back["none"] is None
    assert back["beta"] == 3
    np.testing.assert_allclose(jnp.linalg.norm(params["p"] + back["p"]), 1, rtol=1e-6)
    anchor = add_anchored_weights(0.5)
    params = {"p": jnp.ones(2), "none": jnp.ones(2)}
    state = set_anchor(anchor.init(params), jax.tree.map(jnp.zeros_like, params))
    pulled, _ = anchor.update({"p": jnp.zeros(2), "none": None}, state, params)
    assert pulled["none"] is None
    np.testing.assert_allclose(pulled["p"], 0.5)


WEIGHTS = {
    "model": {"kernel": jnp.array([[1.0, 2.0]]), "bias": jnp.array([3.0])},
    "proxies": jnp.ones(2),
}
ANCHOR = jax.tree.map(lambda p: p - 1.0, WEIGHTS)
ZEROS = jax.tree.map(jnp.zeros_like, WEIGHTS)
MODEL_ONLY = {"model": True, "proxies": False}


def pulls(tx: optax.GradientTransformation, state: Any) -> Any:
    return jax.jit(tx.update)(ZEROS, state, WEIGHTS)[0]


@pytest.mark.parametrize("mask", [None, MODEL_ONLY, lambda params: MODEL_ONLY])
def test_anchored_weights_add_the_pull_once_anchored(mask: Any) -> None:
    tx = add_anchored_weights(0.25, mask)
    state = tx.init(WEIGHTS)
    assert not any(p.any() for p in jax.tree.leaves(pulls(tx, state)))
    pulled = pulls(tx, set_anchor(state, ANCHOR))
    np.testing.assert_allclose(pulled["model"]["kernel"], [[0.25, 0.25]])
    np.testing.assert_allclose(pulled["model"]["bias"], [0.25])
    np.testing.assert_allclose(pulled["proxies"], 0.25 if mask is None else 0.0)


WRAPPINGS = {
    "chain": lambda tx: optax.chain(tx, optax.identity()),
    "inject": lambda tx: optax.chain(optax.inject_hyperparams(add_anchored_weights)(strength=0.25)),
    "multi_transform": lambda tx: optax.multi_transform(
        {"a": tx, "b": optax.identity()}, {"model": "a", "proxies": "b"}
    ),
    "by role": lambda tx: partition_by_role(
        {"a": optax.chain(tx, optax.identity()), "b": optax.identity()},
        {"model": "a", "proxies": "b"},
    ),
    "masked": lambda tx: optax.masked(tx, MODEL_ONLY),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, every_k_schedule=1).gradient_transformation(),
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_anchored_weights_work_inside_optax_wrappers(name: str) -> None:
    tx = WRAPPINGS[name](add_anchored_weights(0.25))
    state = tx.init(WEIGHTS)
    assert not any(p.any() for p in jax.tree.leaves(pulls(tx, state)))
    pulled = pulls(tx, jax.jit(set_anchor)(state, ANCHOR))
    np.testing.assert_allclose(pulled["model"]["bias"], [0.25], rtol=1e-6)
    assert jax.tree.structure(set_anchor(state, ANCHOR)) == jax.tree.structure(state)


def test_anchored_weights_equal_the_penaltys_gradient() -> None:
    def penalty(params: Any) -> jax.Array:
        gaps = jax.tree.map(lambda p, a: jnp.sum((p - a) ** 2), params, ANCHOR)
        return 0.5 * 0.3 * sum(jax.tree.leaves(gaps))

    tx = add_anchored_weights(0.3)
    pulled = pulls(tx, set_anchor(tx.init(WEIGHTS), ANCHOR))
    chex.assert_trees_all_close(pulled, jax.grad(penalty)(WEIGHTS), rtol=1e-6)


def test_training_ends_between_optimum_and_anchor() -> None:
    """½(θ − 4)² + ½(θ − 0)² has its minimum at 2."""
    tx = optax.chain(add_anchored_weights(1.0), optax.sgd(0.1))
    theta = jnp.array(0.0)

    def step(carried: Any, _: None) -> tuple[Any, None]:
        theta, state = carried
        updates, state = tx.update(theta - 4.0, state, theta)
        return (optax.apply_updates(theta, updates), state), None

    start = theta, set_anchor(tx.init(theta), theta)
    (theta, _), _ = jax.lax.scan(step, start, length=200)
    np.testing.assert_allclose(theta, 2.0, rtol=1e-4)


def test_anchored_weights_keep_dtype_and_sharding() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    params = jax.device_put(jnp.ones(4, jnp.bfloat16), sharding)
    tx = add_anchored_weights(0.5)
    state = set_anchor(tx.init(params), params)
    assert state.anchor.sharding == sharding
    assert tx.update(params, state, params)[0].dtype == jnp.bfloat16
