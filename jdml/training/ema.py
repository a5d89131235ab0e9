"""What optimizers of every kind need around them: the loss, parameters of their own to evaluate with, an average."""

import functools
import logging
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jdml.distributed import Tree
from jdml.objectives import Objective
from jdml.ops import checks

CANNOT = re.compile(r"missing|must be provided|required|unexpected keyword|batch dimension|example")
"""What optax says where an optimizer is not given what it needs."""

TRIED = 16
"""Updates that are tried where one may be 0: of a batch that is only accumulated."""


_log = logging.getLogger(__name__)


class AverageState(NamedTuple):
    """What :func:`with_average` carries.

    Attributes:
        inner: the state of the optimizer that is averaged.
        average: of the parameters after each step so far; single precision at least.
        steps: so far.
    """

    inner: Any
    average: Any
    steps: Array


@functools.lru_cache(maxsize=16)
def with_average(optimizer: Any, decay: float) -> optax.GradientTransformationExtraArgs:
    """Keep, beside an optimizer's state, an average of the parameters that it makes.

    Formula:
        ``a_t = Σ_s d^(t−s) θ_s / Σ_s d^(t−s)`` over the steps ``s = 1 … t``: an exponential moving average in which the
        parameters that training begins with have no share.

    Args:
        optimizer: the transformation.
        decay: d.

    Returns:
        The transformation, whose updates are the optimizer's; the same object for the same arguments.
    """

    def init(params: Tree) -> AverageState:
        average = jax.tree.map(_precise, params)
        return AverageState(optimizer.init(params), average, jnp.zeros((), jnp.int32))

    def update(
        grads: Tree, state: AverageState, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, AverageState]:
        given = extra if checks.takes(optimizer.update, "value") else {}
        updates, inner = optimizer.update(grads, state.inner, params, **given)
        steps = state.steps + 1
        share = jnp.where(steps > 1, (1 - decay) / -jnp.expm1(steps * math.log(decay)), 1.0)
        after = optax.apply_updates(params, updates)
        average = jax.tree.map(
            lambda mean, new: mean + share.astype(mean.dtype) * (_precise(new) - mean),
            state.average,
            after,
        )
        return updates, AverageState(inner, average, steps)

    return optax.GradientTransformationExtraArgs(init, update)


def update(
    optimizer: Any, grads: Tree, state: Tree, params: Tree, loss: Array
) -> tuple[Tree, Tree]:
    """Call an optimizer, with the step's loss as ``value`` where it takes one."""
    given = {"value": loss} if checks.takes(optimizer.update, "value") else {}
    updates, state = optimizer.update(grads, state, params, **given)
    return updates, state


def evaluation_params(params: Mapping[str, Tree], opt_state: Tree) -> dict[str, Tree]:
    """The parameters that evaluations, ``best`` and files have: an average where there is one.

    Args:
        params: those of the step.
        opt_state: the optimizer's state, which may hold others: of :func:`with_average`, or of
            ``optax.contrib.schedule_free``, however deep.

    Returns:
        The parameters, by role.
    """
    chosen: Any = dict(params)
    for part in _holding(opt_state):
        chosen = jax.tree.map(
            functools.partial(_other, part), _others(part), chosen, is_leaf=_is_hidden
        )
    return chosen


def check_optimizer_works(optimizer: Any, objective: Objective, *, averaged: bool) -> None:
    """Refuse, before any file, an optimizer that needs what a step does not give.

    Args:
        optimizer: the transformation, tried on the shapes of a small model.
        objective: whose parameters it is for.
        averaged: whether an average of the parameters is kept, too.

    Raises:
        ValueError: an optimizer that wants to compute losses or gradients itself; two kinds of evaluation parameters.
    """
    model = {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
    roles = jax.eval_shape(objective.init, jax.random.key(0))

    def step(params: Tree) -> Tree:
        state = optimizer.init(params)
        return state, update(optimizer, params, state, params, jnp.zeros(()))[1]

    name = getattr(optimizer.update, "__qualname__", type(optimizer).__name__).split(".")[0]
    try:
        state, _ = jax.eval_shape(step, {"model": model, **roles})
    except (AttributeError, TypeError, ValueError, AssertionError) as error:
        if CANNOT.search(str(error)):
            raise ValueError(
                f"optimizer ({name}) must work with gradients and the loss (value=), which is what a step gives, but "
                f"{str(error).splitlines()[0]}"
            ) from error
        return  # of a mask or a schedule that the small model does not fit
    kinds = {type(part).__name__ for part in jax.tree.leaves(state, is_leaf=_is_state)}
    if "SAMState" in kinds:
        raise ValueError(
            "optimizer must step from one batch's gradients: sam needs others, at parameters beside those that are kept"
        )
    if averaged and _holding(state):
        raise ValueError(
            "callbacks: EMA, but the optimizer (schedule_free) has evaluation parameters of its own, leave it out"
        )


def check_descends(optimizer: Any, params: Mapping[str, Tree]) -> None:
    """Refuse an optimizer that hands gradients on as they are: added to the parameters, they lead uphill.

    Args:
        optimizer: the transformation.
        params: of the run, by role.

    Raises:
        ValueError: naming the first such parameter, and what leaves parameters alone.
    """

    def updates(grads: Tree, params: Tree) -> Tree:
        return update(optimizer, grads, optimizer.init(params), params, jnp.zeros(()))[0]

    shapes = jax.eval_shape(lambda: params)
    program = jax.make_jaxpr(updates)(shapes, shapes).jaxpr
    grads = program.invars[: len(jax.tree.leaves(shapes))]
    same = [after is grad for after, grad in zip(program.outvars, grads, strict=True)]
    if any(same):
        names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(shapes)]
        raise ValueError(
            f"optimizer adds the gradients of {sum(same)} of {len(same)} parameters to them as they are, those of "
            f"params{names[same.index(True)]} first: optax.masked does so with what it leaves out; to leave "
            "parameters alone write optax.partition({…, 'frozen': optax.set_to_zero()}, labels)"
        )


def tell_narrow(params: Tree) -> None:
    """Tell of parameters of 16 bits: they lose small updates, and training stands still without a word."""
    kinds = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(params)} & {"bfloat16", "float16"})
    for kind in kinds:
        _log.warning(
            "parameters are %s: updates below %.1g of a parameter are lost; keep them in float32 (param_dtype) and "
            "compute in %s (dtype)",
            kind,
            float(jnp.finfo(kind).eps) / 2,
            kind,
        )


def check_moves(optimizer: Any, state: Any, params: Mapping[str, Tree], steps: int) -> None:
    """Refuse to go on with an optimizer whose schedule has ended at a rate of 0.

    Args:
        optimizer: the transformation.
        state: a train state that goes on.
        params: its parameters that learn, by role.
        steps: to which it is to go on.

    Raises:
        ValueError: updates of the model that are 0 from here on, and were not at the start.
    """

    @jax.jit
    def one(opt_state: Tree) -> tuple[Tree, Array]:
        grads = jax.tree.map(jnp.ones_like, params)
        updates, opt_state = update(optimizer, grads, opt_state, params, jnp.ones(()))
        return opt_state, optax.tree.norm(updates["model"]) > 0

    def moves(opt_state: Tree) -> bool:
        for _ in range(TRIED):
            opt_state, moved = one(opt_state)
            if moved:
                return True
        return False

    if not moves(state.opt_state) and moves(optimizer.init(params)):
        raise ValueError(
            f"optimizer makes updates of 0 from step {int(state.step)} on: its schedule has ended, and steps={steps} "
            "would change nothing; begin again with a schedule of so many steps, or with a constant rate"
        )


def _holding(opt_state: Tree) -> list[Any]:
    """The states within one that hold parameters to evaluate with."""
    parts = jax.tree.leaves(opt_state, is_leaf=_holds)
    return [part for part in parts if _holds(part)]


def _holds(part: Any) -> bool:
    from optax.contrib import ScheduleFreeState

    return isinstance(part, AverageState | ScheduleFreeState)


def _is_state(part: Any) -> bool:
    return type(part).__name__ == "SAMState"


def _others(part: Any) -> Tree:
    return part.average if isinstance(part, AverageState) else part.z


def _other(part: Any, held: Any, param: Any) -> Any:
    """One parameter to evaluate with; what a partition hides from a transformation stays."""
    if _is_hidden(held):
        return param
    if isinstance(part, AverageState):
        return held.astype(param.dtype)
    return _averaged(part.b1, param, held).astype(param.dtype)


def _averaged(b1: Any, y: Any, z: Any) -> Any:
    """Schedule-free's x, of which y, where gradients are taken, is a mixture with z."""
    return (y - (1.0 - b1) * z) / b1


def _is_hidden(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _precise(leaf: Any) -> Array:
    """A parameter in single precision at least; a copy."""
    return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32))
