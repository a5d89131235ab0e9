"""Class-disjoint folds for choosing settings without the test classes."""

from typing import Literal, NamedTuple

import numpy as np

from jdml.data.dataset import as_labels


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
