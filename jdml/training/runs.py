"""The folder of a run of :func:`jdml.training.fit`: what defines it, what its embeddings are, where its model lies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jdml.training.checkpoint import METRICS, MODEL, RunFolder
from jdml.training.description import describe, versions
from jdml.training.fingerprint import fingerprint, of_data
from jdml.training.models import FromNnx, unwrapped

__all__ = ["METRICS", "MODEL", "open_run"]


def open_run(
    out_dir: str | Path,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    parts: tuple[Any, Any, Any],
    train: Any,
    begin: Any,
    around: tuple[Any, Any],
    *,
    resume: bool,
    growing: bool,
    asynchronous: bool = False,
) -> RunFolder:
    """Open a run's folder, or refuse it: another run's results are never this run's.

    Args:
        out_dir: the folder.
        config: what the caller says of the run.
        settings: of the loop.
        parts: model, objective and optimizer.
        train: the data set.
        begin: a state or a function of fresh variables to begin with; None.
        around: what is done before the model and after it: ``preprocess`` and ``normalize``.
        resume: accept a folder that has a checkpoint.
        growing: whether more steps than the folder's are another run, or the same going on.
        asynchronous: whether checkpoints are written while training goes on.

    Returns:
        The folder.
    """
    model, objective, optimizer = parts
    preprocess, normalize = around
    defining = {
        "data": of_data(train),
        "model": fingerprint(_of_model(model), preprocess),
        "objective": fingerprint(objective),
        "optimizer": fingerprint(optimizer),
        "start": None if begin is None else fingerprint(begin),
    }
    told = {
        **config,
        "fit": dict(settings),
        "fingerprint": defining,
        "embedding": describe(model, preprocess, normalize, train),
        "versions": versions(),
    }
    return RunFolder(out_dir, told, resume=resume, growing=growing, asynchronous=asynchronous)


def _of_model(model: Any) -> Any:
    """What tells models apart: an NNX module's arrays, beside its kind."""
    if isinstance(model, FromNnx):
        return type(model.module).__qualname__, model.init(None, None)
    return unwrapped(model)
