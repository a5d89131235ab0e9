"""How much of a model learns, and what memory that takes, told before the first step."""

from typing import Any

import jax
import numpy as np

from jdml.distributed import Tree
from jdml.training.step_config import StepSpec

MB = 1e6


def told(spec: StepSpec, state: Any, step: Any, batch: tuple[Any, ...]) -> str:
    """Say how many of the model's parameters learn, and what memory a step takes.

    Args:
        spec: what the step is made from.
        state: before it.
        step: compiled by its first call, or here.
        batch: its arguments after the state.

    Returns:
        One line: the parameters', the optimizer's, and what the step needs beside them: activations, gradients, a
        batch.
    """
    learning, frozen = (part["model"] for part in spec.split(state.params))
    learns, stays = (
        sum(leaf.size for leaf in jax.tree.leaves(part)) for part in (learning, frozen)
    )
    more = step.lower(state, *batch).compile().memory_analysis()
    parts = {"parameters": _bytes(state.params), "optimizer": _bytes(state.opt_state)}
    if more is not None:
        parts["a step"] = more.temp_size_in_bytes
    memory = ", ".join(f"{name} {size / MB:,.1f} MB" for name, size in parts.items())
    return f"learns {learns:,} of the network's {learns + stays:,} parameters; memory: {memory}"


def _bytes(tree: Tree) -> int:
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
