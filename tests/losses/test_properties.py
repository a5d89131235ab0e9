"""The property matrix: every check of `jdml.testing` on every loss of the registry."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from losses.registry import REGISTRY, case, loss

import jdml
from jdml.testing import LOSS_CHECKS, LossCase, check_memory, check_references

# Compiled functions are shared between the checks of one loss, and dropped with the next loss.
shared_case = lru_cache(maxsize=1)(case)


def applies(name: str, check: str) -> bool:
    """Whether the check says anything about the loss."""
    spec = REGISTRY[name]
    return check not in spec.skip and not (check == "references" and spec.kind == "proxy")


MATRIX = [(name, check) for name in REGISTRY for check in LOSS_CHECKS if applies(name, check)]


@pytest.mark.parametrize(("name", "check"), MATRIX)
def test_property(name: str, check: str) -> None:
    LOSS_CHECKS[check](shared_case(name))


def test_circle_loss_references() -> None:
    """Circle loss holds its weights constant: its gradient is not the slope."""
    check_references(case("circle_loss"), gradients=False)


def test_every_exported_loss_is_registered() -> None:
    exported = {name for name in dir(jdml.losses) if name.endswith("_loss")}
    assert exported - {"nir_loss"} == set(REGISTRY)  # of residuals, not of embeddings: test_nir.py


def test_triplet_memory_at_the_stated_size() -> None:
    """B = 1,024: under 64 MiB, that is 16 matrices [B, B] of float32."""
    check_memory(LossCase(jdml.triplet_loss), size=1024, dim=512, arrays=14)


@pytest.mark.slow
@pytest.mark.parametrize("mine", ["easy_positive", "multi_similarity_pairs"])
def test_mined_losses_keep_the_properties(mine: str) -> None:
    settings = {"mine": getattr(jdml.mining, mine)()}
    mined = LossCase(jdml.multi_similarity_loss, settings=settings)
    for check in ("jit", "gradients", "mask", "degenerate", "traces"):
        LOSS_CHECKS[check](mined)


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [None, jdml.ball])
def test_other_normalizations_stay_finite(normalize: object) -> None:
    batch = LossCase(jdml.contrastive_loss, settings={"normalize": normalize})
    for check in ("gradients", "mask"):
        LOSS_CHECKS[check](batch)


def test_losses_run_under_jax_export() -> None:
    batch = case("triplet_loss")
    params = (jax.ShapeDtypeStruct((12, 8), "float32"), None)
    labels = jax.ShapeDtypeStruct((12,), "int32")
    exported = jax.export.export(jax.jit(batch.loss))(params, labels)
    assert exported.out_avals[0].shape == ()


@pytest.mark.parametrize("name", REGISTRY)
def test_export(name: str) -> None:
    spec = REGISTRY[name]
    x, y = jax.ShapeDtypeStruct((12, 8), jnp.float32), jax.ShapeDtypeStruct((12,), jnp.int32)
    p = jax.ShapeDtypeStruct((5, 2, 8), jnp.float32)
    arrays = (x, y) if spec.kind == "pair" else (x, y, p)
    blocks: dict[str, Any] = {"anchor_block": 5} if spec.kind == "pair" else {"class_block": 2}

    def value(*arrays: jax.Array) -> jax.Array:
        return loss(name)(*arrays, **({} if "K" in spec.shape else blocks))

    step = jax.jit(jax.value_and_grad(value))
    exported = jax.export.export(step, platforms=("cuda", "tpu"))(*arrays)
    assert exported.platforms == ("cuda", "tpu")
    assert exported.out_avals[0].shape == ()
