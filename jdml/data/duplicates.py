"""Images that are alike where none should be: in two parts of a data set, or under two labels."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 16
"""A hash has so many bits squared: the signs of an image's lowest frequencies."""
BITS = 48
"""Images are alike whose hashes differ in no more of 256 bits."""
SHARE = 0.2
"""And embeddings no farther apart than this share of the median distance."""
ROWS, COLUMNS = 1 << 10, 1 << 13
"""Rows that are compared at a time, and with how many."""
SAMPLE = 1 << 10
"""Rows of which the median distance is taken."""


class Place(NamedTuple):
    """An image, and where it stands.

    Attributes:
        file: what it is called.
        part: of the data set; ``""`` where it has no parts of its own.
        label: its class.
    """

    file: str
    part: str
    label: str

    def __str__(self) -> str:
        """As a message tells it."""
        return f"{self.file} ({', '.join(filter(None, (self.part, self.label)))})"


class Alike(NamedTuple):
    """Two images that are nearly the same, in two parts or under two labels.

    Attributes:
        first: of the two.
        second: the other.
        distance: bits of 256 in which their hashes differ, or the distance of their embeddings.
    """

    first: Place
    second: Place
    distance: float

    def __str__(self) -> str:
        """As a message tells it."""
        return f"{self.first} ~ {self.second}"


def perceptual_hash(image: "Image") -> np.ndarray:
    """What remains of an image that is made smaller, compressed or slightly cropped: bits ``[256]``, as 0 and 1."""
    from imagehash import phash

    bits: np.ndarray = phash(image, SIDE).hash
    return bits.reshape(-1).astype(np.float32)


def by_hash(
    hashes: Sequence[np.ndarray | None], places: Sequence[Place], within: float | None = None
) -> tuple[Alike, ...]:
    """Find images that are alike by their hashes.

    Args:
        hashes: N of :func:`perceptual_hash`; None for an image that has none.
        places: N.
        within: in how many bits two differ at most; None: 48.

    Returns:
        As :func:`by_embedding`, with bits for distances.
    """
    none = np.full(SIDE**2, np.nan)
    bits = np.array([none if one is None else one for one in hashes], np.float32)
    found = by_embedding(bits, places, np.sqrt((BITS if within is None else within) + 0.5))
    return tuple(couple._replace(distance=float(round(couple.distance**2))) for couple in found)


def by_embedding(
    vectors: np.ndarray, places: Sequence[Place], within: float | None = None
) -> tuple[Alike, ...]:
    """Find for each image the one of another part or label that is most like it, if it is near enough.

    Args:
        vectors: ``[N, D]``, NaN for an image that has none.
        places: N.
        within: how far apart two are at most; None: a fifth of the median distance of two images.

    Returns:
        Each couple once, the nearest first.
    """
    there = np.flatnonzero(np.isfinite(vectors).all(axis=1)).tolist()
    if not there:
        return ()
    vectors = np.asarray(vectors[there], np.float32)
    vectors -= vectors.mean(axis=0)
    kinds = [(places[row].part, places[row].label) for row in there]
    number = {kind: turn for turn, kind in enumerate(dict.fromkeys(kinds))}
    kind = np.array([number[one] for one in kinds])
    nearest = _nearest_of_another(vectors, kind)
    apart = np.linalg.norm(vectors - vectors[nearest], axis=1)
    within = SHARE * _median_distance(vectors) if within is None else within
    near = np.flatnonzero((apart <= within) & (kind != kind[nearest]))
    couples = {tuple(sorted((row, int(nearest[row])))): float(apart[row]) for row in near.tolist()}
    return tuple(
        Alike(places[there[one]], places[there[other]], distance)
        for (one, other), distance in sorted(couples.items(), key=lambda couple: couple[::-1])
    )


def _nearest_of_another(vectors: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """The row that is nearest to each of those of another kind; any where there are none."""
    half = 0.5 * np.square(vectors).sum(axis=1)
    nearest = np.zeros(len(vectors), int)
    closest = np.full(len(vectors), -np.inf, np.float32)
    for start in range(0, len(vectors), ROWS):
        rows = slice(start, start + ROWS)
        for begin in range(0, len(vectors), COLUMNS):
            columns = slice(begin, begin + COLUMNS)
            scores = vectors[rows] @ vectors[columns].T - half[columns]
            scores[kind[rows, None] == kind[columns]] = -np.inf
            best = scores.argmax(axis=1)
            score = np.take_along_axis(scores, best[:, None], axis=1)[:, 0]
            better = score > closest[rows]
            nearest[rows][better] = best[better] + begin
            closest[rows][better] = score[better]
    return nearest


def _median_distance(vectors: np.ndarray) -> Any:
    from scipy.spatial.distance import pdist

    some = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
    return np.median(pdist(vectors[some])) if len(vectors) > 1 else 0.0
