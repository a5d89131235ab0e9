"""The loss of a recipe: what compares what, with the proxies, the memory and the method around it."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
import optax

from jdml import losses, mining, objectives, ops
from jdml.objectives import Objective
from jdml.ops.checks import (
    default_of,
    did_you_mean,
    finite,
    no_setting,
    non_negative,
    one_of,
    positive,
)
from jdml.recipes.config import Config, RecipeError, parse_named
from jdml.recipes.network import NetworkConfig
from jdml.registry import LOSSES, MINERS

METHODS: dict[str, type["Method"]] = {}
"""Every method by its name: a subclass of :class:`Method` is one."""
REDUCTIONS: dict[str, Any] = {
    "mean": ops.mean,
    "mean_nonzero": ops.mean_nonzero,
    "total": ops.total,
    "sum": jnp.sum,
}
NORMALIZATIONS: dict[str, Any] = {"sphere": ops.sphere, "ball": ops.ball, "none": None}
PLAIN_OPTIONS = ("anchor_block", "class_block", "reduce_fn")
"""Options that ``settings`` may have next to a loss's own numbers."""
MONITORED = 4096
"""The largest number of proxies whose pairs a loss's monitor looks at: more take as long as the network."""


@dataclasses.dataclass(frozen=True)
class ProxyConfig(Config):
    """Proxies of a proxy loss, of CCP, of a field."""

    per_class: Annotated[int | None, finite] = None
    """Proxies per class; 0: none (potential field). None: the loss's; CCP: 8."""
    init: Literal["random", "samples"] = "random"
    """Initial proxies: random, or samples of their class."""
    sampled_classes: Annotated[int | None, positive] = None
    """Classes whose proxies a step uses: the batch's and others. None: all."""
    clip_value: Annotated[float | None, positive] = None
    """Clip each entry of the proxies' gradient to ± this value."""
    clip_norm: Annotated[float | None, positive] = None
    """Clip the gradient of each proxy to this norm."""
    on_sphere: bool = False
    """Scale each proxy to length 1 after each step."""


@dataclasses.dataclass(frozen=True)
class Method(Config):
    """A method around a recipe's loss. The fields are the method's own numbers; the rest stands on the class.

    A field of a mapping has ``hash=False``.

    Attributes:
        name: the method's name.
        kind: whether it is for losses of pairs or of proxies.
        loss: the loss it has by default.
        proxies: how many proxies per class it brings to a pair loss; None where it brings none.
        chooses_proxies: whether its proxies are chosen from samples, not learned from a start.
        needs_validation: whether it acts on evaluations, for which rows must be held out.
    """

    name: ClassVar[str]
    kind: ClassVar[Literal["pair", "proxy"]]
    loss: ClassVar[str]
    proxies: ClassVar[int | None] = None
    chooses_proxies: ClassVar[bool] = False
    needs_validation: ClassVar[bool] = False

    def to_json(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return the name and the numbers."""
        return {"name": self.name, **super().to_json(defaults=defaults)}

    def __init_subclass__(cls) -> None:
        METHODS[cls.name] = cls

    @classmethod
    def onto(cls, base: Any, **settings: Any) -> Any:
        """Put the method, with its own numbers, onto the recipe of a loss; return the recipe."""
        return base.replace(**cls.changes(vars(base), **settings))

    @classmethod
    def changes(cls, parts: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
        """Return the values by part that the method, with its own numbers, changes in a recipe's parts."""
        return {"loss": {"method": cls(**settings)}}

    def objective(
        self, loss: Any, loss_fn: Any, num_classes: int, dim: int, **settings: Any
    ) -> Objective | None:
        """Make the objective from the recipe's loss; None: the loss's own."""
        return None

    def transform_gradients(self) -> optax.GradientTransformation | None:
        """Make what acts on the gradients of all roles; None for nothing."""
        return None

    def learning_rates(self) -> Mapping[str, float]:
        """Return learning rates of roles that do not follow the recipe's."""
        return {}


PLAIN = Method()
"""Takes the place of a method where there is none: it changes nothing."""


@dataclasses.dataclass(frozen=True)
class LossConfig(Config):
    """The loss, the pairs it sees, and what a method makes of it."""

    name: str = "triplet"
    """The loss; proxy losses also learn vectors for each class."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Hyperparameters of the loss, such as margin=0.2 or reduce_fn=mean."""
    miner: str = "none"
    """Miner of a pair loss, such as easy_positive+semi_hard:margin=0.2."""
    weight: Annotated[float, non_negative] = 1.0
    """Weight of the loss."""
    normalize: Literal["sphere", "ball", "none"] = "sphere"
    """How embeddings are scaled, in the loss and in retrieval."""
    learn_beta: Literal["class", "shared"] | None = None
    """Learn the margin loss's boundary, per class or one for all."""
    memory_size: Annotated[int, non_negative] = 0
    """Size of the cross-batch memory of a pair loss, in embeddings."""
    memory_start_step: Annotated[int, non_negative] = 0
    """Step from which the memory is used."""
    proxies: ProxyConfig = dataclasses.field(default_factory=ProxyConfig)
    method: Method | None = None
    """Method around the loss: ``CCPConfig`` or ``NIRConfig``. None: the loss alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("loss", self.name, LOSSES)
        self._check_settings()
        self._check_parts()
        build_miner(self.miner, NetworkConfig.dim)  # refuses unknown ones

    @property
    def kind(self) -> Literal["pair", "proxy"]:
        """Whether the loss is one of pairs or of proxies."""
        return LOSSES[self.name].kind

    @property
    def has_proxies(self) -> bool:
        """Whether samples are compared with vectors of their classes."""
        return self.num_proxies > 0

    @property
    def num_proxies(self) -> int:
        """Proxies per class; 0 where there are none."""
        of_method = (self.method or PLAIN).proxies
        if of_method is None and self.kind == "pair":
            return 0
        own = of_method or LOSSES[self.name].proxies
        return own if self.proxies.per_class is None else self.proxies.per_class

    @property
    def needs_validation(self) -> bool:
        """Whether the method acts on evaluations of held-out rows."""
        return (self.method or PLAIN).needs_validation

    @property
    def normalization(self) -> Callable[..., Any] | None:
        """The function that scales embeddings; None where they stay as they are."""
        return NORMALIZATIONS[self.normalize]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LossConfig":
        """Read what ``to_json`` returned; an absent field has its default."""
        if isinstance(values, Mapping) and values.get("method") is not None:
            own = dict(values["method"])
            one_of("method's name", own["name"], METHODS)
            values = {**values, "method": METHODS[own.pop("name")].from_json(own)}
        return super().from_json(values)

    def build(
        self,
        num_classes: int,
        dim: int = NetworkConfig.dim,
        *,
        dtype: str = NetworkConfig.dtype,
        **own: Any,
    ) -> Objective:
        """Make the objective: the loss with what it learns.

        Args:
            num_classes: C.
            dim: width D of the embeddings.
            dtype: what the network computes in: with bfloat16 a pair loss on the sphere multiplies in it, too.
            **own: keywords of the loss that are no plain values: a miner of one's own (``mine``), a reduction.

        Returns:
            The objective.

        Raises:
            ValueError: a setting that the loss does not have, an unknown miner.

        Example:
            >>> import jax
            >>> objective = LossConfig("proxy_anchor").build(num_classes=3, dim=2)
            >>> objective.init(jax.random.key(0))["proxies"].shape
            (3, 1, 2)
        """
        loss_fn, settings = LOSSES[self.name].function, dict[str, Any](self.settings)
        for name in LOSSES[self.name].per_class:
            value = settings.get(name)
            if isinstance(value, tuple) and all(type(one) in (int, float) for one in value):
                if len(value) != num_classes:
                    raise RecipeError(
                        f"{{settings}}: {name} must be one number, or {num_classes}, one a class; got {len(value)}"
                    )
                settings[name] = np.asarray(value, np.float64)
        if "reduce_fn" in settings:
            one_of("reduce_fn", settings["reduce_fn"], REDUCTIONS)
            settings["reduce_fn"] = REDUCTIONS[settings["reduce_fn"]]
        settings["normalize"] = self.normalization
        if self.kind == "pair":
            settings["mine"] = build_miner(self.miner, dim)
        settings |= own
        parts = (loss_fn, num_classes, dim)
        objective = (self.method or PLAIN).objective(self, *parts, **settings)
        if objective is None and self.has_proxies:
            objective = self.of_proxies(*parts, **settings)
        if objective is None:
            learned: dict[str, Any] = {}
            if self.learn_beta is not None:
                shape = num_classes if self.learn_beta == "class" else ()
                learned["beta"] = np.full(shape, settings.pop("beta", default_of(loss_fn, "beta")))
            mines = settings.get("mine") and not self.memory_size  # whose pairs are many
            monitor = losses.mining_activity if mines else None
            objective = objectives.pair(loss_fn, learned=learned, monitor=monitor, **settings)
            if self.kind == "pair" and dtype == "bfloat16" and self.normalize == "sphere":
                objective = in_bfloat16(objective)
            if self.memory_size:
                wait = self.memory_start_step
                objective = objectives.with_memory(objective, self.memory_size, dim, warmup=wait)
        return objective if self.weight == 1 else weighted(objective, self.weight)

    def of_proxies(self, loss_fn: Any, num_classes: int, dim: int, **settings: Any) -> Objective:
        """Make the objective of a loss between samples and learned proxies."""
        each, sampled = self.num_proxies, self.proxies.sampled_classes
        monitor, few = LOSSES[self.name].monitor, (sampled or num_classes) * each <= MONITORED
        settings["monitor"] = getattr(losses, monitor) if monitor and few else None
        return objectives.proxy(
            loss_fn, num_classes, dim, each, sampled_classes=sampled, **settings
        )

    def _check_settings(self) -> None:
        """Refuse settings that are not the loss's own numbers."""
        shared = {name for f in (losses.compare, losses.assign) for name in signature(f).parameters}
        own = {
            name: p.default
            for name, p in signature(LOSSES[self.name].function).parameters.items()
            if p.kind is p.KEYWORD_ONLY and name not in shared
        }
        for name, value in self.settings.items():
            if name not in own and name not in PLAIN_OPTIONS:
                raise RecipeError(f"{{settings}}: {no_setting(f'{self.name}_loss', name, own)}")
            if isinstance(value, str) and isinstance(own.get(name), float | int | tuple):
                raise RecipeError(f"{{settings}}: {name} must be a number, got {value!r}")

    def _check_parts(self) -> None:
        """Refuse what the loss, or its method, would not use."""
        method = self.method or PLAIN
        kind, name = self.kind, self.name
        if self.method is not None and method.kind != kind:
            raise RecipeError(
                f"{{method}} {method.name} is for {method.kind} losses, such as {method.loss}; "
                f"{name} is a {kind} loss"
            )
        each = self.proxies.per_class
        pair = kind == "pair"
        plain = self.method is None
        brings = method.proxies is not None
        where = "" if plain else f" with {{method}} {method.name}"
        learned = self.has_proxies and not method.chooses_proxies
        for field, used, users in (
            ("miner", pair, "pair losses"),
            ("per_class", brings or not pair, "proxy losses"),
            ("sampled_classes", each != 0 and not pair, "proxy losses with {per_class} above 0"),
            ("memory_size", pair and not brings, "pair losses without proxies"),
            ("learn_beta", name == "margin" and plain, "{loss} margin with {method} plain"),
            ("init", learned, "learned proxies, {per_class} above 0"),
        ):
            part = self if hasattr(self, field) else self.proxies
            if not used and getattr(part, field) != getattr(type(part), field):
                raise RecipeError(f"{{{field}}} is for {users}; {name}{where} is a {kind} loss")
        least = 1 if LOSSES[name].needs_proxies or not plain else 0
        if each is not None and each < least:
            raise RecipeError(f"{{per_class}} must be >= {least} for {{loss}} {name}, got {each}")


def build_miner(words: str, dim: int) -> Callable[..., Any] | None:
    """Build a chain of miners from ``"eps+semi_hard:margin=0.2"``; ``"none"`` is no miner."""
    if words == "none":
        return None
    miners = []
    for word in re.split(r"\+(?!\d)", words):  # 1e+3 is a number
        name, options = parse_named(word, "miner")
        if name not in MINERS:
            raise ValueError(
                f"miner must be none or a chain of {', '.join(MINERS)}; got {name!r}{did_you_mean(name, MINERS)}"
            )
        try:
            miners.append(MINERS[name].build(dim, **options))
        except TypeError as error:
            raise ValueError(f"miner {name}: {error}") from error
    return miners[0] if len(miners) == 1 else mining.chain(*miners)


def weighted(objective: Objective, weight: float) -> Objective:
    """Multiply an objective's loss by a weight."""

    @wraps(objective.loss)
    def loss(*args: Any, **settings: Any) -> tuple[Any, Any]:
        value, metrics = objective.loss(*args, **settings)
        return weight * value, {**metrics, "loss": weight * value}

    return objective._replace(loss=loss)


def in_bfloat16(objective: Objective) -> Objective:
    """Pass float32 vectors to a pair loss in bfloat16, to which the library's networks in bfloat16 round them."""
    largest = float(jnp.finfo(jnp.bfloat16).max)

    def narrow(vectors: Any) -> Any:
        if getattr(vectors, "dtype", None) != jnp.float32:
            return vectors
        return jnp.clip(vectors, -largest, largest).astype(jnp.bfloat16)

    @wraps(objective.loss)
    def loss(
        params: Any, embeddings: Any, labels: Any, *, references: Any = None, **settings: Any
    ) -> tuple[Any, Any]:
        if references is not None:
            settings["references"] = narrow(references)
        return objective.loss(params, narrow(embeddings), labels, **settings)

    return objective._replace(loss=loss)
