"""Names of the flags that switch a network between training and evaluation."""

import inspect
from collections.abc import Callable, Iterable

TRAINING = ("train", "training", "is_training")
"""True in training."""
EVALUATION = ("deterministic", "use_running_average", "inference", "eval")
"""True in evaluation."""
KNOWN = ", ".join((*TRAINING, *EVALUATION))


def is_flag(name: str) -> bool:
    """Return whether an argument or attribute of this name switches a network's mode."""
    return name in TRAINING or name in EVALUATION


def settings(names: Iterable[str], train: bool) -> dict[str, bool]:
    """Return the values of flags by name; a name that is not known is true in training."""
    return {name: train != (name in EVALUATION) for name in names}


def arguments(call: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function; none of a compiled one."""
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return []


def flags_of(
    call: Callable[..., object], train_flag: str | None, *, also: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the flags among a call's arguments after the first two; ``("train",)`` where it takes any keyword."""
    names, takes_any = [], False
    for parameter in arguments(call)[2:]:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            takes_any = takes_any or parameter.kind is parameter.VAR_KEYWORD
        elif is_flag(parameter.name) or parameter.name == train_flag:
            names.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.name not in also:
            raise TypeError(
                f"model must take images alone, and a flag such as train, but its argument {parameter.name} has no "
                "default: wrap it in a module that gives it"
            )
    return tuple(names) if names or not takes_any else (train_flag or "train",)
