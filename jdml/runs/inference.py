"""Use a trained model: load a run, embed images, export the model."""

import contextlib
import logging
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from jdml import adapt
from jdml._optional_imports import progress_bar, require_package
from jdml._paths import check_local, expand_user, wrap_read_errors
from jdml.data import BadImageError, Crops, Dataset, ImageFiles
from jdml.data.dataset import as_host, as_inputs, check_channels
from jdml.data.images import Row
from jdml.data.load import RUN, UNKNOWN, read_path
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.models.adapters import AnyModel, Model, as_model
from jdml.models.embedding import Preprocess, check_as_trained, embed
from jdml.ops.checks import count, one_of
from jdml.runs.identity import fingerprint
from jdml.runs.model_metadata import build_model, build_part, fit_variables, input_template
from jdml.runs.run_files import CONFIG, LAST, METRICS, MODEL, read_json, read_model

UNSET: Any = object()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with its crop, preprocessing and normalization.

    Attributes:
        model: the module; :meth:`embed` calls
            ``model.apply({"params": params, "batch_stats": batch_stats}, inputs, train=False)`` on cropped and
            preprocessed inputs.
        params: the model's parameters.
        batch_stats: its running statistics; ``{}`` where it has none.
        objective_params: the objective's parameters: ``{"proxies": …}``, ``{}``, …
        config: the run's ``config.json``, or its part in a file of ``jdml export``.
        class_names: the names of the trained classes, by label; empty where they had none.
        step: the step of these parameters.
        metrics: their scores, as in ``metrics.json``.
        preprocess: from images to the model's input.
        normalize: applied to embeddings before they are compared; None for nothing.
        crop: how image files become arrays; None where the run had arrays.
        input: shape ``[H, W, C]`` and type of an image, as the model takes it before ``preprocess``.

    Implementation notes:
        Threads may share it. A process that is forked after JAX began loads its own: JAX's threads are not forked.
    """

    model: Model
    params: Tree
    batch_stats: Tree
    config: Mapping[str, Any]
    class_names: tuple[str, ...]
    step: int
    metrics: Mapping[str, Any]
    preprocess: Preprocess
    normalize: Normalize | None
    crop: Crops | None
    input: Mapping[str, Any]
    objective_params: Mapping[str, Tree] = field(default_factory=dict)
    description: Mapping[str, Any] = field(default_factory=dict)
    _process: int = field(default_factory=os.getpid, init=False, repr=False)

    def __repr__(self) -> str:
        """Return the network, its step and its scores, in one line."""
        network = type(self.model).__name__
        return f"Trained({network}, step={self.step}, metrics={dict(self.metrics)})"

    def embed(
        self,
        source: Any,
        *,
        batch_size: int | None = None,
        on_bad_image: Literal["nan", "stop"] = "stop",
        progress: bool = False,
    ) -> np.ndarray:
        """Embed images as the run did when it was scored: cropped, preprocessed, normalized.

        Args:
            source: an image: its path, the bytes of its file, or an image of Pillow; or a list of these. Also the path
                of a folder of images or a ``.csv`` list, read as ``jdml embed`` does, a :class:`jdml.data.Dataset`, or
                an array ``[N, H, W, C]`` or a list of arrays, uint8 in 0…255 or float in 0…1, of the run's size, or of
                any size in uint8.
                An array of the run's size is embedded as it is; all others are cropped as a file is, which scales also
                a file of this size to the crop's shorter side first. For other inputs: as the run was trained on, with
                rows first.
            batch_size: rows per forward pass; by default 512 images of up to 64×64, 32 of 224×224.
            on_bad_image: for an image file that cannot be decoded ``"stop"`` raises, ``"nan"`` makes its embedding NaN
                and names it in the log.
            progress: show a progress bar.

        Returns:
            Embeddings ``[N, D]``, float32.

        Raises:
            BadImageError: an image file that cannot be decoded, by its name, or by its place in the list.
            FileNotFoundError: a path that does not exist.
            RuntimeError: a model that was loaded before this process was forked.
            TypeError: another source, integers other than uint8.
            ValueError: images of another shape or range; an embedding that is not finite, by its row.

        Implementation notes:
            A batch is padded to a power of two, and one program computes and normalizes the embeddings: whatever the
            numbers of images, ten programs are compiled at most, for ``batch_size`` 512.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "the model was loaded before this process was forked: load it in each process"
            )
        one_of("on_bad_image", on_bad_image, ("nan", "stop"))
        bad: dict[int, str] = {}
        images = self.images_of(source, None if on_bad_image == "stop" else bad)
        shown, size = progress and hasattr(images, "shape"), len(jax.tree.leaves(images)[0])
        with progress_bar(shown, total=size, desc="embedding", unit="image") as bar:

            def read(rows: slice) -> np.ndarray:
                batch = np.asarray(images[rows])
                bar.update(len(batch))
                return batch

            vectors = self._embed(ReadRows(images.shape, read) if shown else images, batch_size)
        for part in jax.tree.leaves(vectors):
            if not np.isfinite(part).all():
                row = np.isfinite(part).all(axis=-1).argmin()
                raise ValueError(f"source must have finite embeddings, row {row} has not")
        if bad:
            vectors = np.array(vectors)
            vectors[list(bad)] = np.nan
        return vectors

    def warm(self, sizes: Sequence[int] = (1, 8, 64)) -> None:
        """Compile what :meth:`embed` needs for these numbers of images, before the first request.

        Args:
            sizes: numbers of images. Numbers between are padded to the next power of two, which is compiled only if it
                is among them.

        Raises:
            TypeError: sizes that are no integers.
            ValueError: sizes below 1.
        """
        template = input_template(self.input)
        for size in sizes:
            count("sizes", size)
            rows = jax.tree.map(lambda x, n=size: np.zeros((n, *x.shape[1:]), x.dtype), template)
            self._embed(rows)

    def _embed(self, images: Any, batch_size: int | None = None) -> Any:
        return embed(
            self.model,
            self.params,
            self.batch_stats,
            images,
            batch_size=batch_size,
            preprocess=self.preprocess,
            normalize=self.normalize,
        )

    @cached_property
    def identity(self) -> str:
        """Sixteen digits that identify these parameters."""
        variables = {"params": self.params, "batch_stats": self.batch_stats}
        return fingerprint(adapt.named_leaves(variables))

    def function(self) -> Callable[[Tree], jax.Array]:
        """Return a pure function from a batch of inputs, cropped, to embeddings: for ``jax.export``."""
        variables = {"params": self.params, "batch_stats": self.batch_stats}

        def embed_batch(inputs: Tree) -> jax.Array:
            vectors = self.model.apply(variables, self.preprocess(inputs), train=False)
            return vectors if self.normalize is None else self.normalize(vectors)

        return embed_batch

    def images_of(self, source: Any, bad: dict[int, str] | None = None) -> Any:
        """Return the model's inputs of a source: an array, or cropped files; ``bad`` notes damaged ones."""
        if isinstance(source, Dataset):
            source = source.images
        if isinstance(source, ImageFiles):
            return self._files(source.files, bad)
        sources = [source] if _is_image(source) else source
        if isinstance(sources, Sequence) and sources and _is_image(sources[0]):
            return self._files(_files_of(sources), bad)
        if "parts" in self.input:
            return source
        if isinstance(source, list):
            source = as_inputs("source", source)
        if isinstance(source, Mapping) or not hasattr(source, "__array__"):
            raise TypeError(
                "source must be paths, bytes or images of Pillow, a jdml.data.Dataset or an array [N, H, W, C], got a "
                f"{type(source).__name__}"
            )
        return self._array(as_host(source))

    def _files(self, files: Any, bad: dict[int, str] | None) -> Any:
        shape = self.input.get("shape", ())
        if len(shape) != 3 or shape[0] != shape[1] or shape[2] not in (1, 3):
            raise ValueError(
                f"source must be arrays: the run was trained on inputs of shape {shape}"
            )
        images = _Tolerant(files, self.crop or Crops(shape[0], shape[0], (1.0, 1.0)))
        images.bad = bad
        if shape[2] == 3:
            return images
        weights = np.array([0.299, 0.587, 0.114])

        def grey(rows: Any) -> np.ndarray:
            return np.round(images[rows] @ weights)[..., None].astype(np.uint8)

        return ReadRows((*images.shape[:3], 1), grey)

    def _array(self, images: np.ndarray) -> Any:
        shape = tuple(self.input["shape"])
        check_as_trained(images, self.input, self.preprocess)
        if images.shape[1:] == shape:
            return images.astype(np.float32) if images.dtype == np.float64 else images
        check_channels("images", images)
        is_photo = images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] == 3
        if self.crop is None or not is_photo:
            others = "" if self.crop is None else ", or uint8 images [N, H, W, 3] of any size"
            expected = f"[N, {', '.join(map(str, shape))}]{others}"
            raise ValueError(f"images must have shape {expected}, got {list(images.shape)}")
        require_package("PIL", "cropping images")
        from PIL import Image

        return np.stack([self.crop(Image.fromarray(image)) for image in images])


def load(
    run: str | Path,
    *,
    which: Literal["best", "last"] = "best",
    model: AnyModel | None = None,
    preprocess: Preprocess | None = None,
    normalize: Normalize | None = UNSET,
) -> Trained:
    """Load a run of ``jdml train``, ``jdml benchmark`` or :func:`jdml.training.fit` to embed with it.

    Args:
        run: the run's folder, or a ``.safetensors`` file of ``jdml export``.
        which: ``"best"``: the parameters that ``metrics.json`` scores, the best by the run's monitor, or the last where
            it had none; ``"last"``: those of the last checkpoint.
        model: the module, where it is neither of :mod:`jdml.models` nor of a factory that the recipe names.
        preprocess: the function, where it is your own.
        normalize: another normalization than the run's; None for none.

    Returns:
        A :class:`Trained`.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a folder that is no run, or has no parameters yet; a missing model or function of your own; a model
            whose parameters are not the run's, naming the first.

    Implementation notes:
        Reads ``model.safetensors``, or ``last.safetensors`` of a run with a monitor; the data are not needed.

    Example:
        Two images of the same bird?::

            trained = load("runs/birds")
            first, second = trained.embed(["a.jpg", "b.jpg"])
            similarity = first @ second
    """
    one_of("which", which, ("best", "last"))
    check_local("run", run)
    path = expand_user(run)
    if not path.exists():
        raise FileNotFoundError(f"run {path} does not exist")
    module: Any = None if model is None else as_model(model)
    with wrap_read_errors(path):
        config, arrays, description = _read(path, which)
        described = description.get("embedding")
        if described is None:
            raise ValueError(f"{path} has no description of its network (embedding in {CONFIG})")
        is_own = model is None and "factory" not in described
        module = build_model(described) if module is None else module
        preprocess = preprocess or build_part("preprocess", described)
        crop, step = build_part("crop", described), operator.index(description["step"])
        class_names = tuple(described.get("class_names", ()))
        normalize = build_part("normalize", described) if normalize is UNSET else normalize
        template = input_template(described["input"])
        # This compiles nothing.
        variables = unflatten_dict(jax.device_put(arrays), sep="/")
    if not is_own:

        def init(inputs: Tree) -> Tree:
            return module.init(jax.random.key(0), preprocess(inputs), train=False)

        own = jax.eval_shape(init, template)
        own = {kind: own.get(kind, {}) for kind in ("params", "batch_stats")}
        variables |= fit_variables(own, arrays, path)
    return Trained(
        model=module,
        params=variables.get("params", {}),
        batch_stats=variables.get("batch_stats", {}),
        config=config,
        class_names=class_names,
        step=step,
        metrics=description.get("metrics", {}),
        preprocess=preprocess,
        normalize=normalize,
        crop=crop,
        input=described["input"],
        objective_params=variables.get("objective", {}),
        description=description,
    )


def _read(path: Path, which: str) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]:
    """Return the configuration, arrays by name, and their description with their metrics."""
    if path.is_file():
        arrays, description = read_model(path)
        embedding = {"embedding": description.get("embedding")}
        return {**description.get(RUN, UNKNOWN), **embedding}, arrays, description
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path} is not the folder of a run: it has no {CONFIG}")
    config = read_json(path / CONFIG, dict)
    last = path / LAST
    file = last if which == "last" and last.is_file() else path / MODEL
    if not file.is_file():
        raise ValueError(f"{path} has no parameters yet: its first checkpoint was not reached")
    arrays, description = read_model(file)
    if file.name == MODEL:
        missing = description.get("metrics", {})
        description["metrics"] = read_json(path / METRICS, missing=missing)
    return config, arrays, description


class _Images(list[Any]):
    """Images in memory, which errors call ``source``."""

    def __str__(self) -> str:
        return "source"


def _is_image(source: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    is_pillow = pillow is not None and isinstance(source, pillow.Image)
    return is_pillow or isinstance(source, str | Path | bytes | bytearray)


def _files_of(sources: Sequence[Any]) -> list[Any]:
    """Return the image files of paths, of files' bytes and of images of Pillow."""
    files: list[Any] = []
    images = _Images(bytes(each) if isinstance(each, bytearray) else each for each in sources)
    for place, source in enumerate(images):
        if not _is_image(source):
            raise TypeError(
                f"source[{place}] must be a path, bytes or an image of Pillow, got a {type(source).__name__}"
            )
        if not isinstance(source, str | Path):
            if hasattr(source, "load"):
                with contextlib.suppress(Exception):  # named when it is read, by a thread
                    source.load()  # by one thread: the image may be several times in the list
            files.append(Row(images, place))
            continue
        check_local("source", source)
        content = read_path(expand_user(source))
        for note in content.notes:
            _log.warning("%s: %s", source, note)
        files += content.all_files
    return files


class _Tolerant(ImageFiles):
    """Image files of which those that cannot be decoded are black, and are noted in ``bad`` if it is there."""

    bad: dict[int, str] | None = None

    def read(self, row: int, random: np.random.Generator | None = None) -> np.ndarray:
        try:
            return super().read(row, random)
        except BadImageError as error:
            if self.bad is None:
                raise
            if row not in self.bad:
                self.bad[int(row)] = str(error)
                _log.warning("skipped: %s", error)
            return np.zeros(self.shape[1:], np.uint8)


@dataclass(frozen=True)
class ReadRows:
    """Images of a shape that a function reads, some rows at a time."""

    shape: tuple[int, ...]
    read: Callable[[Any], np.ndarray]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.read(rows)
