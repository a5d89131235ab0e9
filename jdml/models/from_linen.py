"""A user's Linen module as a model: its flags are set, and all its collections are carried."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from jdml.distributed import Tree
from jdml.models.base_adapter import ModelAdapter, arguments, flag_values, flags_of, is_flag

OTHER = "~"
"""Begins the name of a collection other than ``batch_stats`` among the statistics that a run carries."""
PASSING = ("params", "intermediates", "perturbations")
"""Collections that are not carried from step to step."""


class FromLinen(ModelAdapter):
    """A Linen module as functions; collections other than ``params`` are carried from step to step, and saved.

    Known flags are set: arguments of ``__call__`` and attributes, its own and those of the modules that it is given;
    and those of Flax's layers, and of modules in ``nn.Sequential``, that nobody has set.
    """

    def __init__(self, module: nn.Module, train_flag: str | None = None) -> None:
        super().__init__(module, (module, train_flag))
        # A container of Flax passes no flags to its layers: these are set.
        self.flags = () if _is_flax(module) else flags_of(type(module).__call__, train_flag)
        self._train_flag = train_flag

    def init(self, key: jax.Array, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return fresh variables."""
        flags: Any = flag_values(self.flags, train)
        with nn.intercept_methods(_set_flags(train)):
            variables = self._in_mode(train).init(key, images, **flags)
        return {"params": variables.get("params", {}), "batch_stats": _carry(variables)}

    def _embed(
        self, variables: Any, images: Any, train: bool, mutable: bool, rngs: Any
    ) -> tuple[Tree, Tree]:
        carried = variables.get("batch_stats", {})
        collections = {k[1:]: tree for k, tree in carried.items() if k.startswith(OTHER)}
        stats = {k: tree for k, tree in carried.items() if not k.startswith(OTHER)}
        collections = {"batch_stats": stats, **collections}
        if rngs and "params" not in rngs:  # from which Flax draws streams of other names
            rngs = {**rngs, "params": jax.random.fold_in(next(iter(rngs.values())), 1)}
        flags: Any = flag_values(self.flags, train)
        with nn.intercept_methods(_set_flags(train)):
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
        copies: dict[int, nn.Module] = {}

        def switch(value: Any) -> Any:
            return jax.tree.map(lambda x: clone(x) if isinstance(x, nn.Module) else x, value)

        def clone(module: nn.Module) -> nn.Module:
            if id(module) in copies:
                return copies[id(module)]
            changes: dict[str, Any] = {}
            flags = self.flags if module is self.module else ()
            for field in dataclasses.fields(module):
                name, value = field.name, getattr(module, field.name, None)
                if not field.init or name in ("parent", "name"):
                    continue
                known = is_flag(name) or name == self._train_flag
                if known and (value is None or isinstance(value, bool)):
                    changes[name] = _flag(module, name, value, train, is_argument=name in flags)
                else:
                    changes[name] = switch(value)
            copies[id(module)] = module.clone(**changes)
            return copies[id(module)]

        return clone(self.module)


def _flag(
    module: nn.Module, name: str, value: bool | None, train: bool, *, is_argument: bool
) -> bool | None:
    """Return the value of a flag among the attributes."""
    if value is None and (is_argument or _is_flax(module)):
        return None  # the call sets it
    if _is_flax(module) and value is flag_values([name], False)[name]:
        return value  # a layer that was made for evaluation is frozen
    return flag_values([name], train)[name]


def _carry(variables: Mapping[str, Tree]) -> dict[str, Tree]:
    """Return all collections but the parameters as one: batch statistics, and others under their names."""
    others = {OTHER + k: v for k, v in variables.items() if k not in (*PASSING, "batch_stats")}
    return {**variables.get("batch_stats", {}), **others}


def _is_flax(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] == "flax"


def _set_flags(train: bool) -> Callable[..., Any]:
    """Set the flags of Flax's layers, and of modules in ``nn.Sequential``, that nothing else sets."""

    def interceptor(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module: Any = context.module
        in_container = isinstance(module.parent, nn.Sequential)
        if context.method_name == "__call__" and (_is_flax(module) or in_container):
            for argument in arguments(type(module).__call__)[1 + len(args) :]:
                name = argument.name
                is_set = name in kwargs or getattr(module, name, None) is not None
                if is_flag(name) and not is_set:
                    kwargs = {**kwargs, **flag_values([name], train)}
        return call(*args, **kwargs)

    return interceptor
