"""A Linen module of the user's as a model: its flags are set, and all its collections carried."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.base_adapter import ModelAdapter

OTHER = "~"
"""Begins the name of a collection other than ``batch_stats`` among the statistics that a run carries."""
PASSING = ("params", "intermediates", "perturbations")
"""Collections that are not carried from step to step."""


class FromLinen(ModelAdapter):
    """A Linen module as functions.

    Known flags are set: arguments of ``__call__`` and attributes, its own and those of the modules that it is given;
    and those of Flax's layers, and of modules in ``nn.Sequential``, that nobody has set. Collections other than
    ``params`` are carried from step to step, and saved.
    """

    def __init__(self, module: nn.Module, train_flag: str | None = None) -> None:
        super().__init__(module, (module, train_flag))
        # A container of Flax hands on nothing that its functions take: its layers' flags are set.
        call = type(module).__call__
        self._flags = () if _is_flax(module) else train_flags.flags_of(call, train_flag)
        self._train_flag = train_flag

    def init(self, key: jax.Array, images: Any, /, *, train: bool = False) -> dict[str, Any]:
        """Return fresh variables."""
        module = self._in_mode(train)
        flags: Any = train_flags.settings(self._flags, train)
        with nn.intercept_methods(_set_flags(train)):
            variables = module.init(key, images, **flags)
        return {"params": variables.get("params", {}), "batch_stats": _carried(variables)}

    def apply(
        self,
        variables: Mapping[str, Any],
        images: Any,
        /,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: dict[str, Any] | None = None,
    ) -> Any:
        """Return embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        carried = variables.get("batch_stats", {})
        collections = {k[1:]: tree for k, tree in carried.items() if k.startswith(OTHER)}
        stats = {k: tree for k, tree in carried.items() if not k.startswith(OTHER)}
        collections = {"batch_stats": stats, **collections}
        if rngs and "params" not in rngs:  # what streams of other names are drawn from
            rngs = {**rngs, "params": jax.random.fold_in(next(iter(rngs.values())), 1)}
        flags: Any = train_flags.settings(self._flags, train)
        with nn.intercept_methods(_set_flags(train)):
            out = self._in_mode(train).apply(
                {"params": variables["params"], **collections},
                images,
                mutable=list(collections) if mutable else False,
                rngs=rngs,
                **flags,
            )
        if not mutable:
            return out
        embeddings, updates = out
        return embeddings, {"batch_stats": _carried({**collections, **updates})}

    def _in_mode(self, train: bool) -> nn.Module:
        """The module with its own flags set, and those of the modules among its attributes."""
        copies: dict[int, Any] = {}

        def switched(value: Any) -> Any:
            if isinstance(value, nn.Module):
                if id(value) not in copies:
                    copies[id(value)] = clone(value)
                return copies[id(value)]
            if type(value) in (tuple, list):
                parts = type(value)(switched(part) for part in value)
                changed = any(a is not b for a, b in zip(parts, value, strict=True))
                return parts if changed else value
            if isinstance(value, Mapping):
                by_name = {name: switched(part) for name, part in value.items()}
                return by_name if any(by_name[k] is not value[k] for k in value) else value
            return value

        def clone(module: nn.Module) -> nn.Module:
            changes: dict[str, Any] = {}
            flags = self._flags if module is self.module else ()
            for field in dataclasses.fields(module):
                name, value = field.name, getattr(module, field.name, None)
                if not field.init or name in ("parent", "name"):
                    continue
                known = train_flags.is_flag(name) or name == self._train_flag
                if known and (value is None or isinstance(value, bool)):
                    new = _flag(module, name, value, train, is_argument=name in flags)
                else:
                    new = switched(value)
                if new is not value:
                    changes[name] = new
            return module.clone(**changes) if changes else module

        result: nn.Module = switched(self.module)
        return result


def _flag(
    module: nn.Module, name: str, value: bool | None, train: bool, *, is_argument: bool
) -> bool | None:
    """Return what a flag among the attributes becomes."""
    if value is None and (is_argument or _is_flax(module)):
        return None  # the call sets it
    if _is_flax(module) and value is train_flags.settings([name], False)[name]:
        return value  # a layer that was made for evaluation is frozen
    return train_flags.settings([name], train)[name]


def _carried(variables: Mapping[str, Tree]) -> dict[str, Tree]:
    """All collections but the parameters as one: batch statistics, and others under their names."""
    others = {OTHER + k: v for k, v in variables.items() if k not in (*PASSING, "batch_stats")}
    return {**variables.get("batch_stats", {}), **others}


def _is_flax(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] == "flax"


def _set_flags(train: bool) -> Callable[..., Any]:
    """Set the flags of Flax's layers, and of modules in ``nn.Sequential``, that neither attribute nor call sets."""

    def interceptor(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module: Any = context.module
        in_container = isinstance(module.parent, nn.Sequential)
        if context.method_name == "__call__" and (_is_flax(module) or in_container):
            for name in _argument_names(module.__class__)[1 + len(args) :]:
                is_set = name in kwargs or getattr(module, name, None) is not None
                if train_flags.is_flag(name) and not is_set:
                    kwargs = {**kwargs, **train_flags.settings([name], train)}
        return call(*args, **kwargs)

    return interceptor


@functools.cache
def _argument_names(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind.__call__).parameters)
