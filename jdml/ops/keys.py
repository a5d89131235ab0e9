"""Random keys whose draws are the same wherever, and beside whatever, they are drawn."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

THREEFRY = "threefry2x32"


def portable_key(key: Array) -> Array:
    """Make a threefry key of any key: its draws are the same alone, under ``vmap``, in blocks and on every mesh.

    The generators of ``rbg`` and ``unsafe_rbg`` keys, which TPUs are often set to, draw a whole array from the first
    key under ``vmap``, so that a row's draws would depend on the rows that it is drawn with.
    """
    if not isinstance(key, Array | np.ndarray):
        raise TypeError(f"key must be a key such as jax.random.key(0), got {key!r}")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed and (key.dtype != np.uint32 or key.shape[-1:] not in ((2,), (4,))):
        kind = f"{key.dtype} of shape {list(key.shape)}"
        raise TypeError(f"key must be a key such as jax.random.key(0), got {kind}")
    words = jax.random.key_data(key) if typed else jnp.asarray(key)
    portable = jax.random.wrap_key_data(words[..., :2], impl=THREEFRY)
    for place in range(2, words.shape[-1]):
        portable = _folded(portable, words[..., place])
    return portable


def _folded(keys: Array, words: Array) -> Array:
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold)
    return fold(keys, words)
