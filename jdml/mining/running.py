"""How a miner runs: row by row on all devices, with a random key for each row."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jdml.mining.pairs import Miner, Pairs
from jdml.ops import meshes
from jdml.ops.keys import portable_key


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
        ``[B]`` keys, of the implementation whose draws do not depend on their neighbours (``jdml.ops.keys``).

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
