"""Read settings and miners from text, such as ``margin=0.2`` and ``easy_positive+semi_hard:margin=0.2``."""

import ast
import re
from collections.abc import Callable, Iterable
from typing import Any

from jdml import mining
from jdml.ops.checks import did_you_mean
from jdml.registry import MINERS


def parse_settings(
    settings: Iterable[str], option: str, *, words: bool = False, patterns: bool = False
) -> dict[str, Any]:
    """Read ``name=value`` settings; values are Python literals, or, with ``words``, names without quotes."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.rpartition("=") if patterns else setting.partition("=")
        if name in parsed:
            raise ValueError(f"{option} says {name} twice: {setting!r} is one more")
        try:
            if not equals or not (patterns or name.isidentifier()):
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


def parse_named(text: str, called: str) -> tuple[str, dict[str, Any]]:
    """Read a name with optional settings after a colon."""
    name, _, settings = text.strip().partition(":")
    return name, parse_settings(settings.split(",") if settings else (), f"{called} {name}")


def build_miner(words: str, dim: int) -> Callable[..., Any] | None:
    """Build a chain of miners from ``"eps+semi_hard:margin=0.2"``; ``"none"`` is no miner."""
    if words == "none":
        return None
    miners = []
    for word in re.split(r"\+(?!\d)", words):  # 1e+3 is a number
        name, options = parse_named(word, "miner")
        if name not in MINERS:
            known = ["eps", *sorted(MINERS.keys() - {"eps"})]
            raise ValueError(
                f"miner must be none or a chain of {', '.join(known)}; got {name!r}{did_you_mean(name, known)}"
            )
        try:
            miners.append(MINERS[name].build(dim, **options))
        except TypeError as error:
            raise ValueError(f"miner {name}: {error}") from error
    return miners[0] if len(miners) == 1 else mining.chain(*miners)
