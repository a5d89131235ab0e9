"""``class_block``: the same loss and gradients, with memory that does not grow with the number of classes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses.registry import REGISTRY, loss

import jdml
from jdml.testing.case import assert_close

B, C, K, D = 9, 7, 3, 5
RNG = np.random.default_rng(3)
X, P = RNG.normal(size=(B, D)), RNG.normal(size=(C, K, D))
Y = np.array([0, 1, 6, 6, 3, 3, 0, 9, -1])  # two rows that are not valid
WEIGHTS = RNG.uniform(0.5, 2.0, size=B)
BLOCKED = [
    name for name, spec in REGISTRY.items() if spec.kind == "proxy" and "K" not in spec.shape
]


def value_and_grads(name: str, class_block: Any, **more: Any) -> Any:
    def value(x: jax.Array, p: jax.Array) -> jax.Array:
        settings = {**REGISTRY[name].settings, "weights": jnp.asarray(WEIGHTS), **more}
        return loss(name)(x, jnp.asarray(Y), p, class_block=class_block, **settings).sum()

    with jax.enable_x64(True):
        return jax.jit(jax.value_and_grad(value, (0, 1)))(jnp.asarray(X), jnp.asarray(P))


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_change_nothing(name: str) -> None:
    dense = value_and_grads(name, None)
    for block in (3, "auto"):
        assert_close(value_and_grads(name, block), dense, 1e-12, f"blocks of {block}")
    terms = value_and_grads(name, None, reduce_fn=None)
    assert_close(value_and_grads(name, 2, reduce_fn=None), terms, 1e-12, "unreduced, blocks of 2")


@pytest.mark.parametrize("name", BLOCKED)
def test_memory_does_not_grow_with_the_classes(name: str) -> None:
    """Beside copies of the proxies, temporaries are of the block's size: no matrix [B, C]."""
    batch, classes, per_class, dim, block = 128, 16_384, 2, 8, 256

    def value(x: jax.Array, p: jax.Array) -> jax.Array:
        return loss(name)(x, jnp.zeros(batch, int), p, class_block=block)

    shapes = [(batch, dim), (classes, per_class, dim)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = jax.jit(jax.value_and_grad(value, (0, 1))).lower(*arguments).compile()
    used = compiled.memory_analysis().temp_size_in_bytes
    proxies, tile = 4 * classes * per_class * dim, 4 * batch * block * per_class
    assert used < 10 * proxies + 12 * tile
    assert used < 4 * batch * classes * per_class


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        (0, ValueError, "class_block must be >= 1, got 0"),
        (2.0, TypeError, "class_block must be a Python integer >= 1, got 2.0"),
        ("all", ValueError, "class_block must be an integer >= 1, \"auto\" or None, got 'all'"),
    ],
)
def test_what_is_no_block(block: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jdml.proxy_anchor_loss(
            jnp.asarray(X), jnp.asarray(Y), jnp.asarray(P[:, 0]), class_block=block
        )
