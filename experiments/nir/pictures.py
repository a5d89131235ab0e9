"""Isotropy made visible: the samples around a proxy, and the density that the flow has learned for them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from regularized import RECOMMENDED, make_flow

import jdml
from jdml import data, objectives, optim, training
from jdml.models import EpsNet
from jdml.training.study import over_seeds

DIM = 3
REACH = 1.3
SIDE = np.linspace(-REACH, REACH, 101)
COLOURS = np.array(["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"])


def train_on_sphere(regularized: bool, steps: int) -> tuple[dict[str, Any], np.ndarray, Any]:
    """Even and odd digits on the sphere, with ProxyAnchor: what was learned, and the new images' embeddings."""
    train, test = (data.load("digits", split=split) for split in ("train", "test"))
    train, test = (part.select(part.views["digit"] <= 5) for part in (train, test))
    objective = objectives.proxy(jdml.proxy_anchor_loss, 2, DIM)
    roles = {"model": optax.adam(1e-3), "proxies": optax.adam(1e-1)}
    if regularized:
        objective = objectives.with_nir(objective, make_flow(DIM, {}), **RECOMMENDED)
        roles["flow"] = optax.adam(1e-3)
    result = training.fit(
        EpsNet(DIM),
        objective,
        optim.partition_by_role(roles, lambda params: {name: name for name in params}),
        train.relabel("parity"),
        data.RandomBatchSampler(len(train), 64, seed=0),
        steps=steps,
        seed=0,
        evaluate_every=steps,
        progress=False,
    )
    x = np.asarray(jdml.sphere(jnp.asarray(result.embedder(test.images))))
    return result.state.params, x, test


def chart(centre: np.ndarray) -> np.ndarray:
    """Two unit vectors at right angles to a centre and to each other: ``[3, 2]``."""
    return np.linalg.svd(centre[None])[2][1:].T


def draw_isotropy(path: Path, steps: int) -> None:
    """Above without, below with regularization; a column per class, seen from its proxy; coloured by digit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 8.2), layout="constrained")
    panels = figure.subplots(2, 2)
    for row, regularized in zip(panels, (False, True), strict=True):
        params, x, test = train_on_sphere(regularized, steps)
        proxies = np.asarray(jdml.sphere(params["proxies"]))[:, 0]
        for parity, axes in enumerate(row):
            axis, proxy = chart(proxies[parity]), proxies[parity]
            if regularized:
                _contours(axes, params["flow"], proxy, axis)
            chosen = test.views["digit"] % 2 == parity
            points = x[chosen]
            # An equal-distance chart: straight out from the proxy, as far as the angle is.
            plane = points @ axis
            angle = np.arccos(np.clip(points @ proxy, -1, 1))[:, None]
            plane *= angle / np.maximum(np.linalg.norm(plane, axis=1, keepdims=True), 1e-9)
            digits = test.views["digit"][chosen]
            axes.scatter(*plane.T, s=9, c=COLOURS[digits], linewidths=0)
            axes.plot(0, 0, "k*", markersize=11)
            title = f"{'even' if parity == 0 else 'odd'} digits, {'with' if regularized else 'without'} NIR"
            axes.set(title=title, xticks=[], yticks=[], aspect="equal")
            axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH))
            for digit in np.unique(digits):
                axes.scatter([], [], s=20, c=COLOURS[digit], label=str(digit))
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(
        "New images around the proxy of their class (star), by angle; contours: the flow's density"
    )
    figure.savefig(path, dpi=130)


def _contours(axes: Any, flow_params: Any, proxy: np.ndarray, axis: np.ndarray) -> None:
    """The flow's log-density on the sphere around a proxy."""
    grid = np.stack(np.meshgrid(SIDE, SIDE), axis=-1).reshape(-1, 2)
    angle = np.linalg.norm(grid, axis=1, keepdims=True)
    outward = grid / np.maximum(angle, 1e-9)
    points = np.cos(angle) * proxy + np.sin(angle) * (outward @ axis.T)
    condition = jnp.broadcast_to(jnp.asarray(proxy, jnp.float32), points.shape)
    flow = make_flow(DIM, {})
    density = flow.apply({"params": flow_params}, condition, method="distribution")
    values = np.asarray(jax.jit(density.log_prob)(jnp.asarray(points, jnp.float32)))
    values = values.reshape(len(SIDE), len(SIDE))
    top = np.percentile(values, 99.5)
    axes.contourf(SIDE, SIDE, np.clip(values, top - 12, top), levels=14, cmap="Greys", alpha=0.75)


def draw_spectra(results: dict[str, Any], methods: tuple[str, ...], path: Path) -> None:
    """Singular values of new images' embeddings as shares of their sum, a panel per method: paper Fig. 4."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(methods), 3.4), layout="constrained")
    for axes, method in zip(figure.subplots(1, len(methods)), methods, strict=True):
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
