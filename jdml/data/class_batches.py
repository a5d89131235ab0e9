"""An epoch of classes × samples: which classes share a batch, and which of their rows."""

import math

import numpy as np


class ClassBatches:
    """The classes that may stand in one batch, P of them with S samples each, T batches in an epoch."""

    def __init__(
        self,
        rows: np.ndarray,
        labels: np.ndarray,
        shape: tuple[int, int],
        *,
        pads: bool,
        power: float | None,
    ) -> None:
        """Sort rows by class, and count the batches of an epoch; the shape is P, S."""
        classes, sizes = np.unique(labels, return_counts=True)
        per_batch, self.samples = shape
        if per_batch > len(classes):
            raise ValueError(f"classes_per_batch must be at most {len(classes)}, got {per_batch}")
        smallest = sizes.argmin()
        if not pads and self.samples > sizes[smallest]:
            raise ValueError(
                f"samples_per_class must be at most the size of every class, got {self.samples}: "
                f"class {classes[smallest]} has {sizes[smallest]} samples"
            )
        self.groups = -(-sizes // self.samples)
        batches = -(-int(self.groups.sum()) // per_batch)
        if power is None:
            batches = max(int(self.groups.max()), batches)
        self.shape = batches, per_batch
        self.weights = None if power is None else sizes.astype(float) ** power
        self.rows = np.split(rows[np.argsort(labels, kind="stable")], np.cumsum(sizes)[:-1])

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Draw all batches of an epoch, ``[T, P · S]``."""
        if self.weights is None:
            groups = self.groups.copy()  # always the smallest rise, until all slots are filled
            while free := math.prod(self.shape) - int(groups.sum()):
                groups[random.permutation(np.flatnonzero(groups == groups.min()))[:free]] += 1
        else:
            groups = _share_by_weight(self.weights, self.shape, random)
        slots = _assign_classes(groups, self.shape, random)
        order = np.argsort(slots, axis=None, kind="stable")
        batches = np.empty((slots.size, self.samples), np.int32)
        drawn = zip(self.rows, groups, strict=True)
        batches[order] = np.concatenate(
            [_assign_rows(rows, count, self.samples, random) for rows, count in drawn]
        )
        return batches.reshape(self.shape[0], -1)


def _share_by_weight(
    weights: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """Share all slots in proportion to weights, at most one a batch to a class; fractions are drawn."""
    batches, slots = shape[0], shape[0] * shape[1]
    full = np.zeros(len(weights), bool)
    while True:
        left = slots - batches * np.count_nonzero(full)
        shares = np.where(full, 0.0, weights)
        shares *= left / max(shares.sum(), np.finfo(float).tiny)
        above = ~full & (shares > batches - 1e-6)
        if not above.any():
            break
        full |= above
    order = random.permutation(len(weights))
    ends = np.cumsum(shares[order])
    ends[-1] = left
    groups = np.empty(len(weights), np.int64)
    groups[order] = np.diff(np.floor(ends + random.random()), prepend=0.0)
    return np.where(full, batches, groups)


def _assign_classes(
    groups: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """Draw the classes of each batch ``[T, P]``: class c in groups[c] of them, distinct within each."""
    left = groups.copy()
    slots = np.empty(shape, np.int64)
    for batch in range(shape[0]):
        step = shape[0] - batch
        order = random.permutation(len(left))
        points = random.integers(step) + step * np.arange(shape[1])
        slots[batch] = order[np.searchsorted(np.cumsum(left[order]), points, side="right")]
        left[slots[batch]] -= 1
    return slots


def _assign_rows(
    rows: np.ndarray, groups: int, size: int, random: np.random.Generator
) -> np.ndarray:
    """Assign a class's rows to ``[groups, size]``, shuffle after shuffle, none twice in a group; −1 where they lack."""
    if len(rows) < size:
        rows = np.concatenate([rows, np.full(size - len(rows), -1, rows.dtype)])
        shuffles = [random.permutation(rows) for _ in range(groups)]
        return np.array(shuffles, np.int32).reshape(-1, size)
    assigned = np.empty((groups, size), np.int32)
    deck = random.permutation(rows)
    for group in range(groups):
        if len(deck) < size:
            again = random.permutation(rows)
            repeated = np.isin(again, deck)
            deck = np.concatenate([deck, again[~repeated], again[repeated]])
        assigned[group], deck = deck[:size], deck[size:]
    return assigned
