"""An NNX module as a model: its parameters are trained, its other variables carried, its streams seeded anew."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jdml.models.base_adapter import (
    ModelAdapter,
    Result,
    arguments,
    by_name,
    check_savable,
    flag_values,
    flags_of,
    is_flag,
    restored,
)


class FromNnx(ModelAdapter):
    """An NNX module as functions: a copy of it has the variables of each call."""

    holds_parameters = True

    def __init__(self, module: Any, train_flag: str | None = None) -> None:
        self._graph, self._params, self._rest, self._stats = _split(module)
        super().__init__(module, (self._graph, train_flag))
        self._train_flag = train_flag
        parts: list[tuple[str, Any]] = [(_path(path), x) for path, x in nnx.iter_modules(module)]
        norms = {p: x.use_running_average for p, x in parts if isinstance(x, nnx.BatchNorm)}
        drops = [x.deterministic for _, x in parts if isinstance(x, nnx.Dropout) and x.rate]
        self._set_frozen(norms, drops)
        call = type(getattr(module, "to_nnx__module", module)).__call__
        self._is_bridge = call is not type(module).__call__  # to a Linen module
        is_container = not self._is_bridge and type(module).__module__.startswith("flax.")
        self.flags = () if is_container else flags_of(call, train_flag)  # its layers are switched
        self._takes_rngs = "rngs" in [x.name for x in arguments(call)]
        check_savable(self._stats)

    def init(self, key: Any, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return the variables that the module holds."""
        params, stats = jax.tree.map(jnp.asarray, (self._params, self._stats))
        return {"params": by_name(params), "batch_stats": by_name(stats)}

    def _embed(self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any) -> Result:
        params = restored(variables["params"], self._params)
        stats = restored(variables["batch_stats"], self._stats)
        rest = jax.tree.map(lambda leaf: leaf, self._rest)
        module: Any = nnx.merge(self._graph, params, rest, stats)
        self._switch(module, train)
        key = next(iter(rngs.values())) if rngs else jax.random.key(0)
        _seed(module, key)
        more: dict[str, Any] = flag_values(self.flags, train)
        if self._takes_rngs:
            more["rngs"] = nnx.Rngs(jax.random.fold_in(key, 1))
        if self._is_bridge:
            more["mutable"] = ["batch_stats"]
        embeddings = module(images, **more)
        return embeddings, by_name(_split(module)[3])

    def _switch(self, module: Any, train: bool) -> None:
        """Set the mode of a module and of all within it."""
        module.train() if train else module.eval()
        for path, part in nnx.iter_modules(module):
            if _path(path) in self.frozen_norms:
                part.use_running_average = True  # type: ignore[attr-defined]
            for name, value in list(vars(part).items()):
                known = is_flag(name) or name == self._train_flag
                is_layers = name in ("deterministic", "use_running_average")  # those are set
                if known and not is_layers and (value is None or isinstance(value, bool)):
                    setattr(part, name, flag_values([name], train)[name])


def _split(module: Any) -> Any:
    """Return the graph, the parameters, random streams and intermediates, and the carried variables."""
    return nnx.split(module, nnx.Param, (nnx.RngState, nnx.Intermediate), ...)


def _path(path: Any) -> str:
    return "/".join(map(str, path))


def _seed(module: Any, key: jax.Array) -> None:
    """Seed all streams: the usual ones with a key, others with one of their own."""
    tags = {s.key.tag for _, s in nnx.iter_graph(module) if isinstance(s, nnx.RngStream)}
    keys: dict[str, Any] = {
        tag: key
        if tag in ("default", "dropout")
        else jax.random.fold_in(key, zlib.crc32(tag.encode()))
        for tag in tags
    }
    nnx.reseed(module, policy="match_shape", **keys)
