"""Whether a folder holds a data set as it was published: counts, missing files, whole images."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jdml._optional_imports import MissingLibraryError, require_package
from jdml.data.dataset import Dataset
from jdml.data.duplicates import Alike, Place, by_embedding, by_hash, perceptual_hash
from jdml.data.image_discovery import copies, pluralize
from jdml.data.images import BadImageError, ImageFiles
from jdml.data.listing import Listing, first, missing
from jdml.data.loading import IMAGE_FILES, load, read_listing
from jdml.data.rows import images_of
from jdml.registry import DATASETS, Count

Embed = Callable[[Dataset], np.ndarray]
"""From images to embeddings ``[N, D]``, NaN for those that cannot be read."""


class Part(NamedTuple):
    """What was found of one split."""

    split: str
    found: Count
    published: Count | None
    missing: int


@dataclass(frozen=True)
class Findings:
    """What :func:`check` found.

    Attributes:
        parts: the splits, as far as the lists could be read.
        decoded: how many images were decoded, whole or not.
        problems: what is wrong, a line each. None means that all is well.
        notes: what is worth knowing, a line each.
        alike: images that are nearly the same in two parts or under two labels, where they were looked for.
    """

    parts: tuple[Part, ...]
    decoded: int
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    alike: tuple[Alike, ...] = ()

    @property
    def lists_are_whole(self) -> bool:
        """Whether there are published counts, and all of them are met."""
        return bool(self.parts) and all(part.found == part.published for part in self.parts)


def check(
    name: str,
    data_dir: str | Path | None,
    *,
    sample: int | None = None,
    duplicates: bool | Embed = False,
    within: float | None = None,
    progress: bool = False,
) -> Findings:
    """Look whether a folder holds a data set whole: its counts, its files, its images.

    Args:
        name: a data set's name, as for ``load``.
        data_dir: its folder.
        sample: decode so many images, drawn evenly by a fixed seed, instead of all.
        duplicates: also find images that are nearly the same in two parts (train, val, test) or under two labels: by a
            perceptual hash (needs ImageHash), which knows an image that was resized, compressed, made grey or cropped
            by a per cent or two, and not one of another colour; or by a function from images to embeddings ``[N, D]``,
            NaN for those that it cannot read. Of each image the most alike is looked at; 20,000 take 4 seconds of a
            core beside decoding, and memory for their vectors.
        within: how near they are: bits of 256 in which hashes differ, by default 48; the distance of embeddings, by
            default a fifth of the median distance of two images.
        progress: show a progress bar.

    Returns:
        What was found; a list that is missing or broken is one of its problems.

    Raises:
        ValueError: if there is no data set of that name, no image is to be drawn, or ``within`` is below 0.
        MissingLibraryError: a library that reads it is not installed, which says nothing of the folder.

    Example:
        >>> findings = check("digits", None)
        >>> findings.parts[1].found, findings.problems
        (Count(classes=10, images=599), ())
    """
    if name not in DATASETS:
        raise ValueError(f"name must be one of {tuple(DATASETS)}, got {name!r}")
    if sample is not None and sample < 1:
        raise ValueError(f"sample must be at least 1, got {sample}")
    if within is not None and not within >= 0:
        raise ValueError(f"within must be at least 0, got {within}")
    if duplicates is True:
        require_package("imagehash", "a search for duplicates by a hash")
    if name not in IMAGE_FILES:
        return _check_arrays(name, data_dir, duplicates, within)
    try:
        listing = read_listing(name, data_dir)
    except MissingLibraryError:
        raise
    except (OSError, ValueError) as error:
        return Findings((), 0, (str(error),))
    return _check_listing(listing, sample, duplicates, within, progress)


def _check_arrays(
    name: str, data_dir: str | Path | None, duplicates: bool | Embed, within: float | None
) -> Findings:
    """A data set in memory: reading it decodes everything."""
    parts, problems, loaded = [], [], {}
    unread = Count(0, 0)
    record = DATASETS[name]
    for split, published in record.published.items():
        try:
            data: Dataset = load(name, data_dir=data_dir, split=split)
            loaded[split] = data.relabel(record.counted) if record.counted else data
            count = Count(len(np.unique(loaded[split].labels)), len(data))
        except MissingLibraryError:
            raise
        except (OSError, ValueError) as error:
            problems.append(str(error))
            count = unread
        parts.append(Part(split, count, published, 0))
    decoded = sum(part.found.images for part in parts)
    problems += _other_counts([part for part in parts if part.found != unread])
    alike = _alike_arrays(loaded, duplicates, within) if duplicates and loaded else ()
    told = tuple(dict.fromkeys(problems))
    return Findings(tuple(parts), decoded, told, _say_alike(alike), alike)


def _alike_arrays(
    parts: Mapping[str, Dataset], duplicates: bool | Embed, within: float | None
) -> tuple[Alike, ...]:
    """Images in memory that are nearly the same in two parts or under two labels."""
    files: list[Any] = []
    places = []
    for split, data in parts.items():
        own, (labels, known) = images_of(data, split)
        files += own
        names = labels if known is None else np.array(known)[labels]
        places += [
            Place(str(file), split, str(label)) for file, label in zip(own, names, strict=True)
        ]
    images, labels = (
        np.concatenate([getattr(data, field) for data in parts.values()])
        for field in ("images", "labels")
    )
    seen = ImageFiles(files).each(perceptual_hash) if duplicates is True else ()
    return _alike(Dataset("all", images, labels), seen, places, duplicates, within)


def _alike(
    data: Dataset,
    seen: Iterable[Any],
    places: Sequence[Place],
    duplicates: bool | Embed,
    within: float | None,
) -> tuple[Alike, ...]:
    """Images that are nearly the same, by what was seen of them or by their embeddings."""
    if callable(duplicates):
        return by_embedding(duplicates(data), places, within)
    hashes = [None if isinstance(one, BadImageError) else one for one in seen]
    return by_hash(hashes, places, within) if duplicates else ()


def _check_listing(
    listing: Listing,
    sample: int | None,
    duplicates: bool | Embed,
    within: float | None,
    progress: bool,
) -> Findings:
    """A data set of image files."""
    published = DATASETS[listing.name].published
    ids = next(iter(listing.views.values()))
    gone = set(missing(listing.files))
    parts = []
    for split in published or [name for name in listing.splits if name != "all"]:
        rows = listing.splits[split]
        count = Count(len(np.unique(ids[rows])), len(rows))
        absent = sum(str(listing.files[row]) in gone for row in rows)
        parts.append(Part(split, count, published.get(split), absent))
    few = _few_classes(parts)
    fatal = listing.own_split or any(part.found.classes == 0 for part in parts)
    problems = [*_other_counts(parts), *(few if fatal else ())]
    told = () if listing.unread else listing.notes
    notes = [*singleton_classes(ids), *(() if fatal else few), *listing.split_notes, *told]
    (notes if listing.own_split else problems).extend(_shared_classes(listing, ids))
    problems += listing.notes if listing.unread else ()
    names = [str(file) for file in listing.files]
    twice = len(names) - len(set(names))
    if twice:
        problems.append(f"{twice} of {len(names)} images are in the lists twice")
    if gone:
        listed = [name for name in names if name in gone]
        problems.append(f"{len(listed)} of {len(names)} image files are missing: {first(listed)}")
    there = np.flatnonzero([name not in gone for name in names])
    rows = there
    if sample is not None and sample < len(there):
        rows = there[np.sort(np.random.default_rng(0).choice(len(there), sample, replace=False))]
    images = ImageFiles([listing.files[row] for row in rows])
    places = _places(listing, ids, rows)
    apart, together = _copies(list(images.files), places)
    seen = list(
        images.each(
            perceptual_hash if duplicates is True else lambda image: None, progress=progress
        )
    )
    numbers = np.unique(ids[rows], return_inverse=True)[1].reshape(-1)
    alike = _alike(Dataset(listing.name, images, numbers), seen, places, duplicates, within)
    (notes if published else problems).extend([*apart, *_say_alike(alike)])
    notes += together
    bad = [str(error) for error in seen if isinstance(error, BadImageError)]
    if bad:
        problems.append(f"{len(bad)} of {len(images)} images are damaged: {first(bad)}")
    return Findings(tuple(parts), len(images), tuple(problems), tuple(notes), alike)


def _say_alike(alike: Sequence[Alike]) -> tuple[str, ...]:
    """A line if images are nearly the same."""
    if not alike:
        return ()
    couples = pluralize(len(alike), "couple of images is", "couples of images are")
    listed = first([str(couple) for couple in alike])
    return (f"{couples} nearly the same in two parts or under two labels: {listed}",)


def _places(listing: Listing, ids: np.ndarray, rows: np.ndarray) -> list[Place]:
    """Where images stand: their parts and labels."""
    part = np.full(len(ids), "", object)
    for split in ("train", "val", "test"):
        part[listing.splits.get(split, [])] = split
    named = next(iter(listing.names.values()), {})
    labels = [str(named.get(label, label)) for label in ids[rows].tolist()]
    files = [str(listing.files[row]) for row in rows]
    return [Place(*place) for place in zip(files, part[rows], labels, strict=True)]


def count_mismatches(name: str, parts: Mapping[str, Dataset]) -> tuple[str, ...]:
    """A line for each split of a data set whose counts are not the published ones."""
    published = DATASETS[name].published if name in DATASETS else {}
    return _other_counts(
        [
            Part(split, Count(len(np.unique(part.labels)), len(part)), published.get(split), 0)
            for split, part in parts.items()
        ]
    )


def _other_counts(parts: Sequence[Part]) -> tuple[str, ...]:
    """A line for each split whose counts are not the published ones."""
    return tuple(
        f"{part.split} has {pluralize(part.found.classes, 'class', 'classes')} and "
        f"{pluralize(part.found.images, 'image', 'images')}, "
        f"published are {part.published.classes} and {part.published.images}"
        for part in parts
        if part.published is not None and part.found != part.published
    )


def singleton_classes(ids: np.ndarray) -> tuple[str, ...]:
    """A line if classes have a single image each."""
    classes, counts = np.unique(ids, return_counts=True)
    single = int((counts == 1).sum())
    if not single:
        return ()
    few = f"{single} of {len(classes)} classes have" if single > 1 else "1 class has"
    return (f"{few} a single image: it has no positive to learn from, and none to be found by",)


def _few_classes(parts: Sequence[Part]) -> tuple[str, ...]:
    """A line for each split of fewer than two classes, where no published count tells."""
    return tuple(
        f"{part.split} has {part.found.classes or 'no'} class{'es' * (part.found.classes != 1)}: expected two folders "
        "of images at least, one for each class"
        for part in parts
        if part.published is None and part.found.classes < 2
    )


def _shared_classes(listing: Listing, ids: np.ndarray) -> tuple[str, ...]:
    """A line if a class trains and tests."""
    if not {"train", "test"} <= listing.splits.keys():
        return ()
    shared = np.intersect1d(ids[listing.splits["train"]], ids[listing.splits["test"]])
    if not len(shared):
        return ()
    named = next(iter(listing.names.values()), {})
    names = first([str(named.get(i, i)) for i in shared.tolist()])
    both = pluralize(len(shared), "class is", "classes are")
    return (f"{both} both in train and in test: {names}",)


def _copies(
    files: Sequence[Any], places: Sequence[Place]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A line for files of the same bytes in two classes or parts, and one for those within a class."""
    lines: dict[bool, list[str]] = {False: [], True: []}
    for twins in copies(files):
        lines[len({places[row][1:] for row in twins}) == 1].append(
            " = ".join(places[row].file for row in twins)
        )
    apart, together = lines[False], lines[True]
    lie = pluralize(len(apart), "image lies", "images lie")
    have = pluralize(len(together), "image has", "images have")
    return (
        (f"{lie} in two classes or parts, as copies: {first(apart)}",) * bool(apart),
        (f"{have} copies in their class: {first(together)}",) * bool(together),
    )
