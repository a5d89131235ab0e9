"""Memory of the losses' values and gradients at realistic sizes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from losses.registry import loss

import jdml
from jdml.mining import easy_positive
from oracles.programs import temporary_bytes

MIB = 2**20


def in_batch_and_against(name: str, x: Any, y: Any, references: Any, labels: Any) -> jax.Array:
    refs = {"references": references, "reference_labels": labels}
    return loss(name)(x, y, mine=easy_positive(), **refs) + loss(name)(x, y)


def no_batch_by_classes(name: str, x: Any, proxies: Any) -> jax.Array:
    return loss(name)(x, jnp.zeros(128, int), proxies, class_block=256)


LARGE = ((32_768, 128), 32_768, (16_384, 128), 16_384)
MANY = ((128, 8), (16_384, 2, 8))
PROGRAMS: dict[str, tuple[Callable[..., jax.Array], tuple[Any, ...], Any, int]] = {
    # In blocks of anchors: at most 4 arrays of the embeddings and 128 MiB, for each of the two.
    **{
        f"{name}, large batches": (partial(in_batch_and_against, name), LARGE, 0, 384 * MIB)
        for name in ("contrastive_loss", "triplet_loss", "lifted_structure_loss")
    },
    # The same limit for a loss of differences, with very large batches.
    "snr_contrastive_loss": (
        jdml.snr_contrastive_loss,
        ((262_144, 512), 262_144),
        0,
        4 * 4 * 262_144 * 512 + 128 * MIB,
    ),
    # In blocks of classes: copies of the proxies and tiles of the block's size, less than a matrix [B, C K].
    **{
        f"{name}, many classes": (
            partial(no_batch_by_classes, name),
            MANY,
            (0, 1),
            10 * 4 * 16_384 * 2 * 8 + 12 * 4 * 128 * 256 * 2,
        )
        for name in ("proxy_anchor_loss", "arcface_loss", "multi_proxy_anchor_loss")
    },
    "info_nce_loss": (
        lambda q, n: jdml.info_nce_loss(q, references=n),
        ((8192, 256), (8192, 256)),
        (0, 1),
        64 * MIB + 1,
    ),
    # Not cubic in the batch, for classes of any size.
    "smooth_ap_loss": (jdml.smooth_ap_loss, ((4096, 64), 4096), 0, 128 * MIB),
    "recall_at_k_loss": (jdml.recall_at_k_loss, ((4096, 64), 4096), 0, 128 * MIB),
    # SOP: 11,318 classes × 2 proxies, 512-D.
    "potential_field_loss": (
        jdml.potential_field_loss,
        ((180, 512), 180, (11_318, 2, 512)),
        (0, 2),
        256 * MIB + 1,
    ),
    "proxy_anchor_loss, a million classes": (
        partial(jdml.proxy_anchor_loss, class_block="auto"),
        ((64, 64), 64, (1_000_000, 64)),
        (0, 2),
        4096 * MIB + 1,
    ),
}
QUICK = ("contrastive_loss, large batches", "proxy_anchor_loss, many classes")


@pytest.mark.parametrize(
    # Large programs.
    "name",
    [pytest.param(p, marks=[] if p in QUICK else [pytest.mark.slow]) for p in PROGRAMS],
)
def test_temporaries_stay_below_the_limit(name: str) -> None:
    function, arrays, argnums, limit = PROGRAMS[name]
    assert temporary_bytes(function, *arrays, argnums=argnums) < limit
