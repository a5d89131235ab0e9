"""What a recipe is: the whole description of how a method is trained, in plain values."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from jdml.registry import LOSSES, METHODS, NETWORKS, Method, resolve
from jdml.registry.constraints import (
    check_fields,
    inside_unit,
    nearest,
    non_negative,
    number,
    one_of,
    plain_settings,
    positive,
    share,
    unit,
)
from jdml.registry.networks import OWN
from jdml.registry.pointers import is_pointer

Batch = int | tuple[int, int]
BACKBONE = "backbone"
"""What a recipe freezes: all of the network but its embedding head."""


class RecipeError(ValueError):
    """Values of a recipe that are out of range or do not go together.

    Attributes:
        template: the message, fields' names in braces.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        super().__init__(self.called(str))

    def called(self, name: Callable[[str], str]) -> str:
        """Give the message with fields called as a user knows them.

        Args:
            name: from a field's name to what it is called.

        Returns:
            The message.
        """
        return re.sub(r"\{(\w+)\}", lambda match: name(match[1]), self.template)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a method is trained: plain values, which :func:`jdml.training.train` makes a run of.

    A recipe is read, compared, written as JSON and changed in one value with ``dataclasses.replace``. What has no plain
    value, a loss, a miner or a network of one's own, is an argument of :func:`jdml.training.train`.

    Attributes:
        loss: name of the loss, as in ``jdml.registry.LOSSES``.
        settings: the loss's own numbers. ``reduce_fn`` is a name: mean, mean_nonzero, sum or total.
        miner: which pairs a pair loss sees: names joined by ``+``, each with settings after a colon, such as
            ``"easy_positive+semi_hard_negative:margin=0.2"``.
        learn_beta: of the margin loss: its boundary is learned for each class, or one for all.
        memory: how many remembered embeddings a pair loss also compares the batch with.
        memory_wait: steps in which the memory fills without being used.
        proxies_per_class: of a proxy loss, or of CCP; None: the loss's own number (CCP: 8). 0: a field of samples
            alone.
        sampled_classes: classes that a step of a proxy loss sees; None: all.
        weight: of the whole loss.
        normalize: what the loss does to embeddings, and so retrieval too.
        method: what is made of the loss: one of ``jdml.registry.METHODS`` with its numbers; None: the loss alone.
        network: name of the network, as in ``jdml.registry.NETWORKS``, or of what makes one of one's own,
            ``"package.module:factory"``; None: ``eps`` for small pictures in memory, ``small`` for others.
        dim: width D of the embeddings.
        pooling: of the embedding head; None: the network's own.
        freeze_batch_norm: whether batch norm keeps its running statistics; it does where anything is frozen.
        freeze: what of the network stays: ``"backbone"``, all but the embedding head, or a pattern of parameters' paths
            (:func:`jdml.adapt.matching`).
        kept_views: where the backbone is frozen, how many views of each image its features are computed of, once: 1 is
            the image as in evaluation, more are augmented ones; 0: images go through the backbone at each step.
        last_blocks: so many of the network's last blocks learn, with what comes after them; the rest stays.
        layer_decay: what the learning rate is multiplied by from each block to the one before it
            (:func:`jdml.adapt.scale_by_depth`).
        lora: rank of the changes that arrays of the network learn, while all of it but the embedding head stays
            (:class:`jdml.training.WithLora`).
        lora_alpha: α: changes are multiplied by α / rank; None: by 1.
        lora_paths: pattern of these arrays' paths; None: the kernels of the network's blocks.
        ema: what an average of the parameters, which is scored and kept, forgets by: as of
            :func:`jdml.training.fit`.
        dtype: what the network computes in; with float16 the loss is scaled, with bfloat16 a pair loss between
            samples on the sphere gets embeddings in it.
        remat: whether a vision transformer's blocks are computed again for the gradient, which takes less memory.
        batch: random samples, or (classes, samples per class).
        small_classes: what a class of fewer samples is: ``pad``: it leaves places empty; ``refuse``: an error.
        batch_within: a view of the data set, coarser than the labels: the classes of a batch are of one of its groups.
        class_power: in a batch of classes a class of n samples is drawn in proportion to ``n ** class_power``; None:
            so that each sample is shown in every epoch.
        epochs: passes over the training images.
        steps: steps, in the place of epochs; 0 scores the start.
        rule: ``"adam"`` (weight decay added to the gradient), ``"adamw"`` (decoupled), or ``"sgd"`` (momentum .9).
        rate: learning rate of the model.
        role_rates: learning rates of the objective's parameters (``"proxies"``, ``"beta"``), in units of ``rate``.
        b2: Adam's second decay rate.
        weight_decay: of the model, and of the roles in ``decayed``.
        decayed: roles with weight decay beside the model.
        schedule: how learning rates go down to 0 over the run.
        rate_warmup: first steps, in which learning rates go up from 0.
        decay_every: epochs after which all learning rates are multiplied by ``decay_factor``, again and again.
        decay_factor: see ``decay_every``.
        warmup_epochs: first epochs in which only the embedding head and the objective learn.
        warmup_steps: first steps of that kind, in the place of epochs.
        max_norm: global norm that gradients are clipped to.
        norm_by_role: whether that is the norm of each role's gradients, not of all.
        max_entry: largest entry of any gradient.
        max_proxy_entry: largest entry of the proxies' gradient.
        max_proxy_norm: largest norm of a single proxy's gradient.
        proxies_on_sphere: whether proxies return to the sphere after each step.
        skip_nonfinite: as of :func:`jdml.training.fit`.
        start: where proxies begin: ``"random"``, as the objective draws them, or on ``"samples"`` of their class.
        nmi: whether the paper reports NMI.
        more_clusters: of NMI+, clusters in units of the number of classes; None for no NMI+.
        map_divisor: what the paper divides mAP@1000 by, see :func:`jdml.metrics.map_at_k`.
        head: where the embedding head begins: ``"random"``, or on the ``"principal"`` directions of what a pretrained
            network gives it (:func:`jdml.training.start_head`).

    Raises:
        TypeError: a value that is not plain, naming its field.
        ValueError: a value out of range, an unknown name, or values that do not go together.

    Example:
        >>> field = Recipe(loss="potential_field", proxies_per_class=15, batch=100, epochs=2)
        >>> again = Recipe.from_json(field.to_json())
        >>> again == field, dataclasses.replace(field, rate=1e-3).rate
        (True, 0.001)
        >>> Recipe(loss="proxy_anchor", miner="easy_positive")
        Traceback (most recent call last):
        ...
        jdml.recipes.base.RecipeError: miner is for pair losses; proxy_anchor is a proxy loss
    """

    loss: str = "triplet"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    miner: str = "none"
    learn_beta: Literal["class", "shared"] | None = None
    memory: Annotated[int, non_negative] = 0
    memory_wait: Annotated[int, non_negative] = 0
    proxies_per_class: Annotated[int | None, number] = None
    sampled_classes: Annotated[int | None, positive] = None
    weight: Annotated[float, non_negative] = 1.0
    normalize: Literal["sphere", "ball", "none"] = "sphere"
    method: Method | None = None
    network: str | None = None
    dim: Annotated[int, positive] = 64
    pooling: str | None = None
    freeze_batch_norm: bool = False
    freeze: str | None = None
    kept_views: Annotated[int, non_negative] = 1
    last_blocks: Annotated[int | None, positive] = None
    layer_decay: Annotated[float | None, inside_unit] = None
    lora: Annotated[int | None, positive] = None
    lora_alpha: Annotated[float | None, positive] = None
    lora_paths: str | None = None
    ema: Annotated[float | None, inside_unit] = None
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    remat: bool = False
    batch: Batch = 128
    small_classes: Literal["pad", "refuse"] = "pad"
    batch_within: str | None = None
    class_power: Annotated[float | None, unit] = None
    epochs: Annotated[int, positive] = 100
    steps: Annotated[int | None, non_negative] = None
    rule: Literal["adam", "adamw", "sgd"] = "adam"
    rate: Annotated[float, positive] = 1e-4
    role_rates: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"proxies": 100.0})
    b2: Annotated[float, share] = 0.999
    weight_decay: Annotated[float, non_negative] = 0.0
    decayed: tuple[str, ...] = ()
    schedule: Literal["constant", "cosine", "linear"] = "constant"
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
    head: Literal["random", "principal"] = "random"

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ValueError as error:
            name, _, wrong = str(error).partition(" ")
            raise RecipeError(f"{{{name}}} {wrong}") from None
        one_of("loss", self.loss, LOSSES)
        if self.network is not None and not is_pointer(self.network):
            one_of("network", self.network, (*NETWORKS, OWN))
        if self.method is not None and type(self.method) not in METHODS.values():
            raise TypeError(
                f"method must be one of jdml.registry.METHODS, with its numbers, got {self.method!r}"
            )
        settings = plain_settings("settings", self.settings)
        rates = plain_settings("role_rates", self.role_rates)
        for role, rate in rates.items():
            if isinstance(rate, bool) or not isinstance(rate, int | float) or rate < 0:
                raise RecipeError(
                    f"{{role_rates}}[{role!r}] must be a number that is not negative, got {rate!r}"
                )
        decayed: Any = self.decayed
        if isinstance(decayed, str):
            raise TypeError(f"decayed must be names of roles, got the word {decayed!r}")
        if not isinstance(decayed, Iterable):
            raise TypeError(f"decayed must be names of roles, got {decayed!r}")
        batch = tuple(self.batch) if isinstance(self.batch, tuple | list) else self.batch
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
        _check_adapted(self)

    def __hash__(self) -> int:
        return hash(tuple(v for v in vars(self).values() if not isinstance(v, Mapping | Method)))

    @property
    def has_proxies(self) -> bool:
        """Whether samples are compared with vectors of their classes."""
        brought = self.method is not None and self.method.proxies is not None
        return brought or (LOSSES[self.loss].kind == "proxy" and self.proxies_per_class != 0)

    @property
    def freezes(self) -> bool:
        """Whether anything of the network stays."""
        return any(x is not None for x in (self.freeze, self.last_blocks, self.lora))

    @property
    def keeps(self) -> bool:
        """Whether features of the backbone are computed once."""
        return self.freeze == BACKBONE and self.kept_views > 0

    @property
    def has_hook(self) -> bool:
        """Whether something acts between the steps, and needs held-out rows for it."""
        return self.method is not None and bool(self.method.hook)

    @property
    def num_proxies(self) -> int:
        """Proxies per class; 0 where there are none."""
        if not self.has_proxies:
            return 0
        brought = None if self.method is None else self.method.proxies
        own = LOSSES[self.loss].proxies if brought is None else brought
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
            values: by name.

        Returns:
            The recipe.

        Raises:
            TypeError: values that are no mapping.
            ValueError: a name that no recipe has.
        """
        given = known_fields("a recipe", cls, values)
        if given.get("method") is not None:
            method = _named(given["method"])
            kind = METHODS[method.pop("name")]
            given["method"] = kind(**known_fields(f"method {kind.name}", kind, method))
        return cls(**given)


def with_method(base: Recipe, name: str, **settings: Any) -> Recipe:
    """Put a method onto the recipe of a loss.

    Args:
        base: the recipe.
        name: one of ``jdml.registry.METHODS``.
        **settings: the method's own numbers.

    Returns:
        The recipe.

    Raises:
        TypeError: a setting of another kind.
        ValueError: no such method, a number out of range, or a loss that the method is not for.

    Example:
        >>> with_method(Recipe(loss="proxy_anchor"), "nir", weight=0.02).method.weight
        0.02
    """
    one_of("method", name, METHODS)
    kind = METHODS[name]
    if kind.recipe:
        return resolve(kind.recipe)(base, **settings)
    return dataclasses.replace(base, method=kind(**settings))


def _check_batch(batch: Any) -> None:
    sizes = batch if isinstance(batch, tuple) else (batch,)
    if len(sizes) != 1 + isinstance(batch, tuple) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes
    ):
        raise RecipeError(
            f"{{batch}} must be a number of samples, or (classes, samples per class), got {batch!r}"
        )


def _check_loss(recipe: Recipe) -> None:
    """Refuse parts of a loss that do not go together."""
    loss, kind, method = recipe.loss, LOSSES[recipe.loss].kind, recipe.method
    if method is not None and method.kind != kind:
        raise RecipeError(
            f"{{method}} {method.name} is for {method.kind} losses, such as {method.loss}; {loss} is a {kind} loss"
        )
    brought = method is not None and method.proxies is not None
    only = {"miner": "none", "memory": 0} if kind == "proxy" else {"sampled_classes": None}
    if kind == "pair" and not brought:
        only["proxies_per_class"] = None
    for name, nothing in only.items():
        if getattr(recipe, name) != nothing:
            other = "pair" if kind == "proxy" else "proxy"
            raise RecipeError(f"{{{name}}} is for {other} losses; {loss} is a {kind} loss")
    if method is not None and brought and recipe.memory:
        raise RecipeError(
            f"{{memory}} is not for {{method}} {method.name}, whose proxies are the references"
        )
    if recipe.learn_beta is not None and (loss != "margin" or method is not None):
        called = "plain" if method is None else method.name
        raise RecipeError(
            f"{{learn_beta}} is for {{loss}} margin, with {{method}} plain; got {loss}, {called}"
        )
    _check_proxies(recipe)


def _check_proxies(recipe: Recipe) -> None:
    """Refuse numbers of proxies, and what needs some where there are none."""
    each, method = recipe.proxies_per_class, recipe.method
    alone = not LOSSES[recipe.loss].needs_proxies and method is None
    if each is not None and (isinstance(each, bool) or each < (0 if alone else 1)):
        fields = [name for name, loss in LOSSES.items() if not loss.needs_proxies]
        raise RecipeError(
            f"{{proxies_per_class}} must be positive (0 for {' and '.join(sorted(fields))} alone), got {each}"
        )
    if recipe.sampled_classes is not None and each == 0:
        raise RecipeError("{sampled_classes} needs proxies; {proxies_per_class} is 0")
    chosen = recipe.has_hook and method is not None and method.proxies is not None
    if recipe.start == "samples" and (chosen or not recipe.has_proxies):
        raise RecipeError(
            "{start} samples needs proxies that are learned: not those that {method} chooses, nor {proxies_per_class} 0"
        )


def _check_time(recipe: Recipe) -> None:
    """Refuse times that do not go together."""
    if recipe.steps is not None and recipe.rate_warmup and recipe.rate_warmup >= recipe.steps:
        raise RecipeError(
            f"{{rate_warmup}} must be below {{steps}}, {recipe.steps}, got {recipe.rate_warmup}"
        )
    if recipe.decay_every is not None and recipe.schedule != "constant":
        raise RecipeError(f"{{decay_every}} goes with {{schedule}} constant, got {recipe.schedule}")


def _check_adapted(recipe: Recipe) -> None:
    """Refuse parts of the network that stay, or learn slowly, where they are not known."""
    for name in ("freeze", "lora_paths"):
        try:
            re.compile(getattr(recipe, name) or "")
        except re.error as error:
            raise RecipeError(
                f"{{{name}}} must be a regular expression, got {getattr(recipe, name)!r}: {error}"
            ) from error
    given = [n for n in ("freeze", "last_blocks", "lora") if getattr(recipe, n) is not None]
    if len(given) > 1:
        raise RecipeError(
            f"{{{given[0]}}} and {{{given[1]}}} both say what stays: give one of them"
        )
    if recipe.kept_views != 1 and recipe.freeze != BACKBONE:
        raise RecipeError(f"{{kept_views}} needs {{freeze}} {BACKBONE}, got {recipe.freeze}")
    for name in ("lora_alpha", "lora_paths"):
        if getattr(recipe, name) is not None and recipe.lora is None:
            raise RecipeError(f"{{{name}}} needs {{lora}}, a rank")
    whole = recipe.lora is None and recipe.freeze != BACKBONE
    if recipe.layer_decay is not None and not whole:
        name = "lora" if recipe.freeze is None else "freeze"
        raise RecipeError(
            f"{{layer_decay}} is for blocks that learn, with {{{name}}} {getattr(recipe, name)} they stay"
        )
    for name in ("last_blocks", "layer_decay"):
        if getattr(recipe, name) is not None and recipe.network is not None:
            check_blocks(recipe, name)


def check_blocks(recipe: Recipe, field: str, instead: str = "") -> tuple[str, str]:
    """Give the patterns of what comes before the network's blocks, and of these, for a field that needs them."""
    record = NETWORKS.get(recipe.network or "")
    if record is None or record.blocks is None:
        known = ", ".join(name for name, network in NETWORKS.items() if network.blocks)
        raise RecipeError(
            f"{{{field}}} needs a {{network}} with blocks ({known}), got {recipe.network}{instead}"
        )
    return record.blocks


def _as_json(value: Any) -> Any:
    if isinstance(value, Method):
        return {"name": value.name, **{key: _as_json(part) for key, part in vars(value).items()}}
    if isinstance(value, Mapping):
        return {name: _as_json(part) for name, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, tuple) else value


def _named(method: Any) -> dict[str, Any]:
    """A copy of a method's values, which say its name."""
    if not isinstance(method, Mapping):
        raise TypeError(f"method must be values by name, got a {type(method).__name__}")
    one_of("method's name", method.get("name"), METHODS)
    return dict(method)


def known_fields(called: str, kind: type, values: Any) -> dict[str, Any]:
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
