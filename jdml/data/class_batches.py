"""An epoch of classes × samples: which classes sit in which batch, and which of their rows."""

from typing import NamedTuple

import numpy as np

MANY = 10**8
"""Batches times classes, beyond which an epoch is no longer drawn batch by batch and class by class."""


class Classes(NamedTuple):
    """Classes that may stand in one batch.

    Attributes:
        rows: of the data set, by class.
        sizes: how many of them each class has.
        groups: in how many groups of a batch each class is shown once.
        batches: in an epoch.
    """

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
    """Sort rows by class.

    Args:
        rows: of the data set.
        labels: theirs.
        classes_per_batch: P.
        samples_per_class: S.
        pads: whether a class may have fewer.
        power: as :class:`jdml.data.ClassBatchSampler` has it.

    Returns:
        The classes.

    Raises:
        ValueError: fewer than P classes, a class of fewer than S samples.
    """
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
    """Draw all batches of an epoch.

    Args:
        classes: that may stand in one batch.
        classes_per_batch: P.
        samples_per_class: S.
        power: as :class:`jdml.data.ClassBatchSampler` has it.
        random: the epoch's.

    Returns:
        Rows ``[T, P · S]``, −1 where a place is empty.
    """
    shape = classes.batches, classes_per_batch
    if power is None:
        groups = _share_seats(classes.groups, shape[0] * shape[1], random)
    else:
        groups = _share_by_weight(classes.sizes.astype(float) ** power, shape, random)
    seats = _seat_classes(groups, shape, random)
    order = np.argsort(seats, axis=None, kind="stable")
    deal = _deal_many if shape[0] * len(groups) > MANY else _deal_each
    batches = np.empty((seats.size, samples_per_class), np.int32)
    batches[order] = deal(classes, groups, samples_per_class, random)
    return batches.reshape(shape[0], -1)


def _share_seats(groups: np.ndarray, seats: int, random: np.random.Generator) -> np.ndarray:
    """Raise the classes' numbers of groups, always the smallest, until they fill all seats."""
    groups = groups.copy()
    if seats * len(groups) > MANY:
        groups = np.maximum(groups, _level(groups, seats))
    while free := seats - int(groups.sum()):
        groups[random.permutation(np.flatnonzero(groups == groups.min()))[:free]] += 1
    return groups


def _level(groups: np.ndarray, seats: int) -> int:
    """The highest number up to which all classes may be raised without more than all seats being taken."""
    ascending = np.sort(groups)
    below = np.arange(1, len(groups) + 1)
    # Seats that are taken where the k smallest classes are as large as the k-th.
    taken = ascending * below + ascending.sum() - np.cumsum(ascending)
    number = int(below[taken <= seats][-1])
    return int(ascending[number - 1] + (seats - taken[number - 1]) // number)


def _share_by_weight(
    weights: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """Share all seats in proportion to weights, to no class more than there are batches; parts of seats by lot."""
    batches, seats = shape[0], shape[0] * shape[1]
    full = np.zeros(len(weights), bool)
    while True:
        left = seats - batches * np.count_nonzero(full)
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


def _seat_classes(
    groups: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """The classes of each batch ``[T, P]``: class c in groups[c] of them, distinct within each."""
    if shape[0] * len(groups) > MANY:
        return _seat_many_classes(groups, shape, random)
    left = groups.copy()
    seats = np.empty(shape, np.int64)
    for batch in range(shape[0]):
        step = shape[0] - batch
        order = random.permutation(len(left))
        points = random.integers(step) + step * np.arange(shape[1])
        seats[batch] = order[np.searchsorted(np.cumsum(left[order]), points, side="right")]
        left[seats[batch]] -= 1
    return seats


def _seat_many_classes(
    groups: np.ndarray, shape: tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """The same in ``O(T · P)``: classes sit down in a random order, seat by seat of all batches.

    All batches' first seats are taken in a random order of the batches, then their second ones in another, and so on.
    A class that takes a batch's seat and goes on in the next round goes on in batches where it does not sit yet.
    """
    batches, per_batch = shape
    order = random.permutation(len(groups))
    queue = np.repeat(order, groups[order]).reshape(per_batch, batches)
    seats = np.empty(shape, np.int64)
    turn = random.permutation(batches)
    seats[turn, 0] = queue[0]
    for seat in range(1, per_batch):
        sitting = turn[queue[seat - 1] == queue[seat, 0]]
        again = np.count_nonzero(queue[seat] == queue[seat, 0]) if len(sitting) else 0
        turn = random.permutation(batches)
        free = ~np.isin(turn, sitting)
        first = np.flatnonzero(free)[:again]
        turn = np.concatenate([turn[first], np.delete(turn, first)])
        seats[turn, seat] = queue[seat]
    return seats


def _deal_each(
    classes: Classes, groups: np.ndarray, size: int, random: np.random.Generator
) -> np.ndarray:
    """Deal each class's rows to its seats, ``[seats, size]`` by class."""
    members = np.split(classes.rows, np.cumsum(classes.sizes)[:-1])
    return np.concatenate(
        [_deal(rows, seats, size, random) for rows, seats in zip(members, groups, strict=True)]
    )


def _deal_many(
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

    seat_class = np.repeat(np.arange(len(groups)), groups)
    turn = np.arange(len(seat_class)) - _before(groups)[seat_class]
    shuffle, group = np.divmod(turn, classes.groups[seat_class])
    begin = deck_begin[_before(shuffles)[seat_class] + shuffle][:, None]
    there = classes.sizes[seat_class][:, None]
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
