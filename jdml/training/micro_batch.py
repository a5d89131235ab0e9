"""Large batches with the activations of small ones: some rows go through the network at a time, the loss sees all."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from jdml.distributed import Tree
from jdml.models.adapters import Model, embed_in_training


def in_turns(function: Callable[[Tree, jax.Array], Tree], rows: Tree, size: int) -> Tree:
    """``function(rows, 0)``, of so many rows at a time, and computed again for its gradient.

    Args:
        function: of rows ``[size, …]`` and the number of the turn; row by row.
        rows: arrays ``[B, …]``.
        size: rows at a time.

    Returns:
        The results ``[B, …]``.

    Implementation notes:
        Turn t takes the rows t, t + T, t + 2T, … of T turns, so that on a mesh each device has a share of every turn in
        the rows that it holds. All rows in one turn are computed once.

    Reference:
        Gao, Zhang, Han & Callan, *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup* (GradCache).

    Example:
        >>> print(in_turns(lambda x, turn: 2 * x + turn, jnp.arange(5), 2))
        [0 3 6 6 9]
    """
    number = len(jax.tree.leaves(rows)[0])
    turns = -(-number // size)
    if turns == 1:
        return function(rows, jnp.zeros((), jnp.int32))

    def cut(part: jax.Array) -> jax.Array:
        # With rows that there are: at others, such as 0, a network may have no derivative.
        more = turns * size - number
        part = jnp.pad(part, [(0, more)] + [(0, 0)] * (part.ndim - 1), mode="edge")
        return part.reshape(size, turns, *part.shape[1:]).swapaxes(0, 1)

    def joined(part: jax.Array) -> jax.Array:
        return part.swapaxes(0, 1).reshape(-1, *part.shape[2:])[:number]

    again = jax.checkpoint(lambda part: function(*part), prevent_cse=False)
    parts = jax.lax.map(again, (jax.tree.map(cut, rows), jnp.arange(turns)))
    return jax.tree.map(joined, parts)


def check_rows_apart(model: Model, variables: Mapping[str, Tree], images: Tree, why: str) -> None:
    """Refuse a model whose running statistics change in training: its rows depend on each other.

    Args:
        model: with ``apply``.
        variables: its parameters and statistics.
        images: one row, preprocessed.
        why: what the rows are apart for, which begins the message.

    Raises:
        ValueError: batch normalization that is not frozen.
    """

    def statistics(stats: Tree) -> Tree:
        key = jax.random.key(0)
        return embed_in_training(model, variables["params"], stats, images, key)[1]

    traced = jax.make_jaxpr(statistics)(variables["batch_stats"]).jaxpr
    if traced.outvars != traced.invars:
        raise ValueError(
            f"{why}: the rows of a batch must not depend on each other, but the model's batch normalization is "
            "trained; freeze it (freeze_batch_norm=True) or take a model without"
        )
