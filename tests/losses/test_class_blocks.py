"""``class_block``: the same loss and gradients, with memory that does not grow with the number of classes."""

from collections.abc import Callable
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


def summed(name: str, class_block: Any, **more: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The sum of what the loss gives, by embeddings and proxies."""
    settings = {**REGISTRY[name].settings, "weights": jnp.asarray(WEIGHTS), **more}

    def value(x: jax.Array, p: jax.Array) -> jax.Array:
        return loss(name)(x, jnp.asarray(Y), p, class_block=class_block, **settings).sum()

    return value


def value_and_grads(name: str, class_block: Any, **more: Any) -> Any:
    with jax.enable_x64(True):
        value = summed(name, class_block, **more)
        return jax.jit(jax.value_and_grad(value, (0, 1)))(jnp.asarray(X), jnp.asarray(P))


@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_change_nothing(name: str) -> None:
    dense = value_and_grads(name, None)
    assert_close(value_and_grads(name, 3), dense, 1e-12, "blocks of 3")
    terms = value_and_grads(name, None, reduce_fn=None)
    assert_close(value_and_grads(name, 2, reduce_fn=None), terms, 1e-12, "unreduced, blocks of 2")


@pytest.mark.parametrize("name", BLOCKED)
def test_few_classes_are_one_block(name: str) -> None:
    """Where "auto" finds no need of blocks, the program is that without them."""
    dense, auto = (jax.make_jaxpr(summed(name, block))(X, P) for block in (None, "auto"))
    assert str(auto) == str(dense)


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
