"""Optimizers, as optax transformations."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jdml.ops import checks, numerics, safe_norm, sphere

Roles = Any
"""A pytree of role names that is a prefix of the parameters, or a function from the parameters to one."""


class AnchoredWeightsState(NamedTuple):
    """The state of :func:`add_anchored_weights`.

    Attributes:
        anchor: θ*, shaped and sharded like the parameters.
        anchored: bool scalar, whether there is an anchor yet.
    """

    anchor: Any
    anchored: Array


def add_anchored_weights(
    strength: float | Array, mask: Any | Callable[[Any], Any] | None = None
) -> optax.GradientTransformation:
    """Pull parameters towards an anchor: the gradient of ``(λ/2) ‖θ − θ*‖²`` is added to the updates.

    Formula:
        ``g ← g + λ (θ − θ*)`` once :func:`set_anchor` was called, and ``g`` before.

    The sibling of ``optax.add_decayed_weights``, which pulls towards 0.

    Args:
        strength: λ.
        mask: a tree of booleans, or a function from the parameters to one: which parameters are anchored; default all.

    Returns:
        The transformation. Placed before Adam in a chain, the pull is part of the gradient, as in CCP.

    Raises:
        TypeError: λ is not a number.
        ValueError: λ negative; on ``update``: no parameters passed.

    Implementation notes:
        The anchor is one copy of the parameters and is saved with the optimizer's state.

    Paper settings:
        λ = 2e-4, on the model only. Algorithm 1 anchors from the start; the released program, not the paper, has λ = 0
        in the first problem.

    Reference:
        Gürbüz, Can & Alatan, *Deep Metric Learning with Chance Constraints*, Algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = optax.chain(add_anchored_weights(0.5), optax.sgd(1.0))
        >>> params = jnp.array([1.0, 2.0])
        >>> state = set_anchor(tx.init(params), jnp.zeros(2))
        >>> tx.update(jnp.zeros(2), state, params)[0]
        Array([-0.5, -1. ], dtype=float32)
    """
    checks.non_negative("strength", strength)

    def init(params: Any) -> AnchoredWeightsState:
        return AnchoredWeightsState(jax.tree.map(jnp.copy, params), jnp.zeros((), bool))

    def update(
        updates: Any, state: AnchoredWeightsState, params: Any | None = None
    ) -> tuple[Any, AnchoredWeightsState]:
        if params is None:
            raise ValueError(
                "params must be passed to update: add_anchored_weights pulls them to their anchor"
            )

        def pull(update: Array | None, value: Array, anchor: Array) -> Array | None:
            if update is None:
                return None
            away = (value - anchor).astype(update.dtype)
            pulled = update + jnp.asarray(strength, update.dtype) * away
            return jnp.where(state.anchored, pulled, update)

        pulled = jax.tree.map(pull, updates, params, state.anchor, is_leaf=lambda u: u is None)
        return pulled, state

    transformation = optax.GradientTransformation(init, update)
    return transformation if mask is None else optax.masked(transformation, mask)


def set_anchor(opt_state: Any, params: Any) -> Any:
    """Anchor the parameters: θ* becomes ``params``, and the pull of :func:`add_anchored_weights` begins.

    Args:
        opt_state: the state of any optimizer with :func:`add_anchored_weights` in it, however deep.
        params: θ*, the parameters with which the optimizer was initialized, or others of their structure.

    Returns:
        The new state.

    Raises:
        ValueError: nothing in the state is anchored, or ``params`` has another structure.

    Implementation notes:
        Works under ``jit``. Nothing is recompiled by it.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = add_anchored_weights(0.1)
        >>> bool(set_anchor(tx.init(jnp.zeros(2)), jnp.ones(2)).anchored)
        True
    """
    states = []

    def anchored(part: Any) -> Any:
        if not isinstance(part, AnchoredWeightsState):
            return part
        states.append(part)
        # What masks and partitions hide from a transformation stands in its state as a mark.
        anchor = jax.tree.map(
            lambda old, new: old if isinstance(old, optax.MaskedNode) else _copy(old, new),
            part.anchor,
            params,
            is_leaf=lambda node: isinstance(node, optax.MaskedNode),
        )
        return AnchoredWeightsState(anchor, jnp.ones_like(part.anchored))

    state = jax.tree.map(
        anchored, opt_state, is_leaf=lambda part: isinstance(part, AnchoredWeightsState)
    )
    if not states:
        raise ValueError(
            "opt_state holds no anchor: put add_anchored_weights into the optimizer's chain"
        )
    return state


def _copy(old: Array, new: Array) -> Array:
    if jnp.shape(new) != jnp.shape(old):
        raise ValueError(f"params must have the anchor's shapes, got {list(jnp.shape(new))}")
    return jnp.array(new, old.dtype)  # a copy


def clip_by_vector_norm(max_norm: float) -> optax.GradientTransformation:
    """Cut gradients vector by vector: every row of a parameter, a proxy say, to a largest norm of its own.

    Formula:
        ``g ← g · min(1, c / ‖g‖)`` for each vector along the last axis; a scalar is a vector of one.

    Directions stay, which ``optax.clip`` changes, and no vector suffers from another one's norm, as with
    ``optax.clip_by_global_norm``.

    Args:
        max_norm: c.

    Returns:
        The transformation.

    Raises:
        TypeError: c is not a number.
        ValueError: c not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = clip_by_vector_norm(1.0)
        >>> tx.update(jnp.array([[3.0, 4.0], [0.0, 0.5]]), tx.init(None))[0]
        Array([[0.6, 0.8],
               [0. , 0.5]], dtype=float32)
    """
    checks.positive("max_norm", max_norm)

    def clip(vectors: Array) -> Array:
        if jnp.ndim(vectors) == 0:
            return jnp.clip(vectors, -max_norm, max_norm)
        norms = safe_norm(vectors.astype(numerics.accumulate_in(vectors)))
        scale = jnp.where(norms > max_norm, max_norm / jnp.where(norms > 0, norms, 1.0), 1.0)
        return (vectors * scale).astype(vectors.dtype)  # a scale of half precision may be 0

    return optax.stateless(lambda updates, _: jax.tree.map(clip, updates))


def retract_to_sphere() -> optax.GradientTransformation:
    """Keep parameters on the unit sphere: after each step, every vector goes back to length 1.

    Formula:
        ``u ← (p + u) / ‖p + u‖ − p`` for each vector p along the last axis; a scalar stays as it is updated.

    A loss that normalizes its proxies pushes them sideways only, so that they grow with every step and turn less and
    less; on the sphere the learning rate keeps its meaning, an angle.

    Returns:
        The transformation: the last one of a chain.

    Raises:
        ValueError: on ``update``: no parameters passed.

    Implementation notes:
        A vector whose step ends at 0 stays where it is.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = optax.chain(optax.sgd(1.0), retract_to_sphere())
        >>> p = jnp.array([[1.0, 0.0]])
        >>> p + tx.update(jnp.array([[0.0, -1.0]]), tx.init(p), p)[0]
        Array([[0.70710677, 0.70710677]], dtype=float32)
    """

    def retract(update: Array | None, value: Array) -> Array | None:
        if update is None or jnp.ndim(value) == 0:
            return update
        moved = (value + update).astype(jnp.float32)
        back = sphere(moved).astype(value.dtype) - value
        return jnp.where((moved != 0).any(axis=-1, keepdims=True), back, jnp.zeros_like(back))

    def update(updates: Any, params: Any) -> Any:
        if params is None:
            raise ValueError(
                "params must be passed to update: retract_to_sphere looks where a step ends"
            )
        return jax.tree.map(retract, updates, params, is_leaf=lambda update: update is None)

    return optax.stateless(update)


def partition_by_role(
    transforms: Mapping[str, optax.GradientTransformation],
    roles: Roles,
    *,
    waiting: Mapping[str, int] | None = None,
) -> optax.GradientTransformation:
    """Give each role (model, proxies, flow) its optimizer, refusing a parameter that no role covers.

    Args:
        transforms: for each role its transformation, for example ``{"model": optax.adam(1e-4), "proxies":
            optax.adam(1e-2)}``.
        roles: the role of each parameter: a pytree of role names that is a prefix of the parameters, such as
            ``{"model": "model", "proxies": "proxies"}``, or a function that makes one from them.
        waiting: a warm-up: for how many first steps a role stands still while the others learn, such as
            ``{"model": 50}``.

    Returns:
        The transformation.

    Raises:
        TypeError: a number of steps is not an integer.
        ValueError: a role that waits and has no transformation, or for fewer than 0 steps; on ``init``: a parameter
            without a role, or with a role that has no transformation.

    Implementation notes:
        To freeze a role, give it ``optax.set_to_zero()``. A role that waits has its transformation begin afterwards:
        no moments, bias correction, weight decay or step of a schedule is spent, as with absent gradients in the
        programs of ProxyAnchor and NIR. Clip within the roles: a norm over all of them counts those that wait, too.

    Paper settings:
        The backbone waits for one epoch (NIR; PFML and ProxyAnchor on CUB and Cars196), the embedding layer does not.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = partition_by_role(
        ...     {"model": optax.sgd(1.0), "proxies": optax.sgd(100.0)}, {"model": "model", "proxies": "proxies"}
        ... )
        >>> params = {"model": {"kernel": jnp.zeros(1)}, "proxies": jnp.zeros(1)}
        >>> updates, _ = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
        >>> updates
        {'model': {'kernel': Array([-1.], dtype=float32)}, 'proxies': Array([-100.], dtype=float32)}
        >>> tx.init({"model": jnp.zeros(1), "flow": jnp.zeros(1)})
        Traceback (most recent call last):
        ...
        ValueError: no role covers the parameter ['flow']; the roles cover ['model'], ['proxies']
    """
    waiting = waiting or {}
    for role, steps in waiting.items():
        if role not in transforms:
            raise ValueError(
                f"waiting names the role {role!r}; transforms has {', '.join(map(repr, transforms))}"
            )
        checks.at_least(0)(f"waiting[{role!r}]", steps)

    def labels(params: Any) -> Any:
        return _label_parameters(
            params, roles(params) if callable(roles) else roles, tuple(transforms)
        )

    later = {role: _after(transforms[role], steps) for role, steps in waiting.items() if steps}
    return optax.partition({**transforms, **later}, labels)


def backbone_and_head(params: Any) -> Any:
    """Name the roles of a network whose embedding layer is called ``"head"``, as in most of :mod:`jdml.models`.

    Args:
        params: ``{"model": {"head": …, …}, **others}``.

    Returns:
        Roles for :func:`partition_by_role`: ``"head"``, ``"backbone"`` for all else of the model (all of it where it
        has no such layer), and each other parameter's own name.

    Example:
        >>> backbone_and_head({"model": {"conv": 0, "head": 0}, "proxies": 0})
        {'model': {'conv': 'backbone', 'head': 'head'}, 'proxies': 'proxies'}
    """
    return {
        role: {name: "head" if name == "head" else "backbone" for name in value}
        if role == "model"
        else role
        for role, value in params.items()
    }


def _after(transformation: optax.GradientTransformation, steps: int) -> Any:
    """Return the transformation, which sees nothing of the first steps."""
    return optax.conditionally_mask(transformation, lambda step: step >= steps)


def _label_parameters(params: Any, roles: Any, known: tuple[str, ...]) -> Any:
    """The role of every single parameter."""
    covered = {
        jax.tree_util.keystr(path): role
        for path, role in jax.tree_util.tree_leaves_with_path(roles)
    }

    def role_of(path: tuple[Any, ...], _: Any) -> str:
        for length in range(len(path) + 1):
            role = covered.get(jax.tree_util.keystr(path[:length]))
            if role is not None:
                break
        else:
            raise ValueError(
                f"no role covers the parameter {jax.tree_util.keystr(path)}; the roles cover {', '.join(covered)}"
            )
        if role not in known:
            raise ValueError(
                f"the parameter {jax.tree_util.keystr(path)} has the role {role!r}, which has no transformation; "
                f"transforms has {', '.join(map(repr, known))}"
            )
        return str(role)

    return jax.tree_util.tree_map_with_path(role_of, params)
