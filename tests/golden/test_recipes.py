"""The papers' recipes, as on file: every method for every data set, value by value.

Where a recipe is meant to change, change the file by hand.
"""

import json
from pathlib import Path

import pytest

from jdml import recipes
from jdml.recipes import DATASETS

FILE = Path(__file__).with_name("recipes.json")


@pytest.mark.parametrize("method", recipes.RECIPES)
def test_recipes_match_the_file(method: str) -> None:
    on_file = json.loads(FILE.read_text())
    for dataset in DATASETS:
        assert recipes.recipe(method, dataset).to_json() == on_file[f"{method} {dataset}"]
