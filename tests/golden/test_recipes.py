"""The papers' recipes, as on file: every method for every data set, value by value.

The file is from before recipes had parts: ``NAMES`` says where each of its values stands now. Where a recipe is meant to
change, change the file by hand.
"""

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from jdml import recipes
from jdml.recipes import Recipe
from jdml.recipes.shared import DATASETS

FILE = Path(__file__).with_name("recipes.json")
NAMES = {
    "loss": "loss.name",
    "settings": "loss.settings",
    "miner": "loss.miner",
    "learn_beta": "loss.learn_beta",
    "memory": "loss.memory_size",
    "memory_wait": "loss.memory_start_step",
    "proxies_per_class": "loss.proxies.per_class",
    "sampled_classes": "loss.proxies.sampled_classes",
    "start": "loss.proxies.init",
    "max_proxy_entry": "loss.proxies.clip_value",
    "max_proxy_norm": "loss.proxies.clip_norm",
    "proxies_on_sphere": "loss.proxies.on_sphere",
    "weight": "loss.weight",
    "normalize": "loss.normalize",
    "method": "loss.method",
    "network": "network.name",
    "dim": "network.dim",
    "pooling": "network.pooling",
    "head": "network.head_init",
    "dtype": "network.dtype",
    "remat": "network.remat",
    "freeze_batch_norm": "finetune.freeze_batch_norm",
    "freeze": "finetune.freeze",
    "kept_views": "finetune.cached_views",
    "last_blocks": "finetune.last_blocks",
    "layer_decay": "finetune.layer_decay",
    "lora": "finetune.lora",
    "lora_alpha": "finetune.lora_alpha",
    "lora_paths": "finetune.lora_paths",
    "warmup_epochs": "finetune.backbone_freeze_epochs",
    "warmup_steps": "finetune.backbone_freeze_steps",
    "small_classes": "batch.on_small_class",
    "batch_within": "batch.group_by",
    "class_power": "batch.class_sampling_power",
    "epochs": "batch.epochs",
    "steps": "batch.steps",
    "skip_nonfinite": "batch.skip_nonfinite",
    "rule": "optimizer.name",
    "rate": "optimizer.learning_rate",
    "role_rates": "optimizer.lr_multipliers",
    "b2": "optimizer.b2",
    "weight_decay": "optimizer.weight_decay",
    "decayed": "optimizer.weight_decay_roles",
    "rate_warmup": "optimizer.lr_warmup_steps",
    "max_norm": "optimizer.clip_global_norm",
    "max_entry": "optimizer.clip_value",
    "ema": "evaluation.ema",
    "nmi": "evaluation.nmi",
    "more_clusters": "evaluation.nmi_cluster_factor",
    "map_divisor": "evaluation.map_divisor",
}
OF_METHOD = {
    "first": "initial_proxies",
    "flow_lr": "flow_learning_rate",
    "embeddings_wait": "start_step",
}


def old_form(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as the file has it, without what no recipe on file has."""
    values = json.loads(json.dumps(recipe.to_json()))
    old = {name: reduce(dict.__getitem__, path.split("."), values) for name, path in NAMES.items()}
    batch = values["batch"]
    random = batch["classes"] is None
    old["batch"] = batch["size"] if random else [batch["classes"], batch["samples_per_class"]]
    schedule = values["optimizer"]["schedule"]
    step = re.fullmatch(r"step:every=(\d+)(?:,factor=(.*))?", schedule)
    old["schedule"] = "constant" if step else schedule
    old["decay_every"] = int(step[1]) if step else None
    old["decay_factor"] = float(step[2] or 0.5) if step else 0.5
    old["norm_by_role"] = isinstance(old["max_norm"], dict)
    if old["method"] is not None:
        old["method"] = {
            next((was for was, now in OF_METHOD.items() if now == name), name): value
            for name, value in old["method"].items()
        }
    return old


@pytest.mark.parametrize("method", recipes.RECIPES)
def test_recipes_match_the_file(method: str) -> None:
    on_file = json.loads(FILE.read_text())
    for dataset in DATASETS:
        assert old_form(recipes.recipe(method, dataset)) == on_file[f"{method} {dataset}"]
