"""What a run's folder is opened with: what defines the run, and what its embeddings are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jdml.losses.comparison import Normalize
from jdml.training.begin import Beginning
from jdml.training.checkpoint import RunFolder
from jdml.training.description import describe, versions
from jdml.training.fingerprint import fingerprint, of_data
from jdml.training.models import Model, unwrapped
from jdml.training.spec import StepSpec, TrainSet
from jdml.training.wrapped import Wrapped


def open_run(
    out_dir: str | Path,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    spec: StepSpec,
    train: TrainSet,
    begin: Beginning,
    *,
    normalize: Normalize | None,
    resume: bool,
    growing: bool,
    asynchronous: bool = False,
) -> RunFolder:
    """Open a run's folder, or refuse it: another run's results are never this run's.

    Args:
        out_dir: the folder.
        config: what the caller says of the run.
        settings: of the loop.
        spec: what a step is made from.
        train: the data set.
        begin: where the run begins.
        normalize: what retrieval does to embeddings.
        resume: accept a folder that has a checkpoint.
        growing: whether more steps than the folder's are another run, or the same going on.
        asynchronous: whether checkpoints are written while training goes on.

    Returns:
        The folder.
    """
    defining = {
        "data": of_data(train),
        "model": fingerprint(_of_model(spec.model), spec.preprocess),
        "objective": fingerprint(spec.objective),
        "optimizer": fingerprint(spec.optimizer),
        "start": None if begin.told is None else fingerprint(begin.told),
    }
    told = {
        **config,
        "fit": dict(settings),
        "fingerprint": defining,
        "embedding": describe(spec.model, spec.preprocess, normalize, train),
        "versions": versions(),
    }
    return RunFolder(out_dir, told, resume=resume, growing=growing, asynchronous=asynchronous)


def _of_model(model: Model) -> Any:
    """What tells models apart: of a module that holds its parameters these, beside its kind."""
    if isinstance(model, Wrapped) and model.holds_parameters:
        return type(model.module).__qualname__, model.init(None, None)
    return unwrapped(model)
