"""Embeddings for the report's figures and pages."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def cloud() -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings of three classes, some of them near another class, and their labels."""
    labels = np.repeat(np.arange(3), 8)
    x = np.eye(3, 8)[labels] + 0.3 * np.random.default_rng(0).normal(size=(24, 8))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels
