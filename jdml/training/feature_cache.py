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
from jdml.distributed import Tree, any_process, is_main_process
from jdml.models.adapters import Model
from jdml.models.base_adapter import ModelAdapter
from jdml.models.embedding import default_preprocess, embed
from jdml.models.feature_split import FeatureSplit, HeadOnly
from jdml.models.finetuning import Frozen
from jdml.runs.identity import file_version, fingerprint
from jdml.training.batch_source import DEVICE_BYTES, BatchSource, ImageFileSource, RowSource
from jdml.training.run_config import Embedder
from jdml.training.step import StepConfig, TrainState

CHUNK = 512
"""Images that are decoded and embedded at a time."""
SETS = 4
"""Sets of images whose features stay in memory for evaluations."""


class CachedFeatureSource(RowSource):
    """Step on cached features, in a folder or in memory, of augmented views of the rows that a sampler yields."""

    def __init__(
        self, spec: StepConfig, train: TrainSet, sampler: Any, model: Frozen, run: Any, seed: int
    ) -> None:
        super().__init__(spec, train, sampler)
        self.views, self.seed = int(model.cached_views or 1), seed
        if self.views > 1 and not isinstance(train.images, ImageFiles):
            raise ValueError(f"cached_views must be 1 for images in memory, got {self.views}")
        default = None if run is None else Path(run) / "features"
        self.folder = default if model.cache_folder is None else Path(model.cache_folder)
        self._sets: list[tuple[Any, np.ndarray]] = []

    def check(self, state: TrainState) -> None:
        """Also refuse a network that cannot be split before the layers that learn."""
        super().check(state)
        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        rows = jax.eval_shape(self.spec.preprocess, self.sample)
        model, freeze = self.spec.model, self.spec.freeze
        self.split = FeatureSplit.of_learning(model, freeze, variables, rows)
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

    def step_inputs(self, state: TrainState) -> tuple[StepConfig, Tree]:
        """Return the step of the head alone, and all features, which are computed or read."""
        features = self._load_or_compute(self.train.images, self.views, state)
        head = HeadOnly(self.split)
        # What is applied to images by default leaves features as they are.
        settings: Any = {"preprocess": default_preprocess, "micro_batch": None}
        return dataclasses.replace(self.spec, model=head, **settings), features

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
            return self.split.apply(variables, self.spec.preprocess(image))

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
        if file is None or missing:
            shape = (len(images), views, *program.out_info.shape[1:])
            features = _empty(shape, None if file is None else file.parent)
            embedder = Embedder(self.split, state, self.spec.preprocess)
            for start in range(0, len(images), CHUNK):
                rows = np.arange(start, min(start + CHUNK, len(images)))
                for view in range(views):
                    seed = self.seed, view
                    batch = images[rows] if views == 1 else images.augmented(rows, seed)
                    features[rows, view] = embedder(batch)
            if file is None or not is_main_process():
                return features
            with atomic_write(file, shared=True) as whole:
                np.save(whole, features)
        is_large = file.stat().st_size > DEVICE_BYTES
        return np.asanyarray(np.load(file, mmap_mode="r" if is_large else None))


class _CachedEmbedder(Embedder):
    """An embedder of a run on features."""

    source: CachedFeatureSource

    def __call__(self, images: Tree) -> np.ndarray:
        features = self.source.features_of(images, self.state)
        params, stats = self.state.params["model"], self.state.batch_stats
        head = HeadOnly(self.source.split)
        return embed(head, params, stats, features, batch_size=CHUNK)


def _empty(shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    """Return space for features: in memory, or in a file without a name, which a killed process leaves nowhere."""
    size = 4 * int(np.prod(shape))
    if folder is None and size <= DEVICE_BYTES:
        return np.empty(shape, np.float32)
    place = folder or Path(tempfile.gettempdir())
    place.mkdir(parents=True, exist_ok=True)
    check_disk_space(place, 2 * size if folder else size)
    with tempfile.TemporaryFile(dir=place) as part:
        return np.memmap(part, np.float32, "w+", shape=shape)


def _content(images: Any) -> Any:
    """Identify images: by all numbers of an array; by names, sizes and times of files, or their content."""
    if isinstance(images, ImageFiles):
        return images.transform, [(str(file), *file_version(file)) for file in images.files]
    digest = hashlib.sha256()
    for start in range(0, len(images), CHUNK):
        digest.update(np.asarray(images[start : start + CHUNK]).tobytes())
    return images.shape, str(images.dtype), digest.hexdigest()


def make_batch_source(
    spec: StepConfig, train: TrainSet, sampler: Any, model: Model, run: Any, seed: int
) -> BatchSource:
    """Return the batches of what a sampler yields; features are cached by default in the folder of the run."""
    if isinstance(model, Frozen) and model.cached_views is not None:
        return CachedFeatureSource(spec, train, sampler, model, run, seed)
    if not isinstance(sampler, ImageBatches):
        return RowSource(spec, train, sampler)
    if sampler.dataset is not train:
        raise ValueError("sampler must be ImageBatches of train, got those of another data set")
    return ImageFileSource(spec, train, sampler)
