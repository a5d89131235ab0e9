"""Use what was trained: a run's folder as one object that embeds."""

import contextlib
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from flax.traverse_util import unflatten_dict

from jdml._optional_imports import progress_bar, require_package
from jdml._paths import check_local, expand_user, wrap_read_errors
from jdml.data import BadImageError, Crops, Dataset, ImageFiles
from jdml.data.dataset import as_host, check_channels
from jdml.data.image_source import RUN, UNKNOWN
from jdml.data.load import read_path
from jdml.distributed import Tree
from jdml.losses.comparison import Normalize
from jdml.models.adapters import AnyModel, Model, as_model
from jdml.models.embedding import embed
from jdml.models.finetuning import merged
from jdml.models.preprocess import Preprocess, check_as_trained
from jdml.ops.checks import one_of
from jdml.runs.identity import fingerprint
from jdml.runs.model_metadata import (
    build_crop,
    build_model,
    build_normalize,
    build_preprocess,
    fit_variables,
    input_template,
)
from jdml.runs.run_files import (
    CONFIG,
    METRICS,
    MODEL,
    named_leaves,
    read_checkpoint,
    read_json,
    read_model,
)

UNSET: Any = object()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with all that stands between an image and its embedding.

    Attributes:
        model: the module; ``model.apply({"params": params, "batch_stats": batch_stats}, inputs, train=False)`` is what
            :meth:`embed` does to inputs that are cropped and preprocessed.
        params: the model's parameters.
        batch_stats: its running statistics; ``{}`` where it has none.
        objective_params: what the objective learned: ``{"proxies": …}``, ``{}``, …
        config: the run's ``config.json``; of a file of ``jdml export`` what it tells of it.
        class_names: the names of the classes that were trained on, by label; empty where they had none.
        step: the step of these parameters.
        metrics: what ``metrics.json`` says of them.
        preprocess: from images to the model's input.
        normalize: what is done to embeddings before they are compared; None for nothing.
        crop: how image files become arrays; None where the run had arrays.
        input: shape ``[H, W, C]`` and type of an image, as the model takes it before ``preprocess``.
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
            source: a :class:`jdml.data.Dataset`; the path of an image, of a folder of images or a ``.csv`` list, read
                as ``jdml embed`` does, or several paths; or an array ``[N, H, W, C]``, uint8 in 0…255 or float in 0…1,
                of the run's size, or of any size in uint8: then the centre is cut out as of a file. Whatever else the
                run was trained on, with rows first.
            batch_size: rows per forward pass; by default 512 images of up to 64×64, 32 of 224×224.
            on_bad_image: what an image file that cannot be decoded does: ``"stop"`` raises, ``"nan"`` makes its
                embedding NaN and names it in the log.
            progress: show a progress bar.

        Returns:
            Embeddings ``[N, D]``, float32.

        Raises:
            BadImageError: an image file that cannot be decoded, by its name.
            FileNotFoundError: a path that is not there.
            TypeError: what is none of these, integers other than uint8.
            ValueError: images of another shape, or in another range, saying which are expected; an embedding that
                is not finite, by its row.
        """
        one_of("on_bad_image", on_bad_image, ("nan", "stop"))
        images = self.images_of(source)
        files = images.images if isinstance(images, _Grey) else images
        if isinstance(files, _Tolerant):
            files.stops = on_bad_image == "stop"
        with self._fitting():
            vectors = embed(
                self.model,
                self.params,
                self.batch_stats,
                _Watched(images) if progress and hasattr(images, "shape") else images,
                batch_size=batch_size,
                preprocess=self.preprocess,
            )
        if self.normalize is not None:
            normalize = self.normalize
            vectors = jax.tree.map(lambda x: np.asarray(normalize(jnp.asarray(x))), vectors)
        for part in jax.tree.leaves(vectors):
            if not np.isfinite(part).all():
                row = np.isfinite(part).all(axis=-1).argmin()
                raise ValueError(
                    f"source must be finite, but the embedding of row {row} is not: look for NaN in its values, and in "
                    "what was trained"
                )
        if isinstance(files, _Tolerant) and files.bad:
            vectors = np.where(
                np.isin(np.arange(len(vectors)), list(files.bad))[:, None], np.nan, vectors
            )
        return vectors

    @property
    def identity(self) -> str:
        """Sixteen digits that tell these parameters from all others."""
        return fingerprint(named_leaves({"params": self.params, "batch_stats": self.batch_stats}))

    def function(self) -> Callable[[Tree], jax.Array]:
        """Return a pure function from a batch of inputs, cropped, to embeddings: for ``jax.export``."""
        variables = {"params": self.params, "batch_stats": self.batch_stats}

        def embed_batch(inputs: Tree) -> jax.Array:
            with self._fitting():
                vectors = self.model.apply(variables, self.preprocess(inputs), train=False)
            return vectors if self.normalize is None else self.normalize(vectors)

        return embed_batch

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """Refuse parameters that are not the model's: a described network takes them as they are."""
        try:
            yield
        except FlaxError as error:
            raise ValueError(
                f"the run's parameters are not those of its network, {type(self.model).__name__}: "
                f"{str(error).partition(' (https')[0]}"
            ) from error

    def images_of(self, source: Any) -> Any:
        """Return the model's inputs of a source: an array, or files that are cut as the run cuts them."""
        if isinstance(source, Dataset):
            source = source.images
        if isinstance(source, ImageFiles):
            return self._files(source.files)
        if isinstance(source, str | Path):
            return self._files(_paths([source]))
        if (
            isinstance(source, Sequence)
            and source
            and all(isinstance(x, str | Path) for x in source)
        ):
            return self._files(_paths(source))
        if "parts" in self.input:
            return source
        if isinstance(source, Mapping) or not hasattr(source, "__array__"):
            raise TypeError(
                f"source must be paths, a jdml.data.Dataset or an array [N, H, W, C], got a {type(source).__name__}"
            )
        return self._array(as_host(source))

    def _files(self, files: Any) -> Any:
        shape = self.input.get("shape", ())
        if len(shape) != 3:
            raise ValueError(
                f"the run was trained on inputs of shape {shape}, not on images: give arrays"
            )
        height, width, channels = shape
        crop = self.crop or Crops(height, height, (1.0, 1.0))
        if height != width or channels not in (1, 3):
            raise ValueError(f"the run was trained on images of shape {shape}: give arrays of it")
        images = _Tolerant(files, crop)
        return images if channels == 3 else _Grey(images)

    def _array(self, images: np.ndarray) -> Any:
        shape = tuple(self.input["shape"])
        check_as_trained(images, self.input, self.preprocess)
        if images.shape[1:] == shape:
            return images.astype(np.float32) if images.dtype == np.float64 else images
        check_channels("images", images)
        expected = f"[N, {', '.join(map(str, shape))}]"
        if images.ndim != 1 + len(shape):
            raise ValueError(f"images must have shape {expected}, got {list(images.shape)}")
        if self.crop is None or images.dtype != np.uint8 or images.shape[3] != 3:
            cut = "" if self.crop is None else ", or uint8 images [N, H, W, 3] of any size"
            raise ValueError(f"images must have shape {expected}{cut}, got {list(images.shape)}")
        require_package("PIL", "cutting images")
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
        model: the module, where it is not one of :mod:`jdml.models`, and no factory that the recipe names made it.
        preprocess: the function, where it was one of your own.
        normalize: another normalization than the run's; None for none.

    Returns:
        A :class:`Trained`.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a folder that is no run, or has no parameters yet; a model or function of your own that is not
            given, or whose parameters are others than the run's, naming the first.

    Implementation notes:
        ``"best"`` reads ``model.safetensors``; nothing of Orbax or of the data is needed.

    Example:
        Two images of the same bird?::

            trained = load("runs/birds")
            first, second = trained.embed(["a.jpg", "b.jpg"])
            similarity = first @ second
    """
    if which not in ("best", "last"):
        raise ValueError(f'which must be "best" or "last", got {which!r}')
    check_local("run", run)
    path = expand_user(run)
    if not path.exists():
        raise FileNotFoundError(f"run must be the folder of a run, {path} does not exist")
    with wrap_read_errors(path):
        config, arrays, description = _read(path, which)
        described = description.get("embedding")
        if described is None:
            raise ValueError(
                f"{path} does not say what its images and network were (embedding in {CONFIG}): train again"
            )
        in_words = model is None and "factory" not in described
        module: Any = build_model(described) if in_words else model
        preprocess = preprocess or build_preprocess(described)
        input_template(described["input"])
        variables = unflatten_dict(jax.tree.map(jnp.asarray, arrays), sep="/")
        metrics = path / METRICS
        trained = Trained(
            model=module,
            params=variables.get("params", {}),
            batch_stats=variables.get("batch_stats", {}),
            config=config,
            class_names=tuple(described.get("class_names", ())),
            step=operator.index(description["step"]),
            metrics=read_json(metrics) if metrics.is_file() else description.get("metrics", {}),
            preprocess=preprocess,
            normalize=build_normalize(described) if normalize is UNSET else normalize,
            crop=build_crop(described),
            input=described["input"],
            objective_params=variables.get("objective", {}),
            description={**described, "step": description["step"]},
        )
    if in_words:
        return trained
    module = build_model(described) if model is None else as_model(model)
    variables = fit_variables(module, arrays, described, path, preprocess)
    return replace(
        trained, model=module, params=variables["params"], batch_stats=variables["batch_stats"]
    )


def _read(path: Path, which: str) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]:
    """Return the configuration, arrays by name, and their description."""
    if path.is_file():
        arrays, description = read_model(path)
        embedding = {"embedding": description.get("embedding")}
        return {**description.get(RUN, UNKNOWN), **embedding}, arrays, description
    file = path / CONFIG
    config = read_json(file, dict) if file.is_file() else None
    if config is None:
        parts = sorted(part.parent.name for part in path.glob(f"*/{CONFIG}"))
        if parts:
            raise ValueError(f"{path} holds {len(parts)} runs: load one of {', '.join(parts)}")
        raise ValueError(f"{path} is not the folder of a run: it has no {CONFIG}")
    file = path / MODEL
    if which == "best" and file.is_file():
        arrays, description = read_model(file)
        return config, arrays, description
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise ValueError(f"{path} has no parameters yet: its first checkpoint was not reached")
    state, best = checkpoint["state"], checkpoint["best"]
    params = checkpoint.get("evaluation_params", state["params"])
    stats, step = state["batch_stats"], checkpoint["step"]
    if which == "best" and best:
        (params, stats), step = best, int(checkpoint["progress"]["best"][1])
    objective = {role: value for role, value in params.items() if role != "model"}
    own, scale = params["model"], config.get("embedding", {}).get("lora")
    own = own if scale is None else merged(own, scale)
    variables = {"params": own, "batch_stats": stats, "objective": objective}
    arrays = {name: np.asarray(value) for name, value in named_leaves(variables).items()}
    return config, arrays, {"embedding": config.get("embedding"), "step": step}


def _paths(sources: Sequence[str | Path]) -> list[Any]:
    """Return the image files that paths stand for, as every command reads them."""
    files: list[Any] = []
    for source in sources:
        check_local("source", source)
        content = read_path(expand_user(source))
        for note in content.notes:
            _log.warning("%s: %s", source, note)
        files += content.files
    return files


class _Tolerant(ImageFiles):
    """Image files that remember which of them cannot be decoded, and are black there."""

    def __init__(self, files: Any, transform: Crops) -> None:
        super().__init__(files, transform)
        self.stops = True
        self.bad: dict[int, str] = {}

    def read(self, row: int, random: np.random.Generator | None = None) -> np.ndarray:
        try:
            return super().read(row, random)
        except BadImageError as error:
            if self.stops:
                raise
            if row not in self.bad:
                self.bad[int(row)] = str(error)
                _log.warning("skipped: %s", error)
            return np.zeros(self.shape[1:], np.uint8)


class _Grey:
    """Image files in grey, ``[N, H, W, 1]``."""

    def __init__(self, images: ImageFiles) -> None:
        self.images = images
        self.shape = (*images.shape[:3], 1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Any) -> np.ndarray:
        weights = np.array([0.299, 0.587, 0.114])
        return np.round(self.images[rows] @ weights)[..., None].astype(np.uint8)


class _Watched:
    """Images that move a progress bar on when they are read."""

    def __init__(self, images: Any) -> None:
        self.images, self.shape = images, images.shape
        self.bar = progress_bar(True, total=len(images), desc="embedding", unit="image")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: slice) -> np.ndarray:
        batch = np.asarray(self.images[rows])
        self.bar.update(len(batch))
        if self.bar.n >= self.bar.total:
            self.bar.close()
        return batch
