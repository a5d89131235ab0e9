"""Training: one jitted step for every objective, one loop, whole checkpoints, exact resume.

To step and loop a method is an objective and a few settings. What a method's are, a recipe says, and
:func:`train` makes them from it. Everything that a run needs to go on is one pytree,
:class:`TrainState`, and the loop's JSON-able progress. :mod:`~jdml.training.checkpoint` saves both whole
and atomically, so a killed run that is started again ends with the numbers of an unbroken one.
"""

from jdml.training.alternation import AlternatingProblems, Alternation
from jdml.training.begin import pretrained
from jdml.training.by_recipe import train
from jdml.training.callbacks import (
    EMA,
    Callback,
    CallbackResult,
    LossScale,
    SkipNonfinite,
    StatefulCallback,
    Stop,
    TensorBoard,
    every,
)
from jdml.training.fit_result import Embedder, FitResult
from jdml.training.frozen_model import Frozen
from jdml.training.loop import fit
from jdml.training.lora import WithLora
from jdml.training.placement import initialize
from jdml.training.preprocess import standard, to_float
from jdml.training.process import Preempted, keep_freed_memory
from jdml.training.run_config import Devices, Evaluation, RunConfig
from jdml.training.schedule import Best, improve
from jdml.training.scoring import metric_names, recall_ranks, score
from jdml.training.start import start_head, start_on_samples
from jdml.training.step import (
    TrainState,
    create_state,
    embed,
    make_indexed_step,
    make_train_step,
)
from jdml.training.trained_model import Trained, load

__all__ = [
    "EMA",
    "AlternatingProblems",
    "Alternation",
    "Best",
    "Callback",
    "CallbackResult",
    "Devices",
    "Embedder",
    "Evaluation",
    "FitResult",
    "Frozen",
    "LossScale",
    "Preempted",
    "RunConfig",
    "SkipNonfinite",
    "StatefulCallback",
    "Stop",
    "TensorBoard",
    "TrainState",
    "Trained",
    "WithLora",
    "create_state",
    "embed",
    "every",
    "fit",
    "improve",
    "initialize",
    "keep_freed_memory",
    "load",
    "make_indexed_step",
    "make_train_step",
    "metric_names",
    "pretrained",
    "recall_ranks",
    "score",
    "standard",
    "start_head",
    "start_on_samples",
    "to_float",
    "train",
]
