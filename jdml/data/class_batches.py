"""An epoch of classes × samples: which classes share a batch, and which of their rows it shows."""

from typing import NamedTuple

import numpy as np


class Classes(NamedTuple):
    """Classes that may share a batch: rows by class, sizes, groups to show each class once, batches of an epoch."""

    rows: np.ndarray
    sizes: np.ndarray
    groups: np.ndarray
    batches: int


def classes_of(
    rows: np.ndarray,
    labels: np.ndarray,
    classes_per_batch: int,
    samples_per_class: int,
    *,
    pads: bool,
    power: float | None,
) -> Classes:
    """Sort rows by class; refuse fewer than P classes and a class of fewer than S samples."""
    classes, sizes = np.unique(labels, return_counts=True)
    if classes_per_batch > len(classes):
        raise ValueError(
            f"classes_per_batch must be at most the number of classes {len(classes)}, "
            f"got {classes_per_batch}"
        )
    smallest = sizes.argmin()
    if not pads and samples_per_class > sizes[smallest]:
        raise ValueError(
            f"samples_per_class must be at most the size of every class, got {samples_per_class}: "
            f"class {classes[smallest]} has {sizes[smallest]} samples"
        )
    groups = -(-sizes // samples_per_class)
    batches = -(-int(groups.sum()) // classes_per_batch)
    if power is None:
        batches = max(int(groups.max()), batches)
    return Classes(rows[np.argsort(labels, kind="stable")], sizes, groups, batches)


def draw_epoch(
    classes: Classes,
    classes_per_batch: int,
    samples_per_class: int,
    power: float | None,
    random: np.random.Generator,
) -> np.ndarray:
    """Draw all batches of an epoch: rows ``[T, P · S]``, −1 where a place is empty."""
    shape = classes.batches, classes_per_batch
    if power is None:
        groups = _share_slots(classes.groups, shape[0] * shape[1], random)
    else:
        groups = _share_by_weight(classes.sizes.astype(float) ** power, shape, random)
    slots = _assign_classes(groups, shape, random)
    order = np.argsort(slots, axis=None, kind="stable")
    batches = np.empty((slots.size, samples_per_class), np.int32)
    batches[order] = _assign_rows(classes, groups, samples_per_class, random)
    return batches.reshape(shape[0], -1)


def _share_slots(groups: np.ndarray, slots: int, random: np.random.Generator) -> np.ndarray:
    """Raise the classes' numbers of groups, always the smallest, until they fill all slots."""
    ascending = np.sort(groups)
    below = np.arange(1, len(groups) + 1)
    # Slots that are taken where the k smallest classes are as large as the k-th.
    taken = ascending * below + ascending.sum() - np.cumsum(ascending)
    number = int(below[taken <= slots][-1])
    level = int(ascending[number - 1] + (slots - taken[number - 1]) // number)
    groups = np.maximum(groups, level)
    while free := slots - int(groups.sum()):
        groups[random.permutation(np.flatnonzero(groups == groups.min()))[:free]] += 1
    return groups


def _share_by_weight(
    weights: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """Share all slots in proportion to weights, at most one a batch and class; fractions of slots by lot."""
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
    """Assign classes to batches ``[T, P]``: class c to groups[c] of them, distinct within each; ``O(T · P)``."""
    batches, per_batch = shape
    order = random.permutation(len(groups))
    queue = np.repeat(order, groups[order]).reshape(per_batch, batches)
    slots = np.empty(shape, np.int64)
    turn = random.permutation(batches)
    slots[turn, 0] = queue[0]
    for slot in range(1, per_batch):
        present = turn[queue[slot - 1] == queue[slot, 0]]
        again = np.count_nonzero(queue[slot] == queue[slot, 0]) if len(present) else 0
        turn = random.permutation(batches)
        first = np.flatnonzero(~np.isin(turn, present))[:again]
        turn = np.concatenate([turn[first], np.delete(turn, first)])
        slots[turn, slot] = queue[slot]
    return slots


def _assign_rows(
    classes: Classes, groups: np.ndarray, size: int, random: np.random.Generator
) -> np.ndarray:
    """Assign each class's rows to its slots, ``[slots, size]`` by class."""
    shuffles = -(-groups // classes.groups)
    deck_class = np.repeat(np.arange(len(groups)), shuffles)
    deck_size = classes.sizes[deck_class]
    deck_begin = _before(deck_size)
    deck = np.repeat(np.arange(len(deck_class)), deck_size)
    within = np.arange(len(deck)) - deck_begin[deck]
    rows = classes.rows[_before(classes.sizes)[deck_class[deck]] + within]
    rows = rows[np.lexsort((random.random(len(rows)), deck))]

    slot_class = np.repeat(np.arange(len(groups)), groups)
    turn = np.arange(len(slot_class)) - _before(groups)[slot_class]
    shuffle, group = np.divmod(turn, classes.groups[slot_class])
    begin = deck_begin[_before(shuffles)[slot_class] + shuffle][:, None]
    there = classes.sizes[slot_class][:, None]
    places = group[:, None] * size + np.arange(size)
    return np.where(np.arange(size) < there, rows[begin + places % there], -1)


def _before(counts: np.ndarray) -> np.ndarray:
    """Count how many come before each."""
    before: np.ndarray = np.cumsum(counts) - counts
    return before
