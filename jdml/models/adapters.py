"""What :func:`jdml.training.fit` takes as a model, brought to one form: ``init`` and ``apply`` as in Flax Linen."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import flax.linen as nn
import jax

from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.base_adapter import FromFunctions, Wrapped, is_haiku
from jdml.models.from_equinox import FromEquinox, is_equinox
from jdml.models.from_linen import FromLinen

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


AnyModel = Union[nn.Module, "nnx.Module", Model, Callable[..., Any], tuple[Callable[..., Any], Any]]
"""What :func:`as_model` takes."""


def as_model(model: AnyModel) -> Model:
    """Return a model with Linen's ``init(key, images, train=)`` and ``apply(variables, images, train=, …)``.

    Args:
        model: a Linen module; an NNX module; an Equinox module, or the pair of it and its state; a pair of functions
            ``(init, apply)``; anything else that has the two functions.

    Returns:
        The model, wrapped where it has not got them; equal for equal modules.

    Raises:
        TypeError: anything else, saying what to write; a module whose mode cannot be told.
    """
    if isinstance(model, Wrapped):
        return model
    if isinstance(model, nn.Module):
        return cast(Model, model) if _is_own(model) else FromLinen(model)
    if isinstance(model, type):
        raise TypeError(f"model must be a module, got the class {model.__name__}: call it first")
    if _is_nnx(model):
        from jdml.models.from_nnx import FromNnx

        return FromNnx(model)
    if is_equinox(model):
        return FromEquinox(model)
    if isinstance(model, tuple) and len(model) == 2:
        return _of_pair(*model)
    if callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None)):
        return _of_object(model)
    raise TypeError(
        "model must be a module (Flax Linen, Flax NNX, Equinox) from images to embeddings, or a pair (init, apply), "
        f"got {_kind(model)}: wrap it in an object with init(key, images, *, train) -> {{'params': …}} "
        "and apply(variables, images, *, train, mutable, rngs)"
    )


def unwrapped(model: AnyModel) -> Any:
    """Return the module that :func:`as_model` was given."""
    return model.module if isinstance(model, Wrapped) else model


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


class Object(Wrapped):
    """An object with the two functions, such as one that cannot be hashed."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model)

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Its own."""
        return self.module.init(key, images, train=train)

    def apply(self, variables: Any, images: Any, /, **settings: Any) -> Any:
        """Its own."""
        return self.module.apply(variables, images, **settings)


def _of_pair(first: Any, second: Any) -> Model:
    """A pair: an Equinox module and its state, the functions of a Linen module, or any two."""
    if is_equinox(first) and type(first) is type(second):  # as equinox.partition returns
        raise TypeError(
            "model must be an Equinox module, or the pair of it and its state, got two modules, as equinox.partition "
            "returns: give equinox.combine(…) of them"
        )
    if is_equinox(first) and not callable(second):
        return FromEquinox(first, second)
    if not (callable(first) and callable(second)):
        raise TypeError(
            "model must be a pair (init, apply) of functions, or of an Equinox module and its state, got a pair of "
            f"{_kind(first)} and {_kind(second)}"
        )
    owners = {id(getattr(part, "__self__", None)) for part in (first, second)}
    owner = getattr(first, "__self__", None)
    if len(owners) == 1 and isinstance(owner, nn.Module):
        return as_model(owner)
    return FromFunctions(first, second)


def _of_object(model: Any) -> Model:
    """An object with ``init`` and ``apply``, in Linen's form or in that of a pair."""
    parameters = inspect.signature(model.apply).parameters.values()
    takes_all = any(p.name == "mutable" or p.kind is p.VAR_KEYWORD for p in parameters)
    if is_haiku(model.apply) or not takes_all:
        return FromFunctions(model.init, model.apply)
    try:
        hash(model)
    except TypeError:
        return Object(model)
    return cast(Model, model)


def _is_own(model: nn.Module) -> bool:
    """Whether a Linen module is one of :mod:`jdml.models`, which take ``train`` and carry batch statistics alone."""
    if not type(model).__module__.startswith("jdml."):
        return False
    try:
        hash(model)
    except TypeError:
        return False
    return train_flags.flags_of(type(model).__call__, given=2) == ("train",)


def _is_nnx(model: Any) -> bool:
    return any(base.__module__.startswith("flax.nnx") for base in type(model).__mro__)


def _kind(value: Any) -> str:
    """What something is, for an error message: an Equinox module, a function, ..."""
    roots = {base.__module__.split(".")[0] for base in type(value).__mro__}
    if "equinox" in roots:
        return f"an Equinox module ({type(value).__name__})"
    if "torch" in roots:
        return f"a PyTorch module ({type(value).__name__})"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    if value is None:
        return "None"
    return f"a {type(value).__name__}"
