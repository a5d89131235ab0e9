"""Which rows make up each batch: class-balanced or uniform, reproducible, and resumable anywhere.

A sampler's batches are a pure function of (seed, epoch): its whole state is where it stands, two
integers, and a few more that tell whether a saved state belongs to it.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

import numpy as np

from jdml.data.dataset import as_labels
from jdml.ops import checks

MANY = 10**8
"""Batches times classes, beyond which an epoch's classes are no longer drawn batch by batch."""


class EpochSampler(ABC):
    """An endless iterator over the batches of epoch 0, 1, 2, … with a state of plain integers.

    Attributes:
        batch_size: rows in each batch.
        batches_per_epoch: batches in each epoch.
    """

    batch_size: int
    batches_per_epoch: int

    def __init__(self, seed: int) -> None:
        """Start before the first batch of epoch 0."""
        self._seed = _at_least(0, "seed", seed)
        self._step = 0
        self._epochs: dict[int, np.ndarray] = {}

    @abstractmethod
    def epoch(self, number: int) -> np.ndarray:
        """Give all batches of an epoch: int32 row indices ``[batches_per_epoch, batch_size]``."""

    @abstractmethod
    def _settings(self) -> dict[str, int]:
        """What must agree for a saved state to mean the same batches here."""

    def __iter__(self) -> Iterator[np.ndarray]:
        """The sampler itself: iterating goes on from where it stands."""
        return self

    def __next__(self) -> np.ndarray:
        """The next batch: int32 row indices ``[batch_size]``."""
        batch = self.batch_at(self._step)
        self._step += 1
        return batch

    @property
    def step(self) -> int:
        """How many batches come before the next one, from the beginning of epoch 0; may be set."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = _at_least(0, "step", step)

    def batch_at(self, step: int) -> np.ndarray:
        """Give the batch of any step 0, 1, …: int32 row indices ``[batch_size]``. The sampler stays where it is."""
        number, batch = divmod(_at_least(0, "step", step), self.batches_per_epoch)
        batches = self._epochs.get(number)
        if batches is None:
            batches = self.epoch(number)
            near = {n: drawn for n, drawn in self._epochs.items() if abs(n - number) == 1}
            self._epochs = {**near, number: batches}
        return batches[batch].copy()

    def get_state(self) -> dict[str, int]:
        """Tell where the sampler stands, as a flat dictionary of integers (JSON-able)."""
        epoch, batch = divmod(self._step, self.batches_per_epoch)
        return {"epoch": epoch, "batch": batch, **self._settings()}

    def set_state(self, state: dict[str, int]) -> None:
        """Go to where ``state`` was taken: the batches from here on are the same as there.

        Raises:
            ValueError: if the state is incomplete, was taken from a sampler with other settings or
                data, or points outside an epoch. The sampler is then left as it was.
        """
        settings = self._settings()
        expected = {"epoch", "batch", *settings}
        if set(state) != expected:
            raise ValueError(f"state must have keys {sorted(expected)}, got {sorted(state)}")
        for name, value in settings.items():
            if state[name] != value:
                raise ValueError(
                    f"state is of another sampler: {name} must be {value}, got {state[name]}"
                )
        epoch = _at_least(0, "state['epoch']", int(state["epoch"]))
        batch = _at_least(0, "state['batch']", int(state["batch"]))
        if batch >= self.batches_per_epoch:
            raise ValueError(
                f"state['batch'] must be below batches_per_epoch = {self.batches_per_epoch}, "
                f"got {batch}"
            )
        self._step = epoch * self.batches_per_epoch + batch


class ClassBatchSampler(EpochSampler):
    """Batches of P classes × S samples, forever: an infinite iterator of row indices ``[P · S]``.

    What holds, whatever the sizes of the classes:

    - every batch has P distinct classes with S distinct samples each, grouped by class;
    - every sample of the data set comes up in every epoch, and a class brings up all its samples
      before one of them comes up again, except to fill the last group of S;
    - an epoch has the smallest number of batches with which this is possible, T = max(largest
      class's groups, all groups / P), a class of n samples having ⌈n / S⌉ groups;
    - batches depend on (seed, epoch) alone.

    Args:
        labels: integers ≥ 0, ``[N]``.
        classes_per_batch: P ≥ 1.
        samples_per_class: S ≥ 1.
        seed: an integer ≥ 0.
        small_classes: what a class of fewer than S samples is: ``"refuse"``, an error; ``"pad"``: it brings all
            its samples, and the rest of its S places hold the row −1, which training leaves out.

    Raises:
        TypeError: if labels are not integers.
        ValueError: if there are fewer than P classes, a class has fewer than S samples (the message
            names it), or a number is too small.

    Implementation notes:
        P · T seats are to be filled. The classes' groups come first, and the seats left over go to
        the classes with the fewest groups, so that unequal classes become more equal. With r_c
        groups of class c still to seat in t batches, Σ r_c = P · t and r_c ≤ t, and systematic
        sampling seats class c with probability r_c / t: exactly P distinct classes in each batch,
        in changing company, and a class with r_c = t for certain, so all of them fit. An epoch
        costs O(N + T · C).

    Example:
        >>> sampler = ClassBatchSampler([0, 0, 1, 1, 1, 2, 2], 2, 2, seed=1)
        >>> sampler.batches_per_epoch
        2
        >>> batch = next(sampler)
        >>> len(batch), len(set(batch))
        (4, 4)
        >>> state = sampler.get_state()
        >>> ahead = next(sampler)
        >>> sampler.set_state(state)
        >>> bool((next(sampler) == ahead).all())
        True
    """

    def __init__(
        self,
        labels: np.ndarray,
        classes_per_batch: int,
        samples_per_class: int,
        seed: int = 0,
        *,
        small_classes: Literal["refuse", "pad"] = "refuse",
    ) -> None:
        """See the class."""
        super().__init__(seed)
        if small_classes not in ("refuse", "pad"):
            raise ValueError(f'small_classes must be "refuse" or "pad", got {small_classes!r}')
        labels = as_labels("labels", labels)
        self._pads = small_classes == "pad"
        self._classes_per_batch = _at_least(1, "classes_per_batch", classes_per_batch)
        self._samples_per_class = _at_least(1, "samples_per_class", samples_per_class)
        self._members = _members_by_class(
            labels, classes_per_batch, 1 if self._pads else samples_per_class
        )
        self._groups = np.array([-(-len(rows) // samples_per_class) for rows in self._members])
        self._size = len(labels)
        self._checksum = zlib.crc32(labels.tobytes())
        self.batch_size = classes_per_batch * samples_per_class
        self.batches_per_epoch = max(
            int(self._groups.max()), -(-int(self._groups.sum()) // classes_per_batch)
        )

    def epoch(self, number: int) -> np.ndarray:
        """Give all batches of an epoch: int32 row indices ``[batches_per_epoch, P · S]``."""
        random = np.random.default_rng([self._seed, number])
        shape = self.batches_per_epoch, self._classes_per_batch
        groups = _share_seats(self._groups, shape[0] * shape[1], random)
        seats = _seat_classes(groups, shape, random)
        seats_of_class = np.split(
            np.argsort(seats, axis=None, kind="stable"), np.cumsum(groups)[:-1]
        )
        batches = np.empty((seats.size, self._samples_per_class), np.int32)
        for rows, where in zip(self._members, seats_of_class, strict=True):
            batches[where] = _deal(rows, len(where), self._samples_per_class, random)
        return batches.reshape(self.batches_per_epoch, self.batch_size)

    def _settings(self) -> dict[str, int]:
        return {
            "classes_per_batch": self._classes_per_batch,
            "samples_per_class": self._samples_per_class,
            "seed": self._seed,
            "num_samples": self._size,
            "labels_checksum": self._checksum,
            **({"pads": 1} if self._pads else {}),
        }


class RandomBatchSampler(EpochSampler):
    """Uniform batches without replacement, forever: an infinite iterator of row indices ``[B]``.

    An epoch has ⌊N / B⌋ whole batches, in which no sample comes up twice. The N mod B samples that
    are left over change from epoch to epoch: any two epochs in a row show every sample.

    Args:
        labels_or_size: the number of samples N, or anything with that length (labels).
        batch_size: B, from 1 to N.
        seed: an integer ≥ 0.

    Raises:
        ValueError: if a number is too small or B exceeds N.

    Implementation notes:
        The left-out samples are a window of one fixed shuffle that moves on by its own length every
        epoch. The window is shorter than half the data, so two in a row do not overlap.

    Example:
        >>> sampler = RandomBatchSampler(7, batch_size=3)
        >>> seen = np.concatenate([next(sampler) for _ in range(2 * sampler.batches_per_epoch)])
        >>> len(set(seen))
        7
    """

    def __init__(self, labels_or_size: np.ndarray | int, batch_size: int, seed: int = 0) -> None:
        """See the class."""
        super().__init__(seed)
        is_size = isinstance(labels_or_size, int | np.integer)
        self._size = int(labels_or_size) if is_size else len(labels_or_size)  # type: ignore[arg-type]
        self.batch_size = _at_least(1, "batch_size", batch_size)
        if batch_size > self._size:
            raise ValueError(
                f"batch_size must be at most the number of samples {self._size}, got {batch_size}"
            )
        self.batches_per_epoch = self._size // batch_size
        # Epochs are seeded with [seed, epoch]; the fixed shuffle with one word more.
        self._order = np.random.default_rng([self._seed, 0, 1]).permutation(self._size)

    def epoch(self, number: int) -> np.ndarray:
        """Give all batches of an epoch: int32 row indices ``[batches_per_epoch, batch_size]``."""
        left_over = self._size % self.batch_size
        shown = np.roll(self._order, -number * left_over)[left_over:]
        shuffled = np.random.default_rng([self._seed, number]).permutation(shown)
        return shuffled.astype(np.int32).reshape(self.batches_per_epoch, self.batch_size)

    def _settings(self) -> dict[str, int]:
        return {"batch_size": self.batch_size, "seed": self._seed, "num_samples": self._size}


def _members_by_class(
    labels: np.ndarray, classes_per_batch: int, samples_per_class: int
) -> list[np.ndarray]:
    """The rows of each class, in the order of the class's label; every class has enough."""
    classes, counts = np.unique(labels, return_counts=True)
    if classes_per_batch > len(classes):
        raise ValueError(
            f"classes_per_batch must be at most the number of classes {len(classes)}, "
            f"got {classes_per_batch}"
        )
    smallest = counts.argmin()
    if samples_per_class > counts[smallest]:
        raise ValueError(
            f"samples_per_class must be at most the size of every class, got {samples_per_class}: "
            f"class {classes[smallest]} has {counts[smallest]} samples"
        )
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


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


def _deal(rows: np.ndarray, groups: int, size: int, random: np.random.Generator) -> np.ndarray:
    """Deal a class's rows into ``[groups, size]``, shuffle after shuffle, none twice in a group.

    A class smaller than a group comes whole, with −1 in the places that are left.
    """
    if len(rows) < size:
        rows = np.concatenate([rows, np.full(size - len(rows), -1, rows.dtype)])
        return np.stack([random.permutation(rows) for _ in range(groups)]).astype(np.int32)
    dealt = np.empty((groups, size), np.int32)
    deck = random.permutation(rows)
    for group in range(groups):
        if len(deck) < size:
            again = random.permutation(rows)
            held = np.isin(again, deck)
            deck = np.concatenate([deck, again[~held], again[held]])
        dealt[group], deck = deck[:size], deck[size:]
    return dealt


def _at_least(smallest: int, name: str, value: int) -> int:
    """An integer argument, not below ``smallest``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < smallest:
        raise ValueError(f"{name} must be at least {smallest}, got {value}")
    return int(value)


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
