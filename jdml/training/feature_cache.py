"""Features of what is frozen, computed once and kept: a step then trains what follows, such as a head, alone."""

import dataclasses
import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdml._paths import check_disk_space
from jdml.data import ImageBatches, ImageFiles
from jdml.data.dataset import TrainSet
from jdml.data.samplers import Sampler
from jdml.distributed import Tree, any_process, is_main_process
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import embed
from jdml.models.feature_split import Backbone, FeatureSplit, HeadOnly
from jdml.models.tensors import replacing
from jdml.runs.identity import fingerprint
from jdml.runs.model_metadata import input_spec
from jdml.training.batch_source import DEVICE_BYTES, Feed, ImageFeed, Outcome, RowFeed
from jdml.training.run_config import Embedder
from jdml.training.step import TrainState
from jdml.training.step_config import StepConfig

FEATURES = "features"
"""The folder of kept features within a run's."""
AT_ONCE = 512
"""Images that are decoded, and whose features are computed, before these are stored."""
SETS = 4
"""Of so many sets of images the features are kept for evaluations."""
_log = logging.getLogger(__name__)


class Keep(NamedTuple):
    """What of images is kept."""

    views: int = 1
    folder: Path | None = None
    seed: int = 0


class FeatureFeed(Feed):
    """Steps on kept features of the rows that a sampler yields."""

    def __init__(self, spec: StepConfig, train: TrainSet, sampler: Sampler, keep: Keep) -> None:
        super().__init__(spec, sampler)
        if isinstance(sampler, ImageBatches):
            raise ValueError(
                "cached_views: sampler must yield rows, got ImageBatches, which decode"
            )
        if keep.views > 1 and not isinstance(train.images, ImageFiles):
            raise ValueError(
                f"cached_views must be 1 of images in memory, which are not augmented, got {keep.views}"
            )
        if not hasattr(train.images, "shape"):
            raise TypeError("cached_views: train must hold images [N, H, W, C]")
        self.train, self.keep, self.input = train, keep, input_spec(train.images)
        self._rows: RowFeed | None = None
        self._sets: list[tuple[Any, np.ndarray]] = []

    @property
    def sample(self) -> Tree:
        """One row: a black image."""
        images = self.train.images
        return np.zeros((1, *images.shape[1:]), images.dtype)

    def check(self, state: TrainState) -> None:
        """Also refuse a network that cannot be cut where what learns begins."""
        super().check(state)
        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        rows = jax.eval_shape(self.spec.preprocess, self.sample)
        model, freeze = self.spec.model, self.spec.freeze
        self.split = FeatureSplit.of_learning(model, freeze, variables, rows)
        if isinstance(model, ModelAdapter):
            self._check_same(variables)
        self.backbone = Backbone(self.split)

    def _check_same(self, variables: Tree) -> None:
        """Refuse a network whose embeddings depend on images otherwise than by the features that are cached."""
        random = np.random.default_rng(0).random((2, *self.sample.shape[1:]))
        scale = 255 if np.issubdtype(self.sample.dtype, np.integer) else 1
        images = self.spec.preprocess(jnp.asarray((scale * random).astype(self.sample.dtype)))
        whole = jax.jit(self.spec.model.apply)(variables, images)
        split = jax.jit(lambda v, x: self.split.embeddings(v, self.split.features(v, x)))
        if not np.allclose(whole, split(variables, images), rtol=1e-2, atol=1e-3):
            raise ValueError(
                "cached_views: the embeddings do not follow from what the layer that learns takes alone: write "
                "jdml.models.WithHead(backbone, head)"
            )

    def step(self, state: TrainState) -> Outcome:
        """One step on the next batch; before the first, all features are computed or read."""
        if self._rows is None:
            self._rows = self._begin(state)
        self._rows.lacking = self.lacking
        outcome = self._rows.step(state)
        self.lacking = self._rows.lacking
        return outcome

    def embedder(self, state: TrainState) -> Embedder:
        """What embeds in evaluations: features of the same images are computed once."""
        embedder = _OfFeatures(*super().embedder(state))
        embedder.feed = self
        return embedder

    def close(self) -> None:
        """Forget features of evaluations."""
        self._sets = []

    def features_of(self, images: Any, state: TrainState) -> np.ndarray:
        """Features ``[N, 1, …]`` of a set of images as in evaluation, those of the last sets kept."""
        for there, features in self._sets:
            if there is images:
                return features
        features = self._computed(images, 1, state)
        self._sets = [*self._sets[1 - SETS :], (images, features)]
        return features

    def _begin(self, state: TrainState) -> RowFeed:
        """The steps on features, which are read where they were kept."""
        features = self._computed(self.train.images, self.keep.views, state)
        spec = dataclasses.replace(
            self.spec, model=HeadOnly(self.split), preprocess=_same, micro_batch=None
        )
        rows = RowFeed(spec, _Features(features, self.train.labels), self.sampler)
        rows.tell = self.tell
        return rows

    def _file(self, images: Any, views: int, state: TrainState, program: Any) -> Path | None:
        """Where features are kept: by the backbone, its program, the images, and how they are seen."""
        if self.keep.folder is None:
            return None
        frozen = self.spec.split(state.params)[1]["model"]
        backbone = jax.device_get((frozen, state.batch_stats)), self.spec.preprocess
        seen = (self.keep.seed, views) if views > 1 else ()
        digits = fingerprint(_content(images), backbone, program.as_text(), seen)
        return Path(self.keep.folder) / f"{digits}.npy"

    def _program(self, state: TrainState) -> Any:
        """What computes the features of one image, whatever its head, lowered: dtype, pooling and all are in it."""

        def features(variables: Tree, image: Tree) -> Tree:
            return self.backbone.apply(variables, self.spec.preprocess(image))

        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), variables)
        return jax.jit(features).lower(shapes, self.sample)

    def _computed(self, images: Any, views: int, state: TrainState) -> np.ndarray:
        """Features ``[N, views, …]``: in memory where they are small, else mapped from a file."""
        program = self._program(state)
        file = self._file(images, views, state, program)
        missing = any_process(np.array(file is None or not file.is_file()))
        if file is not None and not missing:
            return _read(file)
        shape = (len(images), views, *program.out_info.shape[1:])
        size = 4 * int(np.prod(shape))
        if file is None and size <= DEVICE_BYTES:
            features = np.empty(shape, np.float32)
            self._fill(features, images, state)
            return features
        folder = Path(tempfile.gettempdir()) if file is None else file.parent
        folder.mkdir(parents=True, exist_ok=True)
        check_disk_space(folder, size if file is None else 2 * size)
        # A file without a name, which goes with the array, and with a process that is killed.
        with tempfile.TemporaryFile(dir=folder) as part:
            features = np.memmap(part, np.float32, "w+", shape=shape)
        self._fill(features, images, state)
        if file is None or not is_main_process():
            return features
        with replacing(file, shared=True) as whole:
            np.save(whole, features)
        return _read(file)

    def _fill(self, features: np.ndarray, images: Any, state: TrainState) -> None:
        """Compute features, some images at a time."""
        number, views = features.shape[:2]
        for start in range(0, number, AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, number))
            for view in range(views):
                batch = (
                    images[start : rows[-1] + 1]
                    if views == 1
                    else images.augmented(rows, (self.keep.seed, view))
                )
                params, stats = state.params["model"], state.batch_stats
                features[rows, view] = embed(
                    self.backbone, params, stats, batch, preprocess=self.spec.preprocess
                )


class _Features(NamedTuple):
    """A data set of features."""

    images: np.ndarray
    labels: Any


class _OfFeatures(Embedder):
    """An embedder of a run on features."""

    feed: FeatureFeed

    def __call__(self, images: Tree) -> np.ndarray:
        features = self.feed.features_of(images, self.state)
        params, stats = self.state.params["model"], self.state.batch_stats
        after = HeadOnly(self.feed.split)
        return embed(after, params, stats, features, batch_size=AT_ONCE, preprocess=_same)


def _same(features: Tree) -> Tree:
    return features


def _content(images: Any) -> Any:
    """What images are: every number of an array; of files their names, sizes and times, or bytes."""
    if isinstance(images, ImageFiles):
        return images.transform, [_of_file(file) for file in images.files]
    digest = hashlib.sha256()
    for start in range(0, len(images), AT_ONCE):
        digest.update(np.asarray(images[start : start + AT_ONCE]).tobytes())
    return images.shape, str(images.dtype), digest.hexdigest()


def _of_file(file: Any) -> tuple[Any, ...]:
    path = str(getattr(file, "of", file))  # a row's table
    if not os.path.isfile(path):
        return str(file), hashlib.sha256(file.read_bytes()).hexdigest()
    there = os.stat(path)
    return str(file), there.st_size, there.st_mtime_ns


def _read(file: Path) -> np.ndarray:
    """Features of a file, mapped where they are large."""
    large = file.stat().st_size > DEVICE_BYTES
    features: np.ndarray = np.load(file, mmap_mode="r" if large else None)
    return features


def make_feed(
    spec: StepConfig, train: TrainSet, sampler: Sampler, keep: Keep | None = None
) -> Feed:
    """Return the feed for what ``sampler`` yields, on kept features where some are to be kept."""
    if keep is not None:
        return FeatureFeed(spec, train, sampler, keep)
    if isinstance(sampler, ImageBatches):
        return ImageFeed(spec, train, sampler)
    return RowFeed(spec, train, sampler)
