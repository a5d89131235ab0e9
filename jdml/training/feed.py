"""What each step of a run is fed with: rows of a data set in memory, or batches of image files."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.data import ImageBatches
from jdml.training.step import Preprocess, TrainState, make_indexed_step, make_train_step

DEVICE_BYTES = 1 << 30  # data sets up to this size are put on the device once

Outcome = tuple[TrainState, dict[str, jax.Array]]


class RowFeed:
    """Steps on the rows that a sampler yields; small data sets are gathered on the device, others on the host.

    Args:
        parts: model, objective and optimizer.
        preprocess: as for the step.
        train: a data set with ``images`` and ``labels``.
        sampler: an iterator of index arrays ``[B]``.
    """

    def __init__(self, parts: tuple[Any, ...], preprocess: Preprocess, train: Any, sampler: Any):
        self.train, self.sampler = train, sampler
        sizes = [getattr(x, "nbytes", DEVICE_BYTES + 1) for x in jax.tree.leaves(train.images)]
        self.on_device = sum(sizes) <= DEVICE_BYTES
        if self.on_device:
            self.images = jax.tree.map(jnp.asarray, train.images)
            self.labels = jnp.asarray(train.labels)
        make = make_indexed_step if self.on_device else make_train_step
        self._step = make(*parts, preprocess=preprocess, donate=True)
        self._masks = False

    @property
    def sample(self) -> Any:
        """One row: an image ``[1, H, W, C]``, or what else the model takes."""
        return jax.tree.map(lambda rows: rows[:1], self.train.images)

    def step(self, state: TrainState) -> Outcome:
        """One step on the next batch."""
        rows = np.asarray(next(self.sampler), np.int32)
        filled, where = np.maximum(rows, 0), rows >= 0  # row −1 is a place that no sample fills
        extra = () if where.all() and not self._masks else (where,)
        self._masks = bool(
            extra
        )  # once a batch has such places, all are masked: two programs at most
        if self.on_device:
            return self._step(state, self.images, self.labels, filled, *extra)
        batch = jax.tree.map(lambda rows: rows[filled], self.train.images)
        return self._step(state, batch, self.train.labels[filled], *extra)

    def seen(self) -> Mapping[str, int]:
        """What the history tells of the data."""
        return {}

    def waiting(self) -> Mapping[str, float]:
        """What the log alone tells."""
        return {}

    def close(self) -> None:
        """Nothing is open."""


class ImageFeed:
    """Steps on batches of image files, and how long the device waits for them.

    The host waits for a step before it takes the next batch, so that its waiting for the batch is the
    device's; the workers of the pipeline decode meanwhile.

    Args:
        parts: model, objective and optimizer.
        preprocess: as for the step.
        train: the data set of the batches.
        batches: the pipeline.

    Raises:
        ValueError: if the batches are of another data set.
    """

    def __init__(
        self, parts: tuple[Any, ...], preprocess: Preprocess, train: Any, batches: ImageBatches
    ):
        if batches.dataset is not train:
            raise ValueError("sampler must be ImageBatches of train, got those of another data set")
        self.batches = batches
        self._step = make_train_step(*parts, preprocess=preprocess, donate=True)
        self._last: Any = None
        self._began: float | None = None
        self._waited = 0.0

    @property
    def sample(self) -> Any:
        """One image ``[1, H, W, 3]``, black: no file is read for its shape."""
        images = self.batches.dataset.images
        return np.zeros((1, *images.shape[1:]), images.dtype)

    def step(self, state: TrainState) -> Outcome:
        """One step on the next batch."""
        if self._began is None:
            self._began = time.perf_counter()
        jax.block_until_ready(self._last)
        asked = time.perf_counter()
        batch = next(self.batches)
        self._waited += time.perf_counter() - asked
        state, metrics = self._step(state, *batch)
        self._last = metrics
        return state, metrics

    def seen(self) -> Mapping[str, int]:
        """What the history tells of the data: how many different images were skipped so far."""
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


def make_feed(
    parts: tuple[Any, ...], preprocess: Preprocess, train: Any, sampler: Any
) -> RowFeed | ImageFeed:
    """Return the feed for what ``sampler`` yields."""
    kind = ImageFeed if isinstance(sampler, ImageBatches) else RowFeed
    return kind(parts, preprocess, train, sampler)
