"""Objectives: a loss together with what it learns, as optax pairs ``init`` and ``update``.

A training step needs nothing else to serve every method::

    objective = jdml.objectives.proxy(jdml.proxy_anchor_loss, num_classes=100, dim=128)
    params = objective.init(jax.random.key(0))          # {"proxies": [100, 1, 128]}
    loss, metrics = objective.loss(params, embeddings, labels)

Objectives nest: :func:`with_memory` takes any pair objective and gives one that also compares with past batches.
"""

from jdml.objectives.base import LossFn, Metrics, Objective, Params, pair, proxy
from jdml.objectives.nir import NirState, with_nir
from jdml.objectives.reference_objectives import (
    MemoryState,
    as_anchor_objective,
    as_proxy_objective,
    with_memory,
)

__all__ = [
    "LossFn",
    "MemoryState",
    "Metrics",
    "NirState",
    "Objective",
    "Params",
    "as_anchor_objective",
    "as_proxy_objective",
    "pair",
    "proxy",
    "with_memory",
    "with_nir",
]
