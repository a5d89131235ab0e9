"""Every loss can be exported for a GPU and a TPU, also in blocks: nothing in it is a processor's alone."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from losses.registry import REGISTRY, loss


@pytest.mark.parametrize("name", REGISTRY)
def test_export(name: str) -> None:
    spec = REGISTRY[name]
    x, y = jax.ShapeDtypeStruct((12, 8), jnp.float32), jax.ShapeDtypeStruct((12,), jnp.int32)
    p = jax.ShapeDtypeStruct((5, 2, 8), jnp.float32)
    arrays = (x, y) if spec.kind == "pair" else (x, y, p)
    blocks: dict[str, Any] = {"anchor_block": 5} if spec.kind == "pair" else {"class_block": 2}

    def value(*arrays: jax.Array) -> jax.Array:
        return loss(name)(*arrays, **({} if "K" in spec.shape else blocks))

    step = jax.jit(jax.value_and_grad(value))
    exported = jax.export.export(step, platforms=("cuda", "tpu"))(*arrays)
    assert exported.platforms == ("cuda", "tpu")
    assert exported.out_avals[0].shape == ()
