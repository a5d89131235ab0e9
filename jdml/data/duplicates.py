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
COLOUR = 12.0
"""And whose mean colours differ by no more than so many of 256 steps, where none of the two is grey."""
GREY, FLAT = 4.0, 1.0
"""Grey is what has no more colour anywhere, and flat what varies no more in brightness: a hash of it says nothing."""
SHARE = 0.2
"""And embeddings no farther apart than this share of the median distance."""
BLOCK = 1 << 10, 1 << 13
"""Rows that are compared at a time, and with how many."""
SAMPLE = 1 << 10
"""Rows of which the median distance is taken."""


class Place(NamedTuple):
    """An image, and where it stands."""

    file: str
    part: str
    label: str

    def __str__(self) -> str:
        """As a message tells it."""
        return f"{self.file} ({', '.join(filter(None, (self.part, self.label)))})"


class Alike(NamedTuple):
    """Two images that are nearly the same, in two parts or under two labels."""

    first: Place
    second: Place
    distance: float

    def __str__(self) -> str:
        """As a message tells it."""
        return f"{self.first} ~ {self.second}"


class Hash(NamedTuple):
    """What remains of an image that is made smaller, compressed or slightly cropped."""

    bits: np.ndarray
    colour: np.ndarray


def perceptual_hash(image: "Image") -> Hash | None:
    """What remains of an image; None of one that is flat."""
    from imagehash import phash

    small = np.asarray(image.convert("YCbCr").resize((SIDE, SIDE)), np.float32)
    if small[..., 0].std() <= FLAT:
        return None
    bits, colours = phash(image, SIDE).hash, small[..., 1:]
    grey = np.abs(colours - 128).max() <= GREY
    colour = np.full(2, np.nan) if grey else colours.mean(axis=(0, 1))
    return Hash(bits.reshape(-1).astype(np.float32), colour)


def by_hash(
    hashes: Sequence[Hash | None], places: Sequence[Place], within: float | None = None
) -> tuple[Alike, ...]:
    """Find images that are alike by their hashes."""
    none = Hash(np.full(SIDE**2, np.nan), np.full(2, np.nan))
    seen = [none if one is None else one for one in hashes] or [none]
    bits, colours = (np.array(parts, np.float32) for parts in zip(*seen, strict=True))
    limit = np.sqrt((BITS if within is None else within) + 0.5)
    return tuple(
        Alike(places[one], places[other], float(round(distance**2)))
        for one, other, distance in _couples(bits, places, limit, colours)
    )


def by_embedding(
    vectors: np.ndarray,
    places: Sequence[Place],
    within: float | None = None,
    *,
    block: tuple[int, int] = BLOCK,
) -> tuple[Alike, ...]:
    """Find for each image the one of another part or label that is most like it, if it is near enough."""
    found = _couples(vectors, places, within, block=block)
    return tuple(Alike(places[one], places[other], distance) for one, other, distance in found)


def _couples(
    vectors: np.ndarray,
    places: Sequence[Place],
    within: float | None,
    colours: np.ndarray | None = None,
    block: tuple[int, int] = BLOCK,
) -> list[tuple[int, int, float]]:
    """Couples of rows, of one colour where there are colours, and how far apart they are."""
    there = np.flatnonzero(np.isfinite(vectors).all(axis=1)).tolist()
    if not there:
        return []
    vectors = np.asarray(vectors[there], np.float32)
    vectors -= vectors.mean(axis=0)
    kinds = [(places[row].part, places[row].label) for row in there]
    number = {kind: turn for turn, kind in enumerate(dict.fromkeys(kinds))}
    kind = np.array([number[one] for one in kinds])
    colours = None if colours is None else colours[there]
    nearest = _nearest_of_another(vectors, kind, colours, block)
    apart = np.linalg.norm(vectors - vectors[nearest], axis=1)
    within = SHARE * _median_distance(vectors) if within is None else within
    near = np.flatnonzero((apart <= within) & (kind != kind[nearest]))
    couples = {tuple(sorted((row, int(nearest[row])))): float(apart[row]) for row in near.tolist()}
    return [
        (there[one], there[other], distance)
        for (one, other), distance in sorted(couples.items(), key=lambda couple: couple[::-1])
    ]


def _nearest_of_another(
    vectors: np.ndarray, kind: np.ndarray, colours: np.ndarray | None, block: tuple[int, int]
) -> np.ndarray:
    """The row that is nearest to each of those of another kind and its colour; itself where there are none."""
    half = 0.5 * np.square(vectors).sum(axis=1)
    nearest = np.arange(len(vectors))
    closest = np.full(len(vectors), -np.inf, np.float32)
    for start in range(0, len(vectors), block[0]):
        rows = slice(start, start + block[0])
        for begin in range(0, len(vectors), block[1]):
            columns = slice(begin, begin + block[1])
            scores = vectors[rows] @ vectors[columns].T - half[columns]
            scores[kind[rows, None] == kind[columns]] = -np.inf
            if colours is not None:
                apart = colours[rows, None] - colours[columns]
                scores[np.square(apart).sum(axis=-1) > COLOUR**2] = -np.inf  # not so of grey, NaN
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
