"""What :func:`jdml.training.fit` looks at before any work: each wrong argument in one sentence, with what to write."""

import inspect
import logging
import warnings
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np
from jax.typing import ArrayLike

from jdml.data import EpochSampler, ImageBatches, ImageFiles
from jdml.data.dataset import check_channels
from jdml.data.protocols import Sampler
from jdml.data.value_range import check_no_bytes, check_unit
from jdml.distributed import Tree
from jdml.models.creation import Normalizer
from jdml.models.preprocess import standard, to_float
from jdml.training import foreign
from jdml.training.step import TrainState, arrays_by_path

_log = logging.getLogger(__name__)


def check_parts(objective: object, optimizer: object, train: object) -> None:
    """Refuse what is no objective, no optimizer, no data set: see the checks below."""
    check_objective(objective)
    check_optimizer(optimizer)
    check_train(train)


def check_objective(objective: Any) -> None:
    """Refuse what is no objective.

    Raises:
        TypeError: a bare loss, or anything else without ``init`` and ``loss``.
    """
    if callable(getattr(objective, "init", None)) and callable(getattr(objective, "loss", None)):
        return
    if callable(objective):
        name = getattr(objective, "__name__", type(objective).__name__)
        try:
            takes_proxies = "proxies" in inspect.signature(objective).parameters
        except (TypeError, ValueError):
            takes_proxies = False
        call = f"proxy({name}, num_classes, dim)" if takes_proxies else f"pair({name})"
        raise TypeError(
            f"objective must be a jdml.objectives.Objective, got the function {name}: write jdml.objectives.{call}"
        )
    raise TypeError(
        f"objective must be a jdml.objectives.Objective, such as jdml.objectives.pair(jdml.triplet_loss), "
        f"got a {type(objective).__name__}"
    )


def check_optimizer(optimizer: object) -> None:
    """Refuse what is no optax transformation.

    Raises:
        TypeError: anything without ``init`` and ``update``.
    """
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise TypeError(
            f"optimizer must be an optax.GradientTransformation, such as optax.adam(1e-3), got {name}"
        )


def check_train(train: Any) -> None:
    """Refuse what is no data set, and images whose rows or channels are not where they should be.

    Raises:
        TypeError: a tuple of arrays, or anything else without ``images`` and ``labels``.
        ValueError: images ``[N, C, H, W]``, parts or labels of another number of rows, no rows.
    """
    told = None if hasattr(train, "images") else foreign.instead_of_train(train)
    if told is not None:
        raise TypeError(f"train must be a data set, {told}")
    if isinstance(train, tuple | list) and not hasattr(train, "images"):
        raise TypeError(
            f"train must be a data set, got a {type(train).__name__} of {len(train)}: "
            'write jdml.data.Dataset("name", images, labels)'
        )
    if not (hasattr(train, "images") and hasattr(train, "labels")):
        raise TypeError(
            f"train must be a data set with images and labels, got a {type(train).__name__}: "
            'write jdml.data.Dataset("name", images, labels)'
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


def check_values(images: Tree, preprocess: object) -> None:
    """Refuse floating-point photographs in another range than what is done to them expects.

    Args:
        images: those of the data set; of a mapping or tuple each part.
        preprocess: what stands between them and the model; of a function of the user's nothing is known.

    Raises:
        ValueError: bytes as floating-point numbers; for a pretrained network's statistics all that is not in 0…1.
    """
    for part in jax.tree.leaves(images):
        if isinstance(preprocess, Normalizer):
            check_unit("train.images", part, ", as its preprocess expects")
        elif preprocess in (to_float, standard):
            check_no_bytes("train.images", part)


def check_state(state: Any) -> None:
    """Refuse what is neither a state nor a function of a fresh state alone."""
    if state is None or isinstance(state, TrainState):
        return
    wanted = "state must be a TrainState, or a function of the fresh state that returns the one to begin with"
    if not callable(state) or isinstance(state, type):
        raise TypeError(f"{wanted}, got {state!r}")
    try:
        inspect.signature(state).bind(None)
    except TypeError as error:
        name = getattr(state, "__name__", type(state).__name__)
        raise TypeError(
            f"{wanted}, but {name} called with a state alone: {error}; write functools.partial({name}, …=…)"
        ) from None
    except ValueError:  # a function that does not say what it takes
        return


def check_started(started: object, fresh: TrainState) -> None:
    """Refuse a state to begin with that is none before the first step, or not of the fresh one's arrays."""
    if not isinstance(started, TrainState):
        raise TypeError(
            f"state must be a function that returns a TrainState, got a {type(started).__name__}"
        )
    if int(started.step) != int(fresh.step):
        raise ValueError(
            f"state must be a function that leaves step at {int(fresh.step)}, got {int(started.step)}"
        )
    had, has = (arrays_by_path(state.params) for state in (fresh, started))
    for name in (*had, *has):
        if had.get(name) != has.get(name):
            raise ValueError(
                "state must be a function that returns parameters of the same shapes: "
                f"params{name} was {had.get(name, 'not there')}, got {has.get(name, 'none')}"
            )


def as_sampler(sampler: Any, size: int, *, saved: bool) -> Sampler:
    """Return a sampler; refuse what yields no batches of rows, or cannot be saved where it has to be.

    Args:
        sampler: what was passed.
        size: rows of the data set.
        saved: whether the run has a folder.

    Returns:
        The sampler, whose state is asked for in a run with a folder alone.

    Raises:
        TypeError: not an iterator; no ``get_state`` and ``set_state`` in a run with a folder.
        ValueError: a sampler over another number of rows.
    """
    instead = f"write jdml.data.RandomBatchSampler({size}, batch_size) or jdml.data.ClassBatchSampler(labels, 8, 4)"
    told = None if hasattr(sampler, "__next__") else foreign.instead_of_sampler(sampler)
    if told is not None:
        raise TypeError(f"sampler must be an iterator of row indices [B], {told}: {instead}")
    if isinstance(sampler, int | tuple) or not hasattr(sampler, "__next__"):
        shown = sampler if isinstance(sampler, int) else f"a {type(sampler).__name__}"
        raise TypeError(f"sampler must be an iterator of row indices [B], got {shown}: {instead}")
    if isinstance(sampler, ImageBatches):
        return sampler
    can = all(callable(getattr(sampler, name, None)) for name in ("get_state", "set_state"))
    if saved and not can:
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
    """Take the next batch of a sampler.

    Args:
        sampler: what yields rows.
        size: rows of the data set.

    Returns:
        Row numbers ``[B]``, −1 where a place is empty.

    Raises:
        TypeError: something else than integers ``[B]``.
        ValueError: no rows, rows that there are not, or no further batch.
    """
    try:
        batch = next(sampler)
    except StopIteration:
        raise ValueError(
            "sampler must yield a batch for every step, but has ended: let it begin again, or write "
            f"jdml.data.RandomBatchSampler({size}, batch_size)"
        ) from None
    if isinstance(batch, tuple | list) and any(np.ndim(part) for part in batch):
        shapes = ", ".join(str(list(np.shape(part))) for part in batch)
        raise TypeError(
            f"sampler must yield row indices [B], got a {type(batch).__name__} of arrays {shapes}: images and labels "
            "are those of train, a sampler yields their numbers"
        )
    rows = batch if isinstance(batch, np.ndarray) else np.asarray(batch)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        what = f"{rows.dtype} {list(rows.shape)}"
        if rows.dtype == bool:
            what += ", a mask: write numpy.flatnonzero(mask)"
        if rows.dtype == object:
            what = f"a {type(batch).__name__}"
        raise TypeError(f"sampler must yield row indices [B], integers, got {what}")
    if not len(rows) or rows.min() < -1 or rows.max() >= size:
        seen = f"{rows.min()} … {rows.max()}" if len(rows) else "none"
        raise ValueError(f"sampler must yield rows 0 … {size - 1} of train, got {seen}")
    return rows


def check_proxies(params: Mapping[str, Tree], labels: ArrayLike) -> None:
    """Refuse fewer proxies than classes: a label beyond them takes part in nothing.

    Args:
        params: the objective's parameters.
        labels: those of the data set.

    Raises:
        ValueError: naming both numbers.
    """
    proxies: Tree = params.get("proxies")
    classes = int(np.max(labels)) + 1
    if np.ndim(proxies) in (2, 3) and np.shape(proxies)[0] < classes:
        raise ValueError(
            f"objective has proxies of {np.shape(proxies)[0]} classes, train has labels up to {classes - 1}: "
            f"write jdml.objectives.proxy(loss_fn, num_classes={classes}, dim=…)"
        )


def tell_gaps(labels: ArrayLike) -> None:
    """Warn of classes without a row: each has a proxy that nothing attracts, and takes part in what is averaged.

    Args:
        labels: those of the data set, ``[N]`` integers.
    """
    there = np.unique(labels)
    classes, here = int(there.max(initial=-1)) + 1, int((there >= 0).sum())
    if here < classes:
        absent = int(np.setdiff1d(np.arange(classes), there)[0])
        warnings.warn(
            f"train has rows of {here} of {classes} classes, none has label {absent}: each class without rows has a "
            "proxy, too; number the labels 0, 1, …, as numpy.unique(labels, return_inverse=True)[1] does",
            stacklevel=3,
        )
