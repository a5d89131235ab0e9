"""Networks by name, and the images that their pretrained weights expect."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jdml.ops.checks import one_of
from jdml.registry import NETWORKS, image_statistics

Triple = tuple[float, float, float]


def create(name: str, *, dim: int, **settings: Any) -> nn.Module:
    """Make a network by name.

    For small images {small}; for photographs, with pretrained weights to convert (``convert_weights``), {photographs}.

    Args:
        name: the network's name.
        dim: width D of the embeddings.
        **settings: the network's other attributes, such as ``pooling`` or ``dtype``.

    Returns:
        The Linen module, without parameters yet.

    Raises:
        TypeError: if the network has no such attribute.
        ValueError: if there is no network of that name.

    Example:
        >>> create("small", dim=64, pooling="gem").dim
        64
    """
    one_of("name", name, NETWORKS)
    record = NETWORKS[name]
    module: nn.Module = record.kind(dim=dim, **{**record.settings, **settings})
    return module


if create.__doc__:  # which `python -OO` leaves out
    for word, small in (("{small}", True), ("{photographs}", False)):
        names = [f"``{name!r}``" for name, net in NETWORKS.items() if net.small_images == small]
        create.__doc__ = create.__doc__.replace(word, ", ".join(names))


@dataclass(frozen=True)
class Normalizer:
    """Normalizes photographs as a network's weights expect; equal ones are one static argument of ``jax.jit``."""

    mean: Triple
    std: Triple
    bgr: bool = False

    def __call__(self, images: jax.Array) -> jax.Array:
        """Normalize RGB images ``[…, H, W, 3]``, uint8 in 0…255 or floating-point in 0…1, to float32."""
        images = jnp.asarray(images)
        if images.ndim < 3 or images.shape[-1] != 3:
            raise ValueError(f"images must have shape [..., H, W, 3], got {list(images.shape)}")
        if jnp.issubdtype(images.dtype, jnp.floating):
            images = 255.0 * images.astype(jnp.float32)
        elif images.dtype != jnp.uint8:
            raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
        images = images[..., ::-1] if self.bgr else images
        return (images.astype(jnp.float32) - jnp.asarray(self.mean)) / jnp.asarray(self.std)


def normalizer(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return the ``preprocess=`` of training for a network with pretrained weights.

    Args:
        name: the name of a network with pretrained weights, as in ``create``, or of other weights of it:
            ``"vit_s16"`` for those of ImageNet-21k, ``"vit_s16_dino"`` for DINO's.

    Returns:
        A function of RGB images ``[…, H, W, 3]``, uint8 in 0…255 or floating-point in 0…1, that returns float32. Equal
        names give equal functions, so that a step compiled for one serves the other.

    Raises:
        ValueError: if no network of that name has pretrained weights.

    Implementation notes:
        ResNets, DINO and DINOv2: ImageNet's mean and standard deviation per channel. ViT of ImageNet-21k and SigLIP:
        −1…1. CLIP: its own. BN-Inception: BGR in 0…255 minus (104, 117, 128), as its Caffe model. EfficientNet-Lite0:
        (x − 127) / 128.

    Example:
        >>> white = jnp.full((1, 1, 3), 255, jnp.uint8)
        >>> print(normalizer("bn_inception")(white), normalizer("vit_s16")(white))
        [[[151. 138. 127.]]] [[[1. 1. 1.]]]
    """
    known = image_statistics()
    one_of("name", name, known)
    return Normalizer(*known[name])
