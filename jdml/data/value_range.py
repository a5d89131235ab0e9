"""In which range images stand: bytes 0…255, or numbers 0…1."""

from typing import Any, NamedTuple

import numpy as np

LOOKED_AT = 256
"""Rows, evenly drawn, that are looked at."""
SLACK = 0.25
"""How far resizing may lead out of 0…1."""
LIKE_BYTES = 16.0
"""A largest value above it, and none below 0, is no number that a network is fed with."""


class Range(NamedTuple):
    """The least and the largest value."""

    least: float
    most: float


def value_range(images: Any) -> Range | None:
    """Find the least and the largest value of photographs as floating-point numbers."""
    if not isinstance(images, np.ndarray) or images.ndim != 4 or images.shape[3] not in (1, 3):
        return None
    if images.dtype.kind != "f" or not images.size:
        return None
    seen = images[_rows(images)]
    seen = seen[np.isfinite(seen)]
    return Range(float(seen.min()), float(seen.max())) if seen.size else None


def _rows(images: np.ndarray) -> np.ndarray:
    """The rows that are looked at."""
    return np.unique(np.linspace(0, len(images) - 1, LOOKED_AT).astype(int))


def check_unit(name: str, images: Any, why: str) -> None:
    """Refuse floating-point photographs that do not lie in 0…1."""
    seen = value_range(images)
    if seen is None or (seen.least >= -SLACK and seen.most <= 1 + SLACK):
        return
    raise ValueError(
        f"{name} must be uint8 in 0…255 or float in 0…1{why}, got {images.dtype} from {seen.least:.4g} to "
        f"{seen.most:.4g}: write {_instead(name, seen)}"
    )


def check_no_bytes(name: str, images: Any) -> None:
    """Refuse floating-point photographs that look like bytes, and bytes that are 0 and 1 alone."""
    if isinstance(images, np.ndarray) and images.ndim == 4 and images.dtype == np.uint8:
        if images[_rows(images)].max(initial=0) == 1:
            raise ValueError(
                f"{name} must be uint8 in 0…255, which become 0…1, got uint8 of 0 and 1 alone: write "
                f"{name}.astype(numpy.float32); if they are meant so, give preprocess="
            )
        return
    seen = value_range(images)
    if seen is not None and seen.least >= 0 and seen.most > LIKE_BYTES:
        raise ValueError(
            f"{name} must be uint8 in 0…255, or float in 0…1 or standardized, got {images.dtype} from {seen.least:.4g} "
            f"to {seen.most:.4g}: write {_instead(name, seen)}; if they are meant so, give preprocess="
        )


def check_alike(name: str, images: np.ndarray, trained: Range) -> None:
    """Refuse photographs that stand in another range than those that were trained on."""
    if images.dtype == np.uint8:
        seen: Range | None = Range(0.0, 1.0)
        unlike = trained.least < -SLACK or trained.most > 1 + SLACK
    else:
        seen = value_range(images)
        unlike = seen is not None and _unlike(seen, trained)
    if unlike and seen is not None:
        as_read = ", read as 0…1" if images.dtype == np.uint8 else ""
        raise ValueError(
            f"{name} must stand in the range of those that the run was trained on, {trained.least:.4g} to "
            f"{trained.most:.4g}, got {images.dtype}{as_read} from {seen.least:.4g} to {seen.most:.4g}"
        )


def _unlike(seen: Range, trained: Range) -> bool:
    """Whether numbers are far larger than others, or on another side of 0."""
    larger = max(map(abs, seen)) > 8 * max(map(abs, trained))
    below = trained.least >= 0 and seen.least < -SLACK * trained.most
    raw = trained.least < -SLACK and seen.least >= 0 and 0.5 < seen.most - seen.least <= 1 + SLACK
    return larger or below or raw


def _instead(name: str, seen: Range) -> str:
    if seen.least >= 0 and seen.most <= 255:
        return f"{name}.astype(numpy.uint8)"
    if seen.least >= 0:
        return f"{name} / {seen.most:.4g}"
    if seen.least >= -1 - SLACK and seen.most <= 1 + SLACK:
        return f"({name} + 1) / 2"
    return f"{name} before they were standardized"
