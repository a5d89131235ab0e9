"""The scene of every picture: 60 points of three classes on the sphere, moved by one loss and nothing else.

The sphere is drawn as a disk by Lambert's equal-area map: its centre is the pole from which it is seen, its rim the
opposite pole. So every loss is shown as it is used, on unit vectors, and two dimensions are enough to see all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jdml

STEPS, STRIDE, SHOWN = 1000, 0.06, 20
PROBES = jnp.stack(jnp.meshgrid(*2 * [jnp.linspace(-1.8, 1.8, 15)]), axis=-1).reshape(-1, 2)
PROBES = PROBES[jnp.linalg.norm(PROBES, axis=1) < 1.9]


def to_sphere(plane: jax.Array) -> jax.Array:
    """Put points of the disk of radius 2 on the unit sphere."""
    squares = jnp.sum(plane**2, axis=-1, keepdims=True)
    return jnp.concatenate([plane * jnp.sqrt(1 - squares / 4), 1 - squares / 2], axis=-1)


def to_plane(points: jax.Array) -> jax.Array:
    """Draw points of the unit sphere in the disk of radius 2."""
    return points[..., :2] * jnp.sqrt(2 / (1 + jnp.maximum(points[..., 2:], -0.9999)))


def start() -> tuple[jax.Array, np.ndarray, np.ndarray]:
    """Make the points ``[60, 3]``, their classes and their modes: class 0 has two of ten points, on either side."""
    centers = np.array([[-0.85, 0.1], [0.85, -0.1], [0.15, 0.7], [-0.15, -0.7]])
    modes = np.repeat(np.arange(4), [10, 10, 20, 20])
    noise = np.random.default_rng(0).normal(size=(60, 2))
    return to_sphere(jnp.asarray(centers[modes] + 0.17 * noise)), np.maximum(modes - 1, 0), modes


def first_proxies(per_class: int) -> jax.Array:
    """Make proxies ``[3, K, 3]``, scattered about the means of their classes."""
    means = np.array([[0.0, 0.0], [0.15, 0.7], [-0.15, -0.7]])
    noise = np.random.default_rng(3).normal(size=(3, per_class, 2))
    return to_sphere(jnp.asarray(means[:, None] + 0.3 * noise))


@dataclass(frozen=True)
class Subject:
    """A loss as it is shown.

    Attributes:
        name: of the function.
        value: ``(points, labels, proxies, key) -> scalar``.
        proxies: how many proxies a class has, 0 for none.
        miner: what chooses the pairs.
        note: a word of what is particular about the picture.
    """

    name: str
    value: Callable[..., jax.Array]
    proxies: int = 0
    miner: Callable[..., Any] | None = None
    note: str = ""


class Motion(NamedTuple):
    """A loss's effect on the scene; positions are those of the map.

    Attributes:
        path: ``[T, 60, 2]``, the points from start to end.
        proxies: ``[T, 3·K, 2]``.
        force: ``[P, 2]``, what a point of class 0 feels at the places ``PROBES``.
        pairs: the pairs that the miner keeps at the start, None without a miner.
    """

    path: np.ndarray
    proxies: np.ndarray
    force: np.ndarray
    pairs: jdml.Pairs | None


def move(subject: Subject) -> Motion:
    """Descend the loss's gradient on the sphere, and look at its force."""
    points, labels, _ = start()
    labels = jnp.asarray(labels)
    proxies = first_proxies(max(subject.proxies, 1))
    points, proxies, force = jax.device_get(_run(subject, points, labels, proxies))
    pairs = None
    if subject.miner is not None:
        pairs = jax.device_get(_selected(subject.miner, start()[0], labels))
    return Motion(points, proxies if subject.proxies else proxies[:, :0], force, pairs)


def _selected(miner: Callable[..., Any], points: jax.Array, labels: jax.Array) -> jdml.Pairs:
    distances = jnp.linalg.norm(points[:, None] - points[None], axis=-1)
    return miner(jax.random.key(0), distances, jdml.all_pairs(labels))


def _run(subject: Subject, points: Any, labels: Any, proxies: Any) -> Any:
    shape = proxies.shape

    def value(both: Any, key: Any) -> jax.Array:
        return subject.value(both[0], labels, both[1].reshape(shape), key)

    def tangent(at: jax.Array, gradient: jax.Array) -> jax.Array:
        return gradient - jnp.sum(gradient * at, -1, keepdims=True) * at

    gradient_of = jax.jit(jax.grad(value))  # traced once for both programs

    def forces(both: Any, key: Any) -> Any:
        return jax.tree.map(lambda x, g: -tangent(x, g), both, gradient_of(both, key))

    @jax.jit
    def descend(points: jax.Array, proxies: jax.Array) -> Any:
        def rate_of(forces: jax.Array) -> jax.Array:
            sizes = jnp.linalg.norm(forces, axis=-1)
            return jnp.where(
                sizes.max() > 1e-7, 0.03 / jnp.maximum(jnp.quantile(sizes, 0.9), 1e-7), 0.0
            )

        def step(carried: Any, key: Any) -> Any:
            both, rates = carried
            felt = forces(both, key)
            # Proxies learn at their own rate; both are those of the first step.
            rates = jax.tree.map(
                lambda rate, force: jnp.where(rate < 0, rate_of(force), rate), rates, felt
            )

            def moved(x: jax.Array, force: jax.Array, rate: jax.Array) -> jax.Array:
                length = jnp.linalg.norm(force, axis=-1, keepdims=True) * rate
                return jdml.sphere(x + rate * force * jnp.minimum(1, STRIDE / (length + 1e-9)))

            return (jax.tree.map(moved, both, felt, rates), rates), both

        start = (points, proxies), (jnp.float32(-1), jnp.float32(-1))
        (end, _), path = jax.lax.scan(step, start, jax.random.split(jax.random.key(0), STEPS))
        return jax.tree.map(
            lambda p, e: to_plane(jnp.concatenate([p[::SHOWN], e[None]])), path, end
        )

    @jax.jit
    def field_of(points: jax.Array, proxies: jax.Array) -> jax.Array:
        def at(probe: jax.Array) -> jax.Array:
            probe = to_sphere(probe)  # where the first point, of class 0, is put
            force = forces((points.at[0].set(probe), proxies), jax.random.key(1))[0][0]
            return jax.jvp(to_plane, (probe,), (force,))[1]

        return jax.lax.map(at, PROBES, batch_size=len(PROBES) // 3)

    flat = proxies.reshape(-1, 3)
    path, proxy_path = descend(points, flat)
    return path, proxy_path, field_of(points, flat)
