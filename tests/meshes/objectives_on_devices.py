"""Checks of memories and objectives on eight devices; `eight_devices.py` runs them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes.checks import (
    AUTO,
    EXPLICIT,
    WHERE,
    B,
    Checks,
    D,
    X,
    Y,
    assert_same,
    check_on_eight,
    mesh,
    put,
)

import jdml

IDS = np.random.default_rng(1).permutation(2 * B)[:B].astype(np.int32) - 1  # one may be −1, unknown
ROWS = P("data")
CHECKS = Checks()
check = CHECKS.add


@check
def objective_with_a_memory() -> None:
    """The memory is replicated in the order of the batch; rows without a class do not enter it."""
    objective = jdml.objectives.with_memory(jdml.objectives.pair(jdml.contrastive_loss), 40, D)
    old = jnp.asarray(X) + 1.0, jnp.asarray(Y)
    start = objective.update_state(objective.init_state(), *old, ids=IDS[::-1].copy())
    arrays = X, np.where(WHERE, Y, -1), IDS

    def step(x: Any, y: Any, ids: Any, **more: Any) -> Any:
        more["ids"] = ids
        value = jax.value_and_grad(lambda x: objective.loss({}, x, y, state=start, **more)[0])(x)
        return value, objective.update_state(start, x, y, **more)

    check_on_eight(step, arrays, (ROWS,) * 3, ((P(), ROWS), P()))
    placed = put(mesh(AUTO, 8), arrays, (ROWS,) * 3)
    value, state = jax.jit(step)(*arrays)
    assert_same(jax.device_get(jax.jit(step)(*placed)), (value, state))
    x, y, ids = put(mesh(EXPLICIT, 8), arrays, (ROWS,) * 3)
    pushed = objective.update_state(start, x, y, ids=ids)  # outside jit
    assert_same(jax.device_get(pushed), state)


@check
def objective_with_a_flow() -> None:
    """With generated samples, wrong classes, several proxies and a learned matrix."""
    of = jdml.objectives
    flow = jdml.flows.ConditionalFlow(D, D, num_blocks=1, hidden=4, depth=1)
    learned = jdml.flows.ConditionalFlow(D, D, num_blocks=2, hidden=4, depth=1, mixing="linear")
    one = of.proxy(jdml.proxy_anchor_loss, 40, D)
    several = of.as_proxy_objective(jdml.contrastive_loss, 40, D, proxies_per_class=2)
    made = [
        of.with_nir(one, flow, wrong_class_weight=0.3, of_mean=True, warmup=2),
        of.with_nir(several, learned, stop_proxy_gradient=True, self_regularization="both"),
    ]
    for objective in made:
        params, state = objective.init(jax.random.key(0)), objective.init_state()

        def step(
            params: Any, x: Any, y: Any, where: Any, o: Any = objective, s: Any = state
        ) -> Any:
            more = {"key": jax.random.key(1), "where": where, "state": s}
            return jax.value_and_grad(lambda p, x: o.loss(p, x, y, **more), (0, 1), has_aux=True)(
                params, x
            )

        expected = jax.device_get(jax.jit(step)(params, X, Y, WHERE))
        for kind in (EXPLICIT, AUTO) if objective is made[1] else (EXPLICIT,):
            grid = mesh(kind, 8)
            placed = put(grid, (X, Y, WHERE), (ROWS,) * 3)
            everywhere = jax.device_put(params, NamedSharding(grid, P()))
            assert_same(jax.device_get(jax.jit(step)(everywhere, *placed)), expected)
