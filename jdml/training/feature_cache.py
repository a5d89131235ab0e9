"""The feature cache: features of a frozen backbone are stored, and a step trains only the head."""

import dataclasses
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml._paths import atomic_write, check_disk_space
from jdml.data import ImageBatches, ImageFiles
from jdml.data.dataset import TrainSet
from jdml.data.samplers import Sampler
from jdml.distributed import Tree, any_process, is_main_process
from jdml.models.adapters import Model
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import embed
from jdml.models.feature_split import Backbone, FeatureSplit, HeadOnly
from jdml.models.finetuning import Frozen
from jdml.runs.identity import file_version, fingerprint
from jdml.training.batch_source import (
    DEVICE_BYTES,
    BatchSource,
    ImageFileSource,
    RowSource,
    StepResult,
)
from jdml.training.run_config import Embedder
from jdml.training.step import StepConfig, TrainState

FEATURES = "features"
"""The folder of features within a run's."""
CHUNK = 512
"""Images that are decoded and embedded at a time."""
SETS = 4
"""Sets of images whose features stay in memory for evaluations."""


class CachedFeatureSource(RowSource):
    """Step on cached features, in a folder or in memory, of augmented views of the rows that a sampler yields."""

    def __init__(
        self,
        spec: StepConfig,
        train: TrainSet,
        sampler: Sampler,
        views: int,
        folder: Path | None,
        seed: int,
    ) -> None:
        super().__init__(spec, train, sampler)
        if views > 1 and not isinstance(train.images, ImageFiles):
            raise ValueError(f"cached_views must be 1 for images in memory, got {views}")
        self.views, self.folder, self.seed = views, folder, seed
        self._sets: list[tuple[Any, np.ndarray]] = []

    def check(self, state: TrainState) -> None:
        """Also refuse a network that cannot be split before the layers that learn."""
        super().check(state)
        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        rows = jax.eval_shape(self.spec.preprocess, self.sample)
        model, freeze = self.spec.model, self.spec.freeze
        self.split = FeatureSplit.of_learning(model, freeze, variables, rows)
        self.backbone = Backbone(self.split)
        if isinstance(model, ModelAdapter):
            self._check_same_embeddings(variables)

    def _check_same_embeddings(self, variables: Tree) -> None:
        """Refuse a network whose embeddings depend on images in other ways than by the cached features."""
        random = np.random.default_rng(0).random((2, *self.sample.shape[1:]))
        scale = 255 if np.issubdtype(self.sample.dtype, np.integer) else 1
        images = self.spec.preprocess(jnp.asarray((scale * random).astype(self.sample.dtype)))
        whole = jax.jit(self.spec.model.apply)(variables, images)
        split = jax.jit(lambda v, x: self.split.embeddings(v, self.split.features(v, x)))
        if not np.allclose(whole, split(variables, images), rtol=1e-2, atol=1e-3):
            raise ValueError(
                "cached_views: embeddings depend on more than the head's input: write models.WithHead(backbone, head)"
            )

    def step(self, state: TrainState) -> StepResult:
        """Take one step on the next batch; before the first, all features are computed or read."""
        if self._step is None:
            features = self._load_or_compute(self.train.images, self.views, state)
            head = HeadOnly(self.split)
            spec = dataclasses.replace(self.spec, model=head, preprocess=_same, micro_batch=None)
            self._prepare(spec, features)
        return super().step(state)

    def embedder(self, state: TrainState) -> Embedder:
        """Return an embedder that computes the features of the same images once."""
        embedder = _CachedEmbedder(*super().embedder(state))
        embedder.source = self
        return embedder

    def features_of(self, images: Any, state: TrainState) -> np.ndarray:
        """Return features ``[N, 1, …]`` of a set of images as in evaluation, from memory for the last sets."""
        for stored, features in self._sets:
            if stored is images:
                return features
        features = self._load_or_compute(images, 1, state)
        self._sets = [*self._sets[1 - SETS :], (images, features)]
        return features

    def _load_or_compute(self, images: Any, views: int, state: TrainState) -> np.ndarray:
        """Return features ``[N, views, …]``: in memory where they are small, else mapped from a file."""

        # The program of one image, lowered, identifies the network with its dtype, pooling and preprocessing.
        def features_of_one(variables: Tree, image: Tree) -> Tree:
            return self.backbone.apply(variables, self.spec.preprocess(image))

        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), variables)
        program = jax.jit(features_of_one).lower(shapes, self.sample)
        file = None
        if self.folder is not None:
            frozen = self.spec.split(state.params)[1]["model"]
            backbone = jax.device_get((frozen, state.batch_stats)), self.spec.preprocess
            augmented = (self.seed, views) if views > 1 else ()
            digits = fingerprint(_content(images), backbone, program.as_text(), augmented)
            file = self.folder / f"{digits}.npy"
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
        # A file without a name, which vanishes with the array, and with a process that is killed.
        with tempfile.TemporaryFile(dir=folder) as part:
            features = np.memmap(part, np.float32, "w+", shape=shape)
        self._fill(features, images, state)
        if file is None or not is_main_process():
            return features
        with atomic_write(file, shared=True) as whole:
            np.save(whole, features)
        return _read(file)

    def _fill(self, features: np.ndarray, images: Any, state: TrainState) -> None:
        """Compute features, a chunk of images at a time."""
        number, views = features.shape[:2]
        embedder = Embedder(self.backbone, state, self.spec.preprocess)
        for start in range(0, number, CHUNK):
            rows = np.arange(start, min(start + CHUNK, number))
            for view in range(views):
                batch = images[rows] if views == 1 else images.augmented(rows, (self.seed, view))
                features[rows, view] = embedder(batch)


class _CachedEmbedder(Embedder):
    """An embedder of a run on features."""

    source: CachedFeatureSource

    def __call__(self, images: Tree) -> np.ndarray:
        features = self.source.features_of(images, self.state)
        params, stats = self.state.params["model"], self.state.batch_stats
        head = HeadOnly(self.source.split)
        return embed(head, params, stats, features, batch_size=CHUNK, preprocess=_same)


def _same(features: Tree) -> Tree:
    return features


def _content(images: Any) -> Any:
    """Identify images: by all numbers of an array; by names, sizes and times of files, or their content."""
    if isinstance(images, ImageFiles):
        return images.transform, [(str(file), *file_version(file)) for file in images.files]
    digest = hashlib.sha256()
    for start in range(0, len(images), CHUNK):
        digest.update(np.asarray(images[start : start + CHUNK]).tobytes())
    return images.shape, str(images.dtype), digest.hexdigest()


def _read(file: Path) -> np.ndarray:
    """Read features, mapped if they are large."""
    is_large = file.stat().st_size > DEVICE_BYTES
    return np.asanyarray(np.load(file, mmap_mode="r" if is_large else None))


def make_batch_source(
    spec: StepConfig, train: TrainSet, sampler: Any, model: Model, run: Any, seed: int
) -> BatchSource:
    """Return the batches of what a sampler yields; features are cached by default in the folder of the run."""
    if isinstance(model, Frozen) and model.cached_views is not None:
        default = None if run is None else Path(run) / FEATURES
        folder = default if model.cache_folder is None else Path(model.cache_folder)
        return CachedFeatureSource(spec, train, sampler, model.cached_views, folder, seed)
    if isinstance(sampler, ImageBatches):
        return ImageFileSource(spec, train, sampler)
    return RowSource(spec, train, sampler)
