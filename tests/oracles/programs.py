"""Memory of compiled programs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def temporary_bytes(
    function: Callable[..., jax.Array], *arrays: tuple[int, ...] | int, argnums: Any = 0
) -> int:
    """Compile a value and its gradient for abstract arrays, and return the bytes of the temporaries.

    Arrays are the shapes of floats ``(B, D)``, or the number of labels B.
    """
    shapes = [
        jax.ShapeDtypeStruct((a,), jnp.int32)
        if isinstance(a, int)
        else jax.ShapeDtypeStruct(a, jnp.float32)
        for a in arrays
    ]
    step = jax.jit(jax.value_and_grad(function, argnums))
    return step.lower(*shapes).compile().memory_analysis().temp_size_in_bytes
