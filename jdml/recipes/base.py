"""What a recipe is: the whole description of how a method is trained, in plain values."""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

from jdml.registry import LOSSES
from jdml.registry.constraints import (
    at_least,
    check_fields,
    nearest,
    non_negative,
    one_of,
    positive,
)

NEVER = 10**6
"""Evaluations without improvement that do not end a problem before the run ends."""
CCP_PROXIES = 8
"""Proxies per class among which CCP's problems alternate."""
Batch = int | tuple[int, int]
First = Literal["random", "covering", "origin", "kept"]
Normalization = Literal["sphere", "ball", "none"]
Schedule = Literal["constant", "cosine", "linear"]
Rule = Literal["adam", "adamw", "sgd"]
Shape = Literal["exp", "identity", "softplus"]
SelfRegularization = Literal["both", "generate", "match", "none"]


class RecipeError(ValueError):
    """Values of a recipe that are out of range or do not go together.

    Attributes:
        template: The message, fields' names in braces.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        super().__init__(self.called(str))

    def called(self, name: Callable[[str], str]) -> str:
        """Give the message with fields called as a user knows them.

        Args:
            name: From a field's name to what it is called.

        Returns:
            The message.
        """
        return re.sub(r"\{(\w+)\}", lambda found: name(found[1]), self.template)


@dataclasses.dataclass(frozen=True)
class Problems:
    """CCP's alternating problems: samples are compared with proxies, which are chosen anew when a problem ends.

    Attributes:
        pool_size: b, samples per class among which new proxies are chosen.
        strength: λ, of the anchor.
        patience: Evaluations without improvement that end a problem.
        run_patience: Those that end the run.
        tolerance: What is less is no improvement.
        restore: As of :class:`jdml.training.AlternatingProblems`, and so are the two that follow.
        anchor_first: See `restore`.
        first: See `restore`.
        in_batch_weight: Of the same loss between the samples of the batch.
    """

    pool_size: Annotated[int, at_least(1)] = 12
    strength: Annotated[float, non_negative] = 2e-4
    patience: Annotated[int, at_least(1)] = 3
    run_patience: Annotated[int, at_least(1)] = 60
    tolerance: Annotated[float, non_negative] = 1e-5
    restore: bool = True
    anchor_first: bool = True
    first: First = "random"
    in_batch_weight: Annotated[float, non_negative] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_flags(self)
        one_of("first", self.first, get_args(First))


@dataclasses.dataclass(frozen=True)
class Regularizer:
    """NIR: a flow around every proxy.

    Attributes:
        weight: ω, of the proxy loss.
        flow: Its size, as of :func:`jdml.flows.preset`.
        flow_settings: Other attributes of :class:`jdml.flows.ConditionalFlow`, such as `conditioning`.
        flow_lr: The flow's learning rate.
        shape: As of :func:`jdml.objectives.with_nir`, and so are those that follow.
        temperature: See `shape`.
        per_dimension: See `shape`.
        of_mean: See `shape`.
        stop_proxy_gradient: See `shape`.
        wrong_class_weight: See `shape`.
        self_regularization: See `shape`.
        embeddings_wait: Steps in which embeddings get no gradient: `warmup` there. The paper's warm-up, in which the
            backbone waits, is the recipe's.
    """

    weight: Annotated[float, non_negative] = 0.01
    flow: str = "released"
    flow_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flow_lr: Annotated[float, positive] = 5e-4
    shape: Shape = "exp"
    temperature: Annotated[float, positive] = 1.0
    per_dimension: bool = False
    of_mean: bool = False
    stop_proxy_gradient: bool = False
    wrong_class_weight: Annotated[float, non_negative] = 0.0
    self_regularization: SelfRegularization = "none"
    embeddings_wait: Annotated[int, non_negative] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_flags(self)
        one_of("shape", self.shape, get_args(Shape))
        one_of("self_regularization", self.self_regularization, get_args(SelfRegularization))
        object.__setattr__(
            self, "flow_settings", _plain_settings("flow_settings", self.flow_settings)
        )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a method is trained: plain values, which :func:`jdml.training.train` makes a run of.

    A recipe is read, compared, written as JSON and changed in one value with `dataclasses.replace`. What has no plain
    value, a loss, a miner or a network of one's own, is an argument of :func:`jdml.training.train`.

    Attributes:
        loss: Name of the loss, as in `jdml.registry.LOSSES`.
        settings: The loss's own numbers. `reduce_fn` is a name: mean, mean_nonzero, sum or total.
        miner: Which pairs a pair loss sees: names joined by `+`, each with settings after a colon, such as
            `"easy_positive+semi_hard_negative:margin=0.2"`.
        learn_beta: Of the margin loss: its boundary is learned for each class, or one for all.
        memory: How many remembered embeddings a pair loss also compares the batch with.
        memory_wait: Steps in which the memory fills without being used.
        proxies_per_class: Of a proxy loss, or of CCP; None: the loss's own number (CCP: 8). 0: a field of samples
            alone.
        sampled_classes: Classes that a step of a proxy loss sees; None: all.
        weight: Of the whole loss.
        normalize: What the loss does to embeddings, and so retrieval too.
        nir: A flow around every proxy (NIR).
        problems: How proxies are chosen again and again (CCP).
        network: Name of the network, as in `jdml.registry.NETWORKS`; None: `eps` for small pictures in memory, `small`
            for others.
        dim: Width D of the embeddings.
        pooling: Of the embedding head; None: the network's own.
        freeze_batch_norm: Whether batch norm keeps its running statistics.
        dtype: What the network computes in.
        batch: Random samples, or (classes, samples per class).
        small_classes: What a class of fewer samples is: `pad`: it leaves places empty; `refuse`: an error.
        epochs: Passes over the training images.
        steps: Steps, in the place of epochs.
        rule: `"adam"` (weight decay added to the gradient), `"adamw"` (decoupled), or `"sgd"` (momentum .9).
        rate: Learning rate of the model.
        role_rates: Learning rates of the objective's parameters (`"proxies"`, `"beta"`), in units of `rate`.
        b2: Adam's second decay rate.
        weight_decay: Of the model, and of the roles in `decayed`.
        decayed: Roles with weight decay beside the model.
        schedule: How learning rates go down to 0 over the run.
        rate_warmup: First steps, in which learning rates go up from 0.
        decay_every: Epochs after which all learning rates are multiplied by `decay_factor`, again and again.
        decay_factor: See `decay_every`.
        warmup_epochs: First epochs in which only the embedding head and the objective learn.
        warmup_steps: First steps of that kind, in the place of epochs.
        max_norm: Global norm that gradients are clipped to.
        norm_by_role: Whether that is the norm of each role's gradients, not of all.
        max_entry: Largest entry of any gradient.
        max_proxy_entry: Largest entry of the proxies' gradient.
        max_proxy_norm: Largest norm of a single proxy's gradient.
        proxies_on_sphere: Whether proxies return to the sphere after each step.
        skip_nonfinite: As of :func:`jdml.training.fit`.
        start: Where proxies begin: `"random"`, as the objective draws them, or on `"samples"` of their class.
        nmi: Whether the paper reports NMI.
        more_clusters: Of NMI+, clusters in units of the number of classes; None for no NMI+.
        map_divisor: What the paper divides mAP@1000 by, see :func:`jdml.metrics.map_at_k`.

    Raises:
        TypeError: A value that is not plain, naming its field.
        ValueError: A value out of range, an unknown name, or values that do not go together.

    Example:
        >>> field = Recipe(loss="potential_field", proxies_per_class=15, batch=100, epochs=2)
        >>> again = Recipe.from_json(field.to_json())
        >>> again == field, dataclasses.replace(field, rate=1e-3).rate
        (True, 0.001)
        >>> Recipe(loss="proxy_anchor", miner="easy_positive")
        Traceback (most recent call last):
        ...
        ValueError: miner is for pair losses; proxy_anchor is a proxy loss
    """

    loss: str = "triplet"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    miner: str = "none"
    learn_beta: Literal["class", "shared"] | None = None
    memory: Annotated[int, non_negative] = 0
    memory_wait: Annotated[int, non_negative] = 0
    proxies_per_class: int | None = None
    sampled_classes: Annotated[int | None, positive] = None
    weight: Annotated[float, non_negative] = 1.0
    normalize: Normalization = "sphere"
    nir: Regularizer | None = None
    problems: Problems | None = None
    network: str | None = None
    dim: Annotated[int, positive] = 64
    pooling: str | None = None
    freeze_batch_norm: bool = False
    dtype: Literal["bfloat16", "float32"] = "float32"
    batch: Batch = 128
    small_classes: Literal["pad", "refuse"] = "pad"
    epochs: Annotated[int, positive] = 100
    steps: Annotated[int | None, positive] = None
    rule: Rule = "adam"
    rate: Annotated[float, positive] = 1e-4
    role_rates: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"proxies": 100.0})
    b2: Annotated[float, non_negative] = 0.999
    weight_decay: Annotated[float, non_negative] = 0.0
    decayed: tuple[str, ...] = ()
    schedule: Schedule = "constant"
    rate_warmup: Annotated[int, non_negative] = 0
    decay_every: Annotated[int | None, positive] = None
    decay_factor: Annotated[float, positive] = 0.5
    warmup_epochs: Annotated[int, non_negative] = 0
    warmup_steps: Annotated[int | None, non_negative] = None
    max_norm: Annotated[float | None, positive] = None
    norm_by_role: bool = False
    max_entry: Annotated[float | None, positive] = None
    max_proxy_entry: Annotated[float | None, positive] = None
    max_proxy_norm: Annotated[float | None, positive] = None
    proxies_on_sphere: bool = False
    skip_nonfinite: Annotated[int | None, positive] = None
    start: Literal["random", "samples"] = "random"
    nmi: bool = False
    more_clusters: Annotated[int | None, positive] = None
    map_divisor: Literal["min", "k", "relevant", "class"] = "min"

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as error:
            name, _, wrong = str(error).partition(" ")
            raise RecipeError(f"{{{name}}} {wrong}") from None
        _check_flags(self)
        one_of("loss", self.loss, LOSSES)
        for name, known in _CHOICES.items():
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), known)
        settings = _plain_settings("settings", self.settings)
        rates = {
            role: float(rate)
            for role, rate in _plain_settings("role_rates", self.role_rates).items()
        }
        batch = self.batch if isinstance(self.batch, int) else tuple(self.batch)
        for name, value in {
            "settings": settings,
            "role_rates": rates,
            "batch": batch,
            "decayed": tuple(self.decayed),
        }.items():
            object.__setattr__(self, name, value)
        _check_batch(batch)
        _check_loss(self)
        _check_time(self)

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    @property
    def has_proxies(self) -> bool:
        """Whether samples are compared with vectors of their classes."""
        kind = LOSSES[self.loss].kind
        return self.problems is not None or (kind == "proxy" and self.proxies_per_class != 0)

    @property
    def num_proxies(self) -> int:
        """Proxies per class; 0 where there are none."""
        if not self.has_proxies:
            return 0
        own = CCP_PROXIES if self.problems is not None else LOSSES[self.loss].proxies
        return own if self.proxies_per_class is None else self.proxies_per_class

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self.batch if isinstance(self.batch, int) else self.batch[0] * self.batch[1]

    def to_json(self) -> dict[str, Any]:
        """Give the recipe as values that JSON has: numbers, words, lists, dictionaries."""
        return {name: _as_json(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Recipe":
        """Read what :meth:`to_json` gave; what is absent has its default.

        Args:
            values: By name.

        Returns:
            The recipe.

        Raises:
            TypeError: Values that are no mapping.
            ValueError: A name that no recipe has.
        """
        given = _known("a recipe", cls, values)
        parts = {"nir": Regularizer, "problems": Problems}
        for name, kind in parts.items():
            if given.get(name) is not None:
                given[name] = kind(**_known(name, kind, given[name]))
        return cls(**given)


_CHOICES: dict[str, tuple[str, ...]] = {
    "learn_beta": ("class", "shared"),
    "normalize": get_args(Normalization),
    "dtype": ("bfloat16", "float32"),
    "small_classes": ("pad", "refuse"),
    "rule": get_args(Rule),
    "schedule": get_args(Schedule),
    "start": ("random", "samples"),
    "map_divisor": ("min", "k", "relevant", "class"),
}


def _check_flags(values: Any) -> None:
    """Refuse what should be True or False and is neither."""
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if isinstance(field.default, bool) and not isinstance(value, bool):
            raise TypeError(f"{field.name} must be True or False, got {value!r}")


def _check_batch(batch: Any) -> None:
    sizes = (batch,) if isinstance(batch, int) else batch
    if len(sizes) not in (1, 2) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes
    ):
        raise RecipeError(
            f"{{batch}} must be a number of samples, or (classes, samples per class), got {batch!r}"
        )


def _check_loss(recipe: Recipe) -> None:
    """Refuse parts of a loss that do not go together."""
    loss, record, ccp = recipe.loss, LOSSES[recipe.loss], recipe.problems is not None
    if record.kind == "proxy":
        for name in ("miner", "memory"):
            if getattr(recipe, name) not in ("none", 0):
                raise RecipeError(f"{{{name}}} is for pair losses; {loss} is a proxy loss")
        if ccp:
            raise RecipeError(
                f"{{method}} ccp is for pair losses, such as contrastive; {loss} is a proxy loss"
            )
    else:
        if recipe.nir is not None:
            raise RecipeError(
                f"{{method}} nir is for proxy losses, such as proxy_anchor; {loss} is a pair loss"
            )
        for name in ("sampled_classes", "proxies_per_class"):
            if getattr(recipe, name) is not None and not (ccp and name == "proxies_per_class"):
                raise RecipeError(f"{{{name}}} is for proxy losses; {loss} is a pair loss")
    if ccp and recipe.memory:
        raise RecipeError("{memory} is not for {method} ccp, whose proxies are the references")
    if recipe.learn_beta is not None and (loss != "margin" or ccp):
        method = "ccp" if ccp else "plain"
        raise RecipeError(
            f"{{learn_beta}} is for {{loss}} margin, with {{method}} plain; got {loss}, {method}"
        )
    _check_proxies(recipe)


def _check_proxies(recipe: Recipe) -> None:
    """Refuse numbers of proxies, and what needs some where there are none."""
    each, ccp = recipe.proxies_per_class, recipe.problems is not None
    alone = not LOSSES[recipe.loss].needs_proxies and recipe.nir is None
    if each is not None and (isinstance(each, bool) or each < (0 if alone else 1)):
        fields = [name for name, loss in LOSSES.items() if not loss.needs_proxies]
        raise RecipeError(
            f"{{proxies_per_class}} must be positive (0 for {' and '.join(sorted(fields))} alone), got {each}"
        )
    if recipe.sampled_classes is not None and each == 0:
        raise RecipeError("{sampled_classes} needs proxies; {proxies_per_class} is 0")
    if recipe.start == "samples" and (ccp or not recipe.has_proxies):
        raise RecipeError(
            "{start} samples needs proxies that are learned: not {method} ccp, nor {proxies_per_class} 0"
        )


def _check_time(recipe: Recipe) -> None:
    """Refuse times that do not go together."""
    if recipe.steps is not None and recipe.rate_warmup and recipe.rate_warmup >= recipe.steps:
        raise RecipeError(
            f"{{rate_warmup}} must be below {{steps}}, {recipe.steps}, got {recipe.rate_warmup}"
        )
    if recipe.decay_every is not None and recipe.schedule != "constant":
        raise RecipeError(f"{{decay_every}} goes with {{schedule}} constant, got {recipe.schedule}")


def _plain_settings(name: str, settings: Any) -> dict[str, Any]:
    """Settings as plain values.

    Raises:
        TypeError: What is no mapping of names, or holds what JSON has no word for.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"{name} must be values by name, got a {type(settings).__name__}")
    return {str(key): _plain(f"{name}[{key!r}]", value) for key, value in settings.items()}


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # arrays and numbers of NumPy and JAX
        value = value.tolist()
    if isinstance(value, tuple | list):
        return tuple(_plain(name, part) for part in value)
    if isinstance(value, float) and value != value:
        raise TypeError(f"{name} must be a number, got nan")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{name} must be a plain value (a number, a word, a list of such), got a {type(value).__name__}: "
        "jdml.training.train(objective=…) takes an objective of your own"
    )


def _as_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {name: _as_json(part) for name, part in vars(value).items()}
    if isinstance(value, Mapping):
        return {name: _as_json(part) for name, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, tuple) else value


def _known(called: str, kind: type, values: Any) -> dict[str, Any]:
    """A copy of values, all of whose names a dataclass has."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{called} must be values by name, got a {type(values).__name__}")
    names = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in names:
            raise ValueError(
                f"{called} has no {name!r}{nearest(name, names)}; it has {', '.join(names)}"
            )
    return dict(values)
