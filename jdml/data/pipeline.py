"""Batches of augmented images, decoded ahead of the training step by threads or processes."""

import logging
import multiprocessing
import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from jdml._optional_imports import require_package
from jdml.data.dataset import Dataset
from jdml.data.images import BadImageError, ImageFiles, usable_cores
from jdml.data.samplers import EpochSampler, as_int, check_state
from jdml.ops import checks

ENDLESS = 1 << 60
"""A number of steps that no run reaches."""
SEED, TRANSFORM, BAD = "augmentation_seed", "transform_checksum", "bad_rows"
"""Keys that the pipeline adds to its sampler's state."""

_log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """A batch of images.

    Attributes:
        images: ``[B, H, W, 3]`` uint8; zeros where an image was skipped.
        labels: ``[B]`` int32.
        where: ``[B]`` bool: the rows that hold an image.
        ids: ``[B]`` int32: their rows in the data set; -1 for none.
    """

    images: np.ndarray
    labels: np.ndarray
    where: np.ndarray
    ids: np.ndarray


class ImageBatches:
    """Iterate over augmented batches without end; batch t depends on the seeds and t alone.

    The rows of batch t are the sampler's at step t, and row i of it is augmented by
    ``np.random.default_rng([seed, t, i])``: any number of workers makes the same batches, and a pipeline
    resumes anywhere.

    Args:
        dataset: its ``images`` must be ``ImageFiles``.
        sampler: a sampler over its rows, from here on used by the pipeline alone.
        seed: of the augmentation, ≥ 0.
        augment: False reads images as in evaluation.
        workers: threads or processes that decode; by default one for each core.
        worker_kind: ``"thread"``, or ``"process"`` for machines on which threads hinder each other.
        prefetch: batches that are ready ahead; at least one for each worker is prepared.
        on_bad_image: how a damaged or missing image is treated: ``"stop"`` raises, ``"skip"`` leaves its row
            out, says so once in the log and counts the file.

    Attributes:
        batches_per_epoch: batches in each epoch, the sampler's.
        batch_size: rows in each batch, the sampler's.
        bad_rows: the rows of the files skipped so far; may be set, to those of several pipelines.

    Raises:
        TypeError: if the images are no ``ImageFiles``.
        ValueError: if the sampler is over another number of rows, or a setting is out of range.

    Implementation notes:
        Built on grain's ``MapDataset``, whose item t is batch t: a worker makes whole batches. Workers
        start with the first batch. Processes are spawned: the program's main module must be importable.

    Example:
        >>> import pathlib
        >>> from PIL import Image
        >>> from jdml.data import ImageFiles, RandomBatchSampler, mlrc
        >>> files = [pathlib.Path(f"{i}.png") for i in range(4)]
        >>> for file in files:
        ...     Image.new("RGB", (40, 30), "red").save(file)
        >>> data = Dataset("toy", ImageFiles(files, mlrc(16)), np.arange(4))
        >>> batches = ImageBatches(data, RandomBatchSampler(4, 2), seed=1)
        >>> batch = next(batches)
        >>> batch.images.shape, batch.where.tolist()
        ((2, 16, 16, 3), [True, True])
        >>> batches.close()
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: EpochSampler,
        *,
        seed: int = 0,
        augment: bool = True,
        workers: int | None = None,
        worker_kind: Literal["thread", "process"] = "thread",
        prefetch: int = 2,
        on_bad_image: Literal["stop", "skip"] = "stop",
    ) -> None:
        """See the class."""
        if not isinstance(dataset.images, ImageFiles):
            kind = type(dataset.images).__name__
            raise TypeError(f"dataset must have images of type ImageFiles, got {kind}")
        rows = sampler.get_state().get("num_samples", len(dataset))
        if rows != len(dataset):
            raise ValueError(f"sampler must be over {len(dataset)} rows, got one over {rows}")
        seed, prefetch = as_int("seed", seed, 0), as_int("prefetch", prefetch)
        workers = len(usable_cores()) if workers is None else as_int("workers", workers)
        checks.one_of("worker_kind", worker_kind, ("thread", "process"))
        checks.one_of("on_bad_image", on_bad_image, ("stop", "skip"))
        self.dataset, self.augment = dataset, augment
        self._sampler = sampler
        self.batches_per_epoch, self.batch_size = sampler.batches_per_epoch, sampler.batch_size
        self._load = _Load(dataset.images, sampler, seed, augment)
        self._workers, self._kind, self._prefetch = workers, worker_kind, prefetch
        self._skips = on_bad_image == "skip"
        self.bad_rows: list[int] = []
        self._ahead: Any = None

    def __iter__(self) -> Iterator[Batch]:
        """Return the pipeline itself: iterating resumes at its position."""
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            BadImageError: if an image is damaged or missing and ``on_bad_image`` is ``"stop"``. The
                pipeline does not move then.
        """
        if self._ahead is None:
            self._ahead = self._start()
        rows, images, problems = next(self._ahead)
        if problems and not self._skips:
            self.close()
            raise BadImageError(problems[min(problems)])
        if self._kind == "process":  # copies free the memory shared with the worker
            rows, images = np.array(rows), np.array(images)
        where = rows >= 0
        for place, problem in problems.items():
            where[place] = False
            row = int(rows[place])
            if row not in self.bad_rows:
                self.bad_rows.append(row)
                _log.warning("skipped: %s", problem)
        self._sampler.step += 1
        labels = np.where(rows >= 0, self.dataset.labels[rows], 0)
        return Batch(images, labels, where, rows.astype(np.int32))

    @property
    def bad_images(self) -> int:
        """The number of different files skipped so far."""
        return len(self.bad_rows)

    def take(self, places: np.ndarray) -> None:
        """Decode, from here on, only these places of each batch, as one of several processes does.

        Args:
            places: rising, ≥ 0; places past the end of a batch are empty.

        Example:
            Of eight rows the second half::

                batches.take(np.arange(4, 8))
        """
        self.close()
        self._load.places = np.asarray(places)

    def get_state(self) -> dict[str, Any]:
        """Return the sampler's state, the pipeline's settings and the skipped rows (JSON-able)."""
        return {**self._sampler.get_state(), **self._settings(), BAD: sorted(self.bad_rows)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to the position of ``state``: the batches from here on are the same.

        Raises:
            ValueError: if the state was taken from a pipeline with another seed, transform, sampler or data. The
                pipeline does not move then.
        """
        own = self._settings()
        check_state(state, own, "pipeline")
        self._sampler.set_state({k: v for k, v in state.items() if k not in (*own, BAD)})
        self.bad_rows = list(state[BAD])
        self.close()

    def close(self) -> None:
        """Stop the workers; the next batch starts new ones."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _settings(self) -> dict[str, int]:
        """Return the settings that a saved state must share."""
        transform: Any = self._load.images.transform
        kind = type(transform)
        if not any("__repr__" in vars(base) for base in kind.__mro__[:-1]):
            # A repr of Python's own has an address, which is another one in another process.
            transform = kind.__qualname__, sorted(getattr(transform, "__dict__", {}).items())
        text = repr((transform, self._load.augment))
        return {SEED: self._load.seed, TRANSFORM: zlib.crc32(text.encode())}

    def _start(self) -> Any:
        """Start the workers, from the present step on."""
        require_package("grain", "reading batches of image files")
        import grain

        steps = grain.MapDataset.range(self._sampler.step, ENDLESS).map(self._load)
        if self._kind == "thread":
            ahead = max(self._prefetch, self._workers)
            options = grain.ReadOptions(num_threads=self._workers, prefetch_buffer_size=ahead)
            return iter(steps.to_iter_dataset(options))
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain hands the flags on to its workers
            flags.FLAGS.mark_as_parsed()
        alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        buffer = -(-self._prefetch // self._workers)
        options = grain.MultiprocessingOptions(
            num_workers=self._workers, per_worker_buffer_size=buffer
        )
        return iter(steps.to_iter_dataset(alone).mp_prefetch(options, end_with_parent))


def without_bad_images(dataset: Dataset) -> Dataset:
    """Leave out the image files that are damaged or missing, each named in the log.

    For evaluation, which needs every image. Decodes all images once.

    Args:
        dataset: with images of any kind; arrays are never damaged.

    Returns:
        The rows of the other images.

    Example:
        >>> import pathlib
        >>> from PIL import Image
        >>> from jdml.data import ImageFiles
        >>> files = [pathlib.Path("whole.png"), pathlib.Path("gone.png")]
        >>> Image.new("RGB", (4, 4)).save(files[0])
        >>> data = Dataset("toy", ImageFiles(files), np.array([0, 1]))
        >>> without_bad_images(data).labels.tolist()
        [0]
    """
    if not isinstance(dataset.images, ImageFiles):
        return dataset
    problems = dataset.images.problems()
    for problem in problems.values():
        _log.warning("skipped: %s", problem)
    return dataset.select(~np.isin(np.arange(len(dataset)), list(problems)))


@dataclass(eq=False)
class _Load:
    """Return rows ``[B]``, images ``[B, H, W, 3]`` and the errors of images, by their place, of a step."""

    images: ImageFiles
    sampler: EpochSampler
    seed: int
    augment: bool
    places: np.ndarray | None = None  # None: all

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # an epoch is laid out by one thread

    def __reduce__(self) -> tuple[Any, ...]:
        return _Load, (self.images, self.sampler, self.seed, self.augment, self.places)

    def __call__(self, step: int) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        with self._lock:
            rows = self.sampler.batch_at(step)
        places = np.arange(len(rows)) if self.places is None else self.places
        rows = np.pad(rows, (0, 1), constant_values=-1)[np.minimum(places, len(rows))]
        images = np.zeros((len(rows), *self.images.shape[1:]), np.uint8)
        problems = {}
        for at, (place, row) in enumerate(zip(places, rows, strict=True)):
            if row < 0:  # a place that no sample fills
                continue
            random = np.random.default_rng([self.seed, step, place]) if self.augment else None
            try:
                images[at] = self.images.read(row, random)
            except BadImageError as error:
                problems[at] = str(error)
        return rows, images, problems


def end_with_parent(*_: int) -> None:
    """End a worker process with the process that started it, even if that is killed."""
    parent: Any = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
