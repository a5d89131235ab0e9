"""Small vision transformers under names of their own."""

import dataclasses

import pytest
from models.files import DEPTH, GRID, HEADS, PROJECTED, WIDTH

from jdml.registry import NETWORKS


@pytest.fixture
def small():
    """Register a small network of a family; return its name."""
    registered = []

    def register(name: str) -> str:
        record, few = NETWORKS[name], f"few_{name}"
        sizes = {"width": WIDTH, "depth": DEPTH, "heads": HEADS, "grid": GRID, "hidden": None}
        if "projection" in record.settings:
            sizes["projection"] = PROJECTED
        settings = {**record.settings, **sizes}
        NETWORKS[few] = dataclasses.replace(record, name=few, settings=settings)
        registered.append(few)
        return few

    yield register
    for few in registered:
        del NETWORKS[few]
