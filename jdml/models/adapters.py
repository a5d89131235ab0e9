"""Networks that :func:`jdml.training.fit` takes, brought to one form: ``init`` and ``apply`` as in Flax Linen."""

import copy
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Union

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jdml import adapt
from jdml.distributed import Tree
from jdml.models.base_adapter import (
    EVALUATION,
    TRAINING,
    ModelAdapter,
    Result,
    arguments,
    flag_values,
    flags_of,
)
from jdml.models.base_adapter import Model as Model
from jdml.models.from_equinox import FromEquinox, is_equinox
from jdml.models.from_linen import FromLinen

if TYPE_CHECKING:
    from flax import nnx

HEAD = "head"
_log = logging.getLogger(__name__)


AnyModel = Union[nn.Module, "nnx.Module", Model, Callable[..., Any], tuple[Callable[..., Any], Any]]
"""The models of :func:`as_model`."""


def as_model(model: AnyModel, *, train_flag: str | bool | None = None) -> Model:
    """Return a model with Linen's ``init(key, images, train=)`` and ``apply(variables, images, train=, …)``.

    :func:`jdml.training.fit` calls it; call it yourself to name a flag that it does not know. ``train``, ``training``,
    ``is_training`` (true in training), ``deterministic``, ``use_running_average``, ``inference`` and ``eval`` (true in
    evaluation) are set wherever a network has an argument or an attribute of such a name.

    Args:
        model: a Linen module; an NNX module; an Equinox module, or the pair of it and its state; a pair of functions
            ``(init, apply)``, which are called as ``init(key, images) -> params`` and
            ``apply(params, images) -> embeddings``, with known flags and, in training, a random ``key`` or ``rng``, or
            ``rngs`` by name, where ``apply`` has such arguments; any object with Linen's two functions.
        train_flag: the name of the network's own flag, an argument or an attribute that is true in training; False for
            a network that computes in training what it does in evaluation, such as one whose batch norm is frozen.
            None: the flags above.

    Returns:
        The model, wrapped unless it is of jdml; equal for equal modules.

    Raises:
        TypeError: anything else.
        ValueError: a ``train_flag`` that the network does not have.

    Example:
        >>> import flax.linen as nn
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, dropout=False):
        ...         return nn.Dropout(0.5, deterministic=not dropout)(nn.Dense(8)(x))
        >>> as_model(Net(), train_flag="dropout")
        FromLinen(Net)
    """
    flag = train_flag if isinstance(train_flag, str) else None
    adapter = _adapter(model, flag)
    flags = getattr(adapter, "flags", ())
    if flag is not None and flag not in flags and not hasattr(unwrap(adapter), flag):
        raise ValueError(
            f"train_flag must be an argument of the model's call, or an attribute, got {flag!r}"
        )
    if train_flag is False:
        adapter = copy.copy(adapter) if isinstance(adapter, ModelAdapter) else Object(adapter)
        adapter.same_in_training = True
    return adapter


def _adapter(model: Any, flag: str | None) -> Model:
    if isinstance(model, ModelAdapter):
        return model
    if isinstance(model, nn.Module):
        # The networks of this package carry batch statistics alone, and have the flag ``train``.
        is_own = type(model).__module__.startswith("jdml.") and flag is None
        is_model = is_own and flags_of(type(model).__call__, None) == ("train",)
        return model if is_model else FromLinen(model, flag)
    if any(base.__module__.startswith("flax.nnx") for base in type(model).__mro__):
        from jdml.models.from_nnx import FromNnx

        return FromNnx(model, flag)
    if is_equinox(model):
        return FromEquinox(model, train_flag=flag)
    is_pair = isinstance(model, tuple) and len(model) == 2
    init, apply = model if is_pair else (getattr(model, x, None) for x in ("init", "apply"))
    if is_equinox(init) and not callable(apply):
        return FromEquinox(init, apply, flag)
    owner = getattr(init, "__self__", None)
    if isinstance(owner, nn.Module) and getattr(apply, "__self__", None) is owner:
        return _adapter(owner, flag)
    if callable(init) and callable(apply) and not isinstance(model, type):
        parameters = [] if is_pair else arguments(apply)
        is_linens = any(p.name == "mutable" or p.kind is p.VAR_KEYWORD for p in parameters)
        return Object(model) if is_linens else FromFunctions(init, apply, flag)
    raise TypeError(
        "model must be a module (Flax Linen, Flax NNX, Equinox) from images to embeddings, a pair (init, apply), or an "
        f"object with these two functions, got {model!r:.80}"
    )


def unwrap(model: AnyModel) -> Any:
    """Return the module that :func:`as_model` was given."""
    return model.module if isinstance(model, ModelAdapter) else model


def embed_in_training(
    model: Model,
    params: Tree,
    batch_stats: Tree,
    inputs: Tree,
    key: jax.Array,
    *,
    train: bool = True,
) -> tuple[Tree, Tree]:
    """Return embeddings as a step of training computes them, and the running statistics after it."""
    embeddings, updates = model.apply(
        {"params": params, "batch_stats": batch_stats},
        inputs,
        train=train,
        mutable=["batch_stats"],
        rngs={"dropout": key},
    )
    return embeddings, updates.get("batch_stats", batch_stats)


class Object(ModelAdapter):
    """An object with Linen's two functions, and the base of models around another."""

    def __init__(self, model: Any, identity: Any = None) -> None:
        super().__init__(unwrap(model), model if identity is None else identity)
        self.base = model
        self.holds_parameters = getattr(model, "holds_parameters", False)
        self.factory = getattr(model, "factory", {})

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Return its own variables."""
        return self.base.init(key, images, train=train)

    def apply(self, variables: Any, images: Any, /, **settings: Any) -> Any:
        """Return its own embeddings."""
        return self.base.apply(variables, images, **settings)


class FromFunctions(ModelAdapter):
    """Two functions: ``init(key, images) -> params`` and ``apply(params, images) -> embeddings``."""

    def __init__(
        self, init: Callable[..., Any], apply: Callable[..., Any], train_flag: str | None = None
    ) -> None:
        super().__init__(apply, (init, apply, train_flag))
        self._init, self._apply = init, apply
        self.flags = flags_of(apply, train_flag)
        names = [parameter.name for parameter in arguments(apply)[2:]]
        self._keys = [name for name in names if name in ("key", "rng", "rngs")]

    def init(self, key: jax.Array, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return fresh parameters."""
        return {"params": self._init(key, images), "batch_stats": {}}

    def _embed(self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any) -> Result:
        key = next(iter(rngs.values())) if rngs else None
        keys = {name: rngs or None if name == "rngs" else key for name in self._keys}
        flags = flag_values(self.flags, train)
        return self._apply(variables["params"], images, **flags, **keys), {}


class WithHead(ModelAdapter):
    """A backbone and a head as one network, whose features can be cached: ``head(backbone(images))``.

    Linen networks are split at their head by themselves; use this for networks of other kinds. The parameters are
    ``{"backbone": …, "head": …}``.

    Args:
        backbone: whatever :func:`jdml.training.fit` takes, from images to features ``[B, …]``.
        head: such a network from features to embeddings ``[B, D]``.

    Raises:
        TypeError: no networks.

    Example:
        >>> import flax.linen as nn
        >>> backbone = lambda key, x: {}, lambda params, x: x.mean((1, 2))
        >>> WithHead(backbone, nn.Dense(8)).init(jax.random.key(0), jnp.ones((1, 4, 4, 3)))["params"].keys()
        dict_keys(['backbone', 'head'])
    """

    def __init__(self, backbone: AnyModel, head: AnyModel) -> None:
        self.backbone, self.head = parts = as_model(backbone), as_model(head)
        super().__init__(tuple(map(unwrap, parts)), parts)
        self.holds_parameters = any(getattr(x, "holds_parameters", False) for x in parts)

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Return the variables of both."""
        backbone = self.backbone.init(key, images)
        features = jax.eval_shape(self.backbone.apply, backbone, images)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), features)
        head = self.head.init(jax.random.fold_in(key, 1), zeros)
        return {
            kind: {"backbone": backbone.get(kind, {}), HEAD: head.get(kind, {})}
            for kind in ("params", "batch_stats")
        }

    def _embed(self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any) -> Result:
        outputs, stats = images, {}
        settings: dict[str, Any] = {"train": train, "mutable": ["batch_stats"], "rngs": rngs}
        for name, model in (("backbone", self.backbone), (HEAD, self.head)):
            part = part_of(variables, name)
            outputs, updates = model.apply(part, outputs, **settings)
            stats[name] = updates.get("batch_stats", part["batch_stats"])
        return outputs, stats


def part_of(variables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the variables of the backbone or the head of :class:`WithHead`."""
    return {kind: variables.get(kind, {}).get(name, {}) for kind in ("params", "batch_stats")}


# A trial on shapes, before any work.


def check_network(model: Model, preprocess: Callable[[Any], Any], sample: Tree) -> None:
    """Refuse a network that is the same in training and evaluation, but should not be. jdml's own are not tried."""
    if not isinstance(model, ModelAdapter):
        return
    two = jax.tree.map(lambda leaf: np.empty((2, *np.shape(leaf)[1:]), leaf.dtype), sample)
    inputs = jax.eval_shape(preprocess, two)
    layers: set[str] = set()

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        """Note Linen's layers that differ in training; they are known only where they are called."""
        module = context.module
        if isinstance(module, nn.BatchNorm) or (isinstance(module, nn.Dropout) and module.rate):
            layers.add(type(module).__name__)
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        variables = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), inputs)
    if isinstance(model, WithHead):
        features = jax.eval_shape(model.backbone.apply, part_of(variables, "backbone"), inputs)
        check_network(model.backbone, lambda rows: rows, inputs)
        check_network(model.head, lambda rows: rows, features)
        return
    if frozen_norms := getattr(model, "frozen_norms", ()):
        _log.warning("batch norm in evaluation mode is frozen: %s", ", ".join(frozen_norms))
    if model.same_in_training or not (layers or getattr(model, "has_modes", False)):
        return
    program, moving = traced(model, variables, inputs, True)
    if "BatchNorm" in layers and not moving:
        _log.warning("the running statistics of batch norm do not change in training: it is frozen")
    if program == traced(model, variables, inputs, False)[0]:
        raise ValueError(
            "model has batch norm or dropout, but computes the same in training and evaluation: name its flag, which "
            f"is none of {', '.join(TRAINING + EVALUATION)}, by jdml.models.as_model(model, train_flag='…'), or write "
            "train_flag=False where this is intended"
        )


def traced(
    model: Model, variables: Mapping[str, Tree], inputs: Tree, train: bool
) -> tuple[str, list[str]]:
    """Return a network's program as text, and the paths of the running statistics that a batch changes."""
    stats = variables.get("batch_stats", {})

    def apply(stats: Tree, params: Tree, inputs: Tree, key: jax.Array) -> tuple[Tree, Tree]:
        embeddings, after = embed_in_training(model, params, stats, inputs, key, train=train)
        return after, embeddings  # the statistics first, as among the arguments

    key = jax.eval_shape(lambda: jax.random.key(0))
    closed = jax.make_jaxpr(apply)(stats, variables["params"], inputs, key)
    arrays = zip(closed.jaxpr.invars, closed.jaxpr.outvars, strict=False)
    moving = [
        path
        for (path, leaf), (old, new) in zip(adapt.named_leaves(stats).items(), arrays, strict=False)
        if new is not old and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return re.sub(r"0x[0-9a-f]+", "", str(closed)), moving
