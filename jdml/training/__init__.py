"""Training: one jitted step for every objective, one loop, whole checkpoints, exact resume.

To step and loop a method is an objective and a few settings. What a method's are, a recipe says, and
:func:`train` makes them from it. Everything that a run needs to go on is one pytree,
:class:`TrainState`, and the loop's JSON-able progress. :mod:`~jdml.runs.checkpoint` saves both whole
and atomically, so a killed run that is started again ends with the numbers of an unbroken one.
"""

from jdml.distributed import Preempted, disable_malloc_trim, initialize
from jdml.models.embedding import embed, standard, to_float
from jdml.models.finetuning import Frozen, WithLora
from jdml.runs.inference import Trained, load
from jdml.training.alternation import AlternatingProblems, Alternation
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
from jdml.training.initialization import start_head, start_on_samples
from jdml.training.loop import fit
from jdml.training.run_config import Devices, Embedder, Evaluation, FitResult, RunConfig
from jdml.training.run_setup import pretrained
from jdml.training.schedule import Best, improve
from jdml.training.scoring import metric_names, recall_ranks, score
from jdml.training.step import (
    TrainState,
    create_state,
    make_indexed_step,
    make_train_step,
)
from jdml.training.train_recipe import train

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
    "disable_malloc_trim",
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
