"""How a run is evaluated, by a recipe."""

import dataclasses
from typing import Annotated, Literal

from jdml.ops.checks import open_unit_interval, positive
from jdml.recipes.config import Config


@dataclasses.dataclass(frozen=True)
class EvaluationConfig(Config):
    """When a run is evaluated, what is kept, and what is measured."""

    every: Annotated[int | None, positive] = None
    """Steps between evaluations of held-out rows. None: an epoch."""
    monitor: str | None = None
    """Metric whose best parameters are kept. None: MAP@R."""
    patience: Annotated[int | None, positive] = None
    """Evaluations without improvement that end the run."""
    ema: Annotated[float | None, open_unit_interval] = None
    """Evaluate and keep an average of the parameters with this decay."""
    nmi: bool = False
    """Measure NMI, too."""
    nmi_cluster_factor: Annotated[int | None, positive] = None
    """Measure NMI with so many clusters a class, too (NMI+)."""
    map_divisor: Literal["min", "k", "relevant", "class"] = "min"
    """What mAP@1000 is divided by, as ``jdml.metrics.map_at_k`` says."""
