"""Optimizers in a step: the loss as ``value=``, averaged parameters, parameters for evaluation, a scaled loss."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.training.dynamic_scale import DynamicScale
from jax import Array
from optax.contrib import ScheduleFreeState

from jdml.distributed import Tree
from jdml.ops import checks


def passing_loss(optimizer: Any) -> optax.GradientTransformationExtraArgs:
    """Pass the step's loss as ``value`` to an optimizer that takes one."""

    def step(grads: Tree, state: Tree, params: Tree | None = None, **extra: Any) -> Any:
        known = extra if checks.takes(optimizer.update, "value") else {}
        return optimizer.update(grads, state, params, **known)

    return optax.GradientTransformationExtraArgs(optimizer.init, step)


class EmaState(NamedTuple):
    """The average of the parameters, float32 at least, and the number of steps."""

    average: Any
    steps: Array


@functools.lru_cache(maxsize=16)
def with_ema(optimizer: Any, decay: float) -> optax.GradientTransformation:
    """Keep ``a_t = Σ_s d^(t−s) θ_s / Σ_s d^(t−s)``, ``s = 1 … t``, of the parameters, after the optimizer's state."""

    def init(params: Tree) -> EmaState:
        return EmaState(jax.tree.map(_in_float32, params), jnp.zeros((), jnp.int32))

    def step(updates: Tree, state: EmaState, params: Tree = None) -> tuple[Tree, EmaState]:
        steps = state.steps + 1
        share = jnp.where(steps > 1, (1 - decay) / -jnp.expm1(steps * math.log(decay)), 1.0)
        average = jax.tree.map(
            lambda mean, new: mean + share.astype(mean.dtype) * (_in_float32(new) - mean),
            state.average,
            optax.apply_updates(params, updates),
        )
        return updates, EmaState(average, steps)

    return optax.chain(passing_loss(optimizer), optax.GradientTransformation(init, step))


class LossScaleState(NamedTuple):
    """The optimizer's state, and the scale of the loss."""

    inner: Any
    dynamic: DynamicScale


@functools.lru_cache(maxsize=16)
def with_loss_scale(optimizer: Any) -> optax.GradientTransformation:
    """Keep the scale of the loss in the optimizer's state, where checkpoints find it."""
    inner = passing_loss(optimizer)

    def init(params: Tree) -> LossScaleState:
        arrays: Any = {"fin_steps": jnp.zeros((), jnp.int32), "scale": jnp.float32(2**15)}
        return LossScaleState(inner.init(params), DynamicScale(**arrays))

    def step(grads: Tree, state: LossScaleState, params: Tree = None, **extra: Any) -> Any:
        updates, after = inner.update(grads, state.inner, params, **extra)
        return updates, state._replace(inner=after)

    return optax.GradientTransformationExtraArgs(init, step)


def evaluation_params(params: Mapping[str, Tree], opt_state: Tree) -> dict[str, Tree]:
    """Return the parameters to evaluate and save: those of an EMA, of optax's schedule-free, or as they are."""

    def has_params(part: Any) -> bool:
        return isinstance(part, EmaState | ScheduleFreeState)

    chosen: Any = dict(params)
    for part in filter(has_params, jax.tree.leaves(opt_state, is_leaf=has_params)):

        def one(own: Any, param: Any, part: Any = part) -> Any:
            if isinstance(own, optax.MaskedNode):  # a partition of the optimizer does not see it
                return param
            # Schedule-free's gradients are taken at y = (1 − b1) z + b1 x; x is what is evaluated.
            mean = own if isinstance(part, EmaState) else (param - (1.0 - part.b1) * own) / part.b1
            return mean.astype(param.dtype)

        own = part.average if isinstance(part, EmaState) else part.z
        chosen = jax.tree.map(
            one, own, chosen, is_leaf=lambda node: isinstance(node, optax.MaskedNode)
        )
    return chosen


def _in_float32(leaf: Any) -> Array:
    """Copy a parameter, in single precision at least."""
    return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32))
