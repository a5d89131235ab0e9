"""What :func:`jdml.training.fit` takes as a model, brought to one form: ``init`` and ``apply`` as in Flax Linen."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import flax.linen as nn
import jax

from jdml.training.placement import Tree

if TYPE_CHECKING:
    from flax import nnx


class Model(Protocol):
    """A network as two functions, as Flax Linen has them: of a key to variables, of variables to embeddings."""

    def init(self, key: jax.Array, images: Tree, /, *, train: bool = False) -> Any:
        """Fresh variables ``{"params": …}``, with ``"batch_stats"`` where there are some."""
        ...

    def apply(
        self,
        variables: Any,
        images: Tree,
        /,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Any = None,
    ) -> Any:
        """Embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        ...


AnyModel = Union[nn.Module, "nnx.Module", Model]
"""What :func:`as_model` takes."""


@dataclass(frozen=True)
class WithoutTrain:
    """A Linen module that does not ask whether it is trained.

    Attributes:
        module: whose ``__call__`` has no ``train``.
    """

    module: Any

    def init(self, key: jax.Array, images: Any, *, train: bool = False) -> Any:
        """Fresh variables."""
        return self.module.init(key, images)

    def apply(self, variables: Any, images: Any, *, train: bool = False, **options: Any) -> Any:
        """Embeddings."""
        return self.module.apply(variables, images, **options)


class FromNnx:
    """An NNX module as functions: its parameters and batch statistics leave it, and come in again at each call.

    The module itself is never changed. Its own parameters are those to begin with, whatever the seed: make it with
    other ``nnx.Rngs`` for others. ``train`` is what ``module.train()`` and ``module.eval()`` switch (dropout, batch
    norm), and the argument ``train`` of its ``__call__`` where it has one; random streams are seeded anew at each step.

    Args:
        module: an ``nnx.Module`` from images ``[B, …]`` to embeddings ``[B, D]``.
    """

    def __init__(self, module: Any) -> None:
        from flax import nnx

        self.module = module
        parts: Any = nnx.split(module, nnx.Param, nnx.BatchStat, ...)
        self._graph, self._rest = parts[0], parts[3]
        self._states = parts[1:3]
        self._asks = _asks_for_train(module)

    def init(self, key: Any, images: Any, *, train: bool = False) -> dict[str, Any]:
        """The variables that the module holds."""
        from flax import nnx

        params, stats = (nnx.to_pure_dict(state) for state in self._states)
        return {"params": params, "batch_stats": stats}

    def apply(
        self,
        variables: Mapping[str, Any],
        images: Any,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        from flax import nnx

        filled = []
        for state, name in zip(self._states, ("params", "batch_stats"), strict=True):
            fresh = jax.tree.map(lambda leaf: leaf, state)
            nnx.replace_by_pure_dict(fresh, variables[name])
            filled.append(fresh)
        module = nnx.merge(self._graph, *filled, jax.tree.map(lambda leaf: leaf, self._rest))
        module.train() if train else module.eval()
        if rngs:
            nnx.reseed(module, default=next(iter(rngs.values())), **rngs)
        embeddings = module(images, **({"train": train} if self._asks else {}))
        if not mutable:
            return embeddings
        return embeddings, {"batch_stats": nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))}


def as_model(model: AnyModel) -> Model:
    """Return a model with Linen's ``init(key, images, train=)`` and ``apply(variables, images, train=, …)``.

    Args:
        model: a Linen module, with or without ``train`` among its arguments; an NNX module; anything else that has
            these two functions.

    Returns:
        The model, wrapped where it has not got them.

    Raises:
        TypeError: anything else, saying what to write.
    """
    if isinstance(model, nn.Module):
        return model if _asks_for_train(model) else WithoutTrain(model)
    if isinstance(model, type):
        raise TypeError(f"model must be a module, got the class {model.__name__}: call it first")
    if _is_nnx(model):
        return FromNnx(model)
    if callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None)):
        return cast(Model, model)
    raise TypeError(
        f"model must be a Flax module (Linen or NNX) from images to embeddings, got {_kind(model)}: "
        "wrap it in an object with init(key, images, *, train) -> {'params': …} "
        "and apply(variables, images, *, train, mutable, rngs)"
    )


def unwrapped(model: AnyModel) -> AnyModel:
    """Return the module that :func:`as_model` was given."""
    return model.module if isinstance(model, WithoutTrain | FromNnx) else model


def embed_in_training(
    model: Model, params: Tree, batch_stats: Tree, inputs: Tree, key: jax.Array
) -> tuple[Tree, Tree]:
    """Embed as a step of training does, each row beside the others.

    Args:
        model: with ``apply``, see :func:`as_model`.
        params: its parameters.
        batch_stats: its running statistics.
        inputs: what it takes, after ``preprocess``.
        key: of dropout.

    Returns:
        The embeddings, and the running statistics after them.
    """
    embeddings, updates = model.apply(
        {"params": params, "batch_stats": batch_stats},
        inputs,
        train=True,
        mutable=["batch_stats"],
        rngs={"dropout": key},
    )
    return embeddings, updates.get("batch_stats", batch_stats)


def _is_nnx(model: Any) -> bool:
    return any(base.__module__.startswith("flax.nnx") for base in type(model).__mro__)


def _asks_for_train(model: Any) -> bool:
    """Whether calls take ``train``."""
    parameters = inspect.signature(type(model).__call__).parameters.values()
    return any(p.name == "train" or p.kind is p.VAR_KEYWORD for p in parameters)


def _kind(value: Any) -> str:
    """What something is, for an error message: an Equinox module, a function, ..."""
    roots = {base.__module__.split(".")[0] for base in type(value).__mro__}
    if "equinox" in roots:
        return f"an Equinox module ({type(value).__name__})"
    if "torch" in roots:
        return f"a PyTorch module ({type(value).__name__})"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    return f"a {type(value).__name__}"
