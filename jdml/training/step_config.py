"""What a run is made from: a data set, a sampler, and all that its step is compiled from."""

from collections.abc import Mapping
from dataclasses import dataclass

import optax

from jdml.distributed import HERE, Placement, Tree
from jdml.models.adapters import Model
from jdml.models.freezing import split_frozen
from jdml.models.preprocess import Preprocess, standard
from jdml.objectives import Objective
from jdml.ops import checks


@dataclass(frozen=True)
class StepSpec:
    """All that a step is compiled from. Hashable: the same parts give the same compiled step.

    Attributes:
        model: from images to embeddings, as :func:`jdml.models.adapters.as_model` returns it.
        objective: the loss, and what it learns and remembers.
        optimizer: over ``{"model": …, **objective roles}``.
        preprocess: what stands between stored images and the model.
        placement: where state and batches lie.
        micro_batch: rows that go through the network at a time; None: all.
        skip_nonfinite: whether a step of which loss or gradient norm is not finite leaves all but the number of steps
            as it was.
        freeze: pattern of the model's parameters that stay, by their paths; None: all learn.

    Raises:
        TypeError: a ``micro_batch`` that is no integer.
        ValueError: a ``micro_batch`` below 1.
    """

    model: Model
    objective: Objective
    optimizer: optax.GradientTransformation
    preprocess: Preprocess = standard
    placement: Placement = HERE
    micro_batch: int | None = None
    skip_nonfinite: bool = False
    freeze: str | None = None

    def __post_init__(self) -> None:
        if self.micro_batch is not None:
            checks.count("micro_batch", self.micro_batch)

    def split(self, params: Mapping[str, Tree]) -> tuple[Tree, Tree]:
        """Split parameters by role in those that learn and those that stay, hidden from each other."""
        return split_frozen(params, self.freeze)
