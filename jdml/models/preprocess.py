"""What stands between stored images and the model, where nothing else is said."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.data.dataset import Range, check_in_unit_range, check_same_range
from jdml.models.creation import Normalizer

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


def check_as_trained(images: Any, told: Mapping[str, Any], preprocess: object) -> None:
    """Refuse photographs in another range than those that were trained on."""
    own = not isinstance(preprocess, Normalizer) and preprocess not in (to_float, standard)
    if own or len(told.get("shape", ())) != 3 or not hasattr(images, "dtype"):
        return
    if images.dtype != np.uint8 and not jnp.issubdtype(images.dtype, jnp.floating):
        raise TypeError(
            f"images must be uint8 in 0…255 or float, got {images.dtype}{instead_of(images)}"
        )
    check_finite("images", images)
    if told["dtype"] == "uint8" or isinstance(preprocess, Normalizer):
        check_in_unit_range("images", images, ", as the run was trained")
    elif "range" in told:
        check_same_range("images", images, Range(*told["range"]))


def instead_of(images: Any) -> str:
    """What to write for images of another type, where there is something."""
    kind = np.dtype(images.dtype).kind
    if kind == "b":
        return ": write images.astype(numpy.float32)"
    if kind not in "iu" or not len(images):
        return ""
    if images.min() >= 0 and images.max() <= 255:
        return ": write images.astype(numpy.uint8)"
    return (
        ": write (images / white).astype(numpy.float32), white being the largest value there can be"
    )


def check_finite(name: str, images: Any) -> None:
    """Refuse images on the host with a pixel that is no number: a network may lose it, and embed something.

    One after the other: all of them may be more than a device holds, which ``checks.check_finite`` puts them on.
    """
    if not isinstance(images, np.ndarray) or images.dtype.kind != "f":
        return
    for row, image in enumerate(images):
        if not np.isfinite(image).all():
            raise ValueError(f"{name} must be finite, row {row} is not")
