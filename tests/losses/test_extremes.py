"""Extreme settings: very sharp and very soft losses, second derivatives, no intermediate NaN, wide angles."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses.registry import FIRST, REGISTRY, each, loss

import jdml
from jdml.ops import log1p_sum_exp, log_sum_exp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype(np.float32)
Y = np.array([0, 0, 1, 1, 2, 2])
COPIES = np.stack([X[0], X[0], X[2], -X[0], X[0], 0 * X[0]])
PAIR = [name for name in REGISTRY if REGISTRY[name].kind == "pair"]
FIELDS = ("potential_field_loss", "contrastive_potential_loss")
HALVED = ("contrastive_loss", "proxy_anchor_loss")


def proxies_for(name: str) -> tuple[np.ndarray, ...]:
    """Return the arguments that a loss takes after its labels."""
    spec = REGISTRY[name]
    size = (3, spec.proxies_per_class or 1, 4)
    return (
        ()
        if spec.kind == "pair"
        else (np.random.default_rng(1).normal(size=size).astype(np.float32),)
    )


SCALES = {
    "multi_similarity_loss": ("beta", 1),
    "circle_loss": ("gamma", 1),
    "info_nce_loss": ("temperature", -1),
    "sup_con_loss": ("temperature", -1),
    "sigmoid_contrastive_loss": ("scale", 1),
    "nca_loss": ("scale", 1),
    "proxy_nca_loss": ("scale", 1),
    "proxy_nca_pp_loss": ("temperature", -1),
    "proxy_nca_margin_loss": ("alpha", 1),
    "soft_triple_loss": ("scale", 1),
    "normalized_softmax_loss": ("temperature", -1),
    "cosface_loss": ("scale", 1),
    "arcface_loss": ("scale", 1),
    "subcenter_arcface_loss": ("scale", 1),
}


@pytest.mark.parametrize("name", SCALES)
def test_sharp_losses_equal_their_oracle(name: str) -> None:
    setting, power = SCALES[name]
    arrays = (X, Y, *proxies_for(name))
    for sharpness in (1e9, 1e12, 1e20):
        settings = {**REGISTRY[name].settings, setting: sharpness**power}
        actual = loss(name)(*arrays, **settings)
        expected = REGISTRY[name].oracle(X.astype(np.float64), *arrays[1:], **settings)
        np.testing.assert_allclose(float(actual), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["proxy_anchor_loss", "multi_proxy_anchor_loss"])
def test_sharp_proxy_losses_grow_with_their_scale(name: str) -> None:
    """The oracles overflow; a sharp hinge is α times a hinge."""
    settings = {"tau": 0.0} if name.startswith("multi") else {}
    arrays = (X, Y, *proxies_for(name))
    sharp = [float(loss(name)(*arrays, alpha=a, **settings)) / a for a in (1e6, 1e9, 1e12, 1e20)]
    np.testing.assert_allclose(sharp, sharp[0], rtol=1e-4)


@pytest.mark.parametrize(("function", "rest"), [(log_sum_exp, []), (log1p_sum_exp, [0.0])])
def test_log_sums_of_large_values_in_one_program(function: Any, rest: list[float]) -> None:
    """A compiler may round ``scale · v`` differently where the maximum is subtracted."""
    v = jnp.asarray(RNG.normal(size=(64, 33)), jnp.float32)
    step = jax.jit(jax.value_and_grad(lambda v, s: function(s * v).sum() / s, argnums=0))
    for scale in (1.0, 1e6, 1e9, 1e15, 1e30):
        value, slopes = step(v, jnp.float32(scale))
        wide = np.asarray(v, np.float64) * scale
        wide = np.concatenate([wide, *[np.full((64, 1), zero) for zero in rest]], axis=1)
        expected = (np.logaddexp.reduce(wide, axis=1) / scale).sum()
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(slopes.sum(1), 1.0, atol=1e-3 if not rest else 0.7)


def test_log_sums_of_empty_and_infinite_values() -> None:
    nothing, v = jnp.zeros((2, 3), bool), jnp.array([[-jnp.inf, 1e9, 2.0], [jnp.inf, 0.0, 1.0]])
    np.testing.assert_array_equal(log_sum_exp(v, where=nothing), [-np.inf, -np.inf])
    np.testing.assert_array_equal(log1p_sum_exp(v, where=nothing), [0.0, 0.0])
    np.testing.assert_array_equal(log_sum_exp(v), [1e9, np.inf])
    np.testing.assert_array_equal(log1p_sum_exp(v), [1e9, np.inf])
    assert log_sum_exp(jnp.full(3, -jnp.inf)) == -jnp.inf
    assert jnp.isnan(log_sum_exp(jnp.array([0.0, jnp.nan])))


@pytest.mark.parametrize("name", each(name for name in REGISTRY if name not in FIELDS))
def test_forward_over_reverse_second_derivatives(name: str) -> None:
    """Half precision is computed in float32 and clipped to its own range, hence the wider tolerance."""
    more = jax.tree.map(jnp.asarray, proxies_for(name))

    def value(x: Any) -> Any:
        return loss(name)(x, Y, *more, **REGISTRY[name].settings)

    for dtype in (jnp.float32, jnp.float16)[: 2 if name in HALVED else 1]:
        x = jnp.asarray(X, dtype)
        curvature = jax.jit(lambda x: jax.jvp(jax.grad(value), (x,), (jnp.ones_like(x),))[1])(x)
        assert curvature.shape == X.shape
        assert curvature.dtype == dtype
        assert jnp.isfinite(curvature).all()


@pytest.mark.parametrize("name", ["smooth_ap_loss", "recall_at_k_loss"])
def test_second_derivatives_of_ranks_equal_finite_differences(name: str) -> None:
    with jax.enable_x64(True):
        settings = {**REGISTRY[name].settings, "temperature": 0.3}
        gradient = jax.jit(jax.grad(lambda x: loss(name)(x, Y, **settings)))
        x, along = jnp.asarray(X, jnp.float64), jnp.asarray(RNG.normal(size=X.shape))
        slope = jax.jvp(gradient, (x,), (along,))[1]
        step = 1e-5
        expected = (gradient(x + step * along) - gradient(x - step * along)) / (2 * step)
        np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", FIELDS)
def test_fields_refuse_second_derivatives(name: str) -> None:
    with pytest.raises(NotImplementedError, match="derivatives"):
        jax.hessian(lambda x: loss(name)(x, Y, *proxies_for(name)))(jnp.asarray(X, jnp.float16))
    with pytest.raises(TypeError, match=r"\bforward-mode\b"):
        jax.jacfwd(lambda x: loss(name)(x, Y, *proxies_for(name)))(jnp.asarray(X))


WITH_LOOPS = ("triplet_loss", "smooth_ap_loss", "recall_at_k_loss")


@pytest.mark.parametrize("name", each(PAIR))
def test_no_intermediate_nan(name: str) -> None:
    """Every operation is checked, not only the result: batches without positives, without negatives, empty ones.

    Losses without a loop take all batches in one `vmap`.
    """
    everybody, nobody = np.ones(6, bool), np.zeros(6, bool)
    batches = (
        *((X, Y, everybody), (X, 0 * Y, everybody), (X, np.arange(6), everybody)),
        *((COPIES, Y, everybody), (X, Y, nobody)),
    )
    step = jax.value_and_grad(lambda x, y, where: loss(name)(x, y, where=where))
    with jax.debug_nans(True), jax.disable_jit():
        if name in WITH_LOOPS:
            for x, y, where in batches:
                step(jnp.asarray(x), y, None if where.all() else where)
        else:
            jax.vmap(step)(*map(np.stack, zip(*batches, strict=True)))


@pytest.mark.parametrize("name", ["arcface_loss", "subcenter_arcface_loss"])
def test_loss_grows_with_the_angle(name: str) -> None:
    angles = np.linspace(0.0, math.pi, 400)
    x = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1).astype(np.float32)
    proxies = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], np.float32)[:, None]
    for margin in (0.5, 1.5, 2.3, 2.5, 3.0, math.pi):
        rows = loss(name)(x, np.zeros(400, int), proxies, scale=4.0, margin=margin, reduce_fn=None)
        assert (np.diff(np.asarray(rows)) > -1e-5).all()


EASY, HARD, RANDOM = (
    getattr(jdml.mining, name)() for name in ("easy_positive", "hard_negative", "random_negative")
)
QUICK = ("contrastive_loss", "triplet_loss")
MINED = [(name, HARD, 4) for name in PAIR if name in (*FIRST, "triplet_loss", "n_pair_loss")] + [
    ("lifted_structure_loss", HARD, 4),
    ("lifted_structure_loss", RANDOM, 4),
    ("triplet_loss", RANDOM, 4),
    ("triplet_loss", RANDOM, None),
    ("triplet_loss", EASY, None),
]


@pytest.mark.parametrize(
    ("name", "mine", "anchor_block"),
    # Programs of other losses.
    [pytest.param(*m, marks=[] if m[0] in QUICK else [pytest.mark.slow]) for m in MINED],
)
def test_mined_batch_equals_itself_as_references(
    name: str, mine: Any, anchor_block: int | None
) -> None:
    """The batch alone, and the batch as references with each anchor's index, have the same value."""
    x, y = RNG.normal(size=(9, 4)).astype(np.float32), np.arange(9) % 3
    settings = {"mine": mine, "key": jax.random.key(2), "anchor_block": anchor_block}
    own = loss(name)(x, y, **settings)
    refs = {"references": x, "reference_labels": y, "self_index": np.arange(9)}
    np.testing.assert_allclose(loss(name)(x, y, **refs, **settings), own, rtol=1e-5, atol=1e-6)
