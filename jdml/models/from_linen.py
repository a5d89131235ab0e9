"""A Linen module of the user's as a model: its mode is switched however it says so, all its collections are carried."""

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax
import flax.linen as nn
import jax

from jdml.distributed import Tree
from jdml.models import train_flags
from jdml.models.base_adapter import Wrapped

OTHER = "~"
"""Begins the name of a collection other than ``batch_stats`` among the statistics that a run carries."""
PASSING = ("params", "intermediates", "perturbations")
"""Collections that are not carried from step to step."""
_log = logging.getLogger(__name__)


class FromLinen(Wrapped):
    """A Linen module as functions.

    What says that it is trained is set: arguments of ``__call__`` and attributes, its own and those of the modules that
    it is given, whose names :mod:`jdml.models.train_flags` knows. A layer of Flax that nobody told is told.
    Collections other than ``params`` are carried from step to step, and saved.

    Args:
        module: from images ``[B, …]`` to embeddings ``[B, D]``.

    Raises:
        TypeError: a call that needs more, or a mode that is no boolean.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, module)
        own = type(module).__call__
        # A container of Flax hands on nothing that its functions take: its layers are told.
        self._flags = () if _of_flax(module) else train_flags.flags_of(own, given=2)

    def init(self, key: jax.Array, images: Any, *, train: bool = False) -> dict[str, Any]:
        """Fresh variables."""
        module = _in_mode(self.module, train, self._flags)
        with nn.intercept_methods(_telling(train)):
            told: Any = {**train_flags.settings(self._flags, train), **self.told}
            variables = module.init(key, images, **told)
        return {"params": variables.get("params", {}), "batch_stats": _carried(variables)}

    def apply(
        self,
        variables: Mapping[str, Any],
        images: Any,
        *,
        train: bool = False,
        mutable: Any = False,
        rngs: dict[str, Any] | None = None,
    ) -> Any:
        """Embeddings; with ``mutable`` also ``{"batch_stats": …}``."""
        collections = _collections(variables.get("batch_stats", {}))
        module = _in_mode(self.module, train, self._flags)
        if rngs and "params" not in rngs:  # what streams of other names are drawn from
            rngs = {**rngs, "params": jax.random.fold_in(next(iter(rngs.values())), 1)}
        told: Any = {**train_flags.settings(self._flags, train), **self.told}
        with nn.intercept_methods(_telling(train)):
            out = module.apply(
                {"params": variables["params"], **collections},
                images,
                mutable=list(collections) if mutable else False,
                rngs=rngs,
                **told,
            )
        if not mutable:
            return out
        embeddings, updates = out
        return embeddings, {"batch_stats": _carried({**collections, **updates})}

    def tried(self, trace: Callable[["FromLinen", bool], Any]) -> None:
        """Try training and evaluation, and look whether they differ where they should.

        Args:
            trace: goes through a network once, trained or not.

        Raises:
            ValueError: a module that can only be trained, or one whose layers are in evaluation mode in training as its
                flag has a name that is not known.
        """
        modes = self._modes(trace)
        idle = {layer for layer, is_idle in modes.items() if is_idle}
        if idle:
            self._tell_idle(idle, len(idle) == len(modes), trace)
        try:
            trace(self, False)
        except flax.errors.FlaxError as error:
            raise ValueError(
                "model must be able to evaluate, but without training it draws random numbers or changes its "
                f"variables: switch it by a flag ({train_flags.KNOWN}); {str(error).split(' (https')[0]}"
            ) from error

    def _modes(self, trace: Callable[["FromLinen", bool], Any]) -> dict[str, bool]:
        """Of each layer that asks for the mode whether it is in evaluation mode in training."""
        modes: dict[str, bool] = {}
        with nn.intercept_methods(_watching(modes)):
            trace(self, True)
        return modes

    def _tell_idle(
        self, idle: set[str], are_all: bool, trace: Callable[["FromLinen", bool], Any]
    ) -> None:
        """Layers are in evaluation mode in training: frozen, or never told."""
        call = type(self.module).__call__
        turned = {} if _of_flax(self.module) else train_flags.unknown_flags(call, given=2)
        unknown = [
            name
            for name, other in turned.items()
            if (are_all if other is None else self.telling(**{name: other})._wakes(idle, trace))
        ]
        for name in _fields(self.module):
            value = getattr(self.module, name)
            if isinstance(value, bool) and not train_flags.is_flag(name):
                other = FromLinen(self.module.clone(**{name: not value}))
                unknown += [name] if other._wakes(idle, trace) else []
        train_flags.tell_idle(train_flags.several(sorted(idle)), unknown, are_all=are_all)

    def _wakes(self, idle: set[str], trace: Callable[["FromLinen", bool], Any]) -> bool:
        """Whether one of some layers is not in evaluation mode in training."""
        try:
            modes = self._modes(trace)
        except Exception:  # what it turns is something else
            return False
        return any(not modes.get(layer, True) for layer in idle)


def _carried(variables: Mapping[str, Tree]) -> dict[str, Tree]:
    """All collections but the parameters as one: batch statistics, and others under their names."""
    others = {
        OTHER + name: tree
        for name, tree in variables.items()
        if name not in (*PASSING, "batch_stats")
    }
    return {**variables.get("batch_stats", {}), **others}


def _collections(carried: Mapping[str, Tree]) -> dict[str, Tree]:
    """Undo :func:`_carried`."""
    others = {name[1:]: tree for name, tree in carried.items() if name.startswith(OTHER)}
    stats = {name: tree for name, tree in carried.items() if not name.startswith(OTHER)}
    return {"batch_stats": stats, **others}


def _in_mode(module: nn.Module, train: bool, flags: tuple[str, ...]) -> nn.Module:
    """The module with its own flags set, and those of the modules among its attributes."""
    made: dict[int, Any] = {}

    def told(value: Any) -> Any:
        if isinstance(value, nn.Module):
            if id(value) not in made:
                made[id(value)] = _told(value, train, told, flags if value is module else ())
            return made[id(value)]
        if type(value) in (tuple, list):
            parts = [told(part) for part in value]
            same = all(new is old for new, old in zip(parts, value, strict=True))
            return value if same else type(value)(parts)
        if isinstance(value, Mapping):
            by_name = {name: told(part) for name, part in value.items()}
            same = all(by_name[name] is value[name] for name in value)
            return value if same else by_name
        return value

    result: nn.Module = told(module)
    return result


def _told(
    module: nn.Module, train: bool, told: Callable[[Any], Any], flags: tuple[str, ...]
) -> nn.Module:
    changes = {}
    for field in _fields(module):
        value = getattr(module, field)
        train_flags.check_clear(f"its attribute {field}", field, value)
        if train_flags.is_flag(field) and (value is None or isinstance(value, bool)):
            new: Any = _flag(module, field, value, train, flags)
        else:
            new = told(value)
        if new is not value:
            changes[field] = new
    return module.clone(**changes) if changes else module


def _flag(module: nn.Module, name: str, value: bool | None, train: bool, flags: Any) -> bool | None:
    """What a flag among the attributes becomes."""
    if value is None and (name in flags or _of_flax(module)):
        return None  # the call tells it
    if _of_flax(module) and value is train_flags.setting(name, False):
        return value  # a layer that was made for evaluation is frozen
    return train_flags.setting(name, train)


def _fields(module: nn.Module) -> Iterator[str]:
    for field in dataclasses.fields(module):
        if field.init and field.name not in ("parent", "name") and hasattr(module, field.name):
            yield field.name


def _of_flax(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] == "flax"


def _telling(train: bool) -> Callable[..., Any]:
    """Tell layers that ask, and that neither attribute nor argument tells, whether they are trained.

    Those are layers of Flax, and whatever a container calls that hands on what it is given.
    """

    def interceptor(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module: Any = context.module
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        taken = _arguments(module.__class__)
        given = (*taken[: len(args) + 1], *kwargs)
        handed = _hands_on(module.parent)
        if handed and not _hands_on(module):
            kwargs = {k: v for k, v in kwargs.items() if k in taken or not train_flags.is_flag(k)}
        for name in taken:
            said = getattr(module, name, None) is not None
            asks = handed or (_of_flax(module) and hasattr(module, name))
            if train_flags.is_flag(name) and name not in given and asks and not said:
                kwargs = {**kwargs, name: train_flags.setting(name, train)}
        return call(*args, **kwargs)

    return interceptor


@functools.cache
def _arguments(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind.__call__).parameters)


def _hands_on(module: Any) -> bool:
    """Whether a module is called with anything, and names no flag itself: ``nn.Sequential``, a wrapper."""
    if not isinstance(module, nn.Module):
        return False
    parameters = inspect.signature(type(module).__call__).parameters.values()
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return anything and not any(train_flags.is_flag(p.name) for p in parameters)


def _watching(modes: dict[str, bool]) -> Callable[..., Any]:
    """Note of each layer that behaves otherwise in training whether it is in evaluation mode."""

    def interceptor(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        kinds = {nn.BatchNorm: "use_running_average", nn.Dropout: "deterministic"}
        name = next((flag for kind, flag in kinds.items() if isinstance(module, kind)), None)
        if context.method_name == "__call__" and name and getattr(module, "rate", 1):
            bound = inspect.signature(type(module).__call__).bind(module, *args, **kwargs).arguments
            told = bound.get(name)
            path = "/".join(module.path) or type(module).__name__
            evaluates = bool(getattr(module, name) if told is None else told)
            modes[path] = modes.get(path, True) and evaluates  # a layer may be called again
        return call(*args, **kwargs)

    return interceptor
