"""Property checks for losses and miners: this library's own, and yours.

A metric-learning loss has more ways to be wrong than a wrong value: a NaN gradient when two
embeddings coincide, a padded row that leaks, a batch order that matters, a recompilation for
every new margin, a hidden ``[B, R, D]`` array. ``check_loss`` tries them all on a small random batch
and raises an ``AssertionError`` that says which property failed:

    from jdml.testing import check_loss
    check_loss(my_loss, kind="pair", margin=0.2)

Each property is a function of its own on a ``LossCase``; ``LOSS_CHECKS`` names them. ``check_miner``
does the same for miners. Needs chex (``pip install chex``), imported on first use.
"""

from jdml.testing.case import LossCase
from jdml.testing.losses import (
    LOSS_CHECKS,
    check_degenerate,
    check_dtypes,
    check_gradients,
    check_invariance,
    check_jit,
    check_loss,
    check_mask,
    check_memory,
    check_reductions,
    check_references,
    check_traces,
    check_transforms,
)
from jdml.testing.miners import check_miner

__all__ = [
    "LOSS_CHECKS",
    "LossCase",
    "check_degenerate",
    "check_dtypes",
    "check_gradients",
    "check_invariance",
    "check_jit",
    "check_loss",
    "check_mask",
    "check_memory",
    "check_miner",
    "check_reductions",
    "check_references",
    "check_traces",
    "check_transforms",
]
