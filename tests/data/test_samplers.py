"""What the samplers promise: whole distinct batches, coverage, reproducibility, resumption; anchors in front."""

import copy
import json
from itertools import islice

import jax.numpy as jnp
import numpy as np
import pytest

from jdml.data import AnchorBatchSampler, ClassBatchSampler, RandomBatchSampler
from jdml.data import seats as seats_module


def labels_of_sizes(*sizes: int) -> np.ndarray:
    """Classes of these sizes, labels not contiguous, rows mixed."""
    labels = np.repeat(3 * np.arange(len(sizes)) + 1, sizes)
    return np.random.default_rng(len(sizes)).permutation(labels)


CASES = [
    (labels_of_sizes(5, 5, 5, 5), 2, 5),
    (labels_of_sizes(4, 7, 9, 12, 5), 3, 4),
    (labels_of_sizes(2, 2, 2, 61), 4, 2),
    (labels_of_sizes(2, 3, 100, 3, 2, 3), 2, 2),
    (labels_of_sizes(6, 6), 2, 4),
    (labels_of_sizes(13), 1, 3),
    (labels_of_sizes(*range(1, 40)), 7, 1),
    (labels_of_sizes(*np.random.default_rng(5).integers(6, 60, 25)), 8, 5),
]
cases = pytest.mark.parametrize(("labels", "classes", "samples"), CASES)


@cases
def test_batches_have_distinct_classes_and_samples(labels, classes, samples):
    sampler = ClassBatchSampler(labels, classes, samples, seed=3)
    for batch in islice(sampler, 2 * sampler.batches_per_epoch):
        assert batch.dtype == np.int32
        assert batch.shape == (sampler.batch_size,) == (classes * samples,)
        assert len(set(batch)) == classes * samples
        grouped = labels[batch].reshape(classes, samples)
        assert (grouped == grouped[:, :1]).all()
        assert len(set(grouped[:, 0])) == classes


@cases
def test_every_epoch_shows_every_sample(labels, classes, samples):
    sampler = ClassBatchSampler(labels, classes, samples)
    for _ in range(3):
        seen = np.concatenate(list(islice(sampler, sampler.batches_per_epoch)))
        assert set(seen) == set(range(len(labels)))


@cases
def test_an_epoch_is_as_short_as_can_be(labels, classes, samples):
    groups = -(-np.unique(labels, return_counts=True)[1] // samples)
    expected = max(groups.max(), -(-groups.sum() // classes))
    assert ClassBatchSampler(labels, classes, samples).batches_per_epoch == expected


def test_equal_classes_show_each_sample_once():
    sampler = ClassBatchSampler(labels_of_sizes(*[8] * 6), 3, 4)
    assert (np.bincount(sampler.epoch(0).ravel()) == 1).all()


def test_spare_seats_go_to_the_smallest_classes():
    labels = labels_of_sizes(2, 2, 2, 61)
    epoch = ClassBatchSampler(labels, 2, 2).epoch(0)
    drawn = np.bincount(labels[epoch.ravel()] // 3)
    assert drawn[3] == 62
    assert drawn[:3].max() - drawn[:3].min() <= 2


@pytest.mark.parametrize("many", [seats_module.MANY, 0])
def test_classes_meet_in_changing_company(many, monkeypatch):
    monkeypatch.setattr(seats_module, "MANY", many)
    labels = labels_of_sizes(*[40] * 6)
    sampler = ClassBatchSampler(labels, 2, 2)
    batches = labels[np.concatenate([sampler.epoch(number) for number in range(8)])[:, ::2]]
    assert len({tuple(sorted(pair)) for pair in batches.tolist()}) == 15


@cases
def test_very_many_classes_are_seated_by_the_same_rules(labels, classes, samples, monkeypatch):
    """By the way for data sets too large for the other."""
    usual = ClassBatchSampler(labels, classes, samples, seed=3)
    drawn = np.unique(labels[usual.epoch(0)[:, ::samples]], return_counts=True)[1]
    monkeypatch.setattr(seats_module, "MANY", 0)
    sampler = ClassBatchSampler(labels, classes, samples, seed=3)
    epochs = [sampler.epoch(number) for number in range(4)]
    for epoch in epochs:
        grouped = labels[epoch].reshape(-1, classes, samples)
        assert (grouped == grouped[..., :1]).all()
        assert all(len(set(batch)) == classes for batch in grouped[..., 0].tolist())
        assert all(len(set(batch)) == len(batch) for batch in epoch.tolist())
        assert set(epoch.ravel()) == set(range(len(labels)))
        many = np.unique(grouped[..., 0], return_counts=True)[1]
        np.testing.assert_array_equal(np.sort(many), np.sort(drawn))
    assert sampler.batches_per_epoch == usual.batches_per_epoch
    np.testing.assert_array_equal(sampler.epoch(2), epochs[2])


class Counting:
    """A generator that counts how many numbers it puts in order."""

    def __init__(self) -> None:
        self.random, self.count = np.random.default_rng(0), 0

    def permutation(self, what):
        self.count += what if isinstance(what, int) else len(what)
        return self.random.permutation(what)

    def integers(self, high):
        return self.random.integers(high)


@pytest.mark.parametrize("largest", [1, 5, 100_000])
def test_the_work_for_an_epoch_grows_with_the_data_not_with_its_square(largest):
    """A hundred thousand classes of one or two groups, and one of very many."""
    random, classes = Counting(), 100_000
    groups = np.random.default_rng(1).integers(1, 3, classes)
    groups[7] = largest
    shape = max(largest, -(-int(groups.sum()) // 32)), 32
    shared = seats_module._share_seats(groups, shape[0] * shape[1], random)
    assert shared.sum() == shape[0] * shape[1]
    assert (shared >= groups).all()
    seats = seats_module._seat_classes(shared, shape, random)
    np.testing.assert_array_equal(np.bincount(seats.ravel()), shared)
    ordered = np.sort(seats, axis=1)
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    assert random.count < 4 * seats.size


def samplers(seed: int = 0) -> list:
    return [
        ClassBatchSampler(labels_of_sizes(4, 7, 9, 12), 2, 3, seed=seed),
        RandomBatchSampler(23, 5, seed=seed),
    ]


def take(sampler, count: int) -> np.ndarray:
    return np.stack(list(islice(sampler, count)))


@pytest.mark.parametrize("kind", [0, 1])
def test_batches_depend_on_seed_and_epoch_alone(kind):
    one, same, other = samplers(1)[kind], samplers(1)[kind], samplers(2)[kind]
    np.testing.assert_array_equal(same.epoch(4), one.epoch(4))
    length = one.batches_per_epoch
    flow = take(one, 3 * length).reshape(3, length, -1)
    for number in (2, 0, 1):
        np.testing.assert_array_equal(flow[number], same.epoch(number))
    assert np.any(flow[0] != flow[1])
    assert np.any(flow[0] != other.epoch(0))


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("taken", [0, 1, 3, 4, 5, 11, 30])
def test_a_restored_sampler_goes_on_identically(kind, taken):
    sampler, restored = samplers()[kind], samplers()[kind]
    list(islice(sampler, taken))
    state = json.loads(json.dumps(sampler.get_state()))
    assert all(type(value) is int for value in sampler.get_state().values())
    expected = take(sampler, 12)
    list(islice(restored, 2))
    restored.set_state(state)
    np.testing.assert_array_equal(take(restored, 12), expected)


@pytest.mark.parametrize("kind", [0, 1])
def test_writing_into_a_batch_changes_nothing(kind):
    sampler, other = samplers()[kind], samplers()[kind]
    next(sampler)[:] = 0
    next(other)
    np.testing.assert_array_equal(next(sampler), next(other))


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (ClassBatchSampler(CASES[0][0], 2, 4), "samples_per_class must be 5, got 4"),
        (ClassBatchSampler(CASES[0][0], 3, 5), "classes_per_batch must be 2, got 3"),
        (ClassBatchSampler(CASES[0][0], 2, 5, seed=1), "seed must be 0, got 1"),
        (ClassBatchSampler(labels_of_sizes(5, 6, 5, 5), 2, 5), "num_samples must be 20, got 21"),
        (ClassBatchSampler(labels_of_sizes(6, 5, 5, 4), 2, 4), "samples_per_class must be 5"),
        (ClassBatchSampler(np.sort(CASES[0][0]), 2, 5), "labels_checksum must be"),
        (RandomBatchSampler(20, 10), "state must have keys"),
    ],
)
def test_a_state_of_another_sampler_is_refused(other, match):
    sampler = ClassBatchSampler(CASES[0][0], 2, 5)
    next(sampler)
    before = sampler.get_state()
    with pytest.raises(ValueError, match=match):
        sampler.set_state(other.get_state())
    assert sampler.get_state() == before


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"batch": 4}, "batch'] must be below batches_per_epoch = 4, got 4"),
        ({"batch": -1}, "batch'] must be at least 0, got -1"),
        ({"epoch": -1}, "epoch'] must be at least 0, got -1"),
        ({"batch_size": 6}, "batch_size must be 5, got 6"),
        ({"num_samples": 22}, "num_samples must be 23, got 22"),
    ],
)
def test_a_damaged_state_is_refused(change, match):
    sampler = RandomBatchSampler(23, 5)
    with pytest.raises(ValueError, match=match):
        sampler.set_state(sampler.get_state() | change)


@pytest.mark.parametrize(("size", "batch"), [(7, 3), (10, 5), (9, 9), (100, 51), (23, 1)])
def test_random_batches_cover_the_data_in_two_epochs(size, batch):
    sampler = RandomBatchSampler(size, batch, seed=2)
    epochs = [sampler.epoch(number) for number in range(6)]
    for epoch in epochs:
        assert epoch.shape == (size // batch, batch)
        assert len(set(epoch.ravel())) == epoch.size
    for one, two in zip(epochs, epochs[1:], strict=False):
        assert set(one.ravel()) | set(two.ravel()) == set(range(size))


def test_random_batches_are_uniform_over_time():
    sampler = RandomBatchSampler(10, 4)
    counts = np.bincount(np.concatenate(list(islice(sampler, 1000))), minlength=10)
    np.testing.assert_allclose(counts, 400, rtol=0.02)


def test_random_batches_take_labels_for_their_size():
    np.testing.assert_array_equal(
        next(RandomBatchSampler(np.zeros(12), 4)), next(RandomBatchSampler(12, 4))
    )


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([0, 0, 1, 1], 3, 1), ValueError, "classes_per_batch must be .* classes 2, got 3"),
        (
            ([5, 5, 8, 5], 1, 2),
            ValueError,
            "samples_per_class must be .*, got 2: class 8 has 1 samples",
        ),
        (([0.0, 1.0], 1, 1), TypeError, "labels must be integers, got float64"),
        (([0, -2], 1, 1), ValueError, "labels must be at least 0, got -2 in row 1"),
        (([[0, 1]], 1, 1), ValueError, r"labels must have shape \[N\], got \[1, 2\]"),
        (([0, 1], 0, 1), ValueError, "classes_per_batch must be at least 1, got 0"),
        (([0, 1], 1, 0), ValueError, "samples_per_class must be at least 1, got 0"),
        (([0, 1], 1, 1.0), TypeError, "samples_per_class must be an integer, got 1.0"),
        (([0, 1], 1, 1, -3), ValueError, "seed must be at least 0, got -3"),
        ((np.zeros(0, int), 1, 1), ValueError, "classes_per_batch must be .* classes 0, got 1"),
    ],
)
def test_bad_class_batches(arguments, error, match):
    with pytest.raises(error, match=match):
        ClassBatchSampler(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((3, 4), ValueError, "batch_size must be at most the number of samples 3, got 4"),
        ((3, 0), ValueError, "batch_size must be at least 1, got 0"),
        (([1, 2], 2.0), TypeError, "batch_size must be an integer, got 2.0"),
        ((3, 1, -1), ValueError, "seed must be at least 0, got -1"),
    ],
)
def test_bad_random_batches(arguments, error, match):
    with pytest.raises(error, match=match):
        RandomBatchSampler(*arguments)


def test_small_classes_come_whole_with_empty_places():
    labels = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 9])
    sampler = ClassBatchSampler(labels, 3, 4, seed=3, small_classes="pad")
    seen = []
    for _ in range(sampler.batches_per_epoch):
        batch = next(sampler).reshape(3, 4)
        for group in batch:
            rows = group[group >= 0]
            assert len(set(rows.tolist())) == len(rows)
            (of_class,) = set(labels[rows].tolist())
            assert len(rows) == min(4, np.sum(labels == of_class))
        seen.append(batch[batch >= 0])
    assert set(np.concatenate(seen).tolist()) == set(range(len(labels)))
    other = ClassBatchSampler(labels[labels > 2], 3, 3, seed=3)
    with pytest.raises(ValueError, match="state"):
        other.set_state(sampler.get_state())


def test_classes_large_enough_are_dealt_alike_with_or_without_padding():
    labels = np.repeat(np.arange(5), 7)
    plain, padded = (ClassBatchSampler(labels, 2, 3, 1, small_classes=k) for k in ("refuse", "pad"))
    for _ in range(10):
        np.testing.assert_array_equal(next(plain), next(padded))


def test_small_classes_must_be_refused_or_padded():
    with pytest.raises(ValueError, match="small_classes must be .* got 'drop'"):
        ClassBatchSampler(np.zeros(3, int), 1, 1, small_classes="drop")


ANCHORED = np.array([0] * 6 + [1] * 5 + [2] * 2)


def test_each_batch_has_the_anchors_of_all_classes_and_then_the_other_sampler_s() -> None:
    inner = RandomBatchSampler(ANCHORED, 4, seed=3)
    sampler = AnchorBatchSampler(RandomBatchSampler(ANCHORED, 4, seed=3), ANCHORED, 3)
    assert (sampler.num_anchors, sampler.batch_size) == (9, 13)
    first = None
    for _ in range(7):
        batch = next(sampler)
        anchors, rest = batch[:9].reshape(3, 3), batch[9:]
        np.testing.assert_array_equal(rest, next(inner))
        for of_class, rows in enumerate(anchors):
            there = rows[rows >= 0]
            assert len(set(there.tolist())) == len(there) == min(3, (of_class == ANCHORED).sum())
            assert (ANCHORED[there] == of_class).all()
        first = anchors if first is None else first
        np.testing.assert_array_equal(anchors, first)  # they stay


def test_anchors_are_drawn_anew_after_so_many_steps_also_across_epochs() -> None:
    sampler = AnchorBatchSampler(RandomBatchSampler(ANCHORED, 4), ANCHORED, 2, renew_every=5)
    assert sampler.batches_per_epoch == 3
    seen = [tuple(next(sampler)[:4].tolist()) for _ in range(20)]
    assert [len(set(seen[i : i + 5])) for i in range(0, 20, 5)] == [1, 1, 1, 1]
    assert len(set(seen)) == 4


def test_a_state_is_of_one_sampler() -> None:
    def made(**changes):
        given = {"per_class": 2, "renew_every": 2, **changes}
        return AnchorBatchSampler(ClassBatchSampler(ANCHORED[:11], 2, 2), ANCHORED, **given)

    sampler = made()
    for _ in range(4):
        next(sampler)
    again = made()
    again.set_state(sampler.get_state())
    np.testing.assert_array_equal(next(again), next(sampler))
    with pytest.raises(ValueError, match="renew must be 3, got 2"):
        made(renew_every=3).set_state(sampler.get_state())
    with pytest.raises(TypeError, match="state must be what get_state returned, got a NoneType"):
        sampler.set_state(None)
    of_rows = [
        AnchorBatchSampler(RandomBatchSampler(13, 4), y, 2) for y in (ANCHORED, ANCHORED[::-1])
    ]
    with pytest.raises(ValueError, match="another sampler: anchor_labels_checksum must be"):
        of_rows[0].set_state(of_rows[1].get_state())
    before = of_rows[0].get_state()
    del before["anchor_labels_checksum"]  # of 0.1
    of_rows[0].set_state({**before, "batch": 2})
    assert of_rows[0].step == 2
    with pytest.raises(ValueError, match="per_class must be >= 1, got 0"):
        made(per_class=0)
    for name in ("per_class", "renew_every"):
        with pytest.raises(TypeError, match=f"{name} must be a Python integer >= 1, got 1.5"):
            made(**{name: 1.5})


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int64])
def test_numbers_of_numpy_are_numbers(kind) -> None:
    """Products of narrow ones would wrap, and a checkpoint is JSON."""
    labels = np.repeat(np.arange(64), 8)
    sampler = ClassBatchSampler(labels, kind(64), kind(8), kind(3))
    assert (sampler.batch_size, len(next(sampler))) == (512, 512)
    some = RandomBatchSampler(1000, kind(64), kind(3))
    assert (some.batch_size, some.batches_per_epoch) == (64, 15)
    anchored = AnchorBatchSampler(some, np.arange(1000) % 7, kind(2), renew_every=kind(3))
    for number in (np.array(100), jnp.array(100), np.int64(100)):
        assert RandomBatchSampler(number, 4).batches_per_epoch == 25
    for each in (sampler, some, anchored):
        assert json.loads(json.dumps(each.get_state())) == each.get_state()


def test_the_sampler_must_be_of_the_same_data() -> None:
    with pytest.raises(ValueError, match="it has 8 samples, got 2 labels"):
        AnchorBatchSampler(RandomBatchSampler(np.arange(8) % 2, 4), np.array([0, 1]), 1)


GROUPED = labels_of_sizes(*[9] * 4, *[6] * 8, *[12] * 3)
GROUPS = np.searchsorted([12, 36], GROUPED, side="right")  # 4, 8 and 3 classes


@pytest.mark.parametrize("many", [seats_module.MANY, 0])
def test_batches_within_a_group_show_every_sample(many, monkeypatch):
    monkeypatch.setattr(seats_module, "MANY", many)
    sampler = ClassBatchSampler(GROUPED, 3, 2, seed=1, within=GROUPS)
    epoch = sampler.epoch(0)
    kinds = GROUPS[epoch]
    assert (kinds == kinds[:, :1]).all()
    assert (np.diff(kinds[:, 0]) < 0).any()  # in a random order
    assert set(epoch.ravel()) == set(range(len(GROUPED)))
    assert all(len(set(batch)) == 6 for batch in epoch.tolist())
    assert all(len(set(GROUPED[batch])) == 3 for batch in epoch)
    assert np.bincount(kinds[:, 0]).tolist() == [7, 8, 6]
    state = sampler.get_state()
    plain = ClassBatchSampler(GROUPED, 3, 2, seed=1)
    with pytest.raises(ValueError, match="labels_checksum"):
        plain.set_state(state)


@pytest.mark.parametrize("many", [seats_module.MANY, 0])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_classes_come_by_a_power_of_their_frequency(power, many, monkeypatch):
    monkeypatch.setattr(seats_module, "MANY", many)
    sizes = np.array([400, 100, 36, 16, 4, 2, 2, 1])
    labels = labels_of_sizes(*sizes)
    sampler = ClassBatchSampler(labels, 3, 2, small_classes="pad", power=power)
    seen = np.zeros(len(sizes))
    for number in range(20):
        epoch = sampler.epoch(number).reshape(-1, 3, 2)
        classes = labels[epoch[..., 0].clip(epoch.max(axis=-1))] // 3
        assert all(len(set(batch)) == 3 for batch in classes.tolist())
        assert len(epoch) == 94
        seen += np.bincount(classes.ravel(), minlength=len(sizes))
        assert all(a != b for a, b in epoch.reshape(-1, 2).tolist())
    for full in range(3):  # so many of the largest stand in every batch
        wanted = np.ones(len(sizes))
        wanted[full:] = (3 - full) * sizes[full:] ** power / (sizes[full:] ** power).sum()
        if wanted.max() <= 1:
            break
    np.testing.assert_allclose(seen / 20 / 94, wanted, atol=0.006)


def test_a_long_epoch_is_drawn_while_the_one_before_trains(monkeypatch):
    samplers = [ClassBatchSampler(GROUPED, 3, 2, within=GROUPS, power=0.5) for _ in range(2)]
    monkeypatch.setattr("jdml.data.samplers.LONG", -1.0)
    batches = [next(samplers[0]) for _ in range(3 * samplers[0].batches_per_epoch)]
    assert samplers[0]._ahead
    monkeypatch.setattr("jdml.data.samplers.LONG", 1e9)
    np.testing.assert_array_equal(batches, [next(samplers[1]) for _ in batches])
    copied = copy.deepcopy(samplers[0])
    assert not copied._ahead
    np.testing.assert_array_equal(next(copied), next(samplers[0]))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"power": 2.0}, r"power must be in \[0, 1\], got 2.0"),
        ({"within": np.arange(len(GROUPED))}, "within must have all rows of a class in one group"),
        ({"within": GROUPS[:5]}, "within"),
        ({"classes_per_batch": 4, "within": GROUPS}, "number of classes 3, got 4 .of group 2 of within"),
    ],
)  # fmt: skip
def test_bad_groups_and_powers(settings, match):
    with pytest.raises(ValueError, match=match):
        ClassBatchSampler(GROUPED, **{"classes_per_batch": 3, "samples_per_class": 2, **settings})
