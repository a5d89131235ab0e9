"""The demo: four methods learn digits from the labels even and odd only; which of them still tell the digits apart?

Class collapse in one picture. Even and odd are classes with three modes each. A loss that pulls every positive pair
together merges the modes; easy positive sampling (EPS) pulls each sample to its nearest positive only, and keeps them.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SEEN = (0, 1, 2, 3, 4, 5)
METRICS = ("R@1", "MAP@R")
PARTS = ("seen", "unseen")
BATCH = 64
LEARNING_RATE = 1e-3
MARGIN = 0.2

Embed = Callable[[np.ndarray], np.ndarray]
Scores = dict[str, float]


@dataclass(frozen=True)
class Method:
    """One method of the demo.

    Attributes:
        name: as the table shows it.
        objective: what it minimizes.
        on_sphere: whether it measures directions only (embeddings of length 1).
    """

    name: str
    objective: Any
    on_sphere: bool


def methods() -> list[Method]:
    """Return the demo's four methods: triplet without and with EPS, MS with EPS, ProxyAnchor."""
    from jdml.losses import multi_similarity_loss, proxy_anchor_loss, triplet_loss
    from jdml.mining import (
        chain,
        easy_positive,
        multi_similarity_pairs,
        random_positive,
        semi_hard_negative,
    )
    from jdml.objectives import pair, proxy
    from jdml.optim import partition_by_role  # noqa: F401

    negatives = semi_hard_negative(MARGIN)
    triplet = {"margin": MARGIN, "normalize": None}
    ms_negatives = multi_similarity_pairs(mine_positives=False)
    return [
        Method("triplet", pair(triplet_loss, mine=chain(random_positive(), negatives), **triplet), False),
        Method("triplet + EPS", pair(triplet_loss, mine=chain(easy_positive(), negatives), **triplet), False),
        Method("MS + EPS", pair(multi_similarity_loss, mine=chain(easy_positive(), ms_negatives)), True),
        Method("ProxyAnchor", proxy(proxy_anchor_loss, num_classes=2, dim=2), True),
    ]
