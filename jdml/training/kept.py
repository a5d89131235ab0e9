"""Features of a frozen backbone, computed once and kept: a step then trains the head alone."""

import dataclasses
import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jdml.data import ImageBatches, ImageFiles
from jdml.models import EmbeddingHead
from jdml.models.tensors import replacing
from jdml.ops import checks
from jdml.training.description import of_input
from jdml.training.feed import DEVICE_BYTES, Feed, ImageFeed, Outcome, RowFeed
from jdml.training.fingerprint import fingerprint
from jdml.training.fit_result import Embedder
from jdml.training.models import Model
from jdml.training.placement import Tree
from jdml.training.spec import Sampler, StepSpec, TrainSet
from jdml.training.step import TrainState, embed
from jdml.training.wrapped import Wrapped

HEAD = "head"
FEATURES = "features"
"""The folder of kept features within a run's."""
AT_ONCE = 512
"""Images that are decoded, and whose features are computed, before these are stored."""
SETS = 4
"""Of so many sets of images the features are kept for evaluations."""
CLOSE = 1e-2
"""What the head makes of features differs so much at most from what the network makes of images, by its size."""
_log = logging.getLogger(__name__)


class Keep(NamedTuple):
    """What of images is kept.

    Attributes:
        views: how many augmented views of each image file are kept, of which a step draws one; 1: the image as in
            evaluation.
        folder: of files of features; None: they are kept in memory, and in a temporary file where they are large.
        seed: of the views.
    """

    views: int = 1
    folder: Path | None = None
    seed: int = 0


class Head:
    """The end of a Linen network that learns: its parameters' place, and the module.

    Args:
        model: whose last module is called ``"head"``.
        variables: its variables, or their shapes.
        inputs: a batch as it takes it.

    Raises:
        ValueError: a network without such an end.
    """

    def __init__(self, model: Model, variables: Mapping[str, Tree], inputs: Tree) -> None:
        seen: dict[tuple[str, ...], nn.Module] = {}

        def look(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            if context.method_name == "__call__" and len(args) == 1 and not kwargs:
                seen[context.module.path] = context.module.clone(parent=None)
            return call(*args, **kwargs)

        with nn.intercept_methods(look):
            jax.eval_shape(lambda v, x: model.apply(v, x, train=False), variables, inputs)
        self.path: tuple[str, ...] = (HEAD,)
        if self.path not in seen:
            raise ValueError(
                "kept_views: the model must be a Flax Linen network that ends in a layer called head, of one argument; "
                "without them (0 in a recipe) images go through the network at each step"
            )
        head = seen[self.path]
        if isinstance(head, EmbeddingHead) and head.pooling != "gem":
            self.path = (HEAD, "embedding")  # what is pooled is all that is to be kept
        self.module = seen[self.path]


class Before(Wrapped):
    """A network as far as its head: of images to features, beside the embeddings.

    Args:
        model: the network.
        path: of the head within it.
    """

    def __init__(self, model: Model, path: tuple[str, ...]) -> None:
        super().__init__(model, (model, path))
        self._path = path

    def apply(self, variables: Any, images: Any, /, **_: Any) -> Any:
        """The features, and the embeddings."""
        kept: list[Any] = []

        def look(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
            if context.method_name == "__call__" and context.module.path == self._path:
                kept.append(args[0].astype(jnp.float32))
            return call(*args, **kwargs)

        with nn.intercept_methods(look):
            embeddings = self.module.apply(variables, images, train=False)
        return kept[-1], embeddings


class OnFeatures(Wrapped):
    """A network's head on kept features, with the parameters of the whole network.

    Args:
        head: of the network.
    """

    def __init__(self, head: Head) -> None:
        super().__init__(head.module, (head.module, head.path))
        self._path = head.path

    def apply(self, variables: Any, features: Any, /, **settings: Any) -> Any:
        """Embeddings of one view ``[B, views, …]`` of each row: in training drawn, else the first."""
        params = variables["params"]
        for name in self._path:
            params = params[name]
        views = features.shape[1]
        drawn = jnp.zeros(len(features), jnp.int32)
        if settings.get("train") and views > 1:
            drawn = jax.random.randint(settings["rngs"]["dropout"], drawn.shape, 0, views)
        x = jax.vmap(lambda row, view: row[view])(features, drawn)
        embeddings = self.module.apply({"params": params}, x).astype(jnp.float32)
        stats = {"batch_stats": variables.get("batch_stats", {})}
        return (embeddings, stats) if settings.get("mutable") else embeddings


class FeatureFeed(Feed):
    """Steps on kept features of the rows that a sampler yields.

    Args:
        spec: of the step on images, of which all but the head is frozen.
        train: a data set of images: an array, or files.
        sampler: an iterator of index arrays ``[B]``.
        keep: what is kept.

    Raises:
        TypeError: images that are neither.
        ValueError: more that learns than the head, or more views than there are.
    """

    def __init__(self, spec: StepSpec, train: TrainSet, sampler: Sampler, keep: Keep) -> None:
        super().__init__(spec, sampler)
        checks.count("kept_views", keep.views)
        if isinstance(sampler, ImageBatches):
            raise ValueError("kept_views: sampler must yield rows, got ImageBatches, which decode")
        if keep.views > 1 and not isinstance(train.images, ImageFiles):
            raise ValueError(
                f"kept_views must be 1 of images in memory, which are not augmented, got {keep.views}"
            )
        if not hasattr(train.images, "shape"):
            raise TypeError("kept_views: train must hold images [N, H, W, C]")
        self.train, self.keep, self.input = train, keep, of_input(train.images)
        self._rows: RowFeed | None = None
        self._sets: list[tuple[Any, np.ndarray]] = []

    @property
    def sample(self) -> Tree:
        """One row: a black image."""
        images = self.train.images
        return np.zeros((1, *images.shape[1:]), images.dtype)

    def check(self, state: TrainState) -> None:
        """Also refuse what has more to learn than a head."""
        super().check(state)
        learning = self.spec.split(state.params)[0]["model"]
        if set(learning) != {HEAD} and any(
            jax.tree.leaves(part) for name, part in learning.items() if name != HEAD
        ):
            raise ValueError(
                f"kept_views needs a network of which all but the head is frozen: freeze='(?!{HEAD}/).*'"
            )
        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        self.head = Head(self.spec.model, variables, self.spec.preprocess(self.sample))
        self.before = Before(self.spec.model, self.head.path)

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
            self.spec, model=OnFeatures(self.head), preprocess=_same, micro_batch=None
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
            return self.before.apply(variables, self.spec.preprocess(image))[0]

        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), variables)
        return jax.jit(features).lower(shapes, self.sample)

    def _computed(self, images: Any, views: int, state: TrainState) -> np.ndarray:
        """Features ``[N, views, …]``: in memory where they are small, else mapped from a file."""
        program = self._program(state)
        file = self._file(images, views, state, program)
        if file is not None and file.is_file():
            return _read(file)
        shape = (len(images), views, *program.out_info.shape[1:])
        if file is None and 4 * np.prod(shape) <= DEVICE_BYTES:
            features = np.empty(shape, np.float32)
            self._fill(features, images, state)
            return features
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=None if file is None else file.parent, suffix=".part"
        ) as part:
            features = np.lib.format.open_memmap(part.name, "w+", np.float32, shape)
            self._fill(features, images, state)
            if file is None:
                return features  # whose file has no name any more, and goes with it
            features.flush()
            with replacing(file) as whole, open(part.name, "rb") as content:
                while block := content.read(1 << 24):
                    whole.write(block)
        return _read(file)

    def _fill(self, features: np.ndarray, images: Any, state: TrainState) -> None:
        """Compute features, some images at a time, and look whether the head makes of them what the network does."""
        number, views = features.shape[:2]
        for start in range(0, number, AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, number))
            for view in range(views):
                batch = (
                    images[start : rows[-1] + 1]
                    if views == 1
                    else images.augmented(rows, (self.keep.seed, view))
                )
                features[rows, view], embeddings = self._of(batch, state)
            if start == 0:
                self._check(features[rows, view], embeddings, state)

    def _of(self, batch: Any, state: TrainState) -> Any:
        params, stats = state.params["model"], state.batch_stats
        return embed(self.before, params, stats, batch, preprocess=self.spec.preprocess)

    def _check(self, features: np.ndarray, embeddings: np.ndarray, state: TrainState) -> None:
        params = {"params": state.params["model"]}
        made = OnFeatures(self.head).apply(params, jnp.asarray(features)[:, None])
        off = np.abs(np.asarray(made) - embeddings).max()
        if made.shape != embeddings.shape or off > CLOSE * np.abs(embeddings).max():
            raise ValueError(
                "kept_views: the model must end in its head, but makes something else of what that gives"
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
        head, params = OnFeatures(self.feed.head), self.state.params["model"]
        return embed(head, params, {}, features, batch_size=AT_ONCE, preprocess=_same)


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


def make_feed(spec: StepSpec, train: TrainSet, sampler: Sampler, keep: Keep | None = None) -> Feed:
    """Return the feed for what ``sampler`` yields, on kept features where some are to be kept."""
    if keep is not None:
        return FeatureFeed(spec, train, sampler, keep)
    if isinstance(sampler, ImageBatches):
        return ImageFeed(spec, train, sampler)
    return RowFeed(spec, train, sampler)
