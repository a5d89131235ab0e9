"""Does the regularizer go on regularizing? A flow alone, trained on clusters on the sphere under each shape of it."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.nir.regularized import VARIANTS
from experiments.shown import subplots
from jdml import flows

CLUSTERS, BATCH, RATE = 100, 90, 5e-4
MEASURED = ("NLL", "flow gradient", "embedding gradient")


def watch(job: dict[str, Any]) -> dict[str, list[float]]:
    """Train the flow of one variant; the mean negative log-likelihood and both gradients' norms at every step."""
    dim = job["dim"]
    flow = flows.preset("released", dim, dim)
    centre_key, flow_key, data_key = jax.random.split(jax.random.key(job["seed"]), 3)
    centres = jdml.sphere(jax.random.normal(centre_key, (CLUSTERS, dim)))
    params = flow.init(flow_key, centres, centres)
    optimizer = optax.adam(RATE)

    def loss(params: Any, x: jax.Array, condition: jax.Array) -> tuple[jax.Array, jax.Array]:
        latents, log_dets = flow.apply(params, x, condition)
        surprise = jdml.nir_loss(latents, log_dets, shape="identity")
        return jdml.nir_loss(latents, log_dets, **VARIANTS[job["variant"]]), surprise

    def step(carry: Any, key: jax.Array) -> Any:
        params, state = carry
        label_key, noise_key = jax.random.split(key)
        condition = centres[jax.random.randint(label_key, (BATCH,), 0, CLUSTERS)]
        noise = jax.random.normal(noise_key, (BATCH, dim)) / np.sqrt(dim)
        x = jdml.sphere(condition + job["width"] * noise)
        (of_params, of_x), surprise = jax.grad(loss, (0, 1), has_aux=True)(params, x, condition)
        updates, state = optimizer.update(of_params, state)
        measured = surprise, optax.tree.norm(of_params), jnp.linalg.norm(of_x)
        return (optax.apply_updates(params, updates), state), measured

    keys = jax.random.split(data_key, job["steps"])
    _, measured = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))(
        (params, optimizer.init(params))
    )
    return {name: np.asarray(v).tolist() for name, v in zip(MEASURED, measured, strict=True)}


def draw_switch_off(results: dict[str, dict[str, list[float]]], path: Path) -> None:
    """One panel per measured quantity, one line per variant."""
    figure, (row,) = subplots(columns=len(MEASURED), size=(11.5, 3.5))
    for axes, name in zip(row, MEASURED, strict=True):
        for variant, lines in results.items():
            axes.plot(np.arange(1, len(lines[name]) + 1), lines[name], label=variant, linewidth=1.2)
        axes.set(title=name, xlabel="step")
        axes.grid(alpha=0.3)
        if name != "NLL":
            axes.set(yscale="log", title=f"norm of the {name}")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
