"""Which similarities a proxy loss's gradient looks at (Fig. 1 and Table 1 of the paper).

With the unit vectors for proxies and nothing normalized, an embedding's entries are its similarities S(x, c) to the
classes, and the loss's gradient is ∂L/∂S. What moves one entry of it is a row of the second derivative.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.shown import subplots

LABELS = np.array([0, 0, 0, 1, 1, 2])
CLASSES = 4
ALPHA, DELTA = 4.0, 0.1
LOSSES = {
    "ProxyAnchor": partial(jdml.proxy_anchor_loss, alpha=ALPHA, delta=DELTA),
    "SoftTriple": partial(jdml.soft_triple_loss, scale=ALPHA, margin=DELTA),
    "MPA": partial(jdml.multi_proxy_anchor_loss, alpha=ALPHA, delta=DELTA),
    "MPA-DW": partial(jdml.multi_proxy_anchor_dw_loss, alpha=ALPHA, delta=DELTA),
    "MPA-AP": partial(jdml.multi_proxy_anchor_ap_loss, alpha=ALPHA, delta=DELTA),
}
SHOWN = {"own class": (0, 0), "another class": (0, 1)}
STEP = 1e-2


def influence(loss: Any, similarities: np.ndarray, at: tuple[int, int]) -> np.ndarray:
    """How much the gradient at one similarity moves with each of them ``[B, C]``, the largest being 1."""

    def slope(s: jax.Array) -> jax.Array:
        return jax.grad(lambda s: loss(s, jnp.asarray(LABELS), jnp.eye(CLASSES), normalize=None))(s)

    size = similarities.size
    nudges = STEP * np.eye(size).reshape(size, *similarities.shape)
    moved = jnp.asarray(np.concatenate([similarities + nudges, similarities - nudges]), jnp.float32)
    slopes = np.asarray(jax.vmap(slope)(moved))[:, at[0], at[1]].reshape(2, size)
    change = np.abs(slopes[0] - slopes[1]).reshape(similarities.shape)
    return change / change.max()


def draw_gradients(path: Path) -> None:
    """A panel for each loss, and for a similarity to the sample's own class and to another one."""
    similarities = np.random.default_rng(0).uniform(-0.3, 0.6, (len(LABELS), CLASSES))
    figure, panels = subplots(len(SHOWN), len(LOSSES), size=(11, 5.2))
    for row, (title, at) in zip(panels, SHOWN.items(), strict=True):
        for axes, (name, loss) in zip(row, LOSSES.items(), strict=True):
            axes.imshow(influence(loss, similarities, at), cmap="Blues", vmin=0, vmax=1)
            axes.add_patch(_frame(at, "#d62728", 2.5))
            for x, own in enumerate(LABELS):
                axes.add_patch(_frame((x, own), "0.35", 0.8))
            axes.set(title=f"{name}, {title}", xticks=range(CLASSES), yticks=range(len(LABELS)))
            axes.title.set_fontsize(9)
            axes.set_yticklabels([f"x{x}, class {own}" for x, own in enumerate(LABELS)], fontsize=7)
            axes.set_xticklabels([f"S(·, {c})" for c in range(CLASSES)], fontsize=7)
    figure.suptitle(
        "Blue: similarities that move the gradient at the one framed red (grey: a sample's own class)"
    )
    figure.savefig(path, dpi=130)


def _frame(at: tuple[int, int], colour: str, width: float) -> Any:
    from matplotlib.patches import Rectangle

    corner = (at[1] - 0.46, at[0] - 0.46)
    return Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=colour, linewidth=width)
