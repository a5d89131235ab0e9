"""Check that a folder holds a data set as it was published: counts, missing files, damaged images, near duplicates."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jdml._optional_imports import MissingLibraryError, require_package
from jdml.data.dataset import Dataset
from jdml.data.images import BadImageError, ImageFiles
from jdml.data.listing import first_few, missing_files, pluralize
from jdml.data.load import IMAGE_FILES, load, read_listing
from jdml.data.rows import list_rows
from jdml.ops import checks
from jdml.registry import DATASETS, Count

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 16
"""A hash has this number of bits squared: the signs of an image's lowest frequencies."""
BITS = 48
"""Images are alike if their hashes differ in at most this number of 256 bits,"""
COLOUR = 12.0
"""and their mean colours by at most this number of 256 steps, unless one of the two is grey."""
GREY, FLAT = 4.0, 1.0
"""Largest deviation of a grey image from grey, and standard deviation of a flat image, whose hash is noise."""
SHARE = 0.2
"""Embeddings are alike if their distance is at most this share of the median distance."""
MEMORY = 64
"""MiB that the distances of some images from all others may take at a time."""
SAMPLE = 1 << 10
"""Rows of which the median distance is taken."""


class Part(NamedTuple):
    """Counts of one split."""

    split: str
    counts: Count
    published: Count | None
    missing: int


class Place(NamedTuple):
    """An image, its part and its label."""

    file: str
    part: str
    label: str

    def __str__(self) -> str:
        """Return file, part and label."""
        return f"{self.file} ({', '.join(filter(None, (self.part, self.label)))})"


class Alike(NamedTuple):
    """Two images that are nearly the same, in two parts or under two labels."""

    first: Place
    second: Place
    distance: float

    def __str__(self) -> str:
        """Return both images."""
        return f"{self.first} ~ {self.second}"


@dataclass(frozen=True)
class Findings:
    """The result of :func:`check`.

    Attributes:
        parts: the splits, as far as the lists could be read.
        decoded: the number of images that were decoded, damaged or not.
        problems: a line for each problem. None means that all is well.
        notes: a line for each other remark.
        alike: images that are nearly the same in two parts or under two labels, if they were searched.
    """

    parts: tuple[Part, ...]
    decoded: int
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    alike: tuple[Alike, ...] = ()

    @property
    def lists_are_whole(self) -> bool:
        """Whether there are published counts, and all of them are met."""
        return bool(self.parts) and all(part.counts == part.published for part in self.parts)


def check(
    name: str,
    data_dir: str | Path | None,
    *,
    sample: int | None = None,
    duplicates: bool | Callable[[Dataset], np.ndarray] = False,
    within: float | None = None,
    progress: bool = False,
) -> Findings:
    """Check that a folder holds a complete data set: its counts, its files, its images.

    Args:
        name: a data set's name, as for ``load``.
        data_dir: its folder.
        sample: decode this number of images, drawn evenly by a fixed seed, instead of all.
        duplicates: also find images that are nearly the same in two parts (train, val, test) or under two labels: by a
            perceptual hash (needs ImageHash), which knows an image that was resized, compressed, made grey or cropped
            by a per cent or two, and not one of another colour; or by a function from images to embeddings ``[N, D]``,
            NaN for those that it cannot read. Each image is compared with the most similar one; 20,000 take some
            ten seconds of a core in addition to decoding.
        within: the largest distance of near duplicates: bits of 256 in which hashes differ, by default 48; the distance
            of embeddings, by default a fifth of the median distance of two images.
        progress: show a progress bar.

    Returns:
        The findings; a list that is missing or damaged is one of the problems.

    Raises:
        ValueError: if there is no data set of that name.
        MissingLibraryError: a library that reads it is not installed, which says nothing of the folder.

    Example:
        >>> findings = check("digits", None)
        >>> findings.parts[1].counts, findings.problems
        (Count(classes=10, images=599), ())
    """
    checks.one_of("name", name, DATASETS)
    if duplicates is True:
        require_package("imagehash", "a search for duplicates by a hash")
    record, is_list = DATASETS[name], name in IMAGE_FILES
    published, counted = record.published, record.counted or record.labellings[0]
    problems: list[str] = []
    arrays = {}
    for part in () if is_list else published:
        try:
            arrays[part] = load(name, data_dir, part).relabel(counted)
        except MissingLibraryError:
            raise
        except (OSError, ValueError) as error:
            problems.append(str(error))
    try:
        listing = read_listing(name, data_dir) if is_list else list_rows(name, arrays)
    except MissingLibraryError:
        raise
    except (OSError, ValueError) as error:
        return Findings((), 0, tuple(problems) or (str(error),))
    view, ids = next(iter(listing.views.items()))
    label = {number: str(number) for number in ids.tolist()} | dict(listing.names.get(view, {}))
    names = [str(file) for file in listing.files]
    gone = set(missing_files(listing.files))
    absent = np.array([name in gone for name in names])
    parts = []
    for split in published or [split for split in listing.splits if split != "all"]:
        members = listing.splits.get(split, np.arange(0))
        missing = int(absent[members].sum())
        parts.append(Part(split, _count(ids[members]), published.get(split), missing))
    notes = [*singleton_classes(ids), *listing.split_notes]
    wrong = [line for part in parts if part.split in listing.splits for line in _wrong_counts(part)]
    (problems if published or listing.own_split else notes).extend(wrong)
    if is_list:
        train, test = (ids[listing.splits.get(split, [])] for split in ("train", "test"))
        both = [label[number] for number in np.intersect1d(train, test).tolist()]
        shared = _describe(both, "class is", "classes are", "in train and in test")
        (notes if listing.own_split else problems).extend(shared)
    (problems if listing.has_unreadable else notes).extend(listing.notes)
    twice = len(names) - len(set(names))
    if twice:
        problems.append(f"{twice} of {len(names)} images are in the lists twice")
    are = f"of {len(names)} image files are"
    problems += _describe([name for name in names if name in gone], are, are, "missing")
    rows = np.flatnonzero(~absent)
    if sample is not None and sample < len(rows):
        rows = rows[np.sort(np.random.default_rng(0).choice(len(rows), sample, replace=False))]
    images = ImageFiles([listing.files[row] for row in rows.tolist()])
    part_of = np.full(len(ids), "", object)
    for split in ("train", "val", "test"):
        part_of[listing.splits.get(split, [])] = split
    places = [Place(names[row], part_of[row], label[ids[row].item()]) for row in rows.tolist()]
    function = perceptual_hash if duplicates is True else lambda image: None
    results: list[Any] = list(images.each(function, progress=progress))
    alike: tuple[Alike, ...] = ()
    if callable(duplicates):
        inputs = images if is_list else np.stack([row.read_bytes() for row in images.files])
        vectors = duplicates(Dataset(name, inputs, np.zeros(len(rows), int)))
        alike = by_embedding(vectors, places, within)
    elif duplicates and places:
        nothing = np.full(SIDE**2 + 2, np.nan)
        hashes = [nothing if isinstance(one, BadImageError) else one for one in results]
        bits, colours = np.split(np.array(hashes, np.float32), [SIDE**2], axis=1)
        limit = np.sqrt((BITS if within is None else within) + 0.5)
        pairs = by_embedding(bits, places, limit, colours)
        alike = tuple(pair._replace(distance=float(round(pair.distance**2))) for pair in pairs)
    what = "nearly the same in two parts or under two labels"
    near = _describe([*map(str, alike)], "pair of images is", "pairs of images are", what)
    apart, together = _describe_copies(images.files.tolist(), places)
    (notes if published else problems).extend([*apart, *near])
    notes += together
    bad = [str(error) for error in results if isinstance(error, BadImageError)]
    are = f"of {len(images)} images are"
    problems += _describe(bad, are, are, "damaged")
    return Findings(tuple(parts), len(images), tuple(problems), tuple(notes), alike)


def _count(labels: np.ndarray) -> Count:
    return Count(len(np.unique(labels)), len(labels))


def count_mismatches(name: str, parts: Mapping[str, Dataset]) -> tuple[str, ...]:
    """Return a line for each split of a data set whose counts are not the published ones."""
    published = DATASETS[name].published if name in DATASETS else {}
    return tuple(
        line
        for split, count in published.items()
        if split in parts
        for line in _wrong_counts(Part(split, _count(parts[split].labels), count, 0))
    )


# Lines of a report


def _wrong_counts(part: Part) -> list[str]:
    """Return a line if counts are not the published ones, or, without such, if there are no two classes."""
    counts, published = part.counts, part.published
    has = f"{part.split} has {pluralize(counts.classes, 'class', 'classes')}"
    if published is None:
        return [f"{has}, at least two are needed"] if counts.classes < 2 else []
    if counts == published:
        return []
    images = pluralize(counts.images, "image", "images")
    return [f"{has} and {images}, published are {published.classes} and {published.images}"]


def _describe(names: Sequence[str], one: str, more: str, what: str) -> tuple[str, ...]:
    """Return a line with the number of names and the first few, if there are any."""
    if not names:
        return ()
    return (f"{pluralize(len(names), one, more)} {what}: {first_few(names)}",)


def singleton_classes(ids: np.ndarray) -> tuple[str, ...]:
    """Return a line if classes have a single image each."""
    classes, counts = np.unique(ids, return_counts=True)
    single = int((counts == 1).sum())
    if not single:
        return ()
    few = f"{single} of {len(classes)} classes have" if single > 1 else "1 class has"
    return (f"{few} a single image, which has no positive",)


def _describe_copies(
    files: Sequence[Any], places: Sequence[Place]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a line for files of the same bytes in two classes or parts, and one for those within a class."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, file in enumerate(files):
        if isinstance(file, Path):
            by_size[file.stat().st_size].append(row)
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for rows in by_size.values():
        for row in rows if len(rows) > 1 else ():
            by_content[sha256(files[row].read_bytes()).digest()].append(row)
    apart: list[str] = []
    together: list[str] = []
    for rows in sorted(rows for rows in by_content.values() if len(rows) > 1):
        is_one_class = len({places[row][1:] for row in rows}) == 1
        line = " = ".join(places[row].file for row in rows)
        (together if is_one_class else apart).append(line)
    return (
        _describe(apart, "image lies", "images lie", "in two classes or parts, as copies"),
        _describe(together, "image has", "images have", "copies in their class"),
    )


# Near duplicates


def perceptual_hash(image: "Image") -> np.ndarray:
    """Return 256 bits, NaN for a flat image, and two numbers for the mean colour, NaN for a grey one."""
    from imagehash import phash

    small = np.asarray(image.convert("YCbCr").resize((SIDE, SIDE)), np.float32)
    bits, colour = phash(image, SIDE).hash.reshape(-1).astype(np.float32), small[..., 1:]
    if small[..., 0].std() <= FLAT:
        bits[:] = np.nan
    is_grey = np.abs(colour - 128).max() <= GREY
    mean = np.full(2, np.nan) if is_grey else colour.mean(axis=(0, 1))
    return np.concatenate([bits, mean])


def by_embedding(
    vectors: np.ndarray,
    places: Sequence[Place],
    within: float | None = None,
    colours: np.ndarray | None = None,
) -> tuple[Alike, ...]:
    """Find for each image the most similar one of another part or label (and of its colour), if it is near enough."""
    require_package("sklearn", "a search for duplicates")
    from scipy.spatial.distance import pdist
    from sklearn.metrics import pairwise_distances_chunked

    finite = np.flatnonzero(np.isfinite(vectors).all(axis=1)).tolist()
    if not finite:
        return ()
    vectors = np.asarray(vectors[finite], np.float32)
    vectors -= vectors.mean(axis=0)
    places = [places[row] for row in finite]
    kind = np.unique([f"{place.part}\n{place.label}" for place in places], return_inverse=True)[1]
    colours = None if colours is None else colours[finite]
    if within is None:
        some = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
        within = SHARE * np.median(pdist(vectors[some])) if len(vectors) > 1 else 0.0

    def nearest_of_another(distances: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(start, start + len(distances))
        distances[kind[rows, None] == kind] = np.inf
        if colours is not None:
            apart = np.square(colours[rows, None] - colours).sum(axis=-1)
            distances[apart > COLOUR**2] = np.inf  # not of grey, NaN
        return distances.min(axis=1), distances.argmin(axis=1)

    chunks = pairwise_distances_chunked(
        vectors, reduce_func=nearest_of_another, working_memory=MEMORY
    )
    distance, nearest = map(np.concatenate, zip(*chunks, strict=True))
    near = np.flatnonzero((distance <= within) & np.isfinite(distance)).tolist()
    pairs = {tuple(sorted((row, int(nearest[row])))): float(distance[row]) for row in near}
    ordered = sorted(pairs.items(), key=lambda pair: pair[::-1])
    return tuple(Alike(places[one], places[other], apart) for (one, other), apart in ordered)
