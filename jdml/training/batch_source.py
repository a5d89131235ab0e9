"""Checks of the data and the sampler of a run, and its batches: rows of a data set in memory, or image files."""

import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from jdml.data import EpochSampler, ImageBatches, ImageFiles
from jdml.data.dataset import TrainSet, check_channels, check_in_unit_range, check_not_bytes
from jdml.distributed import Tree, any_process
from jdml.models.adapters import traced
from jdml.models.embedding import default_preprocess, uint8_to_float
from jdml.models.finetuning import check_freeze
from jdml.models.weights import Normalizer
from jdml.objectives.base import Metrics
from jdml.runs.model_metadata import input_spec
from jdml.training.run_config import Embedder
from jdml.training.step import StepConfig, TrainState, compiled

DEVICE_BYTES = 1 << 30  # data sets up to this size are put on the device once

_log = logging.getLogger(__name__)


def check_train(train: Any) -> None:
    """Refuse other objects than data sets, images whose rows or channels have another place, and no rows."""
    if not (hasattr(train, "images") and hasattr(train, "labels")):
        raise TypeError(
            f"train must be a data set with images and labels, got a {type(train).__name__}: write jdml.data.Dataset("
            '"name", images, labels), or jdml.data.from_torch, from_huggingface or from_rows'
        )
    images, labels = train.images, np.asarray(train.labels)
    if not isinstance(images, ImageFiles):
        check_channels("train.images", images)
    lengths = {len(part) for part in jax.tree.leaves(images)}
    if labels.ndim != 1 or lengths != {len(labels)} or not len(labels):
        raise ValueError(
            "train.images and train.labels must have the same number of rows, at least 1, "
            f"got {sorted(lengths)} and {list(labels.shape)}"
        )
    if len(labels) > 1 and (labels == labels[0]).all():
        _log.warning("train has one class: there are no negatives to learn from")


def check_arguments(
    objective: Any, optimizer: Any, train: Any, sampler: Any, preprocess: Any, *, saved: bool
) -> None:
    """Refuse parts of another kind, images in another range, another data set's sampler."""
    of_sampler = ("__next__", *(("get_state", "set_state") if saved else ()))
    for name, part, methods, example in (
        ("objective", objective, ("init", "loss"), "jdml.objectives.pair(jdml.triplet_loss)"),
        ("optimizer", optimizer, ("init", "update"), "optax.adam(1e-3)"),
        ("sampler", sampler, of_sampler, "jdml.data.RandomBatchSampler(len(labels), 64)"),
    ):
        if not all(hasattr(part, method) for method in methods):
            kind = getattr(part, "__name__", type(part).__name__)
            raise TypeError(f"{name} must have {', '.join(methods)}, as {example} has, got {kind}")
    check_train(train)
    for part in jax.tree.leaves(train.images):
        if isinstance(preprocess, Normalizer):
            check_in_unit_range("train.images", part, ", as its preprocess expects")
        elif preprocess in (uint8_to_float, default_preprocess):
            check_not_bytes("train.images", part)
    if isinstance(sampler, EpochSampler):
        size = len(train.labels)
        rows = sampler.get_state().get("num_samples", size)
        if rows != size:
            raise ValueError(f"sampler must be over the {size} rows of train, got one over {rows}")


def check_proxies(params: Mapping[str, Tree], labels: ArrayLike) -> None:
    """Refuse fewer proxies than classes, whose rows would be ignored; warn of proxies that no row attracts."""
    proxies: Tree = params.get("proxies")
    shape, classes = np.shape(proxies), int(np.max(labels)) + 1
    if len(shape) not in (2, 3):
        return
    if shape[0] < classes:
        raise ValueError(
            f"objective has proxies of {shape[0]} classes, train has labels up to {classes - 1}: "
            f"write jdml.objectives.proxy(loss_fn, num_classes={classes}, dim=…)"
        )
    missing = np.setdiff1d(np.arange(classes), labels)
    if len(missing):
        warnings.warn(
            f"train has no rows of {len(missing)} classes, such as label {missing[0]}, which have proxies, too: "
            "relabel with numpy.unique(labels, return_inverse=True)[1]",
            stacklevel=3,
        )


class BatchSource(ABC):
    """The batches of a run; the state of ``sampler`` is saved with the run's."""

    program: Any = None
    """The compiled step, made before the first batch."""

    def __init__(self, spec: StepConfig, train: TrainSet, sampler: Any) -> None:
        self.spec, self.train, self.sampler = spec, train, sampler
        self.placement, self.input = spec.placement, input_spec(train.images)
        self.last_metrics: Metrics = {}
        self.last_labels = np.empty(0)
        self._may_pad = False

    @property
    def sample(self) -> Tree:
        """One row: an image ``[1, H, W, C]``, black where it would be decoded, or another input of the model."""
        images = self.train.images
        if isinstance(images, ImageFiles):
            return np.zeros((1, *images.shape[1:]), images.dtype)
        return jax.tree.map(lambda rows: rows[:1], images)

    @abstractmethod
    def next_batch(self, state: TrainState) -> tuple[Any, ...]:
        """Return what the program takes after the state."""

    def embedder(self, state: TrainState) -> Embedder:
        """Return the embedder for evaluations."""
        return Embedder(self.spec.model, state, self.spec.preprocess, input=self.input)

    def metrics(self) -> tuple[dict[str, int], dict[str, float]]:
        """Return numbers about the data for the history, and times for the log alone."""
        return {}, {}

    def close(self) -> None:
        """Stop the workers."""
        if isinstance(self.sampler, ImageBatches):
            self.sampler.close()

    def check(self, state: TrainState) -> None:
        """Refuse, before any step, a state that cannot be partitioned or frozen, and rows that are not independent."""
        self.placement.check(state.params)
        freeze, model = self.spec.freeze, self.spec.model
        if freeze is not None:
            inputs = self.spec.preprocess(self.sample)
            check_freeze(freeze, model, state.params, state.batch_stats, inputs)
        if self.spec.micro_batch is not None:
            self._check_independent_rows(state, f"micro_batch={self.spec.micro_batch}")

    def size(self, rows: int, state: TrainState) -> int:
        """Round the rows of a batch up to a multiple of the devices; batch normalization would see empty ones."""
        devices = self.placement.devices
        size = -(-rows // devices) * devices
        if size > rows and not self._may_pad:
            why = f"mesh: a batch of {rows} rows does not divide among {devices} devices"
            self._check_independent_rows(state, why)
            self._may_pad = True
        return size

    def _check_independent_rows(self, state: TrainState, why: str) -> None:
        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        if traced(self.spec.model, variables, self.spec.preprocess(self.sample), True)[1]:
            raise ValueError(
                f"{why}: rows must not depend on each other, but batch normalization is trained; freeze it "
                "(freeze_batch_norm=True, --freeze-batch-norm) or take a model without"
            )


class RowSource(BatchSource):
    """Step on the rows that a sampler yields; small data sets are gathered on the device, others on the host."""

    _masks = False

    def step_inputs(self, state: TrainState) -> tuple[StepConfig, Tree]:
        """Return what a step is compiled from, and its inputs: a row for each of the data set."""
        return self.spec, self.train.images

    def next_batch(self, state: TrainState) -> tuple[Any, ...]:
        """Return the next rows, or their inputs and labels, and which places are filled."""
        if self.program is None:
            spec, self._inputs = self.step_inputs(state)
            self._labels = np.asarray(self.train.labels)
            sizes = [getattr(x, "nbytes", DEVICE_BYTES + 1) for x in jax.tree.leaves(self._inputs)]
            self._on_device = sum(sizes) <= DEVICE_BYTES
            if self._on_device:
                self._inputs = self.placement.replicate((self._inputs, self._labels))
            self.program = compiled(spec, donate=True, indexed=self._on_device)
        rows = self._next_rows()
        self.last_labels = self._labels[rows[rows >= 0]]
        size = self.size(len(rows), state)
        rows = np.pad(rows, (0, size - len(rows)), constant_values=-1)
        # Once a batch has such places, all are masked: two programs at most.
        self._masks = self._masks or bool((rows < 0).any())
        rows = rows[self.placement.local_rows(size)]
        filled = np.maximum(rows, 0)  # row −1 is an empty place
        masked = rows >= 0 if self._masks else None
        if self._on_device:
            return *self._inputs, *self.placement.shard_batch((filled, masked), size)
        batch = jax.tree.map(lambda rows: rows[filled], self._inputs)
        there: tuple[Any, ...] = batch, self._labels[filled], masked, rows
        return self.placement.shard_batch(there, size)

    def _next_rows(self) -> np.ndarray:
        """Take the next batch of the sampler: rows ``[B]`` of the data set, −1 where a place is empty."""
        rows, size = np.asarray(next(self.sampler)), len(self._labels)
        is_batch = rows.ndim == 1 and len(rows) and np.issubdtype(rows.dtype, np.integer)
        if not is_batch or rows.min() < -1 or rows.max() >= size:
            raise ValueError(
                f"sampler must yield row indices [B], integers 0 … {size - 1}, got {rows.dtype} {list(rows.shape)}"
                + (f" of {rows.min()} … {rows.max()}" if is_batch else "")
            )
        return rows.astype(np.int32)


class ImageFileSource(BatchSource):
    """Step on batches of image files, and measure how long the device waits for them."""

    _size: int | None = None
    _start: float | None = None
    _waiting = 0.0

    def next_batch(self, state: TrainState) -> tuple[Any, ...]:
        """Return the images, labels, filled places and rows of the next batch."""
        if self._size is None:
            self.program = compiled(self.spec, donate=True, indexed=False)
            self._size = self.size(self.sampler.batch_size, state)
            if self.placement.mesh is not None:
                self.sampler.take(self.placement.local_rows(self._size))
        if self._start is None:
            self._start = time.perf_counter()
        jax.block_until_ready(self.last_metrics)  # so that the host's waiting is the device's
        start = time.perf_counter()
        batch = next(self.sampler)
        self._waiting += time.perf_counter() - start
        self.last_labels = batch.labels[batch.where]
        return tuple(self.placement.shard_batch(batch, self._size))

    def metrics(self) -> tuple[dict[str, int], dict[str, float]]:
        """Return how many images were skipped so far, and the share of time that was spent waiting for batches."""
        bad = np.isin(np.arange(len(self.train.labels)), self.sampler.bad_rows)
        self.sampler.bad_rows = np.flatnonzero(any_process(bad)).tolist()
        times = {}
        if self._start is not None:
            share = self._waiting / (time.perf_counter() - self._start)
            times["input_wait"] = round(share, 4)
        self._start, self._waiting = None, 0.0
        return {"bad_images": self.sampler.bad_images}, times
