"""Words that stand for plain values and for miners: settings, batches, chains of miners."""

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any

from jdml.registry import MINERS
from jdml.registry.constraints import nearest


def parse_settings(settings: Iterable[str], option: str, *, words: bool = False) -> dict[str, Any]:
    """Read ``name=value`` settings; values are Python literals, or, with ``words``, names without quotes.

    Args:
        settings: what was typed.
        option: what it was typed for, for the message.
        words: whether a name without quotes is a value, too.

    Returns:
        Values by name: numbers as numbers.

    Raises:
        ValueError: naming the option and the setting that is not of this form, or is said twice.

    Example:
        >>> parse_settings(["margin=0.2", "squared=True"], "--loss-setting")
        {'margin': 0.2, 'squared': True}
        >>> parse_settings(["pooling=average+max"], "--method-setting", words=True)
        {'pooling': 'average+max'}
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name in parsed:
            raise ValueError(f"{option} says {name} twice: {setting!r} is one more")
        try:
            if not equals or not name.isidentifier():
                raise ValueError
            is_word = value.replace("+", "_").isidentifier()
            if words and is_word and value not in ("True", "False", "None"):
                parsed[name] = value
            else:
                parsed[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(
                f"{option} must be name=number, True or False, such as margin=0.2; got {setting!r}"
            ) from None
    return parsed


def parse_batch(text: str) -> int | tuple[int, int]:
    """Read ``"8x4"`` (8 classes × 4 samples) or ``"64"`` (64 random samples).

    Args:
        text: what was typed.

    Returns:
        ``(classes, samples per class)``, or a number of samples.

    Raises:
        ValueError: anything else.

    Example:
        >>> parse_batch("8x4"), parse_batch("64")
        ((8, 4), 64)
    """
    first, times, second = text.replace("×", "x").partition("x")
    numbers = [first, second] if times else [first]
    if not all(number.strip().isdecimal() and int(number) > 0 for number in numbers):
        raise ValueError(
            f"--batch must be CLASSESxSAMPLES, such as 8x4, or a number of random samples; got {text!r}"
        )
    return (int(first), int(second)) if times else int(first)


def write_batch(batch: int | tuple[int, int]) -> str:
    """Write what :func:`parse_batch` reads.

    Args:
        batch: of a recipe.

    Returns:
        The words.

    Example:
        >>> write_batch((8, 4)), write_batch(64)
        ('8x4', '64')
    """
    return str(batch) if isinstance(batch, int) else "x".join(map(str, batch))


def build_miner(words: str, dim: int) -> Callable[..., Any] | None:
    """Build a chain of miners from ``"eps+semi_hard:margin=0.2"``; ``"none"`` is no miner.

    Args:
        words: miners' names joined by ``+``, each with optional ``:name=value,…`` settings.
        dim: the embedding's dimension, which distance-weighted sampling needs.

    Returns:
        The miner, or None.

    Raises:
        ValueError: an unknown miner (listing the known ones) or setting.

    Example:
        >>> from jdml import mining
        >>> build_miner("eps+semi_hard:margin=0.3", dim=8) == mining.chain(
        ...     mining.easy_positive(), mining.semi_hard_negative(margin=0.3)
        ... )
        True
    """
    from jdml import mining

    if words == "none":
        return None
    miners = []
    for word in re.split(r"\+(?!\d)", words):  # 1e+3 is a number
        name, _, settings = word.strip().partition(":")
        if name not in MINERS:
            known = ["eps", *sorted(MINERS.keys() - {"eps"})]
            raise ValueError(
                f"miner must be none or a chain of {', '.join(known)}; got {name!r}{nearest(name, known)}"
            )
        given = parse_settings(settings.split(",") if settings else (), f"miner {name}")
        try:
            miners.append(MINERS[name].build(dim, **given))
        except TypeError as error:
            raise ValueError(f"miner {name}: {error}") from error
    return miners[0] if len(miners) == 1 else mining.chain(*miners)
