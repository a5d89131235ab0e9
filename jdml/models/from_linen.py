"""A user's Linen module as a model: its flags are set, and all its collections are carried."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from jdml.distributed import Tree
from jdml.models.base_adapter import ModelAdapter, Result, arguments, flag_values, flags_of, is_flag

OTHER = "~"
"""Begins the name of a collection other than ``batch_stats`` among the statistics that a run carries."""


class FromLinen(ModelAdapter):
    """A Linen module as functions; collections other than ``params`` are carried from step to step, and saved."""

    def __init__(self, module: nn.Module, train_flag: str | None = None) -> None:
        super().__init__(module, (module, train_flag))
        # A container of Flax passes no flags to its layers: these are set.
        self.flags = () if _is_flax(module) else flags_of(type(module).__call__, train_flag)
        self._train_flag = train_flag

    def init(self, key: jax.Array, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return fresh variables."""
        flags: Any = flag_values(self.flags, train)
        with _set_flags(train):
            variables = self._in_mode(train).init(key, images, **flags)
        return {"params": variables.get("params", {}), "batch_stats": _carry(variables)}

    def _embed(self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any) -> Result:
        collections: dict[str, Any] = {"batch_stats": {}}
        for name, tree in variables.get("batch_stats", {}).items():
            if name.startswith(OTHER):
                collections[name.removeprefix(OTHER)] = tree
            else:
                collections["batch_stats"][name] = tree
        if rngs and "params" not in rngs:  # from which Flax draws streams of other names
            rngs = {**rngs, "params": jax.random.fold_in(next(iter(rngs.values())), 1)}
        flags: Any = flag_values(self.flags, train)
        with _set_flags(train):
            out = self._in_mode(train).apply(
                {"params": variables["params"], **collections},
                images,
                mutable=list(collections) if mutable else False,
                rngs=rngs,
                **flags,
            )
        embeddings, updates = out if mutable else (out, {})
        return embeddings, _carry({**collections, **updates})

    def _in_mode(self, train: bool) -> nn.Module:
        """Return the module with its own flags set, and those of the modules among its attributes."""
        copies: dict[int, nn.Module] = {}  # a module that several have stays one

        def clone(value: Any) -> Any:
            if not isinstance(value, nn.Module):
                return value
            if id(value) not in copies:
                fields = [f.name for f in dataclasses.fields(value) if f.init]
                own = {n: getattr(value, n, None) for n in fields if n not in ("parent", "name")}
                flags = flag_values([n for n in own if self._sets(value, n, own[n])], train)
                copies[id(value)] = value.clone(**(jax.tree.map(clone, own) | flags))
            return copies[id(value)]

        cloned: nn.Module = clone(self.module)
        return cloned

    def _sets(self, module: nn.Module, name: str, value: Any) -> bool:
        """Return whether an attribute is a flag to set: not of a layer of Flax that was made for evaluation."""
        if not is_flag(name) and name != self._train_flag:
            return False
        if value is None:  # an argument of the call may set it
            return not _is_flax(module) and not (module is self.module and name in self.flags)
        is_frozen = _is_flax(module) and value is flag_values([name], False)[name]
        return isinstance(value, bool) and not is_frozen


def _carry(variables: Mapping[str, Tree]) -> dict[str, Tree]:
    """Return all collections but the parameters as one: batch statistics, and others under their names."""
    apart = ("params", "batch_stats", "intermediates", "perturbations")
    others = {OTHER + name: tree for name, tree in variables.items() if name not in apart}
    return {**variables.get("batch_stats", {}), **others}


def _is_flax(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] == "flax"


def _set_flags(train: bool) -> contextlib.AbstractContextManager[None]:
    """Set the flags of Flax's layers, and of modules in ``nn.Sequential``, that nothing else sets."""

    def interceptor(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        is_in_container = _is_flax(module) or isinstance(module.parent, nn.Sequential)
        if context.method_name == "__call__" and is_in_container:
            names = [each.name for each in arguments(type(module).__call__)[1 + len(args) :]]
            unset = [n for n in names if is_flag(n) and getattr(module, n, None) is None]
            kwargs = {**flag_values(unset, train), **kwargs}
        return call(*args, **kwargs)

    return nn.intercept_methods(interceptor)
