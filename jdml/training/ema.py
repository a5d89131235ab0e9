"""Optimizers in a step: the loss as ``value=``, an average of the parameters, and parameters to evaluate with."""

import functools
import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from optax.contrib import ScheduleFreeState

from jdml.distributed import Tree
from jdml.ops import checks

_log = logging.getLogger(__name__)


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


def evaluation_params(params: Mapping[str, Tree], opt_state: Tree) -> dict[str, Tree]:
    """Return the parameters to evaluate and save: those of :func:`with_ema` or of optax's schedule-free, if any."""
    chosen: Any = dict(params)
    for part in filter(_has_params, jax.tree.leaves(opt_state, is_leaf=_has_params)):
        held = part.average if isinstance(part, EmaState) else part.z
        chosen = jax.tree.map(
            functools.partial(_evaluation_param, part), held, chosen, is_leaf=_is_masked
        )
    return chosen


def warn_low_precision_params(params: Tree) -> None:
    """Warn of 16-bit parameters: small updates of them are lost."""
    kinds = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(params)} & {"bfloat16", "float16"})
    for kind in kinds:
        _log.warning(
            "parameters are %s: updates below %.1g of a parameter are lost; keep them in float32 (param_dtype) and "
            "compute in %s (dtype)",
            *(kind, float(jnp.finfo(kind).eps) / 2, kind),
        )


def _has_params(part: Any) -> bool:
    return isinstance(part, EmaState | ScheduleFreeState)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _evaluation_param(part: Any, held: Any, param: Any) -> Any:
    if _is_masked(held):  # a partition of the optimizer does not see it
        return param
    # Schedule-free's gradients are taken at y = (1 − b1) z + b1 x; x is what is evaluated.
    mean = held if isinstance(part, EmaState) else (param - (1.0 - part.b1) * held) / part.b1
    return mean.astype(param.dtype)


def _in_float32(leaf: Any) -> Array:
    """Copy a parameter, in single precision at least."""
    return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32))
