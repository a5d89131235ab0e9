"""Other splits and labels of the same images: by class or by image, folds of classes, parity, label noise."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jdml.data.dataset import Dataset, as_labels
from jdml.data.listing import Listing, first_few, normalized, read_text, zero_shot
from jdml.ops import checks

Rule = Literal["classes", "images", "none"]
SHARES = {"classes": 0.5, "images": 0.2}
"""The default share of classes or images that is scored."""


def resplit(listing: Listing, rule: Rule, *, seed: int = 0, share: float | None = None) -> Listing:
    """Split a listing again.

    Args:
        listing: of any data set of image files.
        rule: ``"classes"``: some classes are scored, drawn by the seed; ``"images"``: some images of each class are, of
            a class of one image none; ``"none"``: all images train, and none are scored. Of a listing with groups,
            classes that share one stay together, and whole groups are drawn in place of images.
        seed: of the draw.
        share: the share that is scored, between 0 and 1; by default half of the classes, a fifth of the images.

    Returns:
        The listing with the splits ``train``, ``test`` and ``all``; without ``test`` for ``"none"``.

    Raises:
        ValueError: another rule or share, fewer than four classes to split, or groups that leave nothing to score.

    Example:
        >>> ids = np.repeat(np.arange(4), 5)
        >>> listing = Listing("toy", [None] * 20, {"class": ids}, {})
        >>> parts = resplit(listing, "images").splits
        >>> len(parts["train"]), len(parts["test"]), np.unique(ids[parts["test"]]).tolist()
        (16, 4, [0, 1, 2, 3])
    """
    ids, groups = next(iter(listing.views.values())), listing.groups
    everything = np.arange(len(ids))
    notes = listing.split_notes[:1] if groups is not None else ()
    if rule == "none":
        return replace(listing, splits={"train": everything, "all": everything}, split_notes=notes)
    checks.one_of("rule", rule, ("none", *SHARES))
    share = SHARES[rule] if share is None else share
    checks.open_unit_interval("share", share)
    random = np.random.default_rng(seed)
    classes = np.unique(ids)
    if rule == "classes":
        if len(classes) < 4:
            raise ValueError(f"rule must be 'images' for fewer than 4 classes, got {len(classes)}")
        count = min(max(round(share * len(classes)), 2), len(classes) - 2)
        scored = np.isin(ids, _draw_classes(ids, groups, count, random))
    elif groups is not None:
        scored = _draw_groups(ids, groups, share, random)
    else:
        scored = np.zeros(len(ids), bool)
        for number in classes:
            rows = random.permutation(np.flatnonzero(ids == number))
            scored[rows[: min(max(round(share * len(rows)), 1), len(rows) - 1)]] = True
    return replace(listing, splits=zero_shot(~scored), split_notes=notes)


def _draw_classes(
    ids: np.ndarray, groups: np.ndarray | None, count: int, random: np.random.Generator
) -> np.ndarray:
    """Draw about so many classes; those that share a group together."""
    classes, own = np.unique(ids, return_inverse=True)
    if groups is None:
        return random.permutation(classes)[:count]
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of classes and groups: what hangs together is on one side.
    nodes = own, len(classes) + np.unique(groups, return_inverse=True)[1]
    size = int(nodes[1].max()) + 1
    graph = coo_array((np.ones(len(own)), nodes), shape=(size, size))
    joined = connected_components(graph, directed=False)[1][: len(classes)]
    units = random.permutation(np.unique(joined))
    drawn = np.cumsum([(joined == unit).sum() for unit in units])
    nearest = int(np.argmin(np.abs(drawn - count)))
    if not 2 <= drawn[nearest] <= len(classes) - 2:
        raise ValueError(
            "rule 'classes' needs groups of few classes each, these join too many: rule 'images' scores whole groups"
        )
    return classes[np.isin(joined, units[: nearest + 1])]


def _draw_groups(
    ids: np.ndarray, groups: np.ndarray, share: float, random: np.random.Generator
) -> np.ndarray:
    """Draw groups until most classes have their share of scored rows; every class keeps others. Return a mask."""
    own = np.unique(ids, return_inverse=True)[1]
    sizes = np.bincount(own)
    wanted, drawn = np.maximum(np.round(share * sizes), 1), np.zeros(len(sizes), int)
    scored = np.zeros(len(ids), bool)
    for rows in rows_of_groups(groups, random):
        classes, counts = np.unique(own[rows], return_counts=True)
        needed = counts[drawn[classes] < wanted[classes]].sum()
        if 2 * needed > len(rows) and (drawn[classes] + counts < sizes[classes]).all():
            drawn[classes] += counts
            scored[rows] = True
    if not scored.any():
        raise ValueError("groups must leave each class rows of other groups to train on")
    return scored


def rows_of_groups(groups: np.ndarray, random: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of each group, in random order."""
    numbers = np.unique(groups, return_inverse=True)[1]
    rows = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    return [rows[number] for number in random.permutation(len(rows))]


def hold_out(train: Dataset, share: float, seed: int) -> np.ndarray:
    """Draw rows ``[N]`` to hold out, about a share of them; of a data set with groups, whole groups."""
    held_out, count = np.zeros(len(train), bool), round(share * len(train))
    random = np.random.default_rng(seed)
    if train.groups is None:
        held_out[random.permutation(len(train))[:count]] = True
        return held_out
    for rows in rows_of_groups(train.groups, random)[:-1]:
        held_out[rows] = held_out.sum() < count
    return held_out


def read_groups(listing: Listing, groups: Any, root: Path) -> Listing:
    """Split a listing by groups ``[N]``, by its column of such, or by a pattern of the files' paths within a folder."""
    size = len(listing.files)
    if not isinstance(groups, str):
        values = np.asarray(groups)
        if values.shape != (size,) or values.dtype.kind not in "iuUSO":
            raise ValueError(
                f"groups must be [N] = [{size}] names or integers, got {values.dtype} {list(values.shape)}"
            )
        values = values.astype(str) if values.dtype.kind == "O" else values
        return split_by_groups(listing, values[np.argsort(listing.splits["all"])], "")
    if listing.groups is not None:
        return split_by_groups(listing, listing.groups, groups)
    try:
        pattern = re.compile(groups)
    except re.error:
        pattern = None
    if pattern is None or pattern.groups != 1:
        raise ValueError(
            f"groups must be a column of a .csv, or a regular expression with one group in parentheses, got {groups!r}"
        )
    folder = f"{root if root.is_dir() else root.parent}/"
    names = [str(file).replace("\\", "/").removeprefix(folder) for file in listing.files]
    matches = [pattern.search(name) for name in names]
    lone = [name for name, match in zip(names, matches, strict=True) if match is None]
    if lone:
        raise ValueError(
            f"groups {groups!r} matches no part of {len(lone)} of {size} files: {first_few(lone)}"
        )
    return split_by_groups(listing, np.array([match[1] for match in matches if match]), groups)


def split_by_groups(listing: Listing, groups: np.ndarray, name: str) -> Listing:
    """Keep the rows of each group ``[N]`` on one side of the splits; refuse those on both sides of a listing's own."""
    number = f"{len(np.unique(groups))} groups{f' ({name})' if name else ''}, each on one side of the split"
    listing = replace(listing, groups=groups)
    try:
        return replace(_check_groups(listing), split_notes=(number, *listing.split_notes))
    except ValueError:
        if listing.own_split or listing.name != "folder":
            raise
    listing, whole = replace(listing, split_notes=(number,)), listing.splits["all"]
    try:
        listing, how = resplit(listing, "classes"), "half of the classes are"
    except ValueError:
        listing, how = resplit(listing, "images"), "a fifth of the groups is"
    notes = number, f"no train and test parts: {how} for scoring"
    return replace(listing, splits={**listing.splits, "all": whole}, split_notes=notes)


def _check_groups(listing: Listing) -> Listing:
    """Refuse splits that have a group on several sides."""
    if listing.groups is None:
        return listing
    parts = [part for part in ("train", "val", "test") if part in listing.splits]
    sides = [np.unique(listing.groups[listing.splits[part]]) for part in parts]
    groups, counts = np.unique(np.concatenate(sides), return_counts=True)
    crossing = groups[counts > 1].astype(str).tolist()
    if crossing:
        raise ValueError(
            f"groups must be on one side of the split, these are on several: {first_few(crossing)}"
        )
    return listing


def split_by_class_names(listing: Listing, names: Sequence[str]) -> Listing:
    """Split a listing by the names of its classes: these train, all others are scored.

    Args:
        listing: with named classes.
        names: of the classes that train.

    Returns:
        The listing.

    Raises:
        ValueError: a name that no class has, or a group of the listing on both sides.

    Example:
        >>> ids = np.array([0, 0, 1, 1])
        >>> listing = Listing("toy", [None] * 4, {"class": ids}, {}, {"class": {0: "ant", 1: "bee"}})
        >>> split_by_class_names(listing, ["bee"]).splits["train"].tolist()
        [2, 3]
    """
    view, ids = next(iter(listing.views.items()))
    names = [normalized(name) for name in names]
    known = {normalized(name): number for number, name in listing.names.get(view, {}).items()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"names must be classes, {len(unknown)} of {len(names)} are not: {first_few(unknown)}; the classes are "
            f"{first_few(list(known))}"
        )
    trained = np.isin(ids, [known[name] for name in names])
    notes = listing.split_notes[:1] if listing.groups is not None else ()
    return _check_groups(replace(listing, splits=zero_shot(trained), split_notes=notes))


def read_names(path: Path) -> list[str]:
    """Read the names of classes, one on each line."""
    names = [normalized(line.strip()) for line in read_text(path).split("\n")]
    return list(dict.fromkeys(filter(None, names)))


class Fold(NamedTuple):
    """One split of the samples, with no class on both sides.

    Attributes:
        train: ``[N]`` bool.
        validation: ``[N]`` bool.
    """

    train: np.ndarray
    validation: np.ndarray


def mlrc_folds(labels: np.ndarray, folds: int = 4) -> list[Fold]:
    """Make the folds of *A Metric Learning Reality Check*: each model trains on 3 of 4 parts of the classes.

    Fold f trains on the ``round(n (1 − 1/folds))`` classes from ⌊f n / folds⌋ on, around the end, and validates on the
    ⌊n / folds⌋ that follow. So fold 0 validates on the last part, fold 1 on the first.

    Args:
        labels: ``[N]`` integers, of the training half of the classes only; classes are taken in their order.
        folds: the number of folds, at least 2.

    Returns:
        The folds.

    Raises:
        TypeError: if labels are not integers.
        ValueError: if there are fewer than two folds, or fewer classes than folds.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*, section 3.

    Example:
        >>> folds = mlrc_folds(np.arange(8))
        >>> [np.flatnonzero(fold.validation).tolist() for fold in folds]
        [[6, 7], [0, 1], [2, 3], [4, 5]]
    """
    labels = as_labels("labels", labels)
    classes, own = np.unique(labels, return_inverse=True)
    number = len(classes)
    if not 2 <= folds <= number:
        raise ValueError(f"folds must be from 2 to the number of classes, {number}, got {folds}")
    trained, held_out, result = round(number * (1 - 1 / folds)), number // folds, []
    for fold in range(folds):
        around = (np.arange(number) + fold * number // folds) % number
        train, validation = around[:trained], around[trained : trained + held_out]
        result.append(Fold(np.isin(own, train), np.isin(own, validation)))
    return result


def parity_labels(digits: np.ndarray) -> np.ndarray:
    """Label digits even (0) or odd (1): the two-class problem of the EPS paper, whose classes have many modes.

    Args:
        digits: integers ≥ 0, ``[N]``.

    Returns:
        ``digits mod 2``, int32 ``[N]``.

    Raises:
        TypeError: if ``digits`` are not integers.
        ValueError: if a digit is negative, or the shape is not ``[N]``.

    Reference:
        Levi, Xiao, Wang, Darrell. Rethinking preventing class-collapsing in metric learning with
        margin-based losses. ICCV 2021 (its even/odd study of MNIST).

    Example:
        >>> print(parity_labels(np.array([0, 3, 8, 9])))
        [0 1 0 1]
    """
    return as_labels("digits", digits) % 2


def corrupt_labels(
    labels: np.ndarray, fraction: float, key: Any, num_classes: int | None = None
) -> np.ndarray:
    """Replace labels symmetrically: exactly ``round(fraction · N)`` samples get a wrong label.

    The samples are drawn without replacement, and the new label of each uniformly from the other classes.

    Args:
        labels: integers ≥ 0, ``[N]``.
        fraction: share of the samples to corrupt, 0…1.
        key: a JAX key, or an integer seed ≥ 0. The same key gives the same noise.
        num_classes: the wrong labels are from 0…num_classes − 1; by default from those in ``labels``.

    Returns:
        The noisy labels, int32 ``[N]``, a new array.

    Raises:
        TypeError: if ``labels`` are not integers.
        ValueError: if ``fraction`` is not in 0…1, or there is no second class.

    Implementation notes:
        NumPy's generator draws, seeded with the key's words: nothing runs on a device.

    Paper settings:
        PFML corrupts 20 % of the training labels.

    Example:
        >>> clean = np.arange(10) % 3
        >>> noisy = corrupt_labels(clean, 0.2, key=0)
        >>> int((noisy != clean).sum())
        2
    """
    labels = as_labels("labels", labels)
    checks.unit_interval("fraction", fraction)
    classes = np.unique(labels) if num_classes is None else np.arange(num_classes, dtype=np.int32)
    count = round(fraction * len(labels))
    if count and len(classes) < 2:
        raise ValueError(f"labels must be of at least 2 classes, got {len(classes)}")
    is_seed = isinstance(key, int | np.integer)
    random = np.random.default_rng(key if is_seed else np.asarray(jax.random.key_data(key)))
    rows = random.choice(len(labels), count, replace=False)
    shift = random.integers(1, max(len(classes), 2), count)
    noisy = labels.copy()
    noisy[rows] = classes[(np.searchsorted(classes, labels[rows]) + shift) % len(classes)]
    return noisy
