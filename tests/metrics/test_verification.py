"""Verification by distances, compared with loops over all pairs and with scikit-learn; open-set queries."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from jdml.metrics import open_set, rejection_threshold, verification
from oracles import metrics as oracle

FAR = (0.3, 0.1, 1e-2, 0.0)
X, Y = np.arange(12.0, dtype=np.float32).reshape(6, 2), np.arange(6) % 2


def some(seed, rows=40, whole=False, classes=7):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, rows)
    near = labels[:, None] * 0.4 + rng.normal(size=(rows, 4))
    return (np.round(near) if whole else near).astype(np.float32), labels


def assert_equal_to_oracle(*data, rel=1e-9, **options):
    expected = oracle.verification(*data, FAR, **options)
    measured = verification(*data, far=FAR, **options)
    assert measured.keys() - expected.keys() == {f"interval@FAR={rate:g}" for rate in FAR}
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, rel=rel), name
    for rate in FAR:
        low, high = measured[f"interval@FAR={rate:g}"]
        assert low <= measured[f"threshold@FAR={rate:g}"] <= high
    return measured


@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
def test_verification_equals_the_oracle(whole):
    x, y = some(0, whole=whole)
    gallery, labels = some(1, 30, whole=whole)
    rng = np.random.default_rng(0)
    cameras = rng.integers(0, 3, 40), rng.integers(0, 3, 30)
    own = np.where(rng.random(40) < 0.5, rng.integers(0, 30, 40), -1)
    pairs = rng.random((40, 30)) < 0.3
    assert_equal_to_oracle(x, y)
    assert_equal_to_oracle(x, y, ignore=(cameras[0], cameras[0]))
    assert_equal_to_oracle(x, y, gallery, labels, self_index=own)
    assert_equal_to_oracle(x, y, gallery, labels, self_index=own, ignore=cameras)
    assert_equal_to_oracle(x, y, gallery, labels, ignore=pairs)
    there = verification(X, Y, far=())["wrong"]
    for own in ([1, -1, -1, -1, -1, -1], [-1, 0, -1, -1, -1, -1]):  # either of the two rows
        assert verification(X, Y, far=(), self_index=np.array(own))["wrong"] == there - 1


def test_roc_and_auc_equal_scikit_learns():
    from_sklearn = pytest.importorskip("sklearn.metrics", reason="compares with scikit-learn")
    x, y = some(2, 60, whole=True)
    y = np.abs(y)
    apart, same = oracle.labelled_pairs(x, y)
    measured = verification(x, y, far=(0.1,), roc=True)
    false, true, _ = from_sklearn.roc_curve(same, -apart, drop_intermediate=False)
    np.testing.assert_allclose(measured["ROC"][0], false, atol=1e-12)
    np.testing.assert_allclose(measured["ROC"][1], true, atol=1e-12)
    assert measured["AUC"] == pytest.approx(from_sklearn.roc_auc_score(same, -apart), rel=1e-12)
    assert measured["TAR@FAR=0.1"] == pytest.approx(true[false <= 0.1].max())
    accepted = apart <= measured["threshold@FAR=0.1"]
    assert accepted[~same].mean() <= 0.1
    assert accepted[same].mean() == pytest.approx(measured["TAR@FAR=0.1"])


def rates_of(measured):
    return {name: value for name, value in measured.items() if name not in ("right", "wrong")}


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_many_pairs_are_counted_in_histogram_bins(to_disk, where):
    """Many copies of each row have the rates of one copy each."""
    x, y = some(3, 61)
    gallery, labels = some(4, 45)
    cameras = np.arange(61) % 3, np.arange(45) % 3
    expected = verification(x, y, gallery, labels, far=FAR, ignore=cameras)
    (many, y), (gallery, labels) = (
        (np.tile(rows, (times, 1)), np.tile(of_rows, times))
        for rows, of_rows, times in ((x, y, 35), (gallery, labels, 50))
    )
    gallery = to_disk(gallery) if where == "disk" else gallery
    cameras = np.tile(cameras[0], 35), np.tile(cameras[1], 50)
    actual = verification(many, y, gallery, labels, far=FAR, ignore=cameras)
    assert actual["wrong"] == 35 * 50 * expected["wrong"]
    chex.assert_trees_all_close(rates_of(actual), rates_of(expected), rtol=1e-4)
    long = verification(many, y, gallery * np.float32(1e25), labels, far=FAR[:2])
    assert long["threshold@FAR=0.1"] > 1e24


def test_many_pairs_within_one_set():
    """Pairs counted once have the rates of pairs in both orders."""
    x, y = some(3, 2_950)
    cameras, own = np.arange(2_950) % 3, np.arange(2_950)
    alone = verification(x, y, far=FAR, ignore=(cameras,) * 2)
    both = verification(x, y, x, y, far=FAR, ignore=(cameras,) * 2, self_index=own)
    assert (2 * alone["right"], 2 * alone["wrong"]) == (both["right"], both["wrong"])
    chex.assert_trees_all_close(rates_of(alone), rates_of(both), rtol=1e-4)
    moved = verification(jnp.asarray(x) * 2.0**20 + 2.0**20, y, far=FAR, ignore=(cameras,) * 2)
    assert moved["AUC"] == pytest.approx(alone["AUC"], abs=1e-3)
    point = verification(x * 0, y, far=FAR)
    assert (point["AUC"], point["threshold@FAR=0.1"]) == (0.5, -1.0)  # no pair is accepted


def test_outlier_does_not_widen_the_bins():
    x, y = some(3, 61)
    x[np.flatnonzero(y == 2)[0]] *= 1e6
    gallery, labels = some(4, 45)
    expected = rates_of(verification(x, y, gallery, labels, far=FAR))
    many = np.tile(x, (35, 1)), np.tile(y, 35), np.tile(gallery, (50, 1)), np.tile(labels, 50)
    actual = rates_of(verification(*many, far=FAR))
    areas = [rates.pop("AUC") for rates in (expected, actual)]
    chex.assert_trees_all_close(actual, expected, rtol=2e-5)
    assert areas[1] == pytest.approx(areas[0], abs=1e-3)  # the far row's own distances tie


def test_interval_contains_the_population_threshold():
    """It does so for most samples of classes; an interval for independent pairs would be too narrow."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(400, 3))
    rows = np.repeat(centres, 3, axis=0) + 0.2 * rng.normal(size=(1200, 3))
    labels = np.repeat(np.arange(400), 3)
    truth = verification(rows, labels, far=(0.1,))["threshold@FAR=0.1"]
    held, width = [], []
    for _ in range(60):
        chosen = np.isin(labels, rng.choice(400, 40, replace=False))
        low, high = verification(rows[chosen], labels[chosen], far=(0.1,))["interval@FAR=0.1"]
        held.append(low <= truth <= high)
        width.append(high - low)
    assert np.mean(held) > 0.88
    assert np.mean(width) < 0.5 * truth


@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
def test_open_set_equals_the_oracle(whole):
    x, y = some(5, whole=whole, classes=9)
    gallery, labels = some(6, 30, whole=whole)
    cameras = np.arange(40) % 3, np.arange(30) % 3
    own = np.where(np.arange(40) % 4 == 0, np.arange(40) % 30, -1)
    for options in ({}, {"self_index": own}, {"ignore": cameras}):
        expected = oracle.open_set(x, y, gallery, labels, FAR, **options)
        measured = open_set(x, y, gallery, labels, far=FAR, **options)
        assert measured == pytest.approx(expected, rel=1e-6)
    nobody = np.ones((40, 30), bool)
    nobody[1:] = False
    measured = open_set(x, np.maximum(y, 8), gallery, np.full(30, 8), far=(0.0,), ignore=nobody)
    assert (measured["known"], measured["unknown"]) == (39, 1)  # all is ignored: rejected
    assert measured["DIR@FAR=0"] == measured["R@1"] == 1.0


def test_rejection_threshold_keeps_the_false_accept_rate():
    x, y = some(7, 50)
    apart = np.linalg.norm(x[:, None].astype(float) - x, axis=-1)
    nearest = np.where((y[:, None] == y) & (y >= 0), np.inf, apart).min(axis=1)[y >= 0]
    for far in (0.0, 0.1, 0.5):
        threshold = rejection_threshold(x, y, far=far)
        beyond = nearest[nearest > threshold].min()  # two rows, if they are each other's nearest
        assert (nearest <= threshold).mean() <= far < (nearest <= beyond).mean()
    names = np.array(list("abcdefgh"))[y]
    assert rejection_threshold(x, names, far=0.1) > 0
    assert rejection_threshold(x * 0, y) == -1.0  # not even equal vectors are accepted
    few = rejection_threshold(X, Y)
    assert np.float32(few) < np.sqrt(np.float32(8)) == pytest.approx(few, rel=1e-6)
