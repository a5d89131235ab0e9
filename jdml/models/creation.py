"""Networks made by name."""

from typing import Any

import flax.linen as nn

from jdml.registry import NETWORKS


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
    if name not in NETWORKS:
        raise ValueError(f"name must be one of {tuple(NETWORKS)}, got {name!r}")
    record = NETWORKS[name]
    made: nn.Module = record.kind(dim=dim, **{**record.settings, **settings})
    return made


def _named(small_images: bool) -> str:
    names = [name for name, record in NETWORKS.items() if record.small_images == small_images]
    return ", ".join(f"``{name!r}``" for name in names)


if create.__doc__:  # which `python -OO` leaves out
    create.__doc__ = create.__doc__.replace("{small}", _named(True))
    create.__doc__ = create.__doc__.replace("{photographs}", _named(False))
