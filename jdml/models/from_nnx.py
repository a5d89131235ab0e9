"""An NNX module as a model: its parameters are trained, all its other variables carried, its streams seeded anew."""

import contextlib
import inspect
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.base_adapter import ALONE, DROPOUT, NORM, Call, HoldsLayers, Names, watched


class FromNnx(HoldsLayers):
    """An NNX module as functions: its variables leave it, and come in again at each call.

    The module itself is never changed. Its own parameters are those to begin with, whatever the seed: make it with
    other ``nnx.Rngs`` for others. Every ``nnx.Param`` is trained; every other variable, batch statistics, a cache, one
    of a kind of the user's, an array, is carried from step to step and saved with them. Its mode is what
    ``module.train()`` and ``module.eval()`` switch (dropout, batch norm), and arguments of its ``__call__`` and
    attributes whose names :mod:`jdml.models.train_flags` knows. Random streams are seeded anew at each step.

    Args:
        module: an ``nnx.Module`` from images ``[B, …]`` to embeddings ``[B, D]``.

    Raises:
        TypeError: a call that needs more, a variable that is no array of numbers.
    """

    def __init__(self, module: Any) -> None:
        graph, params, stats, self._rest = _split(module)
        super().__init__(module, graph)
        self._graph, self._states = graph, (params, stats)
        self._names = (Names(params), Names(stats))
        self._part_frozen(*_modes(module))
        call = type(module).__call__
        asked = type(getattr(module, "to_nnx__module", module)).__call__
        self._is_bridge = asked is not call  # to a Linen module
        of_flax = not self._is_bridge and type(module).__module__.startswith("flax.")
        # A container of Flax hands on nothing that its functions take: its layers are told.
        self._flags = () if of_flax else train_flags.flags_of(asked, given=2, also=("rngs",))
        self._takes_rngs = "rngs" in inspect.signature(asked).parameters
        for path, leaf in jax.tree_util.tree_leaves_with_path(stats):
            if not _is_numbers(leaf):
                raise TypeError(
                    f"model must hold arrays of numbers beside its parameters, which a run can save, got "
                    f"{type(leaf).__name__} {getattr(leaf, 'dtype', '')} in {jax.tree_util.keystr(path)}"
                )

    @contextlib.contextmanager
    def watching(self, calls: list[Call]) -> Iterator[None]:
        """Note the calls of batch norm and dropout, wherever they are within."""
        from flax import nnx

        with (
            ALONE,
            watched(nnx.BatchNorm, NORM, "use_running_average", calls),
            watched(nnx.Dropout, DROPOUT, "deterministic", calls),
        ):
            yield

    def parts(self) -> list[Any]:
        """It and all modules within it."""
        from flax import nnx

        return [part for _, part in nnx.iter_modules(self.module)]

    def init(self, key: Any, images: Any, *, train: bool = False) -> dict[str, Any]:
        """The variables that the module holds."""
        pairs = zip(self._names, self._states, strict=True)
        params, stats = (names.named(jax.tree.map(jnp.asarray, state)) for names, state in pairs)
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

        params = self._names[0].tree(variables["params"])
        stats = self._names[1].tree(variables["batch_stats"])
        rest = (jax.tree.map(lambda leaf: leaf, part) for part in self._rest)
        module = nnx.merge(self._graph, params, stats, *rest)
        _switch(module, train, self.frozen)
        key = next(iter(rngs.values())) if rngs else jax.random.key(0)
        _seed(module, key)
        given: dict[str, Any] = {}
        if self._takes_rngs:
            given["rngs"] = nnx.Rngs(jax.random.fold_in(key, 1))
        if self._is_bridge and mutable:
            given["mutable"] = ["batch_stats"]
        embeddings = module(
            images, **train_flags.settings(self._flags, train), **given, **self.told
        )
        if not mutable:
            return embeddings
        after = _split(module)[2]
        return embeddings, {"batch_stats": Names(after).named(after)}


def _split(module: Any) -> tuple[Any, Any, Any, tuple[Any, Any]]:
    """Graph, parameters, what is carried, and random streams and notes, which are not."""
    from flax import nnx

    parts: Any = nnx.split(module, nnx.Param, nnx.RngState, nnx.Intermediate, ...)
    graph, params, streams, notes, stats = parts
    # In this order a module of the same graph is merged again: what is carried is all that is left.
    return graph, params, stats, (streams, notes)


def _modes(module: Any) -> tuple[dict[str, Any], list[Any]]:
    """Whether they are in evaluation mode: each batch norm by its path, and the dropouts."""
    from flax import nnx

    parts = [(_path(path), part) for path, part in nnx.iter_modules(module)]
    norms = {p: part.use_running_average for p, part in parts if isinstance(part, nnx.BatchNorm)}
    drops = [part.deterministic for _, part in parts if isinstance(part, nnx.Dropout) and part.rate]
    return norms, drops


def _path(path: Any) -> str:
    return "/".join(map(str, path))


def _switch(module: Any, train: bool, frozen: Sequence[str]) -> None:
    """Set the mode of a module and of all within it."""
    from flax import nnx

    module.train() if train else module.eval()
    for path, part in nnx.iter_modules(module):
        if _path(path) in frozen:  # it is batch norm, which the type of all modules does not say
            part.use_running_average = True  # type: ignore[attr-defined]
        for name, value in list(vars(part).items()):
            if name not in ("deterministic", "use_running_average"):  # those are set
                train_flags.check_clear(f"its attribute {name}", name, value)
                if train_flags.is_flag(name) and (value is None or isinstance(value, bool)):
                    setattr(part, name, train_flags.setting(name, train))


def _seed(module: Any, key: jax.Array) -> None:
    """Seed all streams: the usual ones with a key, others with one of their own."""
    from flax import nnx

    tags = {s.key.tag for _, s in nnx.iter_graph(module) if isinstance(s, nnx.RngStream)}
    keys: dict[str, Any] = {
        tag: key
        if tag in ("default", "dropout")
        else jax.random.fold_in(key, zlib.crc32(tag.encode()))
        for tag in tags
    }
    nnx.reseed(module, policy="match_shape", **keys)


def _is_numbers(leaf: Tree) -> bool:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
        return False
    dtype = jnp.result_type(leaf)
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
