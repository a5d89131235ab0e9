"""The methods that make more of a loss than its value, one record each: their own numbers, and where they are made."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from jdml.registry.constraints import (
    at_least,
    check_fields,
    non_negative,
    plain_settings,
    positive,
)


@dataclasses.dataclass(frozen=True)
class Method:
    """What a recipe makes of its loss. The fields are the method's own numbers; what it is stands on the class.

    Attributes:
        name: what it is called.
        kind: whether it is for losses of pairs or of proxies.
        loss: the loss, unless another is asked for.
        proxies: how many proxies per class it brings to a pair loss; None where it brings none.
        recipe: pointer to what puts it onto a recipe: ``(base, **settings) -> Recipe``; "" where its numbers alone do.
        objective: pointer to what makes its objective: ``(recipe, loss_fn, num_classes, dim, settings) -> Objective``;
            "" where the loss's own is meant.
        gradients: pointer to what acts on all gradients: ``(recipe) -> optax.GradientTransformation``; "" for nothing.
        hook: pointer to what makes its callback: ``(recipe, model, train, monitor, *, seed, preprocess) -> a
            jdml.training.StatefulCallback``, told by ``augment``, where it takes that, whether batches are augmented;
            "" where it has none. A method with one needs held-out rows.
    """

    name: ClassVar[str]
    kind: ClassVar[Literal["pair", "proxy"]]
    loss: ClassVar[str]
    proxies: ClassVar[int | None] = None
    recipe: ClassVar[str] = ""
    objective: ClassVar[str] = ""
    gradients: ClassVar[str] = ""
    hook: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self)

    def rates(self) -> Mapping[str, float]:
        """Give learning rates of roles that do not follow the recipe's."""
        return {}


@dataclasses.dataclass(frozen=True)
class Regularizer(Method):
    """Non-isotropy regularization, a flow around every proxy of a proxy loss.

    Attributes:
        weight: ω, of the proxy loss.
        flow: its size, as of :func:`jdml.flows.preset`.
        flow_settings: other attributes of :class:`jdml.flows.ConditionalFlow`, such as ``conditioning``.
        flow_lr: the flow's learning rate.
        shape: as of :func:`jdml.objectives.with_nir`, and so are those that follow.
        temperature: see ``shape``.
        per_dimension: see ``shape``.
        norm_weight: see ``shape``.
        of_mean: see ``shape``.
        stop_proxy_gradient: see ``shape``.
        wrong_class_weight: see ``shape``.
        self_regularization: see ``shape``.
        embeddings_wait: steps in which embeddings get no gradient: ``warmup`` there. The paper's warm-up, in which the
            backbone waits, is the recipe's.
    """

    name = "nir"
    kind = "proxy"
    loss = "proxy_anchor"
    recipe = "jdml.recipes.nir:with_nir"
    objective = "jdml.recipes.nir:make_objective"

    weight: Annotated[float, non_negative] = 0.01
    flow: Literal["paper", "released"] = "released"
    flow_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flow_lr: Annotated[float, positive] = 5e-4
    shape: Literal["exp", "identity", "softplus"] = "exp"
    temperature: Annotated[float, positive] = 1.0
    per_dimension: bool = False
    norm_weight: Annotated[float, positive] = 0.5
    of_mean: bool = False
    stop_proxy_gradient: bool = False
    wrong_class_weight: Annotated[float, non_negative] = 0.0
    self_regularization: Literal["both", "generate", "match", "none"] = "none"
    embeddings_wait: Annotated[int, non_negative] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = plain_settings("flow_settings", self.flow_settings)
        object.__setattr__(self, "flow_settings", settings)

    def rates(self) -> Mapping[str, float]:
        """Give the flow's rate."""
        return {"flow": self.flow_lr}


@dataclasses.dataclass(frozen=True)
class Problems(Method):
    """A pair loss between samples and proxies, which are chosen anew for one problem after another.

    Attributes:
        pool_size: b, samples per class among which new proxies are chosen.
        strength: λ, of the anchor.
        patience: evaluations without improvement that end a problem.
        run_patience: those that end the run.
        tolerance: what is less is no improvement.
        restore: as of :class:`jdml.training.AlternatingProblems`, and so are the two that follow.
        anchor_first: see ``restore``.
        first: see ``restore``.
        in_batch_weight: of the same loss between the samples of the batch.
    """

    name = "ccp"
    kind = "pair"
    loss = "contrastive"
    proxies = 8
    recipe = "jdml.recipes.ccp:with_problems"
    objective = "jdml.recipes.ccp:make_objective"
    gradients = "jdml.recipes.ccp:anchoring"
    hook = "jdml.training.alternation:make_hook"

    pool_size: Annotated[int, at_least(1)] = 12
    strength: Annotated[float, non_negative] = 2e-4
    patience: Annotated[int, at_least(1)] = 3
    run_patience: Annotated[int, at_least(1)] = 60
    tolerance: Annotated[float, non_negative] = 1e-5
    restore: bool = True
    anchor_first: bool = True
    first: Literal["random", "covering", "origin", "kept"] = "random"
    in_batch_weight: Annotated[float, non_negative] = 0.0


def _records(*methods: type[Method]) -> dict[str, type[Method]]:
    return {method.name: method for method in methods}


METHODS: dict[str, type[Method]] = _records(
    Regularizer,
    Problems,
)
"""Every method by its name."""
