"""The rows of each batch: class-balanced or uniform, reproducible, and resumable anywhere.

A sampler's batches are a pure function of (seed, epoch). Its state is its position, two integers, and its settings.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np

from jdml.data.class_batches import ClassBatches
from jdml.data.dataset import as_labels
from jdml.ops import checks


class Sampler(Protocol):
    """An iterator over the rows of batches that can resume, such as those of :mod:`jdml.data`."""

    def __next__(self) -> Any:
        """Return the next batch: rows ``[B]``, or a batch of :class:`jdml.data.ImageBatches`."""

    def get_state(self) -> dict[str, Any]:
        """Return its position, as values that JSON has."""

    def set_state(self, state: dict[str, Any], /) -> None:
        """Go to the position of a state."""


class EpochSampler(ABC):
    """An endless iterator over the batches of epoch 0, 1, 2, … with a state of plain integers.

    Attributes:
        batch_size: rows in each batch.
        batches_per_epoch: batches in each epoch.
        step: the number of batches before the next one, from the beginning of epoch 0; may be set.
    """

    batch_size: int
    batches_per_epoch: int

    def __init__(self, seed: int) -> None:
        """Start before the first batch of epoch 0."""
        self._seed = as_int("seed", seed, 0)
        self.step = 0
        self._epochs: dict[int, np.ndarray] = {}

    @abstractmethod
    def epoch(self, number: int) -> np.ndarray:
        """Return all batches of an epoch: int32 row indices ``[batches_per_epoch, batch_size]``."""

    @abstractmethod
    def _settings(self) -> dict[str, int]:
        """Return the settings that a saved state must share."""

    def __iter__(self) -> Iterator[np.ndarray]:
        """Return the sampler itself: iterating resumes at its position."""
        return self

    def __next__(self) -> np.ndarray:
        """Return the next batch: int32 row indices ``[batch_size]``."""
        batch = self.batch_at(self.step)
        self.step += 1
        return batch

    def batch_at(self, step: int) -> np.ndarray:
        """Return the batch of any step 0, 1, …, ``[batch_size]`` int32; the sampler does not move."""
        number, batch = divmod(as_int("step", step, 0), self.batches_per_epoch)
        batches = self._epochs.get(number)
        if batches is None:
            batches = self.epoch(number)
            near = {n: drawn for n, drawn in self._epochs.items() if abs(n - number) == 1}
            self._epochs = {**near, number: batches}
        return batches[batch].copy()

    def get_state(self) -> dict[str, int]:
        """Return the sampler's position and settings as a flat dictionary of integers (JSON-able)."""
        epoch, batch = divmod(self.step, self.batches_per_epoch)
        return {"epoch": epoch, "batch": batch, **self._settings()}

    def set_state(self, state: dict[str, int]) -> None:
        """Go to the position of ``state``: the batches from here on are the same.

        Raises:
            ValueError: if the state is incomplete, or was taken from a sampler with other settings or data. The
                sampler does not move then.
        """
        settings = self._settings()
        expected = {"epoch", "batch", *settings}
        if set(state) != expected:
            raise ValueError(f"state must have keys {sorted(expected)}, got {sorted(state)}")
        check_state(state, settings, "sampler")
        self.step = int(state["epoch"]) * self.batches_per_epoch + int(state["batch"])


class ClassBatchSampler(EpochSampler):
    """Draw batches of P classes × S samples, forever: an infinite iterator of row indices ``[P · S]``.

    For classes of any size:

    - every batch has P distinct classes with S distinct samples each, grouped by class;
    - every sample comes up in every epoch, and a class brings up all its samples before one of them comes up again,
      except to fill the last group of S;
    - an epoch has the smallest possible number of batches, T = max(largest class's groups, all groups / P), where a
      class of n samples has ⌈n / S⌉ groups;
    - batches depend on (seed, epoch) alone.

    Args:
        labels: integers ≥ 0, ``[N]``.
        classes_per_batch: P ≥ 1.
        samples_per_class: S ≥ 1.
        seed: an integer ≥ 0.
        on_small_class: how a class of fewer than S samples is treated: ``"refuse"``, an error; ``"pad"``: all its
            samples are drawn, and the rest of its S places hold the row −1, which training leaves out.
        groups: a coarser labelling of the same rows ``[N]``, such as SOP's twelve kinds of product: all classes of a
            batch are of one group, and so hard to tell apart. Each group has the batches of its own rows; those of all
            groups come in a random order.
        class_weight_power: from 0 to 1, for long tails: a class of n samples is drawn in proportion to
            ``n ** class_weight_power``, all alike with 0, as in the data with 1. No class stands in a batch twice; an
            epoch has about as many places as there are samples, but does not show each of them. None: each sample in
            every epoch, as above.

    Raises:
        TypeError: if labels are not integers.
        ValueError: if there are fewer than P classes (in a group), a class has fewer than S samples or is in several
            groups (the message names it), or a number is out of range.

    Implementation notes:
        P · T slots are to be filled. The classes' groups come first, and the slots left over go to the classes with
        the fewest groups, so that unequal classes become more equal. With r_c groups of class c still to place in t
        batches, Σ r_c = P · t and r_c ≤ t, and systematic sampling takes class c with probability r_c / t: exactly P
        distinct classes in each batch, in changing combinations, and a class with r_c = t for certain. An epoch costs
        O(N + T · C).

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
        on_small_class: Literal["refuse", "pad"] = "refuse",
        groups: np.ndarray | None = None,
        class_weight_power: float | None = None,
    ) -> None:
        """See the class."""
        super().__init__(seed)
        checks.one_of("on_small_class", on_small_class, ("refuse", "pad"))
        labels = as_labels("labels", labels)
        checks.optional(checks.unit_interval)("class_weight_power", class_weight_power)
        self._pads, self._power = on_small_class == "pad", class_weight_power
        per_batch = as_int("classes_per_batch", classes_per_batch)
        self._shape = shape = per_batch, as_int("samples_per_class", samples_per_class)
        self._size = len(labels)
        self._checksum = zlib.crc32(labels.tobytes())
        members = [np.arange(self._size)]
        if groups is not None:
            groups = as_labels("groups", groups, self._size)
            self._checksum = zlib.crc32(groups.tobytes(), self._checksum)
            order = np.lexsort((groups, labels))
            split = (np.diff(labels[order]) == 0) & (np.diff(groups[order]) != 0)
            if split.any():
                label = labels[order[split.argmax()]]
                raise ValueError(
                    f"groups must have all rows of a class in one group, class {label} is not"
                )
            members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
        self._parts = [
            ClassBatches(rows, labels[rows], shape, pads=self._pads, power=self._power)
            for rows in members
        ]
        self.batch_size = shape[0] * shape[1]
        self.batches_per_epoch = sum(part.shape[0] for part in self._parts)

    def epoch(self, number: int) -> np.ndarray:
        """Return all batches of an epoch: int32 row indices ``[batches_per_epoch, P · S]``."""
        random = np.random.default_rng([self._seed, number])
        parts = [part.draw(random) for part in self._parts]
        return parts[0] if len(parts) == 1 else random.permutation(np.concatenate(parts))

    def _settings(self) -> dict[str, int]:
        return {
            "classes_per_batch": self._shape[0],
            "samples_per_class": self._shape[1],
            "seed": self._seed,
            "num_samples": self._size,
            "labels_checksum": self._checksum,
            **({"pads": 1} if self._pads else {}),
            **({} if self._power is None else {"power_in_thousandths": round(1000 * self._power)}),
        }


class RandomBatchSampler(EpochSampler):
    """Draw uniform batches without replacement, forever: an infinite iterator of row indices ``[B]``.

    An epoch has ⌊N / B⌋ whole batches, in which no sample comes up twice. The N mod B samples that
    are left over change from epoch to epoch: any two epochs in a row show every sample.

    Args:
        labels_or_size: the number of samples N, or anything with that length (labels).
        batch_size: B, from 1 to N.
        seed: an integer ≥ 0.

    Raises:
        ValueError: if a number is too small or B exceeds N.

    Implementation notes:
        The omitted samples are a window of one fixed shuffle that moves by its own length every epoch. It is shorter
        than half the data, so two in a row do not overlap.

    Example:
        >>> sampler = RandomBatchSampler(7, batch_size=3)
        >>> rows = np.concatenate([next(sampler) for _ in range(2 * sampler.batches_per_epoch)])
        >>> len(set(rows))
        7
    """

    def __init__(self, labels_or_size: np.ndarray | int, batch_size: int, seed: int = 0) -> None:
        """See the class."""
        super().__init__(seed)
        size: Any = labels_or_size if np.ndim(labels_or_size) == 0 else len(labels_or_size)  # type: ignore[arg-type]
        self._size = as_int("labels_or_size", size)
        self.batch_size = as_int("batch_size", batch_size)
        if self.batch_size > self._size:
            raise ValueError(f"batch_size must be at most {self._size} samples, got {batch_size}")
        self.batches_per_epoch = self._size // self.batch_size
        # Epochs are seeded with [seed, epoch]; the fixed shuffle with one word more.
        self._order = np.random.default_rng([self._seed, 0, 1]).permutation(self._size)

    def epoch(self, number: int) -> np.ndarray:
        """Return all batches of an epoch: int32 row indices ``[batches_per_epoch, batch_size]``."""
        left_over = self._size % self.batch_size
        shown = np.roll(self._order, -number * left_over)[left_over:]
        shuffled = np.random.default_rng([self._seed, number]).permutation(shown)
        return shuffled.astype(np.int32).reshape(self.batches_per_epoch, self.batch_size)

    def _settings(self) -> dict[str, int]:
        return {"batch_size": self.batch_size, "seed": self._seed, "num_samples": self._size}


def check_state(state: dict[str, Any], settings: dict[str, int], of: str) -> None:
    """Refuse a state that was taken with other settings."""
    for name, value in settings.items():
        if state.get(name) != value:
            raise ValueError(
                f"state is of another {of}: {name} must be {value}, got {state.get(name)}"
            )


def as_int(name: str, value: int, least: int = 1) -> int:
    """Return an integer of Python's or NumPy's that is at least ``least``, as Python's."""
    checks.Constraint(lambda v: v >= least, f">= {least}", integer=True)(name, value)
    return int(value)


class AnchorBatchSampler(EpochSampler):
    """Put K anchor samples of every class in front of each batch of another sampler.

    For :func:`jdml.objectives.as_anchor_objective`, which compares the batch with the anchors.

    Args:
        sampler: the sampler of the batches.
        labels: integers ≥ 0, ``[N]``.
        per_class: K ≥ 1. A class of fewer samples has all of them, and the row −1, which training leaves out, in its
            other places.
        refresh_every: steps after which other anchors are drawn; None: never.
        seed: an integer ≥ 0.

    Attributes:
        num_anchors: rows of anchors in each batch, K · C.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a number is too small.

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
        refresh_every: int | None = None,
        seed: int = 0,
    ) -> None:
        """See the class."""
        super().__init__(seed)
        labels = as_labels("labels", labels)
        checks.optional(checks.count)("refresh_every", refresh_every)
        self._members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self._checksum = zlib.crc32(labels.tobytes())
        self._sampler, self._per_class = sampler, as_int("per_class", per_class)
        self._every = None if refresh_every is None else int(refresh_every)
        self.num_anchors = len(self._members) * self._per_class
        self.batch_size = self.num_anchors + sampler.batch_size
        self.batches_per_epoch = sampler.batches_per_epoch

    def epoch(self, number: int) -> np.ndarray:
        """Return all batches of an epoch: int32 row indices ``[batches_per_epoch, batch_size]``."""
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
        own["anchor_labels_checksum"] = self._checksum
        return {**{k: v for k, v in inner.items() if k not in ("epoch", "batch")}, **own}
