"""What stands between stored images and the model, where nothing else is said."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Preprocess = Callable[[Any], Any]
"""From a batch as it is stored to what the model takes, inside the compiled step."""


def to_float(images: jax.Array) -> jax.Array:
    """Turn uint8 images 0…255 into float32 0…1; leave floating-point images as they are.

    Args:
        images: of any shape.

    Returns:
        The images, floating point.

    Raises:
        TypeError: the images are neither uint8 nor floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> to_float(jnp.array([0, 255], jnp.uint8)).tolist()
        [0.0, 1.0]
    """
    images = jnp.asarray(images)
    if jnp.issubdtype(images.dtype, jnp.floating):
        return images
    if images.dtype != jnp.uint8:
        raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
    return images.astype(jnp.float32) / 255.0


def standard(inputs: Any) -> Any:
    """Prepare images as :func:`to_float` has them; whatever else a model may take as it is: tokens, pairs of inputs.

    Args:
        inputs: an array, or a pytree of arrays.

    Returns:
        The same structure. Integers other than uint8 stay (tokens), but not where they have the shape of images.

    Raises:
        TypeError: images ``[B, H, W, C]`` that are neither uint8 nor floating point.

    Example:
        >>> import jax.numpy as jnp
        >>> standard({"image": jnp.array([255], jnp.uint8), "tokens": jnp.array([[7]])})
        {'image': Array([1.], dtype=float32), 'tokens': Array([[7]], dtype=int32)}
    """

    def one(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        tokens = jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.dtype != jnp.uint8
        return leaf if tokens and leaf.ndim != 4 else to_float(leaf)

    return jax.tree.map(one, inputs)
