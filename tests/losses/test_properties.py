"""The property matrix: every check of `jdml.testing`, and chex's variants, for every loss of the registry."""

from functools import lru_cache
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from losses.registry import FIRST, REGISTRY, case, each, loss

import jdml
from jdml.testing import LOSS_CHECKS, check_references
from jdml.testing.case import assert_close

# Compiled functions are shared between the checks of one loss, and dropped with the next loss.
shared_case = lru_cache(maxsize=1)(case)

# The variants below show that jit changes nothing; tests/testing tests the public check.
CHECKS = [check for check in LOSS_CHECKS if check != "jit"]
# These share one program, and run for all losses in `make test`.
OF_ALL = ("invariance", "degenerate")


def matrix() -> list[Any]:
    """Return every loss with every check that applies to it."""
    rows = []
    for name, spec in REGISTRY.items():
        for check in CHECKS:
            further = check not in OF_ALL and name not in FIRST
            if check not in spec.skip and not (check == "references" and spec.kind == "proxy"):
                marks = [pytest.mark.slow] if further else []  # repeats what other cases show
                rows.append(pytest.param(name, check, marks=marks, id=f"{name}-{check}"))
    return rows


@pytest.mark.parametrize(("name", "check"), matrix())
def test_property(name: str, check: str) -> None:
    LOSS_CHECKS[check](shared_case(name))


@lru_cache(maxsize=1)
def by_oracle(name: str) -> tuple[float, float, Any]:
    """Return the oracle's value, its derivative along a direction, and the direction."""
    batch, rng, step = case(name), np.random.default_rng(6), 1e-6
    points = [p for p in batch.params if p is not None]
    along = [rng.normal(size=p.shape) for p in points]

    def value(t: float) -> float:
        x, *proxies = (p + t * d for p, d in zip(points, along, strict=True))
        return REGISTRY[name].oracle(x, batch.labels, *proxies)

    return value(0.0), (value(step) - value(-step)) / (2 * step), along


class Variants(chex.TestCase):
    """Value and gradient equal the oracle's, compiled or not, on NumPy arrays or on a device."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.named_parameters(*((name, name) for name in REGISTRY))
    def test_property(self, name: str) -> None:
        value, slope, along = by_oracle(name)
        batch = case(name)
        points = [np.float32(p) for p in batch.params if p is not None]

        def compute(points: list[Any], labels: Any) -> jax.Array:
            return loss(name)(points[0], labels, *points[1:])

        found, gradients = self.variant(jax.value_and_grad(compute))(points, batch.labels)
        chex.assert_tree_all_finite(gradients)
        chex.assert_trees_all_equal_shapes_and_dtypes(gradients, points)
        np.testing.assert_allclose(found, value, rtol=1e-4)
        if "gradients" not in REGISTRY[name].skip:
            moved = sum(np.vdot(g, d) for g, d in zip(gradients, along, strict=True))
            assert_close(moved, slope, 1e-3, "the slope by gradients and by the oracle")


def test_circle_loss_properties_with_references() -> None:
    """Circle loss holds its weights constant: its gradient is not its value's derivative."""
    check_references(case("circle_loss"), gradients=False)


def test_every_exported_loss_is_registered() -> None:
    exported = {name for name in dir(jdml.losses) if name.endswith("_loss")}
    assert exported - {"nir_loss"} == set(REGISTRY)  # of residuals, not of embeddings: test_nir.py
    assert all(getattr(jdml, name) is getattr(jdml.losses, name) for name in REGISTRY)


@pytest.mark.parametrize("name", each(REGISTRY))
def test_exported_loss_equals_the_loss(name: str) -> None:
    spec = REGISTRY[name]
    x, y = jax.ShapeDtypeStruct((12, 8), jnp.float32), jax.ShapeDtypeStruct((12,), jnp.int32)
    p = jax.ShapeDtypeStruct((5, 2, 8), jnp.float32)
    arrays = (x, y) if spec.kind == "pair" else (x, y, p)
    blocks: dict[str, Any] = {"anchor_block": 5} if spec.kind == "pair" else {"class_block": 2}

    def value(*arrays: jax.Array) -> jax.Array:
        return loss(name)(*arrays, **({} if "K" in spec.shape else blocks))

    step = jax.jit(jax.value_and_grad(value))
    exported = jax.export.export(step, platforms=("cpu", "cuda", "tpu"))(*arrays)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert exported.out_avals[0].shape == ()


def test_losses_refuse_a_batch_of_open_size() -> None:
    (batch,) = jax.export.symbolic_shape("batch")
    x, y = (jax.ShapeDtypeStruct((batch, *more), t) for more, t in (((8,), "f4"), ((), "i4")))
    for name, spec in REGISTRY.items():
        arrays = (x, y) if spec.kind == "pair" else (x, y, jnp.ones((5, 2, 8)))
        with pytest.raises(ValueError, match=r"^embeddings\b.*batch"):
            jax.export.export(jax.jit(loss(name)))(*arrays)
