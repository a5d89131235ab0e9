"""A scaled loss, for networks that compute in float16: gradients that would vanish there are multiplied first."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jdml.distributed import Tree
from jdml.ops import checks

FIRST = 2.0**15
"""The scale of the first step."""
GROWS = 2000
"""Steps in a row with finite gradients, after which it is doubled."""
LEFT_OUT = 40
"""Steps in a row that may be left out, each of which halves it: from the first scale to 2**-25."""


class ScaledState(NamedTuple):
    """What :func:`with_loss_scale` carries.

    Attributes:
        inner: the state of the optimizer.
        scale: of the loss.
        steps: in a row with finite gradients.
    """

    inner: Any
    scale: Array
    steps: Array


@functools.lru_cache(maxsize=16)
def with_loss_scale(optimizer: Any) -> optax.GradientTransformationExtraArgs:
    """Keep a scale of the loss beside an optimizer's state, where checkpoints find it.

    Args:
        optimizer: the transformation.

    Returns:
        The transformation, whose updates are the optimizer's; the same object for the same argument.
    """

    def init(params: Tree) -> ScaledState:
        return ScaledState(optimizer.init(params), jnp.float32(FIRST), jnp.zeros((), jnp.int32))

    def update(
        grads: Tree, state: ScaledState, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, ScaledState]:
        given = extra if checks.takes(optimizer.update, "value") else {}
        updates, inner = optimizer.update(grads, state.inner, params, **given)
        return updates, state._replace(inner=inner)

    return optax.GradientTransformationExtraArgs(init, update)


def scaled(loss: Array, opt_state: Any) -> Array:
    """The loss as it is differentiated."""
    return loss * opt_state.scale if isinstance(opt_state, ScaledState) else loss


def unscaled(grads: Tree, opt_state: Any) -> Tree:
    """The gradient of the loss itself."""
    if not isinstance(opt_state, ScaledState):
        return grads
    return jax.tree.map(lambda leaf: (leaf / opt_state.scale).astype(leaf.dtype), grads)


def after_step(opt_state: Any, done: Array) -> Any:
    """The state with the scale of the next step: half of it after one whose gradients were not finite."""
    if not isinstance(opt_state, ScaledState):
        return opt_state
    steps = jnp.where(done, opt_state.steps + 1, 0)
    grows = steps == GROWS
    factor = jnp.where(done, jnp.where(grows, 2.0, 1.0), 0.5)
    scale = jnp.clip(opt_state.scale * factor, 2.0**-60, 2.0**60)
    return opt_state._replace(scale=scale, steps=jnp.where(grows, 0, steps))
