"""Pairs of a batch, and what narrows them down; how a miner runs, and the random keys that it draws by."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.ops import checks, meshes


class Pairs(NamedTuple):
    """The pairs between ``B`` anchors and ``R`` references that take part in a loss.

    Attributes:
        positive: ``[B, R]`` bool, pairs of one class.
        negative: ``[B, R]`` bool, pairs of different classes.
    """

    positive: Array
    negative: Array


class Miner(Protocol):
    """Anything that narrows pairs down, given a random key (or None) and the distances."""

    def __call__(self, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
        """Keep some of ``pairs``."""
        ...


def all_pairs(
    labels: Array,
    reference_labels: Array | None = None,
    *,
    where: Array | None = None,
    reference_where: Array | None = None,
) -> Pairs:
    """Make all pairs between anchors and references: positive where the labels agree, negative elsewhere.

    Args:
        labels: ``[B]`` integers; a negative label marks a row that is not valid.
        reference_labels: ``[R]`` integers; default: the batch itself, each row excluded from its own pairs by index.
        where: ``[B]`` bool, the valid rows; default all.
        reference_where: ``[R]`` bool, the valid references; default all (of the batch itself: ``where``).

    Returns:
        Masks ``[B, R]``.

    Raises:
        TypeError: labels that are not integers, masks that are not boolean.
        ValueError: shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> all_pairs(jnp.array([0, 0, 1])).positive.astype(int)
        Array([[0, 1, 0],
               [1, 0, 0],
               [0, 0, 0]], dtype=int32)
    """
    checks.check_labels("labels", labels, jnp.size(labels))
    labels = checks.widen_labels(labels)
    checks.check_mask("where", where, labels.shape)
    rows: Array = labels >= 0 if where is None else where & (labels >= 0)
    own = reference_labels is None
    if reference_labels is None:
        reference_labels, columns = labels, rows
    else:
        checks.check_labels("reference_labels", reference_labels, jnp.size(reference_labels))
        reference_labels = checks.widen_labels(reference_labels, "reference_labels")
        columns = reference_labels >= 0
    checks.check_mask("reference_where", reference_where, jnp.shape(reference_labels))
    if reference_where is not None:
        columns = columns & reference_where

    def of_rows(anchors: tuple[Array, Array, Array], others: tuple[Array, Array]) -> Pairs:
        labels, valid, index = anchors
        reference_labels, columns = others
        both = valid[:, None] & columns[None, :]
        if own:
            both = both & (jnp.arange(columns.size)[None, :] != index[:, None])
        same = labels[:, None] == reference_labels[None, :]
        return Pairs(same & both, ~same & both)

    anchors = (labels, rows, jnp.arange(jnp.size(labels)))
    return meshes.by_rows(of_rows, anchors, (reference_labels, columns))


# How a miner runs: row by row on all devices, with a random key for each row.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rule:
    """A miner: a rule, and the numbers it was built with."""

    rule: Callable[..., Pairs] = dataclasses.field(metadata={"static": True})
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    by_rows = True

    def __call__(self, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
        """Keep what the rule keeps of each row."""

        def of_rows(rows: Any, settings: dict[str, Any]) -> Pairs:
            return self.rule(*rows, **settings)

        rows = (_keys(key, distances), jax.lax.stop_gradient(distances), pairs)
        return meshes.by_rows(of_rows, rows, self.settings)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GuidedMiner:
    """A miner that looks at other distances ``[B, R]`` than those of the embeddings: a teacher's."""

    miner: Miner
    distances: Array

    def __call__(self, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
        """Keep what the miner keeps by its own distances."""
        if self.distances.shape != distances.shape:
            raise ValueError(
                f"the miner's embeddings must have the batch's rows: pairs {list(distances.shape)}, "
                f"got {list(self.distances.shape)}"
            )
        return self.miner(key, self.distances, pairs)

    def transpose(self) -> "GuidedMiner":
        """The same where references are the anchors."""
        return GuidedMiner(self.miner, self.distances.T)


def transpose(miner: Any) -> Any:
    """A miner of the same pairs, seen from the references."""

    def is_guided(part: Any) -> bool:
        return isinstance(part, GuidedMiner)

    return jax.tree.map(lambda m: m.transpose() if is_guided(m) else m, miner, is_leaf=is_guided)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chain:
    """Miners that run in turn."""

    miners: tuple[Miner, ...]

    @property
    def by_rows(self) -> bool:
        """Whether all of them choose by rows."""
        return all(is_by_rows(miner) for miner in self.miners)

    def __call__(self, key: Array | None, distances: Array, pairs: Pairs) -> Pairs:
        """Keep what all of them keep."""
        key = _keys(key, distances) if self.by_rows else key
        for turn, miner in enumerate(self.miners):
            pairs = miner(_fold(key, turn), distances, pairs)
        return pairs


def is_by_rows(miner: Miner) -> bool:
    """Tell whether a miner chooses each row's pairs by that row alone, and draws by keys per row.

    Args:
        miner: any miner. Those of :mod:`jdml.mining` do, and any with an attribute ``by_rows`` that is True; they can
            see some rows at a time. Others are shown all rows of a batch at once, on every device.

    Returns:
        A boolean.

    Example:
        >>> from jdml.mining import easy_positive
        >>> is_by_rows(easy_positive()), is_by_rows(lambda key, distances, pairs: pairs)
        (True, False)
    """
    return bool(getattr(miner, "by_rows", False))


def row_keys(key: Array, index: Array) -> Array:
    """Make a random key for each row of a batch, the same whichever rows are looked at together.

    Args:
        key: one key, of any implementation.
        index: ``[B]`` integers, the rows' places in the batch.

    Returns:
        ``[B]`` keys, of the implementation whose draws do not depend on their neighbours.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> some, all_of_them = (row_keys(jax.random.key(0), jnp.arange(*ends)) for ends in ((2, 3), (4,)))
        >>> bool(some[0] == all_of_them[2])
        True
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(portable_key(key), index)


def _keys(key: Array | None, distances: Array) -> Array | None:
    """Keys per row, from one key or from keys per row."""
    if key is None:
        return None
    key = portable_key(key)
    return key if key.ndim == 1 else row_keys(key, jnp.arange(distances.shape[0]))


def _fold(key: Array | None, turn: int) -> Array | None:
    if key is None:
        return None
    key = portable_key(key)
    return jax.random.fold_in(key, turn) if key.ndim == 0 else fold_each(key, turn)


def fold_each(keys: Array, turn: int) -> Array:
    """Keys per row for a turn, from keys per row."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, turn)


THREEFRY = "threefry2x32"


def portable_key(key: Array) -> Array:
    """Make a threefry key of any key: its draws are the same alone, under ``vmap``, in blocks and on every mesh.

    The generators of ``rbg`` and ``unsafe_rbg`` keys, which TPUs are often set to, draw a whole array from the first
    key under ``vmap``, so that a row's draws would depend on the rows that it is drawn with.
    """
    if not isinstance(key, Array | np.ndarray):
        raise TypeError(f"key must be a key such as jax.random.key(0), got {key!r}")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed and (key.dtype != np.uint32 or key.shape[-1:] not in ((2,), (4,))):
        kind = f"{key.dtype} of shape {list(key.shape)}"
        raise TypeError(f"key must be a key such as jax.random.key(0), got {kind}")
    words = jax.random.key_data(key) if typed else jnp.asarray(key)
    portable = jax.random.wrap_key_data(words[..., :2], impl=THREEFRY)
    for place in range(2, words.shape[-1]):
        portable = _fold_in(portable, words[..., place])
    return portable


def _fold_in(keys: Array, words: Array) -> Array:
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold)
    return fold(keys, words)
