"""Splits of one's own: which images train and which are scored; folds for choosing settings without test classes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from jdml.data.dataset import as_labels
from jdml.data.listing import Listing, first, in_one_form, zero_shot

Rule = Literal["classes", "images", "none"]
SHARES = {"classes": 0.5, "images": 0.2}
"""How much is scored."""


def resplit(listing: Listing, rule: Rule, *, seed: int = 0, share: float | None = None) -> Listing:
    """Split a listing anew.

    Args:
        listing: of any data set of image files.
        rule: ``"classes"``: some of the classes are scored, drawn by the seed; ``"images"``: some images of each class,
            of a class of one image none; ``"none"``: all images train, and nothing is left to score.
        seed: of what is drawn.
        share: how much is scored, between 0 and 1; by default half of the classes, a fifth of the images.

    Returns:
        The listing with the splits ``train``, ``test`` and ``all``; without ``test`` for ``"none"``.

    Raises:
        ValueError: another rule or share, or fewer than two classes on a side.

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
    if rule not in SHARES:
        raise ValueError(f"rule must be classes, images or none, got {rule!r}")
    share = SHARES[rule] if share is None else share
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    random = np.random.default_rng(seed)
    classes = np.unique(ids)
    if rule == "classes":
        if len(classes) < 4:
            raise ValueError(
                f"two classes must train and two be scored: {len(classes)} are too few for rule 'classes' "
                "(rule 'images' holds out images of each)"
            )
        count = min(max(round(share * len(classes)), 2), len(classes) - 2)
        scored = np.isin(ids, random.permutation(classes)[:count])
    else:
        scored = np.zeros(len(ids), bool)
        for number in classes:
            rows = random.permutation(np.flatnonzero(ids == number))
            scored[rows[: min(max(round(share * len(rows)), 1), len(rows) - 1)]] = True
    return replace(listing, splits=zero_shot(~scored), split_notes=())


def train_on(listing: Listing, names: Sequence[str]) -> Listing:
    """Split a listing by the names of its classes: these train, all others are scored.

    Args:
        listing: with named classes.
        names: of the classes that train.

    Returns:
        The listing.

    Raises:
        ValueError: a name that no class has, or no class left to score.

    Example:
        >>> ids = np.array([0, 0, 1, 1])
        >>> listing = Listing("toy", [None] * 4, {"class": ids}, {}, {"class": {0: "ant", 1: "bee"}})
        >>> train_on(listing, ["bee"]).splits["train"].tolist()
        [2, 3]
    """
    view, ids = next(iter(listing.views.items()))
    names = [in_one_form(name) for name in names]
    known = {in_one_form(name): number for number, name in listing.names.get(view, {}).items()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of {len(names)} are no classes: {first(unknown)}; there are {first(list(known))}"
        )
    trained = np.isin(ids, [known[name] for name in names])
    return replace(listing, splits=zero_shot(trained), split_notes=())


def read_names(path: Path) -> list[str]:
    """Read names, one on each line."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text: {error}") from error
    names: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        name = in_one_form(line.strip())
        if name in names:
            raise ValueError(f"{path}:{number}: {name} is there twice")
        if name:
            names[name] = number
    if not names:
        raise ValueError(f"{path}: expected names of classes, one a line, got none")
    return list(names)


class Fold(NamedTuple):
    """One split of the samples, no class on both sides.

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
        labels: ``[N]`` integers, of the training half of the classes only. Their order is that of the numbers.
        folds: how many, at least 2.
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
    classes, own = np.unique(labels, return_inverse=True)
    number = len(classes)
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise ValueError(f"folds must be an integer >= 2, got {folds!r}")
    if rule not in ("mlrc", "kfold"):
        raise ValueError(f'rule must be "mlrc" or "kfold", got {rule!r}')
    if number < folds:
        raise ValueError(f"folds must be at most the number of classes, {number}, got {folds}")
    made = []
    for fold in range(folds):
        if rule == "mlrc":
            start, trained = fold * number // folds, round(number * (1 - 1 / folds))
            around = (np.arange(number) + start) % number
            train, validation = around[:trained], around[trained : trained + number // folds]
        else:
            validation = np.array_split(np.arange(number), folds)[fold]
            train = np.setdiff1d(np.arange(number), validation)
        made.append(Fold(np.isin(own, train), np.isin(own, validation)))
    return made
