"""A pair ``(init, apply)`` of functions as a model."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jdml.training import mode_flags
from jdml.training.wrapped import Wrapped

KEYS = ("key", "rng")


class FromFunctions(Wrapped):
    """Two functions: ``init(key, images) -> params`` and ``apply(params, images) -> embeddings``.

    ``apply`` is told whether it trains where it has a flag that :mod:`jdml.training.mode_flags` knows, and given a key
    in training where it has an argument ``key`` or ``rng`` (None in evaluation).

    Args:
        init: of a random key and images ``[B, …]`` to parameters, a pytree of arrays.
        apply: of parameters and images to embeddings ``[B, D]``.

    Raises:
        TypeError: functions that take something else.
    """

    def __init__(self, init: Callable[..., Any], apply: Callable[..., Any]) -> None:
        super().__init__(apply, (init, apply))
        self._init, self._apply = init, apply
        if is_haiku(apply):
            raise TypeError(
                "model must be a pair init(key, images) -> params, apply(params, images) -> embeddings, got "
                "functions of Haiku: write (net.init, lambda params, images: net.apply(params, None, images))"
            )
        self._flags = mode_flags.flags_of(apply, given=2, also=KEYS)
        self._keys = [name for name in KEYS if name in _names(apply)[2:]]

    def init(self, key: jax.Array, images: Any, *, train: bool = False) -> dict[str, Any]:
        """Fresh parameters."""
        params = self._init(key, images)
        if isinstance(params, tuple):
            raise TypeError(
                f"model's init must return parameters alone, a pytree of arrays, got a tuple of {len(params)}"
            )
        return {"params": params, "batch_stats": {}}

    def apply(
        self,
        variables: Mapping[str, Any],
        images: Any,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        key = next(iter(rngs.values())) if rngs else None
        given = {**mode_flags.settings(self._flags, train), **dict.fromkeys(self._keys, key)}
        embeddings = self._apply(variables["params"], images, **given)
        return (embeddings, {"batch_stats": {}}) if mutable else embeddings


def is_haiku(apply: Callable[..., Any]) -> bool:
    """Whether a function takes a random key, or a state, before the images, as Haiku's do."""
    return _names(apply)[:2] in (["params", "rng"], ["params", "state"])


def _names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
