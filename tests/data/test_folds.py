import numpy as np
import pytest

from jdml.data import mlrc_folds

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(98), 3)) * 5 + 2


def classes(mask):
    return sorted({(label - 2) // 5 for label in LABELS[mask]})


@pytest.mark.parametrize("rule", ["mlrc", "kfold"])
def test_no_class_is_on_both_sides(rule):
    for fold in mlrc_folds(LABELS, rule=rule):
        assert not set(classes(fold.train)) & set(classes(fold.validation))
        assert fold.train.dtype == fold.validation.dtype == bool


def test_the_sizes_and_places_of_cars():
    """98 training classes: 74 train, 24 validate; fold 0 validates on the last part, fold 1 on the first."""
    folds = mlrc_folds(LABELS)
    assert [(len(classes(f.train)), len(classes(f.validation))) for f in folds] == [(74, 24)] * 4
    assert classes(folds[0].validation) == list(range(74, 98))
    assert classes(folds[1].validation) == list(range(24))
    assert classes(folds[3].train) == [*range(49), *range(73, 98)]


def test_kfold_is_scikit_learn_s():
    selection = pytest.importorskip("sklearn.model_selection")
    expected = [held.tolist() for _, held in selection.KFold(4).split(np.arange(98))]
    assert [classes(f.validation) for f in mlrc_folds(LABELS, rule="kfold")] == expected
    sizes = [len(classes(f.train)) for f in mlrc_folds(LABELS, rule="kfold")]
    assert sizes == [73, 73, 74, 74]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": 1}, "folds must be an integer >= 2"),
        ({"folds": 99}, "folds must be at most the number of classes, 98"),
        ({"rule": "random"}, 'rule must be "mlrc" or "kfold"'),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ValueError, match=message):
        mlrc_folds(LABELS, **changes)
