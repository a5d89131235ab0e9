"""Every loss equals its oracle: in float64 to 1e-10, with every option, and loosely in float32."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses.registry import REGISTRY, loss

import jdml
from oracles import mining as mining_oracles
from oracles import proxy_losses

RNG = np.random.default_rng(7)
B, R, D, C, K = 10, 13, 5, 4, 3
X = RNG.normal(size=(B, D))
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 3])  # class 3 has one sample
REFERENCES = RNG.normal(size=(R, D))
REFERENCE_LABELS = RNG.integers(0, 5, size=R)  # class 4 is in no anchor
IDS = np.array(
    [5, 1, -1, 5, 4, 2, 3, 1, 9, -1]
)  # 0 and 3, 1 and 7 are the same sample; two are not known
REFERENCE_IDS = np.array([5, 4, -1, 3, 1, 1, 2, -1, 0, 7, 9, 5, 2])
WHERE = np.arange(B) % 4 != 2
REFERENCE_WHERE = np.arange(R) % 3 != 1
WEIGHTS = RNG.uniform(0.5, 2.0, size=B)
PROXIES = RNG.normal(size=(C, D))
MANY_PROXIES = RNG.normal(size=(C, K, D))
REDUCTIONS = {
    "none": None,
    "total": jdml.total,
    "mean": jdml.mean,
    "mean_nonzero": jdml.mean_nonzero,
}
# A property check tests that the terms sum to the total.
SUMS_APART = ("none", "mean", "mean_nonzero")


def ms_oracle(distances: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Any:
    return mining_oracles.multi_similarity_pairs(distances, positive, negative, epsilon=0.2)


def eps_hard_oracle(distances: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Any:
    easy, negative = mining_oracles.easy_positive(distances, positive, negative)
    return mining_oracles.hard_negative(distances, easy, negative)


MINERS = {
    "eps": (jdml.mining.easy_positive(), mining_oracles.easy_positive),
    "eps_hard": (
        jdml.mining.chain(jdml.mining.easy_positive(), jdml.mining.hard_negative()),
        eps_hard_oracle,
    ),
    "ms": (jdml.mining.multi_similarity_pairs(epsilon=0.2), ms_oracle),
}

# Options of pair losses, by the keywords that loss and oracle share.
REFS: Mapping[str, Any] = {"references": REFERENCES, "reference_labels": REFERENCE_LABELS}
PAIR_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "settings": {},
    "where": {"where": WHERE},
    "weights": {"weights": WEIGHTS},
    "where and weights": {"where": WHERE, "weights": WEIGHTS},
    "negative labels": {"labels": np.where(WHERE, Y, -1)},
    "references": REFS,
    "references, where, weights": REFS
    | {"where": WHERE, "weights": WEIGHTS, "reference_where": REFERENCE_WHERE},
    "negative reference labels": REFS
    | {"reference_labels": np.where(REFERENCE_WHERE, REFERENCE_LABELS, -3)},
    "positive": {"labels": None, "positive": RNG.random((B, B)) < 0.3},
    "positive and references": {
        "labels": None,
        "positive": RNG.random((B, R)) < 0.3,
        "references": REFERENCES,
        "reference_where": REFERENCE_WHERE,
    },
    "ids": {"ids": IDS},
    "ids, references, eps": REFS | {"ids": IDS, "reference_ids": REFERENCE_IDS, "mine": "eps"},
    "ball": {"embeddings": 0.6 * X, "normalize": "ball"},
    "unnormalized": {"embeddings": 0.3 * X, "normalize": None},
    "eps": {"mine": "eps"},
    "eps_hard, where": {"mine": "eps_hard", "where": WHERE},
    "ms, references": REFS | {"mine": "ms"},
} | {name: {"reduce": name} for name in SUMS_APART}
PROXY_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "settings": {},
    "several proxies": {"proxies": MANY_PROXIES},
    "one of several proxies": {"proxies": MANY_PROXIES[:, :1]},
    "where": {"where": WHERE},
    "weights": {"weights": WEIGHTS},
    "where and weights": {"where": WHERE, "weights": WEIGHTS, "proxies": MANY_PROXIES},
    "labels out of range": {"labels": np.array([0, -1, 2, 0, 4, 2, 0, 1, 99, 3])},
    "class absent": {"labels": np.array([0, 1] * 5)},
    "ball": {"embeddings": 0.6 * X, "proxies": 0.6 * MANY_PROXIES, "normalize": "ball"},
    "unnormalized": {"embeddings": 0.3 * X, "proxies": 0.3 * PROXIES, "normalize": None},
} | {name: {"reduce": name} for name in SUMS_APART}
# Lifted structure also needs the negatives of a positive, which references do not have.
BATCH_ONLY = {"lifted_structure_loss"}
NORMALIZATIONS = {"sphere": jdml.sphere, "ball": jdml.ball, None: None}


def cases() -> list[tuple[str, str]]:
    """Return every loss with every option that applies to it."""
    listed = []
    for name, spec in REGISTRY.items():
        for option, keywords in (PAIR_OPTIONS if spec.kind == "pair" else PROXY_OPTIONS).items():
            averaged_classes = spec.shape == "C" and option in ("mean", "mean_nonzero")
            if not averaged_classes and not ("references" in keywords and name in BATCH_ONLY):
                listed.append((name, option))
    return listed


def arguments(kind: str, options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arrays in order, and the keywords."""
    keywords = dict(options)
    arrays = [keywords.pop("embeddings", X), keywords.pop("labels", Y)]
    if kind == "proxy":
        arrays.append(keywords.pop("proxies", PROXIES))
    return arrays, keywords


def actual(
    name: str,
    options: Mapping[str, Any],
    dtype: Any = np.float64,
    *,
    traced: bool = False,
    **more: Any,
) -> Any:
    """Return the loss with the options translated for it; ``traced``: compute it in a traced function."""
    arrays, keywords = arguments(REGISTRY[name].kind, options)
    if "reduce" in keywords:
        keywords["reduce_fn"] = REDUCTIONS[keywords.pop("reduce")]
    if "normalize" in keywords:
        keywords["normalize"] = NORMALIZATIONS[keywords["normalize"]]
    if "mine" in keywords:
        keywords["mine"] = MINERS[keywords["mine"]][0]

    def as_dtype(value: Any) -> Any:
        real = isinstance(value, np.ndarray) and value.dtype == np.float64
        return jnp.asarray(value, dtype) if real else value

    arrays = [as_dtype(a) for a in arrays]
    keywords = {n: as_dtype(v) for n, v in keywords.items()}
    compute = partial(loss(name), **keywords, **more)
    return np.asarray((jax.jit(compute) if traced else compute)(*arrays))


def expected(name: str, options: Mapping[str, Any], **more: Any) -> Any:
    """Return the oracle's value with the options translated for it."""
    arrays, keywords = arguments(REGISTRY[name].kind, options)
    if "mine" in keywords:
        keywords["mine"] = MINERS[keywords["mine"]][1]
    return REGISTRY[name].oracle(*arrays, **keywords, **more)


def assert_equal(
    name: str, options: Mapping[str, Any], *, traced: bool = False, **settings: Any
) -> None:
    """Check that loss and oracle agree in float64."""
    # A property check tests that jit changes nothing.
    with jax.enable_x64(True), jax.disable_jit(not traced):
        value = actual(name, options, traced=traced, **settings)
    assert value.dtype == np.float64
    reference = np.asarray(expected(name, options, **settings))
    assert value.shape == reference.shape
    np.testing.assert_allclose(value, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "option"), cases())
def test_option_in_float64(name: str, option: str) -> None:
    spec = REGISTRY[name]
    options = (PAIR_OPTIONS if spec.kind == "pair" else PROXY_OPTIONS)[option]
    traced = option == "labels out of range"  # refused outside a trace
    assert_equal(name, options, traced=traced, **spec.settings)


@pytest.mark.parametrize("name", [n for n, spec in REGISTRY.items() if spec.shape == "BR"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_weights_of_pairs(name: str, reduce: str) -> None:
    options = {"weights": RNG.uniform(0.5, 2.0, size=(B, B)), "where": WHERE, "reduce": reduce}
    assert_equal(name, options, **REGISTRY[name].settings)


@pytest.mark.parametrize("reduce", ["default", *REDUCTIONS])
@pytest.mark.parametrize("option", ["settings", "references, where, weights", "eps_hard, where"])
def test_triplets_with_a_soft_margin(option: str, reduce: str) -> None:
    options = dict(PAIR_OPTIONS[option]) | ({} if reduce == "default" else {"reduce": reduce})
    assert_equal("triplet_loss", options, margin=None)
    assert_equal("triplet_loss", options, margin=None, squared=True)


@pytest.mark.slow  # Hessians
def test_gradient_of_a_soft_margin_equals_that_of_all_triplets() -> None:
    """By forwards and backwards differentiation; and far vectors stay finite."""

    def plain(x: jax.Array) -> jax.Array:
        apart = jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, -1) + jnp.eye(len(x)))
        same = jnp.asarray(Y[:, None] == Y)
        own = same & ~jnp.eye(len(x), dtype=bool)
        each = jax.nn.softplus(apart[:, :, None] - apart[:, None, :])
        return jnp.mean(each, where=own[:, :, None] & ~same[:, None, :])

    soft = partial(jdml.triplet_loss, labels=Y, margin=None, normalize=None)
    with jax.enable_x64(True):
        x = jnp.asarray(X)
        for derivative in (jax.grad, jax.jacfwd, jax.hessian):
            np.testing.assert_allclose(derivative(soft)(x), derivative(plain)(x), atol=1e-9)
    value, slope = jax.value_and_grad(soft)(jnp.float32(X * 1e4))
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("reduce", ["default", *REDUCTIONS])
def test_triplets_of_squared_distances(reduce: str) -> None:
    options = {"where": WHERE} | ({} if reduce == "default" else {"reduce": reduce})
    assert_equal("triplet_loss", options, margin=0.2, squared=True)


def test_triplets_with_ties_and_hinges_of_zero() -> None:
    """The points lie on a grid where the arithmetic is exact."""
    grid = np.array([[0, 0], [0, 1], [1, 0], [0, 2], [2, 0], [0, 0], [0, 3], [1, 0]], np.float64)
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 0])
    for reduce in REDUCTIONS:
        options = {"embeddings": grid, "labels": labels, "normalize": None, "reduce": reduce}
        assert_equal("triplet_loss", options, margin=1.0)


def test_beta_per_class() -> None:
    beta = np.array([0.9, 1.0, 1.2, 1.4])
    for options in ({}, {"where": WHERE}, REFS, {"labels": np.where(WHERE, Y, -1)}):
        with jax.enable_x64(True):
            value = actual("margin_loss", options, beta=jnp.asarray(beta), alpha=0.3)
        reference = expected("margin_loss", options, beta=beta, alpha=0.3)
        np.testing.assert_allclose(value, reference, rtol=1e-10)


def test_center_regularizer() -> None:
    with jax.enable_x64(True):
        value = float(jdml.losses.center_regularizer(jnp.asarray(MANY_PROXIES)))
        grad = jax.grad(jdml.losses.center_regularizer)(jnp.ones((C, K, D)))
    assert value == pytest.approx(proxy_losses.center_regularizer(MANY_PROXIES), rel=1e-10)
    assert np.isfinite(grad).all()
    assert float(jdml.losses.center_regularizer(jnp.asarray(PROXIES, jnp.float32))) == 0


@pytest.mark.parametrize("name", ["contrastive_loss", "triplet_loss", "n_pair_loss"])
def test_rows_without_positives_after_mining_contribute_nothing(name: str) -> None:
    """Class 3 has one sample: with a miner its row has no negatives either."""
    mine = jdml.mining.easy_positive()
    terms = np.asarray(loss(name)(jnp.asarray(X, jnp.float32), Y, mine=mine, reduce_fn=None))
    assert not terms[9].any()


def test_traced_hyper_parameters_give_gradients() -> None:
    def value(function: Callable[..., jax.Array], beta: jax.Array) -> jax.Array:
        return function(jnp.asarray(X, jnp.float32), Y, beta=beta)

    slope = jax.grad(partial(value, jdml.margin_loss))(jnp.float32(1.2))
    per_class = jax.grad(partial(value, jdml.margin_loss))(jnp.full(C, 1.2, jnp.float32))
    assert slope == pytest.approx(float(per_class.sum()), rel=1e-4)
