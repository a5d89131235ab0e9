"""The decorator of every public function: traced and static arguments, and checks."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import ops
from jdml.ops import checks

X = jnp.eye(4, 3) + 0.1
Y = jnp.array([0, 0, 1, 1])


def traced_counter():
    """Return a public function, and the list of its arguments at each trace."""
    traces: list[tuple] = []

    @ops.public(power=checks.positive, bins=checks.count)
    def scale(x: jax.Array, *, power: float = 2.0, bins: int = 3, flag: bool = False) -> jax.Array:
        traces.append((type(power), bins, flag))
        return power * x * bins

    return scale, traces


def test_numbers_are_traced_and_choices_are_static() -> None:
    scale, traces = traced_counter()
    for power in (2, 3.0, np.float32(4), 5):
        np.testing.assert_allclose(scale(jnp.ones(2), power=power), 3 * float(power))
    assert len(traces) <= 2  # weakly typed Python numbers, and NumPy's float32
    scale(jnp.ones(2), power=1.0, bins=4)
    assert traces[-1][1] == 4
    assert not isinstance(traces[-1][1], jax.Array)
    count = len(traces)
    np.testing.assert_allclose(scale(jnp.ones(2), power=1.0, bins=np.int64(4)), 4)
    assert len(traces) == count


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("power", -1, ValueError),
        ("power", float("nan"), ValueError),
        ("power", "2", TypeError),
        ("power", True, TypeError),
        ("power", jnp.ones(2), ValueError),
        ("bins", 0, ValueError),
        ("bins", 2.0, TypeError),
    ],
)
def test_hyper_parameters_are_checked_before_tracing(name, value, error) -> None:
    scale, traces = traced_counter()
    with pytest.raises(error, match=rf"^{name}\b"):
        scale(jnp.ones(2), **{name: value})
    with pytest.raises(TypeError, match="other"):
        scale(jnp.ones(2), other=1)
    assert traces == []


@pytest.mark.parametrize(
    ("check", "value", "error", "name"),
    [
        (checks.angle, -0.1, ValueError, "x"),
        (checks.angle, 3.2, ValueError, "x"),
        (checks.angle_per_class, np.array([0.5, 4.0]), ValueError, "x"),
        (checks.nonzero_integer, 2.0, TypeError, "x"),
        (checks.nonzero_integer, True, TypeError, "x"),
        (checks.nonzero_integer, 0, ValueError, "x"),
        (checks.uint32, True, TypeError, "x"),
        (checks.uint32, 2**32, ValueError, "x"),
        (checks.check_label_values, ["a"], TypeError, "x"),
        (checks.check_label_values, np.array(["a"]), TypeError, "x"),
        (checks.check_label_values, np.array(["a"], object), TypeError, "x"),
        (checks.check_label_values, np.array([1], object), TypeError, "x"),
        (checks.check_label_values, np.array([0, 2**40]), ValueError, r"x\[1\]"),
        (checks.check_finite, np.array([[1.0], [np.nan]]), ValueError, "x .*row 1"),
        (checks.as_centres, np.ones(3), ValueError, "x"),
        (checks.as_centres, np.ones((0, 3)), ValueError, "x"),
    ],
)
def test_checks_refuse_wrong_values(check, value, error, name) -> None:
    with pytest.raises(error, match=f"^{name}"):
        check("x", value)


@pytest.mark.parametrize(
    "labels", [np.array([2.0**40]), np.array([0, 2**31 - 1]), np.zeros(0, int)]
)
def test_labels_that_fit_int32_are_accepted(labels) -> None:
    checks.check_label_values("x", labels)


def test_traced_hyper_parameters_are_checked_by_checked() -> None:
    with pytest.raises(ValueError, match="alpha .*-2"):
        jdml.checked(jdml.multi_similarity_loss)(X, Y, alpha=jnp.float32(-2))


def test_checked_names_the_row() -> None:
    with pytest.raises(ValueError, match=r"^labels\[2\] is 9"):
        jdml.checked(jdml.proxy_nca_pp_loss)(X, jnp.array([0, 1, 9, 0]), jnp.eye(3))
    with pytest.raises(ValueError, match=r"^labels\[1\] is -3"):
        jdml.checked(jdml.triplet_loss)(X, jnp.array([0, -3, 1, 0]))
    with pytest.raises(ValueError, match=r"^embeddings\[3\]"):
        jdml.checked(jdml.contrastive_loss)(X.at[3, 1].set(jnp.nan), Y)


def test_checked_ignores_rows_that_are_masked() -> None:
    where = jnp.array([True, True, False, True])
    poisoned = X.at[2].set(jnp.nan)
    value = jdml.checked(jdml.contrastive_loss)(poisoned, jnp.array([0, 0, -1, 1]), where=where)
    np.testing.assert_allclose(value, jdml.contrastive_loss(X, Y, where=where))


def test_checked_gives_the_same_value_and_gradient() -> None:
    plain = jax.value_and_grad(jdml.triplet_loss)(X, Y, margin=0.3)
    chex.assert_trees_all_close(
        jdml.checked(jax.value_and_grad(jdml.triplet_loss))(X, Y, margin=0.3), plain
    )


def test_checks_do_not_change_later_calls() -> None:
    with pytest.raises(ValueError, match="labels"):
        jdml.checked(jdml.proxy_anchor_loss)(X, Y + 5, jnp.eye(3))
    assert jax.jit(jdml.proxy_anchor_loss)(X, Y + 5, jnp.eye(3)) == 0


def test_rebuilt_miner_does_not_retrace() -> None:
    @chex.assert_max_traces(n=1)
    def counted(x: jax.Array) -> jax.Array:
        return x

    counted = jax.jit(counted)
    for margin in (0.1, 0.2, 0.3):
        mine = jdml.chain(jdml.easy_positive(), jdml.mining.semi_hard_negative(margin))
        loss = lambda x, m: jdml.triplet_loss(counted(x), Y, mine=m, key=jax.random.key(0))  # noqa: E731
        assert jnp.isfinite(jax.jit(loss)(X, mine))
    structures = {
        jax.tree.structure(jdml.chain(jdml.easy_positive(), jdml.mining.semi_hard_negative(m)))
        for m in (0.1, 0.2)
    }
    assert len(structures) == 1
