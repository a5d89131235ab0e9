"""The base of what brings other networks to ``init`` and ``apply``: equal where their programs are."""

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from jdml.adapt import path_texts
from jdml.distributed import Tree


class ModelAdapter:
    """A network of another kind, as :class:`jdml.models.adapters.Model`.

    Two of them are equal, and share compiled programs, where what they are made from is equal; what cannot be hashed,
    such as a module with a list, equals itself alone.
    """

    holds_parameters = False
    """Whether ``init`` returns the arrays of the module, whatever the key."""
    same_in_training = False
    """Whether its user says that it computes in training what it does in evaluation."""
    factory: Mapping[str, Any] = MappingProxyType({})
    """How it is made again, where a factory made it: ``factory``, a pointer, and ``settings``."""

    def __init__(self, module: Any, identity: Any) -> None:
        self.module = module
        try:
            hash(identity)
        except TypeError:
            identity = _IdentityKey(module)
        self._identity: Hashable = identity

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Return variables, as :class:`jdml.models.adapters.Model` has them."""
        raise NotImplementedError

    def apply(
        self,
        variables: Any,
        images: Any,
        /,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Any = None,
    ) -> Any:
        """Return embeddings, as :class:`jdml.models.adapters.Model` has them."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((type(self), self._identity))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.module).__name__})"


class StatefulModuleAdapter(ModelAdapter):
    """A module that holds its arrays, and layers whose mode is an attribute of theirs."""

    holds_parameters = True
    has_modes = False
    """Whether it has batch norm or dropout."""
    frozen: Sequence[str] = ()
    """The paths of batch norm that stays in evaluation mode."""

    def _set_frozen(self, norms: Mapping[str, bool | None], drops: Sequence[bool | None]) -> None:
        """Keep batch norm in evaluation mode frozen, unless all layers are in it, as zoos return networks."""
        self.has_modes = bool(norms or drops)
        whole = all(norms.values()) and all(drops)
        self.frozen = [] if whole else [path for path, evaluates in norms.items() if evaluates]


class _IdentityKey:
    """Stands for an object that equals nothing else."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Names:
    """The leaves of a pytree as nested dictionaries of texts, as checkpoints and model files have them, and back."""

    def __init__(self, tree: Tree) -> None:
        self._paths = [path_texts(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        self._structure = jax.tree.structure(tree)

    def named(self, tree: Tree) -> dict[str, Any]:
        """Return a tree of the structure as nested dictionaries."""
        return dict(unflatten_dict(dict(zip(self._paths, jax.tree.leaves(tree), strict=True))))

    def tree(self, named: Mapping[str, Any]) -> Tree:
        """Return nested dictionaries as a tree of the structure."""
        leaves = []
        for path in self._paths:
            leaf: Any = named
            for part in path:
                leaf = leaf[part]
            leaves.append(leaf)
        return jax.tree.unflatten(self._structure, leaves)


def check_savable(tree: Tree) -> None:
    """Refuse what a module carries beside its parameters and a run cannot save, such as random keys."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = getattr(leaf, "dtype", type(leaf))
        is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
        if is_key or not (hasattr(leaf, "dtype") or isinstance(leaf, int | float)):
            raise TypeError(
                "model must hold arrays of numbers beside its parameters, which a run can save, got "
                f"{dtype} in {jax.tree_util.keystr(path)}"
            )
