"""Pictures of methods: PFML's field, NIR's densities around proxies, CCP's proxies before and after a problem."""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdml import fields
from jdml.report.embedding_stats import principal_axes, unit
from jdml.report.runs import Run
from jdml.runs.run_files import read_checkpoint

SIDE = 72
"""Points of a picture's grid along a side."""
CLASSES = 4
"""Classes that are shown, the largest first."""
CHARGES = 1500
Panel = dict[str, Any]


class Learned(NamedTuple):
    """Parameters that a run learned, embeddings of training images, and the classes that are shown."""

    run: Run
    params: Mapping[str, Any]
    embeddings: np.ndarray
    labels: np.ndarray
    names: Sequence[str]
    classes: list[int]

    @property
    def loss(self) -> Mapping[str, Any]:
        """The recipe's loss; empty in a user's own description."""
        loss = self.run.config.get("recipe", {}).get("loss")
        return loss if isinstance(loss, Mapping) else {}


POTENTIALS: dict[str, tuple[Callable[..., jax.Array], tuple[str, ...]]] = {
    "potential_field": (fields.potential, ("delta", "alpha", "repulsion_delta")),
    "contrastive_potential": (fields.contrastive_potential, ("delta",)),
}
"""The potential of a loss, and the names of its settings."""


def potential_fields(learned: Learned) -> Iterator[Panel]:
    """Draw the potential for a sample of a class, in the plane of the charges' two principal axes."""
    if learned.loss.get("name") not in POTENTIALS:
        return
    potential, known = POTENTIALS[learned.loss["name"]]
    settings = {k: float(v) for k, v in learned.loss.get("settings", {}).items() if k in known}
    proxies = learned.params["proxies"]
    count, each, dim = proxies.shape
    charges = unit(np.concatenate([learned.embeddings, proxies.reshape(-1, dim)]))
    labels = np.concatenate([learned.labels, np.repeat(np.arange(count), each)])
    centre, (axes, share) = charges.mean(0), principal_axes(charges)
    points = (charges - centre) @ axes
    grid, extent = _grid(points)
    places, sources = jnp.float32(centre + grid @ axes.T), jnp.float32(charges)

    @jax.jit
    def field(label: Any, places: Any, sources: Any) -> Any:
        classes = jnp.int32(labels)
        return fields.class_field(places, label, sources, classes, potential=potential, **settings)

    samples = len(learned.labels)
    for label in learned.classes:
        values = np.asarray(field(label, places, sources), np.float64)
        values -= np.median(values)  # a potential is known up to a constant: far charges add one
        scale = np.median(np.abs(values)) or 1.0
        marks = _points(points, labels == label)
        yield {
            "title": f"potential field of {learned.names[label]}",
            "words": "Samples of this class are drawn from red to blue, where the potential is below its median. "
            "Dots are samples, stars are proxies; filled ones are of this class. The field is shown in the plane "
            f"of the charges' two principal axes ({100 * share:.0f} % of their variance), the charges projected.",
            "extent": extent,
            "heat": _heat(np.arcsinh(values / scale)),
            "points": marks[:samples],
            "stars": marks[samples:],
        }


def flow_densities(learned: Learned) -> Iterator[Panel]:
    """Draw the level sets of NIR's density on the sphere around a proxy."""
    if "flow" not in learned.params:
        return
    from jdml import flows  # imports distrax

    nir, dim = learned.loss.get("method") or {}, learned.embeddings.shape[-1]
    flow = flows.preset(nir.get("flow", "released"), dim, dim, **nir.get("flow_settings", {}))
    y = learned.labels
    centres, x = unit(learned.params["proxies"]), unit(learned.embeddings)

    @jax.jit
    def density(points: Any, proxy: Any) -> Any:
        condition = jnp.broadcast_to(proxy, points.shape)
        of_class: Any = flow.apply(
            {"params": learned.params["flow"]}, condition, method="distribution"
        )
        return of_class.log_prob(points)

    for label in learned.classes:
        own = x[y == label]
        proxy = centres[label, int(np.argmax((own @ centres[label].T).sum(0)))]
        outward = own - np.outer(own @ proxy, proxy)
        axes = principal_axes(outward)[0]
        axes = np.linalg.qr(axes - np.outer(proxy, proxy @ axes))[0]
        near = (x - np.outer(x @ proxy, proxy)) @ axes
        # An azimuthal equidistant chart of the sphere around the proxy.
        angle = np.arccos(np.clip(x @ proxy, -1, 1))
        near *= (angle / np.maximum(np.linalg.norm(near, axis=1), 1e-9))[:, None]
        reach = float(np.quantile(angle[y == label], 0.95) * 1.4) or 1.0
        grid, extent = _grid(np.array([[-reach, -reach], [reach, reach]]), margin=0)
        away = np.linalg.norm(grid, axis=1, keepdims=True)
        points = np.cos(away) * proxy + np.sin(away) * (grid / np.maximum(away, 1e-9)) @ axes.T
        values = np.asarray(density(jnp.float32(points), jnp.float32(proxy)), np.float64)
        top = float(np.quantile(values, 0.995))
        inside = np.abs(near).max(1) <= reach
        yield {
            "title": f"density around the proxy of {learned.names[label]}",
            "words": "Level sets of the flow's log-density on the sphere, by angle from the proxy (star), in a "
            "slice through the proxy and the two axes along which the class varies most. Samples are projected; "
            "those of this class are filled.",
            "extent": extent,
            "heat": _heat(np.clip(values, top - 12, top), levels=10),
            "points": _points(near[inside], (y == label)[inside]),
            "stars": [[0.0, 0.0, 1]],
        }


def new_proxies(learned: Learned) -> Iterator[Panel]:
    """Draw CCP's proxies at the end of a problem and at the start of the next one."""
    settings = _problems(learned.run.config)
    checkpoint = read_checkpoint(learned.run.path) if settings and learned.run.path else None
    state = _problems(checkpoint or {})
    if not int(state.get("machine", {}).get("problem", 0)):
        return
    before, chosen = state["before"], state["chosen"]
    axes, share = principal_axes(learned.embeddings)
    centre = learned.embeddings.mean(0)

    def flat(proxies: Any) -> np.ndarray:
        x = np.asarray(proxies, np.float64)
        if settings.get("normalize") == "sphere":
            x = unit(x)
        elif settings.get("normalize") == "ball":
            x = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1)
        return (x.reshape(-1, x.shape[-1]) - centre) @ axes

    owners = np.repeat(np.arange(len(before)), np.shape(before)[1])
    points, before, chosen = (learned.embeddings - centre) @ axes, flat(before), flat(chosen)
    for label in learned.classes:
        own = owners == label
        yield {
            "title": f"proxies of {learned.names[label]} at the change of a problem",
            "words": "Boxes: proxies at the end of the last problem. Stars: the new proxies of the next one, "
            "samples that the boxes cover worst. Dots are the embeddings of samples, in the plane of their two "
            f"principal axes ({100 * share:.0f} % of their variance).",
            "extent": _grid(np.concatenate([points, before, chosen]))[1],
            "heat": None,
            "points": _points(points, learned.labels == label),
            "stars": _points(chosen[own]),
            "boxes": _points(before[own]),
        }


def _problems(parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings, or the state, of the callback that alternates CCP's problems."""
    callbacks = [part for part in parts.get("callbacks", {}).values() if isinstance(part, Mapping)]
    return next((part for part in callbacks if "pool_size" in part or "chosen" in part), {})


def _grid(points: np.ndarray, margin: float = 0.12) -> tuple[np.ndarray, list[float]]:
    """Return a square grid ``[SIDE², 2]`` around points, row by row from the top, and its edges."""
    low, high = points.min(0), points.max(0)
    middle, half = (low + high) / 2, max(float((high - low).max()) / 2 * (1 + 2 * margin), 1e-6)
    xs, ys = (np.linspace(m - half, m + half, SIDE) for m in middle)
    grid = np.stack(np.meshgrid(xs, ys[::-1]), axis=-1).reshape(-1, 2)
    return grid, [float(xs[0]), float(xs[-1]), float(ys[0]), float(ys[-1])]


def _heat(values: np.ndarray, levels: int | None = None) -> dict[str, Any]:
    """Encode a grid of values as bytes, of levels, or of two colours for the two signs."""
    values = np.nan_to_num(values)
    low, high = (float(bound) for bound in np.quantile(values, (0.01, 0.99)))
    if levels is None:
        high = max(abs(low), abs(high), 1e-12)
        low = -high
    shares = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    if levels is not None:
        shares = np.floor(shares * levels * 0.999) / (levels - 1)
    bytes_ = np.round(255 * shares.clip(0, 1)).astype(np.uint8).tobytes()
    kind = "diverging" if levels is None else "level"
    return {"side": SIDE, "kind": kind, "values": base64.b64encode(bytes_).decode()}


def _points(points: np.ndarray, own: np.ndarray | None = None) -> list[list[float]]:
    """Return points, each with 1 if it is of the panel's class, else 0."""
    own = np.ones(len(points)) if own is None else own
    return [[*point, int(flag)] for point, flag in zip(points.round(4).tolist(), own, strict=True)]


def panels(
    run: Run,
    params: Mapping[str, Any],
    embeddings: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
) -> list[Panel]:
    """Draw what a run's method learned as plain values: titles, words, grids, points; empty for other methods."""
    rows = np.random.default_rng(0).permutation(len(embeddings))[:CHARGES]
    x, y = np.asarray(embeddings, np.float64)[rows], labels[rows]
    known, counts = np.unique(y, return_counts=True)
    classes = known[np.argsort(-counts, kind="stable")][:CLASSES].tolist()
    learned = Learned(run, params, x, y, names, classes)
    pictures = potential_fields, flow_densities, new_proxies
    return next((drawn for draw in pictures if (drawn := list(draw(learned)))), [])
