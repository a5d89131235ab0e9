"""The miners, one record each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jdml._import_path import resolve
from jdml.ops.checks import check_settings


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


def _records(*miners: Miner) -> dict[str, Miner]:
    return {word: miner for miner in miners for word in miner.words}


MINERS: dict[str, Miner] = _records(
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
"""Every miner by each of its words."""


def miner_builders() -> tuple[str, ...]:
    """Return the names of the functions of :mod:`jdml.mining` that make miners.

    Returns:
        Their names, each once.

    Example:
        >>> miner_builders()[:2]
        ('easy_positive', 'random_positive')
    """
    return tuple(dict.fromkeys(miner.builder for miner in MINERS.values()))
