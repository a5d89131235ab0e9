"""Names on the command line and what they stand for: losses, miners, optimizers, settings."""

import ast
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

from jdml.cli.messages import nearest

PairLoss = Literal[
    "circle",
    "contrastive",
    "fast_ap",
    "info_nce",
    "lifted_structure",
    "margin",
    "multi_similarity",
    "n_pair",
    "nca",
    "recall_at_k",
    "sigmoid_contrastive",
    "similarity_contrastive",
    "smooth_ap",
    "snr_contrastive",
    "sup_con",
    "triplet",
]
ProxyLoss = Literal[
    "arcface",
    "contrastive_potential",
    "cosface",
    "multi_proxy_anchor",
    "multi_proxy_anchor_ap",
    "multi_proxy_anchor_dw",
    "normalized_softmax",
    "potential_field",
    "proxy_anchor",
    "proxy_nca",
    "proxy_nca_margin",
    "proxy_nca_pp",
    "soft_triple",
    "subcenter_arcface",
]
Loss = PairLoss | ProxyLoss
FIELDS = ("contrastive_potential", "potential_field")
"""Proxy losses that can do without proxies: samples are charges, too."""
Network = Literal[
    "bn_inception",
    "efficientnet_lite0",
    "eps",
    "resnet18",
    "resnet20v2",
    "resnet50",
    "small",
    "vit_s16",
]
Pooling = Literal["average", "average+max", "cubic", "gem", "max", "sum"]
PRETRAINED = ("bn_inception", "efficientnet_lite0", "resnet18", "resnet50", "vit_s16")
"""Networks that `jdml weights convert` makes weights for."""
PAIR_LOSSES: tuple[str, ...] = get_args(PairLoss)
PROXY_LOSSES: tuple[str, ...] = get_args(ProxyLoss)
FOUND = {"potential_field": ("alpha=1.0",)}
"""Settings of a loss that do better than its paper's, as the studies found, with proxies that begin on samples; what is
typed goes before them."""
FOUND_PROXIES = {"potential_field": 3}
"""Proxies per class, where the studies found several to be better than one."""
PROXY_MONITORS = {"potential_field": "field_activity"}
"""What :mod:`jdml.losses` has to be logged beside a proxy loss."""
MONITORED = 4096
"""Proxies at most of which it is: it looks at their pairs, and those of more take as long as the network."""

# Short name -> the miner's builder in jdml.mining, and settings that the short name implies.
MINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "eps": ("easy_positive", {}),
    "easy_positive": ("easy_positive", {}),
    "random_positive": ("random_positive", {}),
    "hard_positive": ("hard_positive", {}),
    "random_negative": ("random_negative", {}),
    "hard_negative": ("hard_negative", {}),
    "semi_hard": ("semi_hard_negative", {}),
    "semi_hard_negative": ("semi_hard_negative", {}),
    "soft_hard": ("soft_hard_pairs", {}),
    "soft_hard_pairs": ("soft_hard_pairs", {}),
    "distance_weighted": ("distance_weighted_negative", {}),
    "distance_weighted_negative": ("distance_weighted_negative", {}),
    "multi_similarity": ("multi_similarity_pairs", {}),
    "multi_similarity_negative": ("multi_similarity_pairs", {"mine_positives": False}),
}


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
        builder, implied = MINERS[name]
        if builder == "distance_weighted_negative":
            implied = {"dim": dim}
        given = parse_settings(settings.split(",") if settings else (), f"--miner {name}")
        try:
            miners.append(getattr(mining, builder)(**{**implied, **given}))
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
