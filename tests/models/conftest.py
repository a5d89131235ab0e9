"""Small vision transformers under names of their own."""

import dataclasses

import pytest
from models.files import DEPTH, GRID, HEADS, PROJECTED, WIDTH

from jdml.registry import NETWORKS


@pytest.fixture
def small(monkeypatch):
    """Register a small network of a family; return its name."""

    def register(name: str) -> str:
        record, few = NETWORKS[name], f"few_{name}"
        sizes = {"width": WIDTH, "depth": DEPTH, "heads": HEADS, "grid": GRID, "hidden": None}
        if "projection" in record.settings:
            sizes["projection"] = PROJECTED
        network = dataclasses.replace(record, name=few, settings={**record.settings, **sizes})
        monkeypatch.setitem(NETWORKS, few, network)  # until the end of the test
        return few

    return register
