"""Check the arguments of :func:`jdml.training.fit` before any work."""

import logging
import warnings
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np
from jax.typing import ArrayLike

from jdml.data import EpochSampler, ImageBatches, ImageFiles
from jdml.data.dataset import check_channels, check_in_unit_range, check_not_bytes
from jdml.data.samplers import Sampler
from jdml.distributed import Tree
from jdml.models.creation import Normalizer
from jdml.models.preprocess import standard, to_float
from jdml.training.step import TrainState, arrays_by_path

DATASET = (
    'write jdml.data.Dataset("name", images, labels), jdml.data.load("folder", data_dir=path), or '
    "jdml.data.from_torch, from_huggingface or from_rows of another library's data set"
)
"""How a data set is made."""

_log = logging.getLogger(__name__)


def check_objective(objective: Any) -> None:
    """Refuse what is no objective, such as a bare loss."""
    if callable(getattr(objective, "init", None)) and callable(getattr(objective, "loss", None)):
        return
    name = getattr(objective, "__name__", type(objective).__name__)
    raise TypeError(
        f"objective must be a jdml.objectives.Objective, such as jdml.objectives.pair(jdml.triplet_loss) or "
        f"jdml.objectives.proxy(jdml.proxy_anchor_loss, num_classes, dim), got {name}"
    )


def check_optimizer(optimizer: object) -> None:
    """Refuse what is no optax transformation."""
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise TypeError(
            f"optimizer must be an optax.GradientTransformation, such as optax.adam(1e-3), got {name}"
        )


def check_train(train: Any) -> None:
    """Refuse what is no data set, and images whose rows or channels are not where they should be."""
    if not (hasattr(train, "images") and hasattr(train, "labels")):
        raise TypeError(
            f"train must be a data set with images and labels, got a {type(train).__name__}: {DATASET}"
        )
    images, labels = train.images, np.asarray(train.labels)
    if isinstance(images, ImageFiles):
        lengths = {len(images)}
    else:
        check_channels("train.images", images)
        lengths = {len(part) for part in jax.tree.leaves(images)}
    if labels.ndim != 1 or lengths != {len(labels)}:
        raise ValueError(
            f"train.images and train.labels must have the same number of rows, "
            f"got {sorted(lengths)} and {list(labels.shape)}"
        )
    if not len(labels):
        raise ValueError("train must hold at least one row, got none")
    if len(labels) > 1 and (labels == labels[0]).all():
        _log.warning("train has one class: from its labels there is nothing to tell apart")


def check_range(images: Tree, preprocess: object) -> None:
    """Refuse floating-point images in another range than the preprocessing expects; a function of one's own may."""
    for part in jax.tree.leaves(images):
        if isinstance(preprocess, Normalizer):
            check_in_unit_range("train.images", part, ", as its preprocess expects")
        elif preprocess in (to_float, standard):
            check_not_bytes("train.images", part)


def check_state(state: Any) -> None:
    """Refuse what is neither a state nor a function."""
    if not (state is None or isinstance(state, TrainState) or callable(state)):
        raise TypeError(
            "state must be a TrainState, or a function of the fresh state that returns the one to begin with, got "
            f"{state!r}"
        )


def check_initial_state(state: object, fresh: TrainState) -> None:
    """Refuse a state to begin with that has done steps, or other arrays than the fresh one."""
    if not isinstance(state, TrainState):
        raise TypeError(
            f"state must be a function that returns a TrainState, got a {type(state).__name__}"
        )
    if int(state.step) != int(fresh.step):
        raise ValueError(
            f"state must be a function that leaves step at {int(fresh.step)}, got {int(state.step)}"
        )
    check_same_arrays(
        "state must be a function that returns parameters", fresh.params, state.params
    )


def check_same_arrays(begin: str, before: Tree, after: Tree) -> None:
    """Refuse arrays of other paths, types or shapes."""
    had, has = arrays_by_path(before), arrays_by_path(after)
    for name in (*had, *has):
        if had.get(name) != has.get(name):
            raise ValueError(
                f"{begin} of the same shapes: {name} was {had.get(name, 'absent')}, got {has.get(name, 'none')}"
            )


def as_sampler(sampler: Any, size: int, *, saved: bool) -> Sampler:
    """Return a sampler of ``size`` rows; refuse what yields none, or cannot be saved in a run with a folder."""
    instead = f"write jdml.data.RandomBatchSampler({size}, batch_size) or jdml.data.ClassBatchSampler(labels, 8, 4)"
    if not hasattr(sampler, "__next__"):
        raise TypeError(
            f"sampler must be an iterator of row indices [B], got a {type(sampler).__name__}: {instead}"
        )
    if isinstance(sampler, ImageBatches):
        return sampler
    if saved and not (hasattr(sampler, "get_state") and hasattr(sampler, "set_state")):
        raise TypeError(
            f"sampler must have get_state() and set_state() in a run with a folder, which may be resumed, "
            f"got a {type(sampler).__name__}: {instead}"
        )
    if isinstance(sampler, EpochSampler):
        rows = sampler.get_state().get("num_samples", size)
        if rows != size:
            raise ValueError(f"sampler must be over the {size} rows of train, got one over {rows}")
    return cast(Sampler, sampler)


def next_rows(sampler: Sampler, size: int) -> np.ndarray:
    """Take the next batch of a sampler: row numbers ``[B]`` below ``size``, −1 where a place is empty."""
    try:
        batch = next(sampler)
    except StopIteration:
        raise ValueError(
            "sampler must yield a batch for every step, but has ended: let it begin again, or write "
            f"jdml.data.RandomBatchSampler({size}, batch_size)"
        ) from None
    if isinstance(batch, tuple | list) and any(np.ndim(part) for part in batch):
        raise TypeError(
            f"sampler must yield row indices [B] of train, got a {type(batch).__name__} of arrays"
        )
    rows = np.asarray(batch)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(
            f"sampler must yield row indices [B], integers, got {rows.dtype} {list(rows.shape)}"
        )
    if not len(rows) or rows.min() < -1 or rows.max() >= size:
        found = f"{rows.min()} … {rows.max()}" if len(rows) else "none"
        raise ValueError(f"sampler must yield rows 0 … {size - 1} of train, got {found}")
    return rows


def check_proxies(params: Mapping[str, Tree], labels: ArrayLike) -> None:
    """Refuse fewer proxies than classes: a label beyond them would take part in nothing."""
    proxies: Tree = params.get("proxies")
    classes = int(np.max(labels)) + 1
    if np.ndim(proxies) in (2, 3) and np.shape(proxies)[0] < classes:
        raise ValueError(
            f"objective has proxies of {np.shape(proxies)[0]} classes, train has labels up to {classes - 1}: "
            f"write jdml.objectives.proxy(loss_fn, num_classes={classes}, dim=…)"
        )


def warn_missing_classes(labels: ArrayLike) -> None:
    """Warn of classes without a row: each has a proxy that nothing attracts, and takes part in what is averaged."""
    present = np.unique(labels)
    classes, rows_of = int(present.max(initial=-1)) + 1, int((present >= 0).sum())
    if rows_of < classes:
        absent = int(np.setdiff1d(np.arange(classes), present)[0])
        warnings.warn(
            f"train has rows of {rows_of} of {classes} classes, none has label {absent}: each class without rows has "
            "a proxy, too; number the labels 0, 1, …, as numpy.unique(labels, return_inverse=True)[1] does",
            stacklevel=3,
        )
