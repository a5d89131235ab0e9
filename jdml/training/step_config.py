"""What a step is compiled from: its parts, rows in turns, and a scaled loss."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.training.dynamic_scale import DynamicScale

from jdml.distributed import HERE, Placement, Tree
from jdml.models.adapters import Model
from jdml.models.embedding import Preprocess, standard
from jdml.models.finetuning import split_frozen
from jdml.objectives import Objective
from jdml.ops import checks
from jdml.training.ema import update

SKIPPED_IN_A_ROW = 40
"""Steps with a scaled loss that may be skipped in a row, each of which halves the scale: from 2**15 to 2**-25."""


@dataclass(frozen=True)
class StepConfig:
    """All that a step is compiled from; hashable: the same parts give the same compiled step.

    ``micro_batch``: rows that go through the network at a time, None for all. ``skip_nonfinite``: a step of which loss
    or gradient norm is not finite changes nothing but the number of steps. ``freeze``: a pattern of the paths of the
    model's frozen parameters.
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
        checks.optional(checks.count)("micro_batch", self.micro_batch)

    def split(self, params: Mapping[str, Tree]) -> tuple[Tree, Tree]:
        """Split parameters by role in those that learn and those that are frozen, hidden from each other."""
        return split_frozen(params, self.freeze)


def in_turns(function: Callable[[Tree, jax.Array], Tree], rows: Tree, size: int) -> Tree:
    """``function(rows, 0)``, of so many rows at a time, and computed again for its gradient.

    Implementation notes:
        Turn t takes the rows t, t + T, t + 2T, … of T turns, so that on a mesh each device has a share of every turn in
        the rows that it holds. All rows in one turn are computed once.

    Reference:
        Gao, Zhang, Han & Callan, *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup* (GradCache).

    Example:
        >>> print(in_turns(lambda x, turn: 2 * x + turn, jnp.arange(5), 2))
        [0 3 6 6 9]
    """
    number = len(jax.tree.leaves(rows)[0])
    turns = -(-number // size)
    if turns == 1:
        return function(rows, jnp.zeros((), jnp.int32))

    def cut(part: jax.Array) -> jax.Array:
        # With rows that there are: at others, such as 0, a network may have no derivative.
        more = turns * size - number
        part = jnp.pad(part, [(0, more)] + [(0, 0)] * (part.ndim - 1), mode="edge")
        return part.reshape(size, turns, *part.shape[1:]).swapaxes(0, 1)

    def joined(part: jax.Array) -> jax.Array:
        return part.swapaxes(0, 1).reshape(-1, *part.shape[2:])[:number]

    again = jax.checkpoint(lambda part: function(*part), prevent_cse=False)
    parts = jax.lax.map(again, (jax.tree.map(cut, rows), jnp.arange(turns)))
    return jax.tree.map(joined, parts)


class LossScaleState(NamedTuple):
    """The optimizer's state, and the scale of the loss."""

    inner: Any
    dynamic: DynamicScale


@functools.lru_cache(maxsize=16)
def with_loss_scale(optimizer: Any) -> optax.GradientTransformationExtraArgs:
    """Keep the scale of the loss in the optimizer's state, where checkpoints find it."""

    def init(params: Tree) -> LossScaleState:
        arrays: Any = {"fin_steps": jnp.zeros((), jnp.int32), "scale": jnp.float32(2**15)}
        dynamic = DynamicScale(**arrays)
        return LossScaleState(optimizer.init(params), dynamic)

    def step(
        grads: Tree, state: LossScaleState, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, LossScaleState]:
        updates, inner = update(optimizer, grads, state.inner, params, extra.get("value"))
        return updates, state._replace(inner=inner)

    return optax.GradientTransformationExtraArgs(init, step)


def value_and_grad(function: Callable[..., Any], opt_state: Any) -> Callable[..., Any]:
    """Return ``jax.value_and_grad(…, has_aux=True)`` of the scaled loss, if it is scaled, and the next scale."""
    if isinstance(opt_state, LossScaleState):
        scaled = opt_state.dynamic.value_and_grad(function, has_aux=True)

        def unscaled(*args: Any) -> Any:
            dynamic, _, value, grads = scaled(*args)
            return value, grads, dynamic

        return unscaled
    plain = jax.value_and_grad(function, has_aux=True)
    return lambda *args: (*plain(*args), None)
