"""The losses and the miners, one record each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jdml._optional_imports import resolve
from jdml.ops.checks import check_settings


@dataclass(frozen=True)
class Loss:
    """A loss of embeddings and labels.

    Attributes:
        name: the loss's name; the function is ``{name}_loss``.
        kind: "pair", which compares samples with each other, or "proxy", with learned proxies of the classes.
        module: the module of :mod:`jdml.losses` with its formula, or a pointer to a function of another package.
        proxies: the default number of proxies per class: its paper's or a study's. Above 1, they are ``[C, K, D]``.
        needs_proxies: False of a field, whose samples are charges, too.
        start: the initial proxies: drawn at random, or on samples of their class.
        per_class: its settings that may have a number for each class.
        monitor: the function of :mod:`jdml.losses` that is logged with it.
    """

    name: str
    kind: Literal["pair", "proxy"]
    module: str
    proxies: int = 1
    needs_proxies: bool = True
    start: Literal["random", "samples"] = "random"
    per_class: tuple[str, ...] = ()
    monitor: str | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The loss itself, such as :func:`jdml.losses.triplet_loss`."""
        own = f"jdml.losses.{self.module}:{self.name}_loss"
        return resolve(self.module if ":" in self.module else own)


_LOSSES = (
    Loss("circle", "pair", "tuples"),
    Loss("contrastive", "pair", "pairs"),
    Loss("fast_ap", "pair", "ranking"),
    Loss("info_nce", "pair", "contrastive"),
    Loss("lifted_structure", "pair", "tuples"),
    Loss("margin", "pair", "pairs", per_class=("beta",)),
    Loss("multi_similarity", "pair", "pairs"),
    Loss("n_pair", "pair", "tuples"),
    Loss("nca", "pair", "contrastive"),
    Loss("recall_at_k", "pair", "ranking"),
    Loss("sigmoid_contrastive", "pair", "contrastive"),
    Loss("similarity_contrastive", "pair", "pairs"),
    Loss("smooth_ap", "pair", "ranking"),
    Loss("snr_contrastive", "pair", "tuples"),
    Loss("sup_con", "pair", "contrastive"),
    Loss("triplet", "pair", "pairs"),
    Loss("arcface", "proxy", "softmax"),
    Loss("contrastive_potential", "proxy", "potential", proxies=3, needs_proxies=False),
    Loss("cosface", "proxy", "softmax"),
    Loss("multi_proxy_anchor", "proxy", "multi_proxy", proxies=10),
    Loss("multi_proxy_anchor_ap", "proxy", "multi_proxy", proxies=10),
    Loss("multi_proxy_anchor_dw", "proxy", "multi_proxy", proxies=10),
    Loss("normalized_softmax", "proxy", "softmax"),
    Loss(
        "potential_field",
        "proxy",
        "potential",
        proxies=3,
        needs_proxies=False,
        start="samples",
        monitor="field_activity",
    ),
    Loss("proxy_anchor", "proxy", "proxies"),
    Loss("proxy_nca", "proxy", "proxies"),
    Loss("proxy_nca_margin", "proxy", "proxies"),
    Loss("proxy_nca_pp", "proxy", "proxies"),
    Loss("soft_triple", "proxy", "proxies", proxies=10),
    Loss("subcenter_arcface", "proxy", "softmax", proxies=3, per_class=("margin",)),
)
LOSSES: dict[str, Loss] = {loss.name: loss for loss in _LOSSES}
"""Every loss by its name, those of pairs first."""

REGULARIZERS: tuple[str, ...] = ("center_regularizer", "nir_loss")
"""Functions of :mod:`jdml.losses` that are added to a proxy loss: of proxies, of a flow's latents."""

CONDITIONING: Literal["dense"] = "dense"
"""The place where the condition enters a flow of :mod:`jdml.flows`, unless another is given: every block."""


def pair_losses() -> tuple[str, ...]:
    """Return the names of the losses that compare samples with each other.

    Returns:
        Their names, sorted.

    Example:
        >>> "triplet" in pair_losses()
        True
    """
    return tuple(name for name, loss in LOSSES.items() if loss.kind == "pair")


def proxy_losses() -> tuple[str, ...]:
    """Return the names of the losses that compare samples with learned proxies.

    Returns:
        Their names, sorted.

    Example:
        >>> "proxy_anchor" in proxy_losses()
        True
    """
    return tuple(name for name, loss in LOSSES.items() if loss.kind == "proxy")


@dataclass(frozen=True)
class Miner:
    """A rule that chooses the pairs of a pair loss.

    Attributes:
        builder: the function of :mod:`jdml.mining` that makes it, or a pointer to one of another package.
        words: its names on the command line.
        settings: the settings that these words imply.
        needs_dim: whether the builder needs the embeddings' dimension, ``dim=``.
    """

    builder: str
    words: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_dim: bool = False

    def build(self, dim: int, **settings: Any) -> Callable[..., Any]:
        """Make the miner, with the implied settings and others.

        Args:
            dim: the embeddings' dimension.
            **settings: the builder's own.

        Returns:
            The miner.

        Raises:
            TypeError: if the builder has no such setting.

        Example:
            >>> MINERS["eps"].build(dim=64) == MINERS["easy_positive"].build(dim=2)
            True
        """
        pointer = self.builder if ":" in self.builder else f"jdml.mining:{self.builder}"
        builder: Callable[..., Callable[..., Any]] = resolve(pointer)
        check_settings(builder, settings)
        own = {"dim": dim} if self.needs_dim else {}
        return builder(**{**own, **self.settings, **settings})


_MINERS = (
    Miner("easy_positive", ("eps", "easy_positive")),
    Miner("random_positive", ("random_positive",)),
    Miner("hard_positive", ("hard_positive",)),
    Miner("random_negative", ("random_negative",)),
    Miner("hard_negative", ("hard_negative",)),
    Miner("semi_hard_negative", ("semi_hard", "semi_hard_negative")),
    Miner("soft_hard_pairs", ("soft_hard", "soft_hard_pairs")),
    Miner(
        "distance_weighted_negative",
        ("distance_weighted", "distance_weighted_negative"),
        needs_dim=True,
    ),
    Miner("multi_similarity_pairs", ("multi_similarity",)),
    Miner("trusted_negative", ("trusted_negative",)),
    Miner("multi_similarity_pairs", ("multi_similarity_negative",), {"mine_positives": False}),
)
MINERS = {word: miner for miner in _MINERS for word in miner.words}
"""Every miner by each of its words."""
