"""Batches with anchors of every class in front."""

import numpy as np

from jdml.data.dataset import as_labels
from jdml.data.samplers import EpochSampler
from jdml.ops import checks


class AnchorBatchSampler(EpochSampler):
    """The batches of another sampler, each with K anchor samples of every class in front.

    For :func:`jdml.objectives.as_anchor_objective`, which compares the former with the latter.

    Args:
        sampler: whose batches follow the anchors.
        labels: integers ≥ 0, ``[N]``.
        per_class: K ≥ 1. A class of fewer samples has all of them, and the row −1, which training leaves out, in the
            places that are left.
        renew_every: steps after which other anchors are drawn; None: they stay for the whole run.
        seed: an integer ≥ 0.

    Attributes:
        num_anchors: rows of anchors in each batch, K · C.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a number is too small, or the sampler is of other data.

    Example:
        >>> from jdml.data import RandomBatchSampler
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> sampler = AnchorBatchSampler(RandomBatchSampler(labels, 2), labels, per_class=1)
        >>> batch = next(sampler)
        >>> labels[batch[:sampler.num_anchors]], batch.shape
        (array([0, 1]), (4,))
    """

    def __init__(
        self,
        sampler: EpochSampler,
        labels: np.ndarray,
        per_class: int,
        *,
        renew_every: int | None = None,
        seed: int = 0,
    ) -> None:
        """See the class."""
        super().__init__(seed)
        labels = as_labels("labels", labels)
        checks.count("per_class", per_class)
        checks.optional(checks.count)("renew_every", renew_every)
        there = sampler.get_state().get("num_samples", len(labels))
        if there > len(labels):
            raise ValueError(
                f"labels must be those of the sampler's data: it has {there} samples, got {len(labels)} labels"
            )
        self._members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self._sampler, self._per_class, self._every = sampler, int(per_class), renew_every
        self.num_anchors = len(self._members) * self._per_class
        self.batch_size = self.num_anchors + sampler.batch_size
        self.batches_per_epoch = sampler.batches_per_epoch

    def epoch(self, number: int) -> np.ndarray:
        """Give all batches of an epoch: int32 row indices ``[batches_per_epoch, batch_size]``."""
        first = number * self.batches_per_epoch
        turns = np.arange(first, first + self.batches_per_epoch) // (self._every or np.inf)
        drawn = {int(turn): self._anchors(int(turn)) for turn in np.unique(turns)}
        anchors = np.stack([drawn[int(turn)] for turn in turns])
        return np.concatenate([anchors, self._sampler.epoch(number)], axis=1)

    def _anchors(self, turn: int) -> np.ndarray:
        rng = np.random.default_rng([self._seed, turn, 2])
        rows = np.full((len(self._members), self._per_class), -1, np.int32)
        for of_class, members in enumerate(self._members):
            chosen = rng.permutation(members)[: self._per_class]
            rows[of_class, : len(chosen)] = chosen
        return rows.ravel()

    def _settings(self) -> dict[str, int]:
        inner = self._sampler.get_state()
        own = {"anchors": self.num_anchors, "anchor_seed": self._seed, "renew": self._every or 0}
        return {**{k: v for k, v in inner.items() if k not in ("epoch", "batch")}, **own}
