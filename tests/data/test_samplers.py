"""Samplers: batches of distinct rows, all rows covered, equal batches for equal seeds and after restarts; anchors."""

import json
from itertools import islice

import numpy as np
import pytest

from jdml.data import AnchorBatchSampler, ClassBatchSampler, RandomBatchSampler


def labels_of_sizes(*sizes: int) -> np.ndarray:
    """Return labels of classes of these sizes, not contiguous, in mixed order."""
    labels = np.repeat(3 * np.arange(len(sizes)) + 1, sizes)
    return np.random.default_rng(len(sizes)).permutation(labels)


def take(sampler, count: int) -> np.ndarray:
    return np.stack(list(islice(sampler, count)))


def check_batches(epoch, labels, classes, samples):
    """Check that a batch has distinct rows grouped by class, −1 where a class has no more; return the classes."""
    assert epoch.dtype == np.int32
    assert epoch.shape[1:] == (classes * samples,)
    filled = epoch >= 0
    rows = np.where(filled, epoch, -1 - np.arange(classes * samples))
    assert (np.diff(np.sort(rows, axis=1), axis=1) > 0).all()
    grouped = np.where(filled, labels[epoch], -1).reshape(-1, classes, samples)
    own = grouped.max(axis=-1)
    assert ((grouped == own[..., None]) | (grouped < 0)).all()
    assert (np.diff(np.sort(own, axis=1), axis=1) > 0).all()
    expected = np.minimum(samples, np.bincount(labels)[own])
    np.testing.assert_array_equal((grouped >= 0).sum(axis=-1), expected)
    return own


@pytest.mark.parametrize(
    ("sizes", "classes", "samples", "small"),
    [
        ((5, 5, 5, 5), 2, 5, "refuse"),
        ((2, 2, 2, 61), 4, 2, "refuse"),
        ((2, 3, 100, 3, 2, 3), 2, 2, "refuse"),
        ((13,), 1, 3, "refuse"),
        (np.random.default_rng(5).integers(6, 60, 25), 8, 5, "refuse"),
        ((1, 2, 3, 4, 5, 9), 3, 4, "pad"),
    ],
)
def test_every_epoch_has_every_row_in_few_batches(sizes, classes, samples, small):
    labels = labels_of_sizes(*sizes)
    sampler = ClassBatchSampler(labels, classes, samples, seed=3, on_small_class=small)
    groups = -(-np.array(sizes) // samples)
    length = max(groups.max(), -(-groups.sum() // classes))
    assert (sampler.batches_per_epoch, sampler.batch_size) == (length, classes * samples)
    for _ in range(3):
        epoch = take(sampler, length)
        check_batches(epoch, labels, classes, samples)
        assert set(epoch[epoch >= 0]) == set(range(len(labels)))


def test_extra_slots_are_assigned_to_the_smallest_classes_and_classes_are_combined_anew():
    labels = labels_of_sizes(2, 2, 2, 61)
    drawn = np.bincount(labels[ClassBatchSampler(labels, 2, 2).epoch(0).ravel()] // 3)
    assert drawn[3] == 62
    assert drawn[:3].max() - drawn[:3].min() <= 2
    labels = labels_of_sizes(*[40] * 6)
    sampler = ClassBatchSampler(labels, 2, 2)
    batches = labels[np.concatenate([sampler.epoch(number) for number in range(8)])[:, ::2]]
    assert len({tuple(sorted(pair)) for pair in batches.tolist()}) == 15


ANCHORED = np.array([0] * 6 + [1] * 5 + [2] * 2)


def anchor_sampler(labels=ANCHORED, **changes):
    settings = {"per_class": 2, "refresh_every": 2, **changes}
    return AnchorBatchSampler(ClassBatchSampler(ANCHORED[:11], 2, 2), labels, **settings)


def samplers(seed: int = 0) -> list:
    return [
        ClassBatchSampler(labels_of_sizes(4, 7, 9, 12), 2, 3, seed=seed),
        RandomBatchSampler(23, 5, seed=seed),
        anchor_sampler(seed=seed),
    ]


@pytest.mark.parametrize("kind", [0, 1])
def test_batches_depend_only_on_seed_and_step(kind):
    one, same, other = samplers(1)[kind], samplers(1)[kind], samplers(2)[kind]
    length, state = one.batches_per_epoch, same.get_state()
    flow = take(one, 20)
    for number in (2, 0, 1):
        np.testing.assert_array_equal(same.epoch(number), flow[number * length :][:length])
    assert np.any(flow[:length] != flow[length : 2 * length])
    assert np.any(flow[:length] != other.epoch(0))
    for step in np.random.default_rng(0).permutation(20):  # any batch, without stepping
        np.testing.assert_array_equal(same.batch_at(int(step)), flow[step])
    assert same.get_state() == state
    same.step = 13
    next(same)[:] = 0  # changing a batch changes no later one
    np.testing.assert_array_equal(same.batch_at(13), flow[13])
    assert same.step == 14


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("taken", [0, 3, 4, 11])
def test_restored_sampler_resumes_identically(kind, taken):
    sampler, restored = samplers()[kind], samplers()[kind]
    list(islice(sampler, taken))
    state = json.loads(json.dumps(sampler.get_state()))
    assert all(type(value) is int for value in sampler.get_state().values())
    expected = take(sampler, 12)
    list(islice(restored, 2))
    restored.set_state(state)
    np.testing.assert_array_equal(take(restored, 12), expected)


STATED = ClassBatchSampler(labels_of_sizes(5, 5, 5, 5), 2, 5)
EQUAL = labels_of_sizes(5, 5, 5, 5)
next(STATED)
CUT = RandomBatchSampler(23, 5)
ANCHORS = anchor_sampler()


@pytest.mark.parametrize(
    ("sampler", "state", "error", "name"),
    [
        (STATED, ClassBatchSampler(EQUAL, 2, 4).get_state(), ValueError, "samples_per_class"),
        (STATED, ClassBatchSampler(EQUAL, 2, 5, seed=1).get_state(), ValueError, "seed"),
        (STATED, ClassBatchSampler([*EQUAL, 1], 2, 5).get_state(), ValueError, "num_samples"),
        (STATED, ClassBatchSampler(np.sort(EQUAL), 2, 5).get_state(), ValueError, "checksum"),
        (STATED, RandomBatchSampler(20, 10).get_state(), ValueError, "keys"),
        (CUT, CUT.get_state() | {"batch_size": 6}, ValueError, "batch_size"),
        (ANCHORS, anchor_sampler(refresh_every=3).get_state(), ValueError, "renew"),
        (ANCHORS, anchor_sampler(ANCHORED[::-1]).get_state(), ValueError, "anchor_labels_checksum"),
    ],
)
def test_state_of_another_sampler_and_damaged_state_are_refused(sampler, state, error, name):
    before = sampler.get_state()
    with pytest.raises(error, match=name):
        sampler.set_state(state)
    assert sampler.get_state() == before


@pytest.mark.parametrize(("size", "batch"), [(7, 3), (10, 5), (9, 9), (100, 51), (23, 1)])
def test_random_batches_cover_the_data_in_two_epochs(size, batch):
    sampler = RandomBatchSampler(size, batch, seed=2)
    epochs = [sampler.epoch(number) for number in range(6)]
    for epoch in epochs:
        assert epoch.shape == (size // batch, batch)
        assert len(set(epoch.ravel())) == epoch.size
    for one, two in zip(epochs, epochs[1:], strict=False):
        assert set(one.ravel()) | set(two.ravel()) == set(range(size))


def test_batch_has_anchors_of_all_classes_then_the_other_samplers_rows() -> None:
    """Other anchors are drawn after some steps, across epochs."""
    inner = RandomBatchSampler(ANCHORED, 4, seed=3)
    sampler = AnchorBatchSampler(RandomBatchSampler(ANCHORED, 4, seed=3), ANCHORED, 3)
    assert (sampler.num_anchors, sampler.batch_size) == (9, 13)
    batches = take(sampler, 7)
    np.testing.assert_array_equal(batches[:, 9:], take(inner, 7))
    check_batches(batches[:1, :9], ANCHORED, 3, 3)
    assert (batches[:, :9] == batches[0, :9]).all()
    sampler = AnchorBatchSampler(RandomBatchSampler(ANCHORED, 4), ANCHORED, 2, refresh_every=5)
    assert sampler.batches_per_epoch == 3
    anchors = [tuple(batch) for batch in take(sampler, 20)[:, :4].tolist()]
    assert [len(set(anchors[i : i + 5])) for i in range(0, 20, 5)] == [1, 1, 1, 1]
    assert len(set(anchors)) == 4


def test_numpy_integers_are_accepted() -> None:
    """Products of narrow integers would overflow, and a checkpoint is JSON."""
    classes = ClassBatchSampler(np.repeat(np.arange(64), 8), np.uint8(64), np.uint8(8), np.int64(3))
    assert (classes.batch_size, len(next(classes))) == (512, 512)
    anchored = AnchorBatchSampler(RandomBatchSampler(9, np.int64(4)), np.arange(9), np.int64(1))
    for sampler in (classes, anchored):
        assert json.loads(json.dumps(sampler.get_state())) == sampler.get_state()


GROUPED = labels_of_sizes(*[9] * 4, *[6] * 8, *[12] * 3)
GROUPS = np.searchsorted([12, 36], GROUPED, side="right")  # 4, 8 and 3 classes


def test_batches_within_groups_cover_every_row():
    sampler = ClassBatchSampler(GROUPED, 3, 2, seed=1, groups=GROUPS)
    epoch = sampler.epoch(0)
    check_batches(epoch, GROUPED, 3, 2)
    kinds = GROUPS[epoch]
    assert (kinds == kinds[:, :1]).all()
    assert (np.diff(kinds[:, 0]) < 0).any()  # in a random order
    assert set(epoch.ravel()) == set(range(len(GROUPED)))
    assert np.bincount(kinds[:, 0]).tolist() == [7, 8, 6]
    with pytest.raises(ValueError, match="labels_checksum"):
        ClassBatchSampler(GROUPED, 3, 2, seed=1).set_state(sampler.get_state())


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_classes_are_sampled_by_a_power_of_their_frequency(power):
    sizes = np.array([400, 100, 36, 16, 4, 2, 2, 1])
    labels = labels_of_sizes(*sizes)
    sampler = ClassBatchSampler(labels, 3, 2, on_small_class="pad", class_weight_power=power)
    assert sampler.batches_per_epoch == 94
    classes = check_batches(take(sampler, 20 * 94), labels, 3, 2) // 3
    for full in range(3):  # this many of the largest classes are in every batch
        expected = np.ones(len(sizes))
        expected[full:] = (3 - full) * sizes[full:] ** power / (sizes[full:] ** power).sum()
        if expected.max() <= 1:
            break
    shares = np.bincount(classes.ravel(), minlength=len(sizes)) / len(classes)
    np.testing.assert_allclose(shares, expected, atol=0.006)


ZEROS = np.zeros(3, int)


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda: ClassBatchSampler([0, 0, 1, 1], 3, 1), ValueError, "classes_per_batch"),
        (lambda: ClassBatchSampler(ZEROS[:0], 1, 1), ValueError, "classes_per_batch"),
        (lambda: ClassBatchSampler([5, 5, 8, 5], 1, 2), ValueError, r"samples_per_class\b.* 8\b"),
        (lambda: ClassBatchSampler([0, 1], 1, 1.0), TypeError, "samples_per_class"),
        (lambda: ClassBatchSampler([0.0, 1.0], 1, 1), TypeError, "labels"),
        (lambda: ClassBatchSampler([0, -2], 1, 1), ValueError, "labels"),
        (lambda: ClassBatchSampler([0, 1], 1, 1, -3), ValueError, "seed"),
        (lambda: ClassBatchSampler(ZEROS, 1, 1, on_small_class="x"), ValueError, "on_small_class"),
        (
            lambda: ClassBatchSampler(ZEROS, 1, 1, class_weight_power=2.0),
            ValueError,
            "class_weight_power",
        ),
        (lambda: ClassBatchSampler(ZEROS, 1, 1, groups=[0, 1]), ValueError, "groups"),
        (lambda: ClassBatchSampler(GROUPED, 4, 2, groups=GROUPS), ValueError, "classes_per_batch"),
        (lambda: RandomBatchSampler(3, 4), ValueError, "batch_size"),
        (lambda: RandomBatchSampler([1, 2], 2.0), TypeError, "batch_size"),
        (lambda: RandomBatchSampler(3, 1).batch_at(-1), ValueError, "step"),
        (lambda: anchor_sampler(per_class=0), ValueError, "per_class"),
        (lambda: anchor_sampler(refresh_every=1.5), TypeError, "refresh_every"),
    ],
)
def test_wrong_arguments_are_refused(call, error, name):
    with pytest.raises(error, match=rf"^({name})\b"):
        call()
