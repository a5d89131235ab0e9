"""An epoch of classes × samples: which classes share a batch, and which of their rows."""

from typing import NamedTuple

import numpy as np

MANY = 10**8
"""Batches times classes, beyond which an epoch is no longer drawn batch by batch and class by class."""


class Classes(NamedTuple):
    """Classes that may stand in one batch."""

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
    """Sort rows by class."""
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
    """Draw all batches of an epoch."""
    shape = classes.batches, classes_per_batch
    if power is None:
        groups = _share_slots(classes.groups, shape[0] * shape[1], random)
    else:
        groups = _share_by_weight(classes.sizes.astype(float) ** power, shape, random)
    slots = _assign_classes(groups, shape, random)
    order = np.argsort(slots, axis=None, kind="stable")
    deal = _assign_many_rows if shape[0] * len(groups) > MANY else _assign_rows
    batches = np.empty((slots.size, samples_per_class), np.int32)
    batches[order] = deal(classes, groups, samples_per_class, random)
    return batches.reshape(shape[0], -1)


def _share_slots(groups: np.ndarray, slots: int, random: np.random.Generator) -> np.ndarray:
    """Raise the classes' numbers of groups, always the smallest, until they fill all slots."""
    groups = groups.copy()
    if slots * len(groups) > MANY:
        groups = np.maximum(groups, _level(groups, slots))
    while free := slots - int(groups.sum()):
        groups[random.permutation(np.flatnonzero(groups == groups.min()))[:free]] += 1
    return groups


def _level(groups: np.ndarray, slots: int) -> int:
    """The highest number up to which all classes may be raised without more than all slots being taken."""
    ascending = np.sort(groups)
    below = np.arange(1, len(groups) + 1)
    # Slots that are taken where the k smallest classes are as large as the k-th.
    taken = ascending * below + ascending.sum() - np.cumsum(ascending)
    number = int(below[taken <= slots][-1])
    return int(ascending[number - 1] + (slots - taken[number - 1]) // number)


def _share_by_weight(
    weights: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """Share all slots in proportion to weights, to no class more than there are batches; parts of slots by lot."""
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
    """The classes of each batch ``[T, P]``: class c in groups[c] of them, distinct within each."""
    if shape[0] * len(groups) > MANY:
        return _assign_many_classes(groups, shape, random)
    left = groups.copy()
    slots = np.empty(shape, np.int64)
    for batch in range(shape[0]):
        step = shape[0] - batch
        order = random.permutation(len(left))
        points = random.integers(step) + step * np.arange(shape[1])
        slots[batch] = order[np.searchsorted(np.cumsum(left[order]), points, side="right")]
        left[slots[batch]] -= 1
    return slots


def _assign_many_classes(
    groups: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """The same in ``O(T · P)``: classes queue in a random order, slot by slot of all batches.

    All batches' first slots are taken in a random order of the batches, then their second ones in another, and so on.
    A class that takes a batch's slot and continues in the next round continues in batches where it is not yet.
    """
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
        free = ~np.isin(turn, present)
        first = np.flatnonzero(free)[:again]
        turn = np.concatenate([turn[first], np.delete(turn, first)])
        slots[turn, slot] = queue[slot]
    return slots


def _assign_rows(
    classes: Classes, groups: np.ndarray, size: int, random: np.random.Generator
) -> np.ndarray:
    """Deal each class's rows to its slots, ``[slots, size]`` by class."""
    members = np.split(classes.rows, np.cumsum(classes.sizes)[:-1])
    return np.concatenate(
        [_deal(rows, slots, size, random) for rows, slots in zip(members, groups, strict=True)]
    )


def _assign_many_rows(
    classes: Classes, groups: np.ndarray, size: int, random: np.random.Generator
) -> np.ndarray:
    """The same of all classes at once: shuffle after shuffle, the last group of each filled with its own first rows."""
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
    """How many come before each."""
    before: np.ndarray = np.cumsum(counts) - counts
    return before


def _deal(rows: np.ndarray, groups: int, size: int, random: np.random.Generator) -> np.ndarray:
    """Deal a class's rows into ``[groups, size]``, shuffle after shuffle, none twice in a group.

    A class smaller than a group comes whole, with −1 in the places that are left.
    """
    if len(rows) < size:
        rows = np.concatenate([rows, np.full(size - len(rows), -1, rows.dtype)])
        return np.array([random.permutation(rows) for _ in range(groups)], np.int32).reshape(
            -1, size
        )
    dealt = np.empty((groups, size), np.int32)
    deck = random.permutation(rows)
    for group in range(groups):
        if len(deck) < size:
            again = random.permutation(rows)
            held = np.isin(again, deck)
            deck = np.concatenate([deck, again[~held], again[held]])
        dealt[group], deck = deck[:size], deck[size:]
    return dealt
