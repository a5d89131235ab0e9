"""What wraps a network of another kind in ``init`` and ``apply``: equal where its programs are; and two functions."""

import contextlib
import copy
import functools
import inspect
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import jax

from jdml.adapt import path_texts
from jdml.distributed import Tree
from jdml.models import train_flags


class Wrapped:
    """A network of another kind, as :class:`jdml.models.adapters.Model`.

    Two of them are equal, and share compiled programs, where what they are made from is equal; what cannot be hashed,
    such as a module with a list, equals itself alone.

    Args:
        module: what is wrapped.
        identity: all that its programs depend on.
    """

    holds_parameters = False
    """Whether ``init`` returns the arrays of the module, whatever the key."""
    told: Mapping[str, Any] = MappingProxyType({})
    """What its call is told beside its flags: see :meth:`telling`."""
    factory: Mapping[str, Any] = MappingProxyType({})
    """How it is made again, where a factory made it: ``factory``, a pointer, and ``settings``."""

    def __init__(self, module: Any, identity: Any) -> None:
        self.module = module
        try:
            hash(identity)
        except TypeError:
            identity = _Itself(module)
        self._identity: Hashable = identity

    def telling(self, **told: Any) -> Self:
        """The same network, told more at its call."""
        made = copy.copy(self)
        made.told, made._identity = told, (self._identity, tuple(told.items()))
        return made

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> Any:
        """Variables, as :class:`jdml.models.adapters.Model` has them."""
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
        """Embeddings, as :class:`jdml.models.adapters.Model` has them."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash((type(self), self._identity))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.module).__name__})"


NORM, DROPOUT = "batch norm", "dropout"
ALONE = threading.RLock()
"""Classes are watched by one thread at a time."""


class Call(NamedTuple):
    """How a layer that behaves otherwise in training was called.

    Attributes:
        layer: what it is.
        evaluates: whether it did as in evaluation.
        told: whether its call told it so, and not its attribute.
    """

    layer: str
    evaluates: bool
    told: bool


class HoldsLayers(Wrapped):
    """A module that holds its arrays, and layers whose mode is an attribute of theirs."""

    holds_parameters = True
    frozen: Sequence[str] = ()
    """The paths of batch norm that stays in evaluation mode."""
    woken: Sequence[str] = ()
    """The paths of batch norm that came in evaluation mode, and is trained."""

    def _part_frozen(self, norms: Mapping[str, bool], drops: Sequence[bool]) -> None:
        """Batch norm in evaluation mode stays so beside layers that are not; of a whole module it is no one's wish.

        Args:
            norms: for the path of each batch norm whether it is in evaluation mode.
            drops: for each dropout whether it is.
        """
        evaluating = [path for path, evaluates in norms.items() if evaluates]
        whole = all(norms.values()) and all(drops)
        self.frozen, self.woken = ([], evaluating) if whole else (evaluating, [])

    def watching(self, calls: list[Call]) -> AbstractContextManager[None]:
        """Note the calls of batch norm and dropout, wherever they are within."""
        raise NotImplementedError

    def parts(self) -> Sequence[Any]:
        """It and all modules within it."""
        raise NotImplementedError


@contextlib.contextmanager
def watched(
    kind: Any, layer: str, flag: str, calls: list[Call], *, alias: str = ""
) -> Iterator[None]:
    """Note the calls of a kind of layers, whose argument or attribute ``flag`` is true in evaluation.

    Args:
        kind: their class.
        layer: what they are.
        flag: the argument's and the attribute's name.
        calls: what is added to.
        alias: the argument's older name.
    """
    call = kind.__call__
    signature = inspect.signature(call)

    @functools.wraps(call)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        told = given.get(flag, given.get(alias))
        drops = getattr(self, "rate", getattr(self, "p", 1))
        if not isinstance(drops, int | float) or drops > 0:
            own = getattr(self, flag) if told is None else told
            calls.append(Call(layer, bool(own), told is not None))
        return call(self, *args, **kwargs)

    kind.__call__ = noted
    try:
        yield
    finally:
        kind.__call__ = call


class _Itself:
    """Stands for an object that equals nothing else."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Names:
    """The leaves of a pytree as nested dictionaries of texts, as checkpoints and model files have them, and back.

    Args:
        tree: of this structure.
    """

    def __init__(self, tree: Tree) -> None:
        self._paths = [path_texts(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        self._structure = jax.tree.structure(tree)

    def named(self, tree: Tree) -> dict[str, Any]:
        """A tree of the structure as nested dictionaries."""
        from flax.traverse_util import unflatten_dict

        return dict(unflatten_dict(dict(zip(self._paths, jax.tree.leaves(tree), strict=True))))

    def tree(self, named: Mapping[str, Any]) -> Tree:
        """Nested dictionaries as a tree of the structure."""
        leaves = []
        for path in self._paths:
            leaf: Any = named
            for part in path:
                leaf = leaf[part]
            leaves.append(leaf)
        return jax.tree.unflatten(self._structure, leaves)


KEYS = ("key", "rng", "rngs")
_LIKE_KEY = re.compile(r"(^|_)(p?rngs?|rng_?keys?|dropout_keys?|random_keys?|seed)$")


class FromFunctions(Wrapped):
    """Two functions: ``init(key, images) -> params`` and ``apply(params, images) -> embeddings``.

    ``apply`` is told whether it trains where it has a flag that :mod:`jdml.models.train_flags` knows, and given a key
    in training where it has an argument ``key`` or ``rng``, or keys by name as ``rngs`` (None in evaluation).

    Args:
        init: of a random key and images ``[B, …]`` to parameters, a pytree of arrays.
        apply: of parameters and images to embeddings ``[B, D]``.

    Raises:
        TypeError: functions that take something else.
    """

    def __init__(self, init: Callable[..., Any], apply: Callable[..., Any]) -> None:
        super().__init__(apply, (init, apply))
        self._init, self._apply = init, apply
        if _names(init)[1:2] == ["input_shape"]:
            raise TypeError(
                "model must be a pair init(key, images) -> params, apply(params, images) -> embeddings, got functions "
                "of stax: write (lambda key, images: list(init(key, images.shape)[1]), apply)"
            )
        if is_haiku(apply):
            raise TypeError(
                "model must be a pair init(key, images) -> params, apply(params, images) -> embeddings, got "
                "functions of Haiku: write (net.init, lambda params, images: net.apply(params, None, images))"
            )
        self._flags = train_flags.flags_of(apply, given=2, also=KEYS)
        self._keys = [name for name in KEYS if name in _names(apply)[2:]]
        for name in _names(apply)[2:]:
            default = inspect.signature(apply).parameters[name].default
            is_open = default is None or default is inspect.Parameter.empty
            if _LIKE_KEY.search(name) and name not in KEYS and is_open:
                raise TypeError(
                    f"model's apply takes {name}, which looks like a random key, and would be given none in training: "
                    f"call it {', '.join(KEYS)}, or wrap apply in a function without it"
                )

    def init(self, key: jax.Array, images: Any, *, train: bool = False) -> dict[str, Any]:
        """Fresh parameters."""
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
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        key = next(iter(rngs.values())) if rngs else None
        keys = {name: rngs or None if name == "rngs" else key for name in self._keys}
        given = {**train_flags.settings(self._flags, train), **keys, **self.told}
        embeddings = self._apply(variables["params"], images, **given)
        return (embeddings, {"batch_stats": {}}) if mutable else embeddings


def is_haiku(apply: Callable[..., Any]) -> bool:
    """Whether a function takes a random key, or a state, before the images, as Haiku's do."""
    return _names(apply)[:2] in (["params", "rng"], ["params", "state"])


def _names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
