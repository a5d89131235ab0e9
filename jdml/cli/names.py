"""Names on the command line and what they stand for: losses, miners, networks, settings."""

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from jdml import registry
from jdml.cli.messages import nearest
from jdml.registry import MINERS

PAIR_LOSSES = registry.pair_losses()
PROXY_LOSSES = registry.proxy_losses()
FIELDS = tuple(name for name, loss in registry.LOSSES.items() if not loss.needs_proxies)
"""Proxy losses that can do without proxies: samples are charges, too."""
PRETRAINED = tuple(sorted(registry.pretrained_networks()))
"""Networks that `jdml weights convert` makes weights for."""
if TYPE_CHECKING:
    Loss = str
    Network = str
else:
    Loss = Literal[PAIR_LOSSES + PROXY_LOSSES]
    Network = Literal[tuple(sorted(registry.NETWORKS))]
Pooling = Literal["average", "average+max", "cubic", "gem", "max", "sum"]
FOUND = {
    name: tuple(f"{setting}={value}" for setting, value in loss.found.items())
    for name, loss in registry.LOSSES.items()
    if loss.found
}
"""Settings of a loss that do better than its paper's, as the studies found, with proxies that begin on samples; what is
typed goes before them."""
FOUND_PROXIES = {name: loss.proxies for name, loss in registry.LOSSES.items() if loss.proxies != 1}
"""Proxies per class, where the studies found several to be better than one."""
PROXY_MONITORS = {name: loss.monitor for name, loss in registry.LOSSES.items() if loss.monitor}
"""What :mod:`jdml.losses` has to be logged beside a proxy loss."""
MONITORED = 4096
"""Proxies at most of which it is: it looks at their pairs, and those of more take as long as the network."""


def parse_settings(settings: Iterable[str], option: str, *, words: bool = False) -> dict[str, Any]:
    """Read ``name=value`` settings; values are Python literals, or, with ``words``, names without quotes.

    Raises:
        ValueError: naming the option and the setting that is not of this form.

    Example:
        >>> parse_settings(["margin=0.2", "squared=True"], "--loss-setting")
        {'margin': 0.2, 'squared': True}
        >>> parse_settings(["pooling=average+max"], "--method-setting", words=True)
        {'pooling': 'average+max'}
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        try:
            if not equals or not name.isidentifier():
                raise ValueError
            if (
                words
                and value.replace("+", "_").isidentifier()
                and value not in ("True", "False", "None")
            ):
                parsed[name] = value
                continue
            parsed[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(
                f"{option} must be name=number, True or False, such as margin=0.2; got {setting!r}"
            ) from None
    return parsed


def build_miner(words: str, dim: int) -> Callable[..., Any] | None:
    """Build a chain of miners from ``"eps+semi_hard:margin=0.2"``; ``"none"`` is no miner.

    Args:
        words: miner names joined by ``+``, each with optional ``:name=value,…`` settings.
        dim: the embedding's dimension, which distance-weighted sampling needs.

    Raises:
        ValueError: an unknown miner (listing the known ones) or setting.
    """
    from jdml import mining

    if words == "none":
        return None
    miners = []
    for word in words.split("+"):
        name, _, settings = word.strip().partition(":")
        if name not in MINERS:
            known = ["eps", *sorted(MINERS.keys() - {"eps"})]
            raise ValueError(
                f"--miner must be none or a chain of {', '.join(known)}; got {name!r}{nearest(name, known)}"
            )
        given = parse_settings(settings.split(",") if settings else (), f"--miner {name}")
        try:
            miners.append(MINERS[name].build(dim, **given))
        except TypeError as error:
            raise ValueError(f"--miner {name}: {error}") from error
    return miners[0] if len(miners) == 1 else mining.chain(*miners)


def parse_batch(text: str) -> tuple[int, int | None]:
    """Read ``"8x4"`` (8 classes × 4 samples) or ``"64"`` (64 random samples).

    Returns:
        ``(classes, samples per class)``, or ``(size, None)``.

    Raises:
        ValueError: anything else.

    Example:
        >>> parse_batch("8x4"), parse_batch("64")
        ((8, 4), (64, None))
    """
    first, times, second = text.replace("×", "x").partition("x")
    numbers = [first, second] if times else [first]
    if not all(number.strip().isdecimal() and int(number) > 0 for number in numbers):
        raise ValueError(
            f"--batch must be CLASSESxSAMPLES, such as 8x4, or a number of random samples; got {text!r}"
        )
    return int(first), int(second) if times else None
