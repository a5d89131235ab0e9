"""Training: one jitted step for every objective, one loop, whole checkpoints, exact resume.

For step and loop a method is an objective and a few settings, and :func:`train` makes them from a recipe. Everything
that a run needs to resume is one pytree, :class:`TrainState`, and the loop's JSON-able progress.
:mod:`~jdml.runs.checkpoint` saves both whole and atomically, so that a killed run that is started again ends with the
numbers of an unbroken one.
"""

from jdml.distributed import Preempted, disable_malloc_trim, initialize
from jdml.models.embedding import default_preprocess, embed, uint8_to_float
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
from jdml.training.initialization import init_head_from_pca, init_proxies_from_samples, pretrained
from jdml.training.loop import fit
from jdml.training.run_config import (
    Best,
    Devices,
    Embedder,
    Evaluation,
    FitResult,
    RunConfig,
    metric_names,
    recall_ranks,
    score,
)
from jdml.training.step import TrainState, create_state, make_train_step
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
    "initialize",
    "disable_malloc_trim",
    "load",
    "make_train_step",
    "metric_names",
    "pretrained",
    "recall_ranks",
    "score",
    "default_preprocess",
    "init_head_from_pca",
    "init_proxies_from_samples",
    "uint8_to_float",
    "train",
]
