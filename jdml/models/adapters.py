"""Networks that :func:`jdml.training.fit` takes, brought to one form: ``init`` and ``apply`` as in Flax Linen."""

import copy
import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import flax.linen as nn
import jax

from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.base_adapter import ModelAdapter
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
        The model, wrapped where it has not got them; equal for equal modules.

    Raises:
        TypeError: anything else, saying what to write.
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
    if flag is not None:
        call = model[1] if isinstance(model, tuple) and not is_equinox(model[0]) else model
        module = model[0] if isinstance(model, tuple) and is_equinox(model[0]) else model
        of_call = call if inspect.isroutine(call) else type(module).__call__
        names = [parameter.name for parameter in train_flags.arguments(of_call)]
        if flag not in names and not hasattr(module, flag):
            raise ValueError(
                f"train_flag must be an argument of the model's call, or an attribute, got {flag!r}"
            )
    adapter = _adapter(model, flag)
    if train_flag is False:
        adapter = copy.copy(adapter) if isinstance(adapter, ModelAdapter) else Object(adapter)
        adapter.same_in_training = True
    return adapter


def _adapter(model: Any, flag: str | None) -> Model:
    if isinstance(model, ModelAdapter):
        return model
    if isinstance(model, nn.Module):
        return cast(Model, model) if flag is None and _is_own(model) else FromLinen(model, flag)
    if isinstance(model, type):
        raise TypeError(f"model must be a module, got the class {model.__name__}: call it first")
    if any(base.__module__.startswith("flax.nnx") for base in type(model).__mro__):
        from jdml.models.from_nnx import FromNnx

        return FromNnx(model, flag)
    if is_equinox(model):
        return FromEquinox(model, train_flag=flag)
    if isinstance(model, tuple) and len(model) == 2:
        return _of_pair(*model, flag)
    if callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None)):
        names = [parameter.name for parameter in train_flags.arguments(model.apply)]
        if "mutable" in names or _takes_any(model.apply):
            return cast(Model, model) if isinstance(model, Hashable) else Object(model)
        return FromFunctions(model.init, model.apply, flag)
    raise TypeError(
        "model must be a module (Flax Linen, Flax NNX, Equinox) from images to embeddings, or a pair (init, apply), "
        f"got {'None' if model is None else type(model).__name__}: wrap it in an object with "
        "init(key, images, *, train) -> {'params': …} and apply(variables, images, *, train, mutable, rngs)"
    )


def unwrapped(model: AnyModel) -> Any:
    """Return the module that :func:`as_model` was given."""
    return model.module if isinstance(model, ModelAdapter) else model


def embed_in_training(
    model: Model, params: Tree, batch_stats: Tree, inputs: Tree, key: jax.Array
) -> tuple[Tree, Tree]:
    """Return embeddings as a step of training computes them, and the running statistics after it."""
    embeddings, updates = model.apply(
        {"params": params, "batch_stats": batch_stats},
        inputs,
        train=True,
        mutable=["batch_stats"],
        rngs={"dropout": key},
    )
    return embeddings, updates.get("batch_stats", batch_stats)


class Object(ModelAdapter):
    """An object with the two functions, such as one that cannot be hashed."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model)

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Return its own variables."""
        return self.module.init(key, images, train=train)

    def apply(self, variables: Any, images: Any, /, **settings: Any) -> Any:
        """Return its own embeddings."""
        return self.module.apply(variables, images, **settings)


class FromFunctions(ModelAdapter):
    """Two functions: ``init(key, images) -> params`` and ``apply(params, images) -> embeddings``.

    ``apply`` gets its flags, and in training a key where it has an argument ``key`` or ``rng``, or keys by name as
    ``rngs`` (None in evaluation).
    """

    def __init__(
        self, init: Callable[..., Any], apply: Callable[..., Any], train_flag: str | None = None
    ) -> None:
        super().__init__(apply, (init, apply, train_flag))
        self._init, self._apply = init, apply
        keys = ("key", "rng", "rngs")
        self._flags = train_flags.flags_of(apply, train_flag, also=keys)
        self._keys = [x.name for x in train_flags.arguments(apply)[2:] if x.name in keys]

    def init(self, key: jax.Array, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return fresh parameters."""
        params = self._init(key, images)
        if isinstance(params, tuple) and not hasattr(params, "_fields"):
            raise TypeError(
                f"model's init must return parameters alone, a pytree of arrays, got a tuple of {len(params)}: where "
                "all of it are parameters, return a list or a dictionary"
            )
        return {"params": params, "batch_stats": {}}

    def apply(
        self,
        variables: Mapping[str, Any],
        images: Any,
        /,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        key = next(iter(rngs.values())) if rngs else None
        keys = {name: rngs or None if name == "rngs" else key for name in self._keys}
        flags = train_flags.settings(self._flags, train)
        embeddings = self._apply(variables["params"], images, **flags, **keys)
        return (embeddings, {"batch_stats": {}}) if mutable else embeddings


def _of_pair(first: Any, second: Any, flag: str | None) -> Model:
    """An Equinox module and its state, the functions of a Linen module, or any two."""
    if is_equinox(first) and not callable(second):
        return FromEquinox(first, second, flag)
    if not (callable(first) and callable(second)):
        raise TypeError(
            "model must be a pair (init, apply) of functions, or of an Equinox module and its state, got a pair of "
            f"{type(first).__name__} and {type(second).__name__}"
        )
    owner = getattr(first, "__self__", None)
    if isinstance(owner, nn.Module) and getattr(second, "__self__", None) is owner:
        return _adapter(owner, flag)
    return FromFunctions(first, second, flag)


def _takes_any(call: Callable[..., Any]) -> bool:
    return any(x.kind is x.VAR_KEYWORD for x in train_flags.arguments(call))


def _is_own(model: nn.Module) -> bool:
    """Return whether a Linen module is one of :mod:`jdml.models`, which carry batch statistics alone."""
    is_own = type(model).__module__.startswith("jdml.")
    try:
        hash(model)
    except TypeError:
        return False
    return is_own and train_flags.flags_of(type(model).__call__, None) == ("train",)
