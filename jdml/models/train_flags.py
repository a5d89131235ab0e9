"""By which flag a network is told that it is trained: ``train``, ``training``, ``deterministic``, or ``inference``."""

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

TRAINING = (
    "train",
    "training",
    "is_training",
    "is_train",
    "istraining",
    "train_mode",
    "training_mode",
)
"""True in training."""
EVALUATION = (
    "deterministic",
    "use_running_average",
    "inference",
    "is_inference",
    "inference_mode",
    "eval",
    "is_eval",
    "eval_mode",
    "evaluate",
    "evaluation",
    "evaluating",
    "is_evaluating",
    "test",
    "is_test",
    "test_mode",
    "testing",
    "is_testing",
)
"""True in evaluation."""
UNCLEAR = ("mode", "phase", "stage")
WORDS = ("train", "training", "eval", "evaluation", "test", "inference", "predict", "val")
KNOWN = "train, training, is_training, deterministic, use_running_average, inference or eval"
_log = logging.getLogger(__name__)


def is_flag(name: str) -> bool:
    """Whether an argument or attribute of this name says that a network is trained, or that it is not."""
    return name in TRAINING or name in EVALUATION


def setting(name: str, train: bool) -> bool:
    """What a flag is set to."""
    return train if name in TRAINING else not train


def settings(names: tuple[str, ...], train: bool) -> dict[str, bool]:
    """What flags are set to, by name."""
    return {name: setting(name, train) for name in names}


def check_clear(what: str, name: str, value: Any) -> None:
    """Refuse what says whether a network is trained in words that only its author knows.

    Args:
        what: the argument or attribute, for the message.
        name: its name.
        value: its default, or what it is.

    Raises:
        TypeError: a ``mode`` that is not clearly something else.
    """
    empty = value is inspect.Parameter.empty or value is None or isinstance(value, bool)
    if name in UNCLEAR and (empty or (isinstance(value, str) and value.lower() in WORDS)):
        raise TypeError(
            f"model must be told by a boolean whether it trains ({KNOWN}), got {what}: "
            "wrap it in a module that takes train"
        )


def flags_of(
    call: Callable[..., Any], *, given: int, also: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Find the flags among the arguments of a network's call.

    Args:
        call: the function.
        given: how many of its first arguments are given: ``self``, images, …
        also: other names of arguments that will be given.

    Returns:
        Their names; ``("train",)`` where the call takes any keyword, and names none.

    Raises:
        TypeError: arguments that no flag is and that have no default, a ``mode``.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())[given:]
    except (TypeError, ValueError):  # of a compiled function
        return ()
    names = []
    anything = False
    for parameter in parameters:
        anything = anything or parameter.kind is parameter.VAR_KEYWORD
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        check_clear(f"its argument {parameter.name}", parameter.name, parameter.default)
        if is_flag(parameter.name) and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.name not in also:
            raise TypeError(
                f"model must take images alone, and a flag such as train, but its argument {parameter.name} has no "
                "default: wrap it in a module that gives it"
            )
    return tuple(names) if names or not anything else ("train",)


def unknown_flags(call: Callable[..., Any], *, given: int) -> dict[str, bool | None]:
    """Name the arguments that may be flags under names that are not known: booleans, and ``**anything``.

    Args:
        call: the function.
        given: how many of its first arguments are given.

    Returns:
        Each with the other value than its default; None of ``**anything``.
    """
    parameters = list(inspect.signature(call).parameters.values())[given:]
    return {
        f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name: (
            None if p.kind is p.VAR_KEYWORD else not p.default
        )
        for p in parameters
        if p.kind is p.VAR_KEYWORD or (isinstance(p.default, bool) and not is_flag(p.name))
    }


def several(layers: Sequence[str]) -> str:
    """The first of some layers, by their paths."""
    return ", ".join(layers[:3]) + (", …" if len(layers) > 3 else "")


def tell_idle(layers: str, flags: list[str], *, are_all: bool) -> None:
    """Say of layers that are in evaluation mode in training: frozen, or never told.

    Args:
        layers: their names.
        flags: what would wake one of them, and is no flag that is known.
        are_all: whether there is no layer that acts in training.

    Raises:
        ValueError: no layer acts in training, and a flag that nobody has set is why.
    """
    frozen = [name for name in flags if "freeze" in name or "frozen" in name]
    unknown = [name for name in flags if name not in frozen]
    if unknown and are_all:
        raise ValueError(
            f"model would be trained in evaluation mode: {layers} would be in it, and {', '.join(unknown)} is no flag "
            f"that is known ({KNOWN}); where it is meant so, wrap it in a module without it"
        )
    wakes = (
        f"; {', '.join(unknown)}, which is no flag that is known, would wake it" if unknown else ""
    )
    if unknown or not frozen:
        _log.warning("%s: in evaluation mode in training, too, as if frozen%s", layers, wakes)
