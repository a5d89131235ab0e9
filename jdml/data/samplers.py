"""Which rows make up each batch: class-balanced or uniform, reproducible, and resumable anywhere.

A sampler's batches are a pure function of (seed, epoch): its whole state is where it stands, two
integers, and a few more that tell whether a saved state belongs to it.
"""

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, Literal

import numpy as np

from jdml.data.class_batches import Classes, classes_of, draw_epoch
from jdml.data.dataset import as_labels
from jdml.ops import checks

LONG = 0.05
"""Seconds: where an epoch took longer to draw, the next one is drawn beside the training."""


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
        self._seed = at_least(0, "seed", seed)
        self._step = 0
        self._epochs: dict[int, np.ndarray] = {}
        self._ahead: dict[int, Future[np.ndarray]] = {}

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
        self._step = at_least(0, "step", step)

    def batch_at(self, step: int) -> np.ndarray:
        """Give the batch of any step 0, 1, …: int32 row indices ``[batch_size]``. The sampler stays where it is."""
        number, batch = divmod(at_least(0, "step", step), self.batches_per_epoch)
        batches = self._epochs.get(number)
        if batches is None:
            batches = self._drawn(number)
            near = {n: drawn for n, drawn in self._epochs.items() if abs(n - number) == 1}
            self._epochs = {**near, number: batches}
        return batches[batch].copy()

    def _drawn(self, number: int) -> np.ndarray:
        """An epoch, which may have been drawn ahead; where that takes long, the next one is."""
        ahead, began = self._ahead.get(number), time.monotonic()
        batches = self.epoch(number) if ahead is None else ahead.result()
        lasted = time.monotonic() - began > LONG
        self._ahead = {}
        if ahead is not None or lasted:
            self._ahead = {number + 1: _beside().submit(self.epoch, number + 1)}
        return batches

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has, or another process is given: nothing that is being drawn."""
        return {**self.__dict__, "_ahead": {}}

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
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be what get_state returned, got a {type(state).__name__}")
        if set(state) != expected:
            raise ValueError(f"state must have keys {sorted(expected)}, got {sorted(state)}")
        for name, value in settings.items():
            if state[name] != value:
                raise ValueError(
                    f"state is of another sampler: {name} must be {value}, got {state[name]}"
                )
        epoch = at_least(0, "state['epoch']", int(state["epoch"]))
        batch = at_least(0, "state['batch']", int(state["batch"]))
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
        within: a coarser labelling of the same rows ``[N]``, such as SOP's twelve kinds of product: all classes of a
            batch are of one group, so that they are hard to tell apart. Each group has the batches of its own rows;
            those of all groups come in a random order.
        power: from 0 to 1, for long tails: a class of n samples is drawn in proportion to ``n ** power``, all alike
            with 0, as in the data with 1. No class stands in a batch twice; an epoch has about as many places as there
            are samples, but shows not each of them. None: each sample in every epoch, as above.

    Raises:
        TypeError: if labels are not integers.
        ValueError: if there are fewer than P classes (in a group), a class has fewer than S samples (the message
            names it) or stands in several groups, or a number is out of range.

    Implementation notes:
        P · T slots are to be filled. The classes' groups come first, and the slots left over go to
        the classes with the fewest groups, so that unequal classes become more equal. With r_c
        groups of class c still to place in t batches, Σ r_c = P · t and r_c ≤ t, and systematic
        sampling takes class c with probability r_c / t: exactly P distinct classes in each batch,
        in changing company, and a class with r_c = t for certain, so all of them fit. An epoch
        costs O(N + T · C); of very many classes O(N log N), and where that lasts, the next one is drawn in a thread
        while this one trains.

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
        within: np.ndarray | None = None,
        power: float | None = None,
    ) -> None:
        """See the class."""
        super().__init__(seed)
        if small_classes not in ("refuse", "pad"):
            raise ValueError(f'small_classes must be "refuse" or "pad", got {small_classes!r}')
        labels = as_labels("labels", labels)
        checks.optional(checks.unit_interval)("power", power)
        self._pads, self._power = small_classes == "pad", power
        self._classes_per_batch = at_least(1, "classes_per_batch", classes_per_batch)
        self._samples_per_class = at_least(1, "samples_per_class", samples_per_class)
        self._size = len(labels)
        self._checksum = zlib.crc32(labels.tobytes())
        if within is None:
            self._parts = [self._part(np.arange(self._size), labels)]
        else:
            groups = as_labels("within", within, self._size)
            self._checksum = zlib.crc32(groups.tobytes(), self._checksum)
            self._parts = self._apart(labels, groups)
        self.batch_size = self._classes_per_batch * self._samples_per_class
        self.batches_per_epoch = sum(part.batches for part in self._parts)

    def _part(self, rows: np.ndarray, labels: np.ndarray) -> Classes:
        """Rows whose classes may stand in one batch."""
        per_batch, samples = self._classes_per_batch, self._samples_per_class
        return classes_of(rows, labels, per_batch, samples, pads=self._pads, power=self._power)

    def _apart(self, labels: np.ndarray, groups: np.ndarray) -> list[Classes]:
        """The rows of each group; no class is in two of them."""
        order = np.lexsort((groups, labels))
        torn = (np.diff(labels[order]) == 0) & (np.diff(groups[order]) != 0)
        if torn.any():
            row = order[torn.argmax()]
            raise ValueError(
                f"within must have all rows of a class in one group, but class {labels[row]} is in several"
            )
        parts = []
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            try:
                parts.append(self._part(rows, labels[rows]))
            except ValueError as error:
                raise ValueError(f"{error} (of group {group} of within)") from None
        return parts

    def epoch(self, number: int) -> np.ndarray:
        """Give all batches of an epoch: int32 row indices ``[batches_per_epoch, P · S]``."""
        random = np.random.default_rng([self._seed, number])
        shape = self._classes_per_batch, self._samples_per_class
        parts = [draw_epoch(part, *shape, self._power, random) for part in self._parts]
        return parts[0] if len(parts) == 1 else random.permutation(np.concatenate(parts))

    def _settings(self) -> dict[str, int]:
        return {
            "classes_per_batch": self._classes_per_batch,
            "samples_per_class": self._samples_per_class,
            "seed": self._seed,
            "num_samples": self._size,
            "labels_checksum": self._checksum,
            **({"pads": 1} if self._pads else {}),
            **({} if self._power is None else {"power_in_thousandths": round(1000 * self._power)}),
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
        if hasattr(labels_or_size, "item") and np.ndim(labels_or_size) == 0:
            labels_or_size = labels_or_size.item()  # an array's number
        self._size = (
            len(labels_or_size)
            if hasattr(labels_or_size, "__len__")
            else at_least(1, "labels_or_size", labels_or_size)
        )
        self.batch_size = at_least(1, "batch_size", batch_size)
        if self.batch_size > self._size:
            raise ValueError(
                f"batch_size must be at most the number of samples {self._size}, got {batch_size}"
            )
        self.batches_per_epoch = self._size // self.batch_size
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


@cache
def _beside() -> ThreadPoolExecutor:
    """A thread that draws epochs ahead."""
    return ThreadPoolExecutor(1, "jdml-sampler")


def at_least(smallest: int, name: str, value: int) -> int:
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
        self._checksum = zlib.crc32(labels.tobytes())
        self._sampler, self._per_class = sampler, int(per_class)
        self._every = None if renew_every is None else int(renew_every)
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

    def set_state(self, state: dict[str, int]) -> None:
        """Go to where ``state`` was taken; states did not tell the labels before 0.2."""
        if isinstance(state, Mapping):
            state = {"anchor_labels_checksum": self._checksum, **state}
        super().set_state(state)

    def _settings(self) -> dict[str, int]:
        inner = self._sampler.get_state()
        own = {"anchors": self.num_anchors, "anchor_seed": self._seed, "renew": self._every or 0}
        own["anchor_labels_checksum"] = self._checksum
        return {**{k: v for k, v in inner.items() if k not in ("epoch", "batch")}, **own}
