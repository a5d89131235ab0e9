"""Optimizers in a step: the loss as ``value=``, averaged parameters, parameters for evaluation, a scaled loss."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.training.dynamic_scale import DynamicScale
from jax import Array
from optax.contrib import ScheduleFreeState

from jdml.distributed import Tree
from jdml.ops import checks


class EmaState(NamedTuple):
    """The optimizer's state, the average of the parameters (float32 at least), and the number of steps."""

    inner: Any
    average: Any
    steps: Array


@functools.lru_cache(maxsize=16)
def with_ema(optimizer: Any, decay: float) -> optax.GradientTransformationExtraArgs:
    """Keep ``a_t = Σ_s d^(t−s) θ_s / Σ_s d^(t−s)``, ``s = 1 … t``, of the parameters in the optimizer's state."""

    def init(params: Tree) -> EmaState:
        average = jax.tree.map(_in_float32, params)
        return EmaState(optimizer.init(params), average, jnp.zeros((), jnp.int32))

    def step(
        grads: Tree, state: EmaState, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, EmaState]:
        updates, inner = update(optimizer, grads, state.inner, params, extra.get("value"))
        steps = state.steps + 1
        share = jnp.where(steps > 1, (1 - decay) / -jnp.expm1(steps * math.log(decay)), 1.0)
        average = jax.tree.map(
            lambda mean, new: mean + share.astype(mean.dtype) * (_in_float32(new) - mean),
            state.average,
            optax.apply_updates(params, updates),
        )
        return updates, EmaState(inner, average, steps)

    return optax.GradientTransformationExtraArgs(init, step)


def update(
    optimizer: Any, grads: Tree, state: Tree, params: Tree, loss: Array | None
) -> tuple[Tree, Tree]:
    """Call an optimizer, with the step's loss as ``value`` if it takes one."""
    extra = {"value": loss} if checks.takes(optimizer.update, "value") else {}
    updates, state = optimizer.update(grads, state, params, **extra)
    return updates, state


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

        def unscale(*args: Any) -> Any:
            dynamic, _, value, grads = scaled(*args)
            return value, grads, dynamic

        return unscale
    plain = jax.value_and_grad(function, has_aux=True)
    return lambda *args: (*plain(*args), None)


def evaluation_params(params: Mapping[str, Tree], opt_state: Tree) -> dict[str, Tree]:
    """Return the parameters to evaluate and save: those of an EMA, of optax's schedule-free, or as they are."""

    def has_params(part: Any) -> bool:
        return isinstance(part, EmaState | ScheduleFreeState)

    chosen: Any = dict(params)
    for part in filter(has_params, jax.tree.leaves(opt_state, is_leaf=has_params)):
        own = part.average if isinstance(part, EmaState) else part.z
        chosen = jax.tree.map(
            functools.partial(_evaluation_param, part),
            own,
            chosen,
            is_leaf=lambda node: isinstance(node, optax.MaskedNode),
        )
    return chosen


def _evaluation_param(part: Any, own: Any, param: Any) -> Any:
    if isinstance(own, optax.MaskedNode):  # a partition of the optimizer does not see it
        return param
    # Schedule-free's gradients are taken at y = (1 − b1) z + b1 x; x is what is evaluated.
    mean = own if isinstance(part, EmaState) else (param - (1.0 - part.b1) * own) / part.b1
    return mean.astype(param.dtype)


def _in_float32(leaf: Any) -> Array:
    """Copy a parameter, in single precision at least."""
    return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32))
