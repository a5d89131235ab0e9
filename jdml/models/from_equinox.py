"""An Equinox module as a model: of one image, as Equinox has them, or of a batch; with state, key and inference."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jdml.adapt import path_texts
from jdml.data.images import CHANNELS
from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.base_adapter import ALONE, DROPOUT, NORM, Call, HoldsLayers, Names, watched

BATCH = "batch"
"""The name of the axis of rows, where no batch norm gives it another."""


def is_equinox(model: Any) -> bool:
    """Whether a model is an Equinox module; nothing is imported."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(model, equinox.Module)


class FromEquinox(HoldsLayers):
    """An Equinox module as functions: its arrays leave it, and come in again at each call.

    Floating-point arrays are trained, as ``equinox.is_inexact_array`` finds them, from their values in the module,
    whatever the seed; other arrays and the state are carried from step to step and saved. A module whose call turns one
    row into a vector is mapped over the rows of a batch; another is given the batch. ``inference`` is switched by
    ``equinox.nn.inference_mode``, and each row has a ``key`` of its own in training.

    Args:
        module: from an image, or from images ``[B, …]``, to embeddings.
        state: what ``equinox.nn.make_with_state`` returns beside it; None for a module without.

    Raises:
        TypeError: a module with state and none given, a call that needs more, flags that cannot be switched, batch norm
            over axes of several names.
    """

    def __init__(self, module: Any, state: Any = None) -> None:
        import equinox as eqx

        self._params, rest = eqx.partition(module, eqx.is_inexact_array)
        self._fixed, self._static = eqx.partition(rest, eqx.is_array)
        self._state = state
        self._names = tuple(Names(part) for part in (self._params, self._fixed, state))
        shapes = jax.tree.map(lambda x: f"{x.dtype}{x.shape}", (self._params, self._fixed, state))
        identity = [jax.tree.flatten(part) for part in (self._static, shapes)]
        super().__init__(module, tuple((tuple(leaves), tree) for leaves, tree in identity))
        arguments = dict(list(inspect.signature(type(module).__call__).parameters.items())[2:])
        self._key, self._takes_state = arguments.get("key"), "state" in arguments
        self._flags = train_flags.flags_of(type(module).__call__, given=2, also=("key", "state"))
        self._axis = _axis_of(module)
        norms, drops = _mode_layers(module)
        modes = {path: part.inference for path, part in norms}
        self._part_frozen(modes, [part.inference for part in drops])
        self._check(eqx)

    def _check(self, eqx: Any) -> None:
        nodes = jax.tree.leaves(self.module, is_leaf=lambda x: isinstance(x, eqx.nn.StateIndex))
        if self._state is None and any(isinstance(x, eqx.nn.StateIndex) for x in nodes):
            raise TypeError(
                "model has a state, as batch norm has: give the pair (model, state) that "
                f"equinox.nn.make_with_state({type(self.module).__name__}) returns"
            )
        if self._state is not None and not self._takes_state:
            raise TypeError(
                "model was given with a state, but its __call__ takes no argument state"
            )
        for leaf in jax.tree.leaves((self._fixed, self._state)):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise TypeError(
                    "model must hold arrays of numbers, got a random key: take key as an argument"
                )
        for part in _parts(self.module):
            for name, value in vars(part).items():
                train_flags.check_clear(f"its attribute {name}", name, value)
                if train_flags.is_flag(name) and name != "inference" and isinstance(value, bool):
                    raise TypeError(
                        f"model is switched by its attribute {name}, which Equinox does not know: call it inference"
                    )

    @contextlib.contextmanager
    def watching(self, calls: list[Call]) -> Iterator[None]:
        """Note the calls of batch norm and dropout, wherever they are within."""
        import equinox as eqx

        with (
            ALONE,
            watched(eqx.nn.BatchNorm, NORM, "inference", calls),
            watched(eqx.nn.Dropout, DROPOUT, "inference", calls, alias="deterministic"),
        ):
            yield

    def parts(self) -> list[Any]:
        """It and all modules within it."""
        return _parts(self.module)

    @property
    def norms(self) -> list[str]:
        """The paths of what keeps running statistics, of which the state does not tell whose they are."""
        return [path for path, _ in _mode_layers(self.module)[0]]

    def init(self, key: Any, images: Any, *, train: bool = False) -> dict[str, Any]:
        """The arrays that the module and its state hold."""
        params, fixed, state = (
            names.named(jax.tree.map(jnp.asarray, part))
            for names, part in zip(
                self._names, (self._params, self._fixed, self._state), strict=True
            )
        )
        carried = {"fixed": fixed, "state": state}
        return {"params": params, "batch_stats": {k: v for k, v in carried.items() if v}}

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
        import equinox as eqx

        carried = variables["batch_stats"]
        params = self._names[0].tree(variables["params"])
        fixed = self._names[1].tree(carried.get("fixed", {}))
        state = self._names[2].tree(carried.get("state", {}))
        module = eqx.combine(params, fixed, self._static)
        module = eqx.nn.inference_mode(module, value=not train)
        if train and self.frozen:
            module = eqx.tree_at(_modes_of_frozen(self.frozen), module, replace_fn=lambda _: True)
        key = next(iter(rngs.values())) if rngs else None
        embeddings, state = self._called(module, images, state, key, train)
        if not mutable:
            return embeddings
        after = {**carried, "state": self._names[2].named(state)} if "state" in carried else carried
        return embeddings, {"batch_stats": after}

    def _called(
        self, module: Any, images: Tree, state: Any, key: jax.Array | None, train: bool
    ) -> tuple[Tree, Any]:
        """Embeddings and the state after them."""
        settings: dict[str, Any] = {**train_flags.settings(self._flags, train), **self.told}

        def call(rows: Tree, state: Any, key: jax.Array | None) -> tuple[Tree, Any]:
            given = dict(settings)
            if key is not None:
                given["key"] = key
            if state is None:
                return module(rows, **given), None
            out: tuple[Tree, Any] = module(rows, state=state, **given)
            return out

        if self._key is None:
            key = None
        elif key is None and self._key.default is inspect.Parameter.empty:
            key = jax.random.key(0)  # where nothing draws, for a module that hands it on
        keys, place = key, None
        if train and key is not None:
            keys, place = jax.random.split(key, len(jax.tree.leaves(images)[0])), 0
        axes = (0, None, place)
        mapped = jax.vmap(call, in_axes=axes, out_axes=(0, None), axis_name=self._axis)
        told = []
        for turned in _layouts(images):
            try:
                shapes = jax.eval_shape(lambda *given: mapped(*given)[0], turned, state, keys)
                if all(leaf.ndim == 2 for leaf in jax.tree.leaves(shapes)):
                    return mapped(turned, state, keys)
                told.append(f"arrays of shape {[x.shape[1:] for x in jax.tree.leaves(shapes)]}")
            except Exception as error:  # whatever a module for batches does with one row
                told.append(f"{type(error).__name__}: {(str(error) or ' ').splitlines()[0][:200]}")
        try:
            return call(images, state, key)
        except Exception as error:  # and a module for single images with a batch
            raise ValueError(
                "model must turn one image [H, W, C] or [C, H, W], or a batch, into embeddings; one gave "
                f"{'; turned, '.join(told)}; a batch gave {type(error).__name__}"
            ) from error


def _layouts(images: Tree) -> list[Tree]:
    """Images as they are, and with channels first, as Equinox has them."""
    photographs = getattr(images, "ndim", 0) == 4 and images.shape[-1] in CHANNELS
    return [images, jnp.moveaxis(images, -1, 1)] if photographs else [images]


def _parts(module: Any) -> list[Any]:
    """A module and all modules within it."""
    import equinox as eqx

    found = [module]
    for value in vars(module).values():
        inside = jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, eqx.Module))
        found += [p for node in inside if isinstance(node, eqx.Module) for p in _parts(node)]
    return found


def _mode_layers(module: Any) -> tuple[list[tuple[str, Any]], list[Any]]:
    """The batch norms of a module, each with its path, and its dropouts."""
    import equinox as eqx

    def kind(node: Any) -> bool:
        return isinstance(node, eqx.nn.BatchNorm | eqx.nn.Dropout)

    found = [
        ("/".join(path_texts(path)), part)
        for path, part in jax.tree_util.tree_leaves_with_path(module, is_leaf=kind)
        if kind(part)
    ]
    norms = [(path, part) for path, part in found if isinstance(part, eqx.nn.BatchNorm)]
    drops = [part for _, part in found if isinstance(part, eqx.nn.Dropout) and part.p]
    return norms, drops


def _modes_of_frozen(frozen: Sequence[str]) -> Callable[[Any], list[Any]]:
    """What finds the modes of frozen batch norm in a module."""
    return lambda module: [
        part.inference for path, part in _mode_layers(module)[0] if path in frozen
    ]


def _axis_of(module: Any) -> Any:
    """The name under which batch norm looks for the rows of a batch."""
    names = {getattr(part, "axis_name", None) for part in _parts(module)} - {None}
    if len(names) > 1:
        raise TypeError(
            f"model must name the axis of rows in one way, got {sorted(map(str, names))}"
        )
    return names.pop() if names else BATCH
