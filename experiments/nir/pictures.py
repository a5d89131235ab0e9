"""Isotropy made visible: samples around a proxy, the density learned for them, and a flow trained alone."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.nir.regularized import VARIANTS
from experiments.shown import subplots
from experiments.smoke import FLOW, NETWORK, small
from jdml import data, flows
from jdml.recipes import BatchConfig, LossConfig, NetworkConfig, NIRConfig, OptimizerConfig, Recipe
from jdml.studies.runner import over_seeds
from jdml.training import train_recipe

DIM = 3
RATE = 1e-3
OF_FLOW = small({}, FLOW)
SHAPED = NIRConfig(
    1.0, "released", OF_FLOW, flow_learning_rate=RATE, shape="softplus", start_step=50
)
"""In three dimensions even a good density is low, and the exponential of its negative logarithm huge."""
REACH = 1.0
SHOWN = (1, 4, 8)
SIDE = np.linspace(-REACH, REACH, 101)


def train_on_sphere(regularized: bool, steps: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Ten digits on the sphere, with ProxyNCA: what was learned, the new images' embeddings, their digits."""
    train, test = (data.load("digits", split=split) for split in ("train", "test"))
    recipe = Recipe(
        loss=LossConfig("proxy_nca", {"scale": 9.0}, method=SHAPED if regularized else None),
        network=NetworkConfig(small("eps", NETWORK), DIM),
        batch=BatchConfig(64, steps=steps),
        optimizer=OptimizerConfig(learning_rate=RATE, lr_multipliers={"proxies": 10.0}),
    )
    result = train_recipe.train(recipe, train, progress=False)
    x = np.asarray(jdml.sphere(jnp.asarray(result.embedder(test.images))))
    return result.state.params, x, test.labels


def chart(centre: np.ndarray) -> np.ndarray:
    """Two unit vectors at right angles to a centre and to each other: ``[3, 2]``."""
    return np.linalg.svd(centre[None])[2][1:].T


def draw_isotropy(path: Path, steps: int) -> None:
    """Above without, below with regularization; a column per digit, seen from its proxy."""
    figure, panels = subplots(2, len(SHOWN), size=(3.4 * len(SHOWN), 7.4))
    for row, regularized in zip(panels, (False, True), strict=True):
        params, x, digits = train_on_sphere(regularized, steps)
        proxies = np.asarray(jdml.sphere(params["proxies"]))[:, 0]
        for digit, axes in zip(SHOWN, row, strict=True):
            axis, proxy = chart(proxies[digit]), proxies[digit]
            if regularized:
                _contours(axes, params["flow"], proxy, axis)
            for points, colour in ((x[digits != digit], "0.7"), (x[digits == digit], "C3")):
                # An equal-distance chart: straight out from the proxy, as far as the angle is.
                plane = points @ axis
                angle = np.arccos(np.clip(points @ proxy, -1, 1))[:, None]
                plane *= angle / np.maximum(np.linalg.norm(plane, axis=1, keepdims=True), 1e-9)
                axes.scatter(*plane.T, s=9, c=colour, linewidths=0)
            axes.plot(0, 0, "k*", markersize=11)
            title = f"digit {digit}, {'with' if regularized else 'without'} NIR"
            axes.set(title=title, xticks=[], yticks=[], aspect="equal")
            axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH))
    figure.suptitle(
        "New images (red) around the proxy of their class (star), by angle; grey: other classes"
    )
    figure.savefig(path, dpi=130)


def _contours(axes: Any, flow_params: Any, proxy: np.ndarray, axis: np.ndarray) -> None:
    """The flow's log-density on the sphere around a proxy."""
    grid = np.stack(np.meshgrid(SIDE, SIDE), axis=-1).reshape(-1, 2)
    angle = np.linalg.norm(grid, axis=1, keepdims=True)
    outward = grid / np.maximum(angle, 1e-9)
    points = np.cos(angle) * proxy + np.sin(angle) * (outward @ axis.T)
    condition = jnp.broadcast_to(jnp.asarray(proxy, jnp.float32), points.shape)
    flow = flows.preset(SHAPED.flow, DIM, DIM, **OF_FLOW)
    density = flow.apply({"params": flow_params}, condition, method="distribution")
    values = np.asarray(jax.jit(density.log_prob)(jnp.asarray(points, jnp.float32)))
    values = values.reshape(len(SIDE), len(SIDE))
    top = np.percentile(values, 99.5)
    axes.contourf(SIDE, SIDE, np.clip(values, top - 12, top), levels=14, cmap="Greys", alpha=0.75)


def draw_spectra(results: dict[str, Any], methods: tuple[str, ...], path: Path) -> None:
    """Singular values of new images' embeddings as shares of their sum, a panel per method: paper Fig. 4."""
    figure, (row,) = subplots(columns=len(methods), size=(3.6 * len(methods), 3.4))
    for axes, method in zip(row, methods, strict=True):
        for name, style in ((method, "k-"), (f"{method} + NIR", "C3-")):
            shares = np.asarray(over_seeds(results, name, "test spectrum"))
            ranks = np.arange(1, shares.shape[1] + 1)
            axes.plot(ranks, shares.mean(0), style, label=name)
            axes.fill_between(ranks, shares.min(0), shares.max(0), color=style[:-1], alpha=0.2)
        axes.set(title=method, xlabel="singular value", yscale="log")
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    figure.supylabel("share of the sum")
    figure.savefig(path, dpi=130)


CLUSTERS, BATCH, FLOW_RATE = 100, 90, 5e-4
MEASURED = ("NLL", "flow gradient", "embedding gradient")


def watch(job: dict[str, Any]) -> dict[str, list[float]]:
    """Train the flow of one variant; the mean negative log-likelihood and both gradients' norms at every step."""
    dim = job["dim"]
    flow = flows.preset("released", dim, dim, **OF_FLOW)
    centre_key, flow_key, data_key = jax.random.split(jax.random.key(job["seed"]), 3)
    centres = jdml.sphere(jax.random.normal(centre_key, (CLUSTERS, dim)))
    params = flow.init(flow_key, centres, centres)
    optimizer = optax.adam(FLOW_RATE)

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
