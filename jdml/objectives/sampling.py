"""Some of very many classes: those of the batch, and others that are drawn anew at each step."""

import jax
import jax.numpy as jnp
from jax import Array

from jdml.losses.assignment import rows_of_classes
from jdml.ops import checks
from jdml.ops.keys import portable_key
from jdml.ops.meshes import NOWHERE, Axis, as_axis, from_parts

Drawn = tuple[Array, Array]


def sample_classes(
    proxies: Array,
    labels: Array,
    number: int,
    *,
    key: Array | None,
    where: Array | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> Drawn:
    """Return ``[S, K, D]``, the proxies of a batch's classes and of random others, and the labels ``[B]`` among them.

    S is rounded up to a multiple of the devices, each of which draws among its own classes where they divide C; rows
    that do not count have label −1.

    Reference:
        An et al., *Killing Two Birds with One Stone: Efficient and Robust Training of Face Recognition CNNs by
        Partial FC*.
    """
    axis = as_axis(axis_name)
    proxies = jnp.asarray(proxies)
    by_class = axis.holds_part("proxies", proxies)
    classes = len(proxies) * (axis.size if by_class else 1)
    checks.check_classes(labels, classes, "proxies", where)
    labels = checks.widen_labels(labels)
    rows = rows_of_classes(labels, where, classes)
    checked_key = checks.check_key("key", key, needed_by=f"sampled_classes={number}")
    drawn_key = portable_key(checked_key)
    labels = jnp.where(rows, labels, -1).astype(jnp.int32)

    def draw(axis: Axis, proxies: Array, others: Drawn) -> Drawn:
        return _draw(axis, proxies, *others, number=number)

    if not axis.names:
        return from_parts(draw, proxies, (labels, drawn_key))
    everyone = axis.rows(labels)
    drawn, among = draw(axis if by_class else NOWHERE, proxies, (everyone, drawn_key))
    return drawn, axis.local_slice(among)


def _draw(axis: Axis, proxies: Array, labels: Array, key: Array, *, number: int) -> Drawn:
    """This device's share: its classes that are in the batch, and others of its own."""
    here, rows = len(proxies), len(labels)
    each = min(-(-number // axis.size), here)
    if each < min(rows, here):
        raise ValueError(
            f"sampled_classes must be at least {rows * axis.size}, as all classes of a batch of {rows} rows may lie on "
            f"one of {axis.size} devices, got {number}"
        )
    place = labels - axis.index * here
    mine = (labels >= 0) & (place >= 0) & (place < here)
    place = jnp.where(mine, place, here)
    present = jnp.zeros(here + 1, bool).at[place].set(True)[:here]
    scores = jax.random.uniform(jax.random.fold_in(key, axis.index), (here,))
    chosen = jnp.sort(jax.lax.top_k(jnp.where(present, 2.0, scores), each)[1])
    among = jnp.where(mine, jnp.searchsorted(chosen, place) + axis.index * each + 1, 0)
    return proxies[chosen], axis.total(among.astype(jnp.int32)) - 1
