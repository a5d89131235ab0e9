"""Options of the optimizer: rule, learning rates, batches, how long."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jdml.cli.options.base import IN_RECIPE, Part
from jdml.recipes import Recipe
from jdml.recipes.words import parse_batch
from jdml.registry.constraints import inside_unit, non_negative, positive, unit


@dataclass(frozen=True)
class Steps(Part):
    """How fast, how much at a time, how long."""

    lr: Annotated[float | None, positive, IN_RECIPE] = None
    """Learning rate of the network. Default: 1e-3; of the recommended recipe (see --loss) 3e-3 for a network for small
    images, 1e-4 with --weights, 3e-4 with --weights and --freeze backbone or --lora; jdml benchmark: the paper's."""
    batch: Annotated[str | None, IN_RECIPE] = None
    """CLASSESxSAMPLES, such as 4x40, or a number of random samples; larger than the data it shrinks to them.
    Default: 64 random samples for a proxy loss, 16x4 for a pair loss or what fits the classes, 4x16 of large ones for
    the recommended recipe (see --loss); jdml benchmark: the paper's."""
    batch_within: Annotated[str | None, IN_RECIPE] = None
    """A second labelling of the images, such as super_class of sop: the classes of a batch are of one of its groups."""
    class_power: Annotated[float | None, unit, IN_RECIPE] = None
    """For long tails: a class of n images comes into batches in proportion to n to this power, all alike with 0.
    Default: each image once an epoch."""
    steps: Annotated[int | None, non_negative, IN_RECIPE] = None
    """Training steps, one batch each; 0 scores the start. Default: 1000; jdml benchmark: the paper's epochs
    (conventional), at most 600 evaluations (mlrc, which stops after 60 without improvement)."""

    def changes(self, base: Recipe) -> dict[str, Any]:
        """Rate, batch and steps."""
        fields = {
            "lr": "rate",
            "steps": "steps",
            "batch_within": "batch_within",
            "class_power": "class_power",
        }
        own = self.typed(fields)
        if self.batch is not None:
            own["batch"] = parse_batch(self.batch)
        return {**super().changes(base), **own}


@dataclass(frozen=True)
class Optimizer(Steps):
    """Which rule, and learning rates by role and by step."""

    optimizer: Annotated[Literal["adam", "adamw", "sgd"], IN_RECIPE] = "adam"
    """sgd has momentum 0.9."""
    schedule: Annotated[Literal["constant", "cosine", "linear"] | None, IN_RECIPE] = None
    """How learning rates go down to 0 over --steps. Default: constant; of the recommended recipe cosine."""
    warmup: Annotated[int | None, non_negative, IN_RECIPE] = None
    """First steps, in which learning rates go up from 0. Default: none; of the recommended recipe a twentieth."""
    proxies_lr_factor: Annotated[float | None, positive, IN_RECIPE] = None
    """Proxies learn this many times as fast as the model. Default: 100; with ccp 1, as in its paper."""
    beta_lr_factor: Annotated[float | None, positive, IN_RECIPE] = None
    """A learned boundary moves this many times as fast as the model. Default: 1."""
    weight_decay: Annotated[float, non_negative, IN_RECIPE] = 0.0
    """Weight decay of the model: decoupled with adamw, added to the gradient with adam and sgd."""
    layer_decay: Annotated[float | None, inside_unit, IN_RECIPE] = None
    """What the learning rate is multiplied by from each block of the network to the one before it, such as 0.75."""
    ema: Annotated[float | None, inside_unit, IN_RECIPE] = None
    """Score and keep an average of the parameters over the steps, in which each step counts this many times what the
    next one does, such as 0.99. Default: the parameters of a step."""

    def changes(self, base: Recipe) -> dict[str, Any]:
        """Also rule, schedule, and rates by role."""
        rates = self.typed({"proxies_lr_factor": "proxies", "beta_lr_factor": "beta"})
        return {
            **super().changes(base),
            **self.typed({"layer_decay": "layer_decay", "ema": "ema"}),
            **self.typed({"schedule": "schedule", "warmup": "rate_warmup"}),
            "rule": self.optimizer,
            "weight_decay": self.weight_decay,
            "role_rates": {**base.role_rates, **rates},
        }
