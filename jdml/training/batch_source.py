"""What each step of a run is fed with: rows of a data set in memory, or batches of image files."""

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import numpy as np

from jdml.data import ImageBatches
from jdml.data.dataset import TrainSet
from jdml.data.samplers import Sampler
from jdml.distributed import Tree, any_process
from jdml.models.adapters import embed_in_training
from jdml.models.finetuning import check_freeze
from jdml.objectives.base import Metrics
from jdml.runs.model_metadata import input_spec
from jdml.training.run_config import Embedder
from jdml.training.step import Step, TrainState, compiled
from jdml.training.step_config import StepConfig
from jdml.training.validation import next_rows

DEVICE_BYTES = 1 << 30  # data sets up to this size are put on the device once
POSITIVES = "two rows of one class, a pair loss's positives"
NEGATIVES = "rows of two classes, a pair loss's negatives"

Outcome = tuple[TrainState, Metrics]


class Feed:
    """Feed each step with a batch; the state of ``sampler`` is saved with the run's."""

    input: Mapping[str, Any]

    def __init__(self, spec: StepConfig, sampler: Sampler) -> None:
        self.spec, self.sampler = spec, sampler
        self.placement = spec.placement
        self._may_fill = False
        self.tell: Callable[[str], None] | None = None
        # A process sees its own rows of a batch alone.
        self.lacking = [] if jax.process_count() > 1 else [POSITIVES, NEGATIVES]

    def look(self, labels: np.ndarray) -> None:
        """Note what no batch so far had of what a pair loss needs; nothing is looked at once all of it came."""
        if self.lacking:
            classes = len(np.unique(labels))
            there = {POSITIVES: classes < len(labels), NEGATIVES: classes > 1}
            self.lacking = [pairs for pairs in self.lacking if not there[pairs]]

    @property
    def sample(self) -> Tree:
        """One row: an image ``[1, H, W, C]``, or what else the model takes."""
        raise NotImplementedError  # each feed's own

    def step(self, state: TrainState) -> Outcome:
        """One step on the next batch."""
        raise NotImplementedError  # each feed's own

    def embedder(self, state: TrainState) -> Embedder:
        """What embeds in evaluations."""
        return Embedder(self.spec.model, state, self.spec.preprocess, input=self.input)

    def seen(self) -> Mapping[str, int]:
        """What the history tells of the data."""
        return {}

    def waiting(self) -> Mapping[str, float]:
        """What the log alone tells."""
        return {}

    def close(self) -> None:
        """Nothing is open."""

    def check(self, state: TrainState) -> None:
        """Refuse, before any step, a state that cannot be partitioned or frozen, and rows that cannot be apart."""
        self.placement.check(state.params)
        freeze, model = self.spec.freeze, self.spec.model
        if freeze is not None:
            inputs = self.spec.preprocess(self.sample)
            check_freeze(freeze, model, state.params, state.batch_stats, inputs)
        if self.spec.micro_batch is not None:
            self._check_apart(state, f"micro_batch={self.spec.micro_batch}")

    def size(self, rows: int, state: TrainState) -> int:
        """Round the rows of a batch up to a multiple of the devices; batch normalization would see empty ones."""
        size = -(-rows // self.placement.devices) * self.placement.devices
        if size > rows and not self._may_fill:
            why = f"mesh: a batch of {rows} rows does not divide among {self.placement.devices} devices"
            self._check_apart(state, why)
            self._may_fill = True
        return size

    def run(self, step: Step, state: TrainState, *batch: Any) -> Outcome:
        """Take a step; before the first one say what it costs, where somebody wants to know."""
        if self.tell is not None:
            self.tell(memory_summary(self.spec, state, step, batch))
            self.tell = None
        return step(state, *batch)

    def _check_apart(self, state: TrainState, why: str) -> None:
        images = self.spec.preprocess(self.sample)

        def statistics(stats: Tree) -> Tree:
            params = state.params["model"]
            return embed_in_training(self.spec.model, params, stats, images, jax.random.key(0))[1]

        traced = jax.make_jaxpr(statistics)(state.batch_stats).jaxpr
        if traced.outvars != traced.invars:
            raise ValueError(
                f"{why}: the rows of a batch must not depend on each other, but the model's batch normalization is "
                "trained; freeze it (freeze_batch_norm=True) or take a model without"
            )


class RowFeed(Feed):
    """Step on the rows that a sampler yields; small data sets are gathered on the device, others on the host."""

    def __init__(self, spec: StepConfig, train: TrainSet, sampler: Sampler) -> None:
        super().__init__(spec, sampler)
        self.train, self.input = train, input_spec(train.images)
        self._labels = np.asarray(train.labels)
        sizes = [getattr(x, "nbytes", DEVICE_BYTES + 1) for x in jax.tree.leaves(train.images)]
        self.on_device = sum(sizes) <= DEVICE_BYTES
        if self.on_device:
            self.images = self.placement.replicate(train.images)
            self.labels = self.placement.replicate(train.labels)
        self._step = compiled(spec, donate=True, indexed=self.on_device)
        self._masks = False

    @property
    def sample(self) -> Tree:
        """One row: an image ``[1, H, W, C]``, or what else the model takes."""
        return jax.tree.map(lambda rows: rows[:1], self.train.images)

    def step(self, state: TrainState) -> Outcome:
        """One step on the next batch."""
        rows = next_rows(self.sampler, len(self.train.labels)).astype(np.int32)
        self.look(self._labels[rows[rows >= 0]])
        size = self.size(len(rows), state)
        rows = np.pad(rows, (0, size - len(rows)), constant_values=-1)
        whole, rows = bool((rows >= 0).all()), rows[self.placement.local_rows(size)]
        filled, where = np.maximum(rows, 0), rows >= 0  # row −1 is a place that no sample fills
        # Once a batch has such places, all are masked: two programs at most.
        self._masks = self._masks or not whole
        masked = where if self._masks else None
        if self.on_device:
            there = self.placement.shard_batch((filled, masked), size)
            return self.run(self._step, state, self.images, self.labels, *there)
        batch = jax.tree.map(lambda rows: rows[filled], self.train.images)
        there = self.placement.shard_batch((batch, self.train.labels[filled], masked, rows), size)
        return self.run(self._step, state, *there)


class ImageFeed(Feed):
    """Step on batches of image files, and measure how long the device waits for them.

    The host waits for a step before it takes the next batch, so that its waiting for the batch is the device's; the
    workers of the pipeline decode meanwhile. Of several processes each decodes its own rows.
    """

    def __init__(self, spec: StepConfig, train: TrainSet, batches: ImageBatches) -> None:
        if batches.dataset is not train:
            raise ValueError("sampler must be ImageBatches of train, got those of another data set")
        super().__init__(spec, batches)
        self.batches, self.input = batches, input_spec(train.images)
        self._size: int | None = None
        self._step = compiled(spec, donate=True, indexed=False)
        self._last: Metrics = {}
        self._began: float | None = None
        self._waited = 0.0

    @property
    def sample(self) -> Tree:
        """One image ``[1, H, W, 3]``, black: no file is read for its shape."""
        images = self.batches.dataset.images
        return np.zeros((1, *images.shape[1:]), images.dtype)

    def step(self, state: TrainState) -> Outcome:
        """One step on the next batch."""
        if self._size is None:
            self._size = self.size(self.batches.batch_size, state)
            if self.placement.mesh is not None:
                self.batches.take(self.placement.local_rows(self._size))
        if self._began is None:
            self._began = time.perf_counter()
        jax.block_until_ready(self._last)
        asked = time.perf_counter()
        batch = next(self.batches)
        self._waited += time.perf_counter() - asked
        self.look(batch.labels[batch.where])
        there = self.placement.shard_batch(batch, self._size)
        state, metrics = self.run(self._step, state, *there)
        self._last = metrics
        return state, metrics

    def seen(self) -> Mapping[str, int]:
        """What the history tells of the data: how many different images were skipped so far."""
        bad = np.isin(np.arange(len(self.batches.dataset)), self.batches.bad_rows)
        self.batches.bad_rows = np.flatnonzero(any_process(bad)).tolist()
        return {"bad_images": self.batches.bad_images}

    def waiting(self) -> Mapping[str, float]:
        """What the log alone tells: the share of the time since the last call that was spent waiting for batches."""
        if self._began is None:
            return {}
        share = self._waited / (time.perf_counter() - self._began)
        self._began, self._waited = None, 0.0
        return {"input_wait": round(share, 4)}

    def close(self) -> None:
        """Stop the workers."""
        self.batches.close()


def memory_summary(spec: StepConfig, state: TrainState, step: Step, batch: tuple[Any, ...]) -> str:
    """Say how many of the model's parameters learn, and the memory of parameters, optimizer and a step."""
    learning, frozen = (part["model"] for part in spec.split(state.params))
    learns = _size(learning)
    total = learns + _size(frozen)
    parts = {"parameters": _bytes(state.params), "optimizer": _bytes(state.opt_state)}
    compiled_memory = cast(Any, step).lower(state, *batch).compile().memory_analysis()
    if compiled_memory is not None:  # activations, gradients, a batch
        parts["a step"] = compiled_memory.temp_size_in_bytes
    memory = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in parts.items())
    return f"learns {learns:,} of the network's {total:,} parameters; memory: {memory}"


def _size(tree: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _bytes(tree: Tree) -> int:
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
