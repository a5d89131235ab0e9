"""Anchors of every class in front of each batch."""

import numpy as np
import pytest

from jdml.data import AnchorBatchSampler, ClassBatchSampler, RandomBatchSampler

LABELS = np.array([0] * 6 + [1] * 5 + [2] * 2)


def test_each_batch_has_the_anchors_of_all_classes_and_then_the_other_sampler_s() -> None:
    inner = RandomBatchSampler(LABELS, 4, seed=3)
    sampler = AnchorBatchSampler(RandomBatchSampler(LABELS, 4, seed=3), LABELS, 3)
    assert (sampler.num_anchors, sampler.batch_size) == (9, 13)
    first = None
    for _ in range(7):
        batch = next(sampler)
        anchors, rest = batch[:9].reshape(3, 3), batch[9:]
        np.testing.assert_array_equal(rest, next(inner))
        for of_class, rows in enumerate(anchors):
            there = rows[rows >= 0]
            assert len(set(there.tolist())) == len(there) == min(3, (of_class == LABELS).sum())
            assert (LABELS[there] == of_class).all()
        first = anchors if first is None else first
        np.testing.assert_array_equal(anchors, first)  # they stay


def test_anchors_are_drawn_anew_after_so_many_steps_also_across_epochs() -> None:
    sampler = AnchorBatchSampler(RandomBatchSampler(LABELS, 4), LABELS, 2, renew_every=5)
    assert sampler.batches_per_epoch == 3
    seen = [tuple(next(sampler)[:4].tolist()) for _ in range(20)]
    assert [len(set(seen[i : i + 5])) for i in range(0, 20, 5)] == [1, 1, 1, 1]
    assert len(set(seen)) == 4


def test_a_state_is_of_one_sampler() -> None:
    def made(**changes):
        given = {"per_class": 2, "renew_every": 2, **changes}
        return AnchorBatchSampler(ClassBatchSampler(LABELS[:11], 2, 2), LABELS, **given)

    sampler = made()
    for _ in range(4):
        next(sampler)
    again = made()
    again.set_state(sampler.get_state())
    np.testing.assert_array_equal(next(again), next(sampler))
    with pytest.raises(ValueError, match="renew must be 3, got 2"):
        made(renew_every=3).set_state(sampler.get_state())
    with pytest.raises(ValueError, match="per_class must be >= 1, got 0"):
        made(per_class=0)
    for name in ("per_class", "renew_every"):
        with pytest.raises(TypeError, match=f"{name} must be a Python integer >= 1, got 1.5"):
            made(**{name: 1.5})


def test_the_sampler_must_be_of_the_same_data() -> None:
    with pytest.raises(ValueError, match="it has 8 samples, got 2 labels"):
        AnchorBatchSampler(RandomBatchSampler(np.arange(8) % 2, 4), np.array([0, 1]), 1)
