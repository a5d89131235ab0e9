"""The papers' recipes match the file: every method for every data set, field by field.

After an intended change rewrite the file and review the difference: ``python tests/golden/test_recipes.py``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from jdml import recipes
from jdml.recipes.shared import DATASETS

FILE = Path(__file__).with_name("recipes.json")


def recipe_json(method: str, dataset: str) -> dict[str, Any]:
    """Return the recipe after a round trip through JSON."""
    return dict(json.loads(json.dumps(recipes.recipe(method, dataset).to_json())))


@pytest.mark.parametrize("method", recipes.RECIPES)
def test_recipes_match_the_file(method: str) -> None:
    on_file = json.loads(FILE.read_text())
    for dataset in DATASETS:
        assert recipe_json(method, dataset) == on_file[f"{method} {dataset}"]


if __name__ == "__main__":
    pairs = [(method, dataset) for method in recipes.RECIPES for dataset in DATASETS]
    rows = [f" {json.dumps(' '.join(p))}: {json.dumps(recipe_json(*p))}" for p in pairs]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
