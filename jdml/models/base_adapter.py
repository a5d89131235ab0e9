"""The base of adapters of networks, and the flags that switch a network between training and evaluation."""

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jdml import adapt
from jdml.distributed import Tree

TRAINING = ("train", "training", "is_training")
"""Flags that are true in training."""
EVALUATION = ("deterministic", "use_running_average", "inference", "eval")
"""Flags that are true in evaluation."""
Result = tuple[Tree, Tree]
"""Embeddings, and the statistics after them."""


def is_flag(name: str) -> bool:
    """Return whether an argument or attribute of this name switches a network's mode."""
    return name in TRAINING or name in EVALUATION


def flag_values(names: Iterable[str], train: bool) -> dict[str, bool]:
    """Return the values of flags by name; a name that is not known is true in training."""
    return {name: train != (name in EVALUATION) for name in names}


def arguments(call: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function."""
    return list(inspect.signature(call).parameters.values())


def flags_of(call: Callable[..., object], train_flag: str | None) -> tuple[str, ...]:
    """Return the flags among a call's arguments after the first two; ``("train",)`` where it takes any keyword."""
    parameters = arguments(call)[2:]
    names = [p.name for p in parameters if is_flag(p.name) or p.name == train_flag]
    if not names and any(p.kind is p.VAR_KEYWORD for p in parameters):
        return (train_flag or "train",)
    return tuple(names)


class Model(Protocol):
    """A network as two functions, as Flax Linen has them."""

    @property
    def init(self) -> Callable[..., Any]:
        """From ``(key, images, train=)`` to fresh variables ``{"params": …}``, maybe with ``"batch_stats"``."""

    @property
    def apply(self) -> Callable[..., Any]:
        """From ``(variables, images, train=, mutable=, rngs=)`` to embeddings; ``mutable``: and ``"batch_stats"``."""


class ModelAdapter:
    """A network of another kind as a :class:`Model`; those of equal parts are equal and share compiled programs."""

    holds_parameters = False
    """Whether ``init`` returns the arrays of the module, whatever the key."""
    same_in_training = False
    """Whether its user says that it computes in training what it does in evaluation."""
    factory: Mapping[str, Any] = MappingProxyType({})
    """How a factory made it: ``factory``, a pointer, and ``settings``."""

    def __init__(self, module: Any, identity: Any) -> None:
        self.module = module
        try:
            hash(identity)
        except TypeError:
            identity = id(module)  # what cannot be hashed equals itself alone
        self._identity: Hashable = identity

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((type(self), self._identity))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.module).__name__})"

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Return fresh variables."""
        raise NotImplementedError  # of each kind of network its own

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
        """Return embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        embeddings, stats = self._embed(variables, images, train, bool(mutable), rngs)
        return (embeddings, {"batch_stats": stats}) if mutable else embeddings

    def _embed(self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any) -> Result:
        """Return embeddings and statistics; these are used where they are ``mutable``."""
        raise NotImplementedError  # of each kind of network its own

    def _set_frozen(self, norms: Mapping[str, bool | None], drops: Sequence[bool | None]) -> None:
        """Freeze batch norm in evaluation mode, unless all layers are in it, as in networks of model zoos."""
        self.has_modes = bool(norms or drops)
        if all(norms.values()) and all(drops):
            norms = {}
        self.frozen_norms = [path for path, evaluates in norms.items() if evaluates]


def by_name(tree: Tree) -> dict[str, Any]:
    """Return a pytree as nested dictionaries by name, as in checkpoints and model files."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return dict(unflatten_dict({adapt.path_names(path): leaf for path, leaf in leaves}))


def restored(named: Mapping[str, Any], tree: Tree) -> Tree:
    """Return nested dictionaries in the structure of the tree that :func:`by_name` made them of."""
    leaves = flatten_dict(dict(named))
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[adapt.path_names(path)], tree)


def check_savable(tree: Tree) -> None:
    """Refuse variables, other than parameters, that a run cannot save, such as random keys."""
    for name, leaf in adapt.named_leaves(tree).items():
        dtype = getattr(leaf, "dtype", type(leaf))
        is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
        if is_key or not (hasattr(leaf, "dtype") or isinstance(leaf, int | float)):
            raise TypeError(f"model must hold arrays of numbers, got {dtype} in {name}")
