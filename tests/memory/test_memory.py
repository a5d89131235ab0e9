"""The cross-batch memory: first in, first out; exclusion by index; complete writes."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import memory


def batch(*labels: int) -> tuple[jax.Array, jax.Array]:
    values = jnp.array(labels)
    return jnp.stack([values, values + 0.5], axis=1).astype(jnp.float32), values


def test_first_in_first_out_over_several_rounds() -> None:
    state, seen = memory.init(5, 2), []
    for start in range(0, 21, 3):
        state = memory.push(state, *batch(*range(start, start + 3)))
        seen += range(start, start + 3)
        kept = np.asarray(state.labels)[np.asarray(state.valid)]
        assert sorted(kept) == seen[-5:]
        np.testing.assert_allclose(state.embeddings[:, 0][state.valid], kept)


@chex.variants(with_jit=True, without_jit=True, with_device=True)
class MaskedRows(chex.TestCase):
    def test_only_valid_rows_are_stored(self) -> None:
        push = self.variant(memory.push)
        state = push(memory.init(4, 2), *batch(1, 2, 3), jnp.array([True, False, True]))
        state = push(state, *batch(-1, 7, -1))
        np.testing.assert_array_equal(state.labels, [1, 3, 7, -1])
        assert state.next_slot == 3


def test_slots_are_the_positions_that_push_writes() -> None:
    state = memory.push(memory.init(4, 2), *batch(0, 1, 2))
    x, y = batch(5, -1, 6)
    slots = memory.slots(state, y)
    np.testing.assert_array_equal(slots, [3, -1, 0])
    after = memory.push(state, x, y)
    np.testing.assert_array_equal(after.labels[slots[jnp.array([0, 2])]], [5, 6])


def test_ids_are_stored_and_unknown_by_default() -> None:
    state = memory.push(memory.init(4, 2), *batch(0, 1, 2), ids=jnp.array([7, 8, 9]))
    np.testing.assert_array_equal(state.ids, [7, 8, 9, -1])
    where = jnp.array([True, False])
    state = jax.jit(memory.push)(state, *batch(3, 4), where, ids=jnp.array([5, 6]))
    np.testing.assert_array_equal(state.ids, [7, 8, 9, 5])
    np.testing.assert_array_equal(memory.push(state, *batch(6, 6)).ids, [-1, -1, 9, 5])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int8, ">i4", np.int64])
def test_labels_of_any_type(dtype) -> None:
    labels = np.array([0, 7, 2, 3])
    pushed = memory.push(memory.init(5, 2), np.ones((4, 2), np.float32), labels.astype(dtype))
    np.testing.assert_array_equal(pushed.labels, [*labels, -1])
    np.testing.assert_array_equal(pushed.ids, -1)


def test_wide_labels_are_refused_or_stored_exactly() -> None:
    vectors, wide = np.ones((2, 2), np.float32), np.array([0, 2**32])
    for call in (
        lambda: memory.push(memory.init(5, 2), vectors, wide),
        lambda: jdml.mining.all_pairs(wide),
        lambda: jdml.fields.superpose(lambda r, same: r, vectors, wide),
    ):
        with pytest.raises(ValueError, match=r"\[1\] is 4294967296"):
            call()
    with jax.enable_x64(True):
        assert memory.push(memory.init(5, 2), vectors, wide).labels[1] == 2**32
        assert not jdml.mining.all_pairs(wide).positive.any()


def test_no_gradient_enters_the_memory() -> None:
    def through(x: jax.Array) -> jax.Array:
        return memory.push(memory.init(4, 2), x, jnp.array([0, 1])).embeddings.sum()

    np.testing.assert_array_equal(jax.grad(through)(jnp.ones((2, 2))), 0)


def test_references_from_an_empty_memory_give_loss_zero() -> None:
    x, y = batch(0, 0, 1)
    state = memory.init(8, 2)
    references = {"references": state.embeddings, "reference_labels": state.labels}
    assert jdml.contrastive_loss(x, y, **references, reference_where=state.valid) == 0


def test_own_entries_are_excluded_by_index_not_by_similarity() -> None:
    x = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    y = jnp.array([0, 0, 1])
    before = memory.init(8, 2)
    state = memory.push(before, x, y)
    refs = {
        "references": state.embeddings,
        "reference_labels": state.labels,
        "self_index": memory.slots(before, y),
    }
    values = jdml.contrastive_loss(x, y, negative_margin=2.0, reduce_fn=None, **refs)
    expected = jdml.contrastive_loss(x, y, negative_margin=2.0, reduce_fn=None)
    np.testing.assert_allclose(values[:, :3], expected, atol=1e-6)
    assert (values[:, 3:] == 0).all()


def push(embeddings: Any, labels: Any, *where: Any, **ids: Any) -> Any:
    return lambda: memory.push(memory.init(4, 2), embeddings, labels, *where, **ids)


REFUSED = [
    (push(jnp.ones((2, 3)), jnp.array([0, 1])), ValueError, "embeddings"),
    (push(jnp.ones((2, 2)), jnp.array([0, 1, 2])), ValueError, "labels"),
    (push(jnp.ones((2, 2)), jnp.array([0.0, 1.0])), TypeError, "labels"),
    (push(jnp.ones((9, 2)), jnp.zeros(9, int)), ValueError, "a batch .* capacity"),
    (push(*batch(0, 1), jnp.array([1, 0])), TypeError, "where"),
    (push(*batch(0, 1), ids=np.arange(3)), ValueError, "ids"),
    (push(*batch(0, 1), ids=np.arange(2) * 1.0), TypeError, "ids"),
    (push(*batch(0, 1), ids=np.array([3, 2**40])), ValueError, r"ids\[1\]"),
    (lambda: memory.init(0, 2), ValueError, "capacity"),
    (lambda: memory.init(4, -1), ValueError, "dim"),
    (lambda: memory.init(2.5, 2), TypeError, "capacity"),
]


@pytest.mark.parametrize(("call", "error", "name"), REFUSED)
def test_wrong_arguments_are_refused(call: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=f"^{name}"):
        call()
