"""What a training loop needs of a data set and of a sampler."""

from typing import Any, Protocol

import jax
import numpy as np


class TrainSet(Protocol):
    """What is trained on, such as a :class:`jdml.data.Dataset`."""

    @property
    def images(self) -> Any:
        """``[N, H, W, C]``, or whatever the model takes, with rows first."""
        ...

    @property
    def labels(self) -> np.ndarray | jax.Array:
        """``[N]`` integers."""
        ...


class Sampler(Protocol):
    """What says which rows make up the next batch, and goes on where it was: those of :mod:`jdml.data` do."""

    def __next__(self) -> Any:
        """The next batch: rows ``[B]``, or what :class:`jdml.data.ImageBatches` gives."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Where it stands, JSON-able."""
        ...

    def set_state(self, state: dict[str, Any], /) -> None:
        """Go to where a state was taken."""
        ...
