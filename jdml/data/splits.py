"""Other splits and labels of the same images: by class or by image, folds of classes, parity, label noise."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jdml.data.dataset import as_labels
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
            a class of one image none; ``"none"``: all images train, and none are scored.
        seed: of the draw.
        share: the share that is scored, between 0 and 1; by default half of the classes, a fifth of the images.

    Returns:
        The listing with the splits ``train``, ``test`` and ``all``; without ``test`` for ``"none"``.

    Raises:
        ValueError: another rule or share, or fewer than four classes to split.

    Example:
        >>> ids = np.repeat(np.arange(4), 5)
        >>> listing = Listing("toy", [None] * 20, {"class": ids}, {})
        >>> parts = resplit(listing, "images").splits
        >>> len(parts["train"]), len(parts["test"]), np.unique(ids[parts["test"]]).tolist()
        (16, 4, [0, 1, 2, 3])
    """
    ids = next(iter(listing.views.values()))
    everything = np.arange(len(ids))
    if rule == "none":
        return replace(listing, splits={"train": everything, "all": everything}, split_notes=())
    checks.one_of("rule", rule, ("none", *SHARES))
    share = SHARES[rule] if share is None else share
    checks.open_unit_interval("share", share)
    random = np.random.default_rng(seed)
    classes = np.unique(ids)
    if rule == "classes":
        if len(classes) < 4:
            raise ValueError(
                f"rule 'classes' needs at least 4 classes, got {len(classes)}: rule 'images' scores images of each"
            )
        count = min(max(round(share * len(classes)), 2), len(classes) - 2)
        scored = np.isin(ids, random.permutation(classes)[:count])
    else:
        scored = np.zeros(len(ids), bool)
        for number in classes:
            rows = random.permutation(np.flatnonzero(ids == number))
            scored[rows[: min(max(round(share * len(rows)), 1), len(rows) - 1)]] = True
    return replace(listing, splits=zero_shot(~scored), split_notes=())


def split_by_class_names(listing: Listing, names: Sequence[str]) -> Listing:
    """Split a listing by the names of its classes: these train, all others are scored.

    Args:
        listing: with named classes.
        names: of the classes that train.

    Returns:
        The listing.

    Raises:
        ValueError: a name that no class has.

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
    return replace(listing, splits=zero_shot(trained), split_notes=())


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


def mlrc_folds(
    labels: np.ndarray, folds: int = 4, *, rule: Literal["mlrc", "kfold"] = "mlrc"
) -> list[Fold]:
    """Make the folds of *A Metric Learning Reality Check*: each model trains on 3 of 4 parts of the classes.

    Args:
        labels: ``[N]`` integers, of the training half of the classes only; classes are taken in their order.
        folds: the number of folds, at least 2.
        rule: ``"mlrc"``: fold f trains on the ``round(n (1 − 1/folds))`` classes from ⌊f n / folds⌋ on, around the end,
            and validates on the ⌊n / folds⌋ that follow. So fold 0 validates on the last part, fold 1 on the first.
            ``"kfold"``: fold f validates on the f-th part, as scikit-learn's ``KFold`` does.

    Returns:
        The folds.

    Raises:
        TypeError: if labels are not integers.
        ValueError: if there are fewer than two folds, fewer classes than folds, or another rule is asked for.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*, section 3.

    Example:
        >>> folds = mlrc_folds(np.arange(8))
        >>> [np.flatnonzero(fold.validation).tolist() for fold in folds]
        [[6, 7], [0, 1], [2, 3], [4, 5]]
    """
    labels = as_labels("labels", labels)
    checks.one_of("rule", rule, ("mlrc", "kfold"))
    classes, own = np.unique(labels, return_inverse=True)
    number = len(classes)
    if not 2 <= folds <= number:
        raise ValueError(f"folds must be from 2 to the number of classes, {number}, got {folds}")
    result = []
    for fold in range(folds):
        if rule == "mlrc":
            start, trained = fold * number // folds, round(number * (1 - 1 / folds))
            around = (np.arange(number) + start) % number
            train, validation = around[:trained], around[trained : trained + number // folds]
        else:
            validation = np.array_split(np.arange(number), folds)[fold]
            train = np.setdiff1d(np.arange(number), validation)
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
    random = np.random.default_rng(_seed_words(key))
    rows = random.choice(len(labels), count, replace=False)
    shift = random.integers(1, max(len(classes), 2), count)
    noisy = labels.copy()
    noisy[rows] = classes[(np.searchsorted(classes, labels[rows]) + shift) % len(classes)]
    return noisy


def _seed_words(key: Any) -> list[int]:
    """Return an integer seed, or the words of a JAX key (typed or raw), as a list of integers ≥ 0."""
    if isinstance(key, int | np.integer):
        return [int(key)]
    import jax
    import jax.numpy as jnp

    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    return [int(word) for word in np.asarray(key)]
