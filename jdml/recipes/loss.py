"""The loss of a recipe: what compares what, with the proxies, the memory and the method around it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np

from jdml import losses, objectives, ops
from jdml.objectives import Objective
from jdml.ops.checks import (
    finite,
    no_setting,
    non_negative,
    one_of,
    plain_settings,
    positive,
)
from jdml.recipes.config import Config, RecipeError, set_field
from jdml.recipes.method import METHODS, Method
from jdml.recipes.parsing import build_miner
from jdml.registry import LOSSES

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": ops.mean,
    "mean_nonzero": ops.mean_nonzero,
    "sum": jnp.sum,
    "total": ops.total,
}
NORMALIZATIONS: dict[str, Callable[..., Any] | None] = {
    "sphere": ops.sphere,
    "ball": ops.ball,
    "none": None,
}
PLAIN_OPTIONS = ("anchor_block", "class_block", "reduce_fn")
"""Options that ``settings`` may have next to a loss's own numbers."""
MONITORED = 4096
"""The largest number of proxies whose pairs a loss's monitor looks at: more take as long as the network."""


@dataclasses.dataclass(frozen=True)
class ProxyConfig(Config):
    """Proxies of a proxy loss, of CCP, of a field."""

    per_class: Annotated[int | None, finite] = None
    """Proxies of each class; 0: a field of samples alone. None: the loss's own number, 8 with CCP."""
    init: Literal["random", "samples"] = "random"
    """Initial proxies: random, or samples of their class."""
    sampled_classes: Annotated[int | None, positive] = None
    """Classes that a step sees, at random beside the batch's. None: all."""
    clip_value: Annotated[float | None, positive] = None
    """Largest entry of the proxies' gradient."""
    clip_norm: Annotated[float | None, positive] = None
    """Largest norm of each proxy's gradient."""
    on_sphere: bool = False
    """Scale each proxy to length 1 after each step."""


@dataclasses.dataclass(frozen=True)
class LossConfig(Config):
    """The loss, the pairs it sees, and what a method makes of it.

    Raises:
        TypeError: a value that is not plain, naming its field.
        ValueError: a value out of range, an unknown name, or values that contradict each other.
    """

    name: str = "triplet"
    """The loss; proxy losses learn vectors of each class."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The loss's own numbers, such as margin=0.2 or reduce_fn=mean."""
    miner: str = "none"
    """Pairs that a pair loss sees, such as easy_positive+semi_hard:margin=0.2."""
    weight: Annotated[float, non_negative] = 1.0
    """Factor of the whole loss."""
    normalize: Literal["sphere", "ball", "none"] = "sphere"
    """How embeddings are scaled, in the loss and in retrieval."""
    learn_beta: Literal["class", "shared"] | None = None
    """Learn the margin loss's boundary, per class or one for all."""
    memory_size: Annotated[int, non_negative] = 0
    """Remembered embeddings that a pair loss also compares with."""
    memory_start_step: Annotated[int, non_negative] = 0
    """Step from which the memory is used."""
    proxies: ProxyConfig = dataclasses.field(default_factory=ProxyConfig)
    method: Method | None = None
    """Method around the loss: ``CCPConfig`` or ``NIRConfig``. None: the loss alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("loss", self.name, LOSSES)
        if self.method is not None and not isinstance(self.method, Method):
            raise TypeError(
                f"method must be a CCPConfig, a NIRConfig or another Method, got {self.method!r}"
            )
        set_field(self, "settings", plain_settings("settings", self.settings))
        check_settings(LOSSES[self.name].function, self.settings)
        self._check_method()
        self._check_proxies()
        build_miner(self.miner, dim=64)  # refuses unknown ones

    @property
    def kind(self) -> Literal["pair", "proxy"]:
        """Whether the loss is one of pairs or of proxies."""
        return LOSSES[self.name].kind

    @property
    def has_proxies(self) -> bool:
        """Whether samples are compared with vectors of their classes."""
        brought = self.method is not None and self.method.proxies is not None
        return brought or (self.kind == "proxy" and self.proxies.per_class != 0)

    @property
    def num_proxies(self) -> int:
        """Proxies per class; 0 where there are none."""
        if not self.has_proxies:
            return 0
        brought = None if self.method is None else self.method.proxies
        own = LOSSES[self.name].proxies if brought is None else brought
        return own if self.proxies.per_class is None else self.proxies.per_class

    @property
    def needs_validation(self) -> bool:
        """Whether the method acts on evaluations of held-out rows."""
        return self.method is not None and self.method.needs_validation

    @property
    def normalization(self) -> Callable[..., Any] | None:
        """The function that scales embeddings; None where they stay as they are."""
        return NORMALIZATIONS[self.normalize]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LossConfig":
        """Read what ``to_json`` returned; an absent field has its default."""
        if isinstance(values, Mapping) and values.get("method") is not None:
            values = {**values, "method": _method(values["method"])}
        return super().from_json(values)

    def build(
        self, num_classes: int, dim: int = 64, *, dtype: str = "float32", **own: Any
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
        loss_fn = LOSSES[self.name].function
        settings = self._loss_settings()
        if self.kind == "pair":
            settings["mine"] = build_miner(self.miner, dim)
        for name, value in settings.items():
            if isinstance(value, np.ndarray) and value.shape != (num_classes,):
                raise RecipeError(
                    f"{{settings}}: {name} must be a number, or one for each of the {num_classes} classes, "
                    f"got {value.size}"
                )
        arguments = (loss_fn, num_classes, dim, settings | own)
        objective = None if self.method is None else self.method.objective(self, *arguments)
        if objective is None:
            objective = (
                self.of_proxies(*arguments)
                if self.has_proxies
                else self._of_samples(*arguments, dtype=dtype)
            )
        return objective if self.weight == 1 else weighted(objective, self.weight)

    def of_proxies(
        self,
        loss_fn: Callable[..., Any],
        num_classes: int,
        dim: int,
        settings: Mapping[str, Any],
    ) -> Objective:
        """Make the objective of a loss between samples and learned proxies."""
        record, each = LOSSES[self.name], self.num_proxies
        sampled = self.proxies.sampled_classes
        few = (num_classes if sampled is None else sampled) * each <= MONITORED
        return objectives.proxy(
            loss_fn,
            num_classes,
            dim,
            each,
            sampled_classes=sampled,
            monitor=getattr(losses, record.monitor) if record.monitor and few else None,
            **settings,
        )

    def _of_samples(
        self,
        loss_fn: Callable[..., Any],
        num_classes: int,
        dim: int,
        settings: dict[str, Any],
        *,
        dtype: str,
    ) -> Objective:
        """Make the objective of a loss between samples."""
        learned: dict[str, Any] = {}
        if self.learn_beta is not None:
            start = settings.pop("beta", 1.2)
            if self.learn_beta == "shared" and np.ndim(start):
                raise RecipeError(
                    f"{{settings}}: beta must be a number where {{learn_beta}} is shared, got {np.size(start)} of them"
                )
            learned["beta"] = np.full(num_classes if self.learn_beta == "class" else (), start)
        objective = objectives.pair(loss_fn, learned=learned, **settings)
        multiplies = self.kind == "pair" and loss_fn is LOSSES[self.name].function
        if dtype == "bfloat16" and self.normalize == "sphere" and multiplies:
            objective = in_bfloat16(objective)
        if not self.memory_size:
            return objective
        return objectives.with_memory(
            objective, self.memory_size, dim, warmup=self.memory_start_step
        )

    def _loss_settings(self) -> dict[str, Any]:
        """Return the settings as the loss takes them: names of functions become functions."""
        settings: dict[str, Any] = dict(self.settings)
        for name in LOSSES[self.name].per_class:
            if name in settings:
                settings[name] = _of_classes(settings[name])
        if "reduce_fn" in settings:
            one_of("reduce_fn", settings["reduce_fn"], REDUCTIONS)
            settings["reduce_fn"] = REDUCTIONS[settings["reduce_fn"]]
        return {**settings, "normalize": self.normalization}

    def _check_method(self) -> None:
        """Refuse parts of a loss that contradict each other."""
        method, kind = self.method, self.kind
        if method is not None and method.kind != kind:
            raise RecipeError(
                f"{{method}} {method.name} is for {method.kind} losses, such as {method.loss}; "
                f"{self.name} is a {kind} loss"
            )
        brought = method is not None and method.proxies is not None
        only: dict[str, Any] = {"sampled_classes": None}
        if kind == "proxy":
            only = {"miner": "none", "memory_size": 0}
        elif not brought:
            only["per_class"] = None
        for name, nothing in only.items():
            if getattr(self if hasattr(self, name) else self.proxies, name) != nothing:
                other = "pair" if kind == "proxy" else "proxy"
                raise RecipeError(f"{{{name}}} is for {other} losses; {self.name} is a {kind} loss")
        if method is not None and brought and self.memory_size:
            raise RecipeError(
                f"{{memory_size}} is not for {{method}} {method.name}, whose proxies are the references"
            )
        if self.learn_beta is not None and (self.name != "margin" or method is not None):
            called = "plain" if method is None else method.name
            raise RecipeError(
                f"{{learn_beta}} is for {{loss}} margin, with {{method}} plain; got {self.name}, {called}"
            )

    def _check_proxies(self) -> None:
        """Refuse numbers of proxies, and what needs proxies where there are none."""
        each, method = self.proxies.per_class, self.method
        alone = not LOSSES[self.name].needs_proxies and method is None
        if each is not None and (isinstance(each, bool) or each < (0 if alone else 1)):
            fields = [name for name, loss in LOSSES.items() if not loss.needs_proxies]
            raise RecipeError(
                f"{{per_class}} must be positive (0 for {' and '.join(sorted(fields))} alone), got {each}"
            )
        if self.proxies.sampled_classes is not None and each == 0:
            raise RecipeError("{sampled_classes} needs proxies; {per_class} is 0")
        chosen = method is not None and method.chooses_proxies
        if self.proxies.init == "samples" and (chosen or not self.has_proxies):
            raise RecipeError(
                "{init} samples needs proxies that are learned: not those that {method} chooses, nor {per_class} 0"
            )


def _method(values: Any) -> Method:
    """Read a method by its name and numbers."""
    if not isinstance(values, Mapping):
        raise TypeError(f"method must be values by name, got a {type(values).__name__}")
    own = dict(values)
    one_of("method's name", own.pop("name", None), METHODS)
    return METHODS[values["name"]].from_json(own)


def _of_classes(value: Any) -> Any:
    """Numbers of each class as an array; what else it is the loss refuses."""
    numbers = isinstance(value, tuple) and all(type(one) in (int, float) for one in value)
    return np.asarray(value, np.float64) if numbers else value


def check_settings(loss_fn: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not the loss's own hyper-parameters."""
    cores = (losses.compare, losses.assign)
    shared = {name for core in cores for name in inspect.signature(core).parameters}
    keywords = [
        name
        for name, parameter in inspect.signature(loss_fn).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in shared - set(PLAIN_OPTIONS)
    ]
    own = [name for name in keywords if name not in PLAIN_OPTIONS]
    for name in settings:
        if name not in keywords:
            owner = getattr(loss_fn, "__name__", "the loss")
            raise RecipeError(f"{{settings}}: {no_setting(owner, name, own)}")


def weighted(objective: Objective, weight: float) -> Objective:
    """Multiply an objective's loss by a weight."""

    @wraps(objective.loss)
    def loss(*args: Any, **settings: Any) -> tuple[Any, Any]:
        value, metrics = objective.loss(*args, **settings)
        return weight * value, {**metrics, "loss": weight * value}

    return objective._replace(loss=loss)


def in_bfloat16(objective: Objective) -> Objective:
    """Hand float32 embeddings, and references, to a pair loss in bfloat16; what is of another type stays as it is.

    A GPU or TPU then multiplies them as they are, accumulating in float32. The library's networks that compute in
    bfloat16 round their embeddings to it, so that no bit of these is lost.
    """
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
