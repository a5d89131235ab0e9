"""What a run is asked for on the way, and what it leaves."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jdml.distributed import Tree
from jdml.models.adapters import Model
from jdml.models.embedding import embed
from jdml.models.preprocess import Preprocess, check_as_trained, standard
from jdml.training.schedule import Best, Record
from jdml.training.step import TrainState


class Embedder(NamedTuple):
    """The model at one moment of training: call it on images to get embeddings.

    Attributes:
        model: the model.
        state: the train state at that moment. Its arrays are the loop's: do not keep them past the call.
        preprocess: as in training.
        batch_size: rows per forward pass; None: as :func:`embed` chooses.
        input: shape, type and range of the images that are trained on; None where it is not known.
    """

    model: Model
    state: TrainState
    preprocess: Preprocess = standard
    batch_size: int | None = None
    input: Mapping[str, Any] | None = None

    def __call__(self, images: Tree) -> np.ndarray:
        """Embed images ``[N, H, W, C]`` in evaluation mode as NumPy ``[N, D]``.

        Raises:
            TypeError: integers other than uint8.
            ValueError: photographs in another range than those that are trained on.
        """
        check_as_trained(images, self.input or {}, self.preprocess)
        return embed(
            self.model,
            self.state.params["model"],
            self.state.batch_stats,
            images,
            batch_size=self.batch_size,
            preprocess=self.preprocess,
        )


Evaluate = Callable[[Embedder], Mapping[str, float]]


class FitResult(NamedTuple):
    """What a run leaves.

    Attributes:
        state: the last state.
        history: one record per log step: ``step``, mean ``loss`` and other metrics since the record before, and the
            evaluation's metrics where there was one. The same for every run of the same configuration. The last one of
            a run with a folder says where the ``model`` lies in it.
        best: the best monitored value and its step; None without ``monitor``.
        best_params: parameters of all roles at that step (those of ``state`` without ``monitor``).
        best_batch_stats: the model's running statistics at that step.
        stopped: ``"steps"`` (all were done), ``"patience"``, or the reason of a callback's :class:`Stop`.
        embedder: the model with the best parameters, ready to call on images.
    """

    state: TrainState
    history: list[Record]
    best: Best | None
    best_params: dict[str, Tree]
    best_batch_stats: Tree
    stopped: str
    embedder: Embedder
