"""Losses of distances far from the origin, and where embeddings have nearly collapsed: as exact as near it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml import fields

LABELS = np.arange(24) % 4
CLASSES = np.arange(4)
UNNORMALIZED: dict[str, Any] = {"normalize": None}
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "contrastive": lambda x, p: jdml.contrastive_loss(
        x, LABELS, positive_margin=0.5, negative_margin=5.0, **UNNORMALIZED
    ),
    "references": lambda x, p: jdml.contrastive_loss(
        x, LABELS, references=p, reference_labels=CLASSES, negative_margin=5.0, **UNNORMALIZED
    ),
    "triplet": lambda x, p: jdml.triplet_loss(x, LABELS, margin=1.0, **UNNORMALIZED),
    "mined": lambda x, p: jdml.triplet_loss(
        x, LABELS, margin=1.0, mine=jdml.mining.hard_negative(), **UNNORMALIZED
    ),
    "blocks": lambda x, p: jdml.margin_loss(x, LABELS, anchor_block=8, **UNNORMALIZED),
    "sphere": lambda x, p: jdml.triplet_loss(x, LABELS, margin=0.1),
    "sphere, blocks": lambda x, p: jdml.triplet_loss(x, LABELS, margin=0.1, anchor_block=8),
    "proxies": lambda x, p: jdml.proxy_nca_loss(x, LABELS, p, **UNNORMALIZED),
    "field": lambda x, p: jdml.potential_field_loss(
        x, LABELS, p, delta=0.5, alpha=2.0, **UNNORMALIZED
    ),
    "class field": lambda x, p: fields.class_field(x, 0, p, jnp.asarray(CLASSES)).sum(),
}


def value_and_grad(name: str, points: np.ndarray, proxies: np.ndarray, dtype: Any) -> Any:
    """Return a loss and its gradients by embeddings and proxies, computed in ``dtype``."""
    with jax.enable_x64(dtype == jnp.float64):
        arrays = (jnp.asarray(part, dtype) for part in (points, proxies))
        loss = jax.jit(jax.value_and_grad(LOSSES[name], (0, 1)))
        return jax.device_get(loss(*arrays))


def assert_exact(name: str, points: np.ndarray, proxies: np.ndarray, rtol: float) -> None:
    """Compare float32 with float64, for the same vectors: those that float32 has."""
    points, proxies = (part.astype(np.float32) for part in (points, proxies))
    (value, gradients), (exact, slopes) = (
        value_and_grad(name, points, proxies, dtype) for dtype in (jnp.float32, jnp.float64)
    )
    np.testing.assert_allclose(value, exact, rtol=rtol)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_allclose(gradient, slope, atol=rtol * max(1e-6, np.abs(slope).max()))


@pytest.mark.parametrize("name", [name for name in LOSSES if "sphere" not in name])
def test_offset_costs_no_digits(name: str) -> None:
    rng = np.random.default_rng(0)
    points, proxies = rng.normal(size=(24, 8)), rng.normal(size=(4, 8))
    assert_exact(name, points + 1e4, proxies + 1e4, rtol=1e-5)


@pytest.mark.parametrize("name", ["contrastive", "mined", "sphere", "sphere, blocks", "field"])
def test_nearly_collapsed_embeddings_are_told_apart(name: str) -> None:
    rng = np.random.default_rng(1)
    points, proxies = np.eye(8)[0] + 1e-4 * rng.normal(size=(2, 24, 8))
    assert_exact(name, points, proxies[:4], rtol=1e-4)


def test_a_miners_product_is_multiplied_in_full_precision():
    # On a GPU or TPU a product without a precision keeps 8 to 11 bits of its numbers.
    points = np.random.default_rng(2).normal(size=(24, 8)).astype(np.float32)

    def mined(x):
        return jdml.multi_similarity_loss(x, LABELS, mine=jdml.mining.multi_similarity_pairs())

    program = jax.jit(jax.grad(mined)).lower(points).as_text()
    products = [line for line in program.splitlines() if "dot_general" in line]
    assert len(products) > 1
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)
