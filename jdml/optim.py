"""Optimizers, as optax transformations."""

from collections.abc import Mapping
from typing import Any

import jax
import optax

Roles = Any
"""A pytree of role names that is a prefix of the parameters, or a function from the parameters to one."""


def partition_by_role(
    transforms: Mapping[str, optax.GradientTransformation], roles: Roles
) -> optax.GradientTransformation:
    """One optimizer per role (the model, the proxies, the flow), refusing a parameter that no role covers.

    Args:
        transforms: for each role its transformation, for example ``{"model": optax.adam(1e-4), "proxies":
            optax.adam(1e-2)}``.
        roles: the role of each parameter: a pytree of role names that is a prefix of the parameters, such as
            ``{"model": "model", "proxies": "proxies"}``, or a function that makes one from them.

    Returns:
        The transformation.

    Raises:
        TypeError: ``transforms`` is not a mapping.
        ValueError: no transforms; on ``init``: a parameter without a role, or with a role that has no transformation.

    Implementation notes:
        A forgotten group of proxies trains nothing and tells nobody; here it is an error that names the parameter. To
        freeze a role, give it ``optax.set_to_zero()``.

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
    if not isinstance(transforms, Mapping):
        raise TypeError(
            f"transforms must map roles to optax transformations, got {type(transforms).__name__}"
        )
    if not transforms:
        raise ValueError("transforms is empty: it must map every role to an optax transformation")

    def labels(params: Any) -> Any:
        return _label_parameters(
            params, roles(params) if callable(roles) else roles, tuple(transforms)
        )

    return optax.partition(dict(transforms), labels)


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
