"""How much of NIR's gain is its warm-up: seven ways to train each of three proxy losses, on the same seeds."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.nir import main as regularized
from experiments.potential_fields.main import load
from experiments.smoke import small
from experiments.study import (
    RecordOptions,
    by_seed,
    cell,
    curve,
    paired_table,
    present,
    read_toml,
    record_study,
    start,
)
from jdml import optim
from jdml.recipes import Recipe
from jdml.report import markdown_table
from jdml.training import Evaluation, train_recipe

STEPS, CLASSES, SAMPLES, WARMUP = small((600, 4, 40, 50), (2, 2, 4, 1))
BASES = ("ProxyAnchor", "ProxyNCA*", "SoftTriple")
STUDY = read_toml(__file__)
WAYS, TESTS = STUDY["ways"], STUDY["tests"]
SCORES = ("R@1", "NMI", "mAP@1000")
WATCHED = 3000
"""Images that are scored on the way, of the test images: for the picture alone, nothing is chosen by them."""


@dataclasses.dataclass(frozen=True)
class Settings(RecordOptions):
    """Settings of the study."""

    seeds: int = small(10, 1)
    """Runs of each way, with seeds 0, 1, …"""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run by name: all ways of a loss with the first seed, then with the next."""
    return {
        f"{base.replace('*', 'x')}, {way}-{seed}": dict(base=base, way=way, steps=STEPS, seed=seed)
        for base in small(BASES, ("ProxyAnchor",))
        for seed in range(settings.seeds)
        for way in small(WAYS, ("warm-up, reset", "NIR", "warm-up"))
    }


def reset_at(rule: optax.GradientTransformation, at: int) -> optax.GradientTransformation:
    """Return the rule, which forgets at a step all it has seen."""

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), rule.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        step, inner = state
        inner = jax.tree.map(
            lambda new, old: jnp.where(step == at, new, old), rule.init(params), inner
        )
        updates, inner = rule.update(updates, inner, params)
        return updates, (step + 1, inner)

    return optax.GradientTransformation(init, update)


def recipe_of(base: str, way: dict[str, Any]) -> Recipe:
    """Return the recipe of a loss in one of the ways: NIR, a warm-up, or another rate of the network alone."""
    job = {"data": "omniglot", "method": base, "flow": {}, "steps": STEPS, "nir": way.get("nir")}
    recipe, faster = regularized.recipe_of(job), way.get("faster", 1.0)
    rates = {role: rate / faster for role, rate in recipe.optimizer.lr_multipliers.items()}
    rate = faster * recipe.optimizer.learning_rate
    return recipe.replace(
        finetune={"backbone_freeze_steps": min(way.get("warmup", 0), WARMUP)},
        batch={"classes": CLASSES, "samples_per_class": SAMPLES},
        optimizer={"learning_rate": rate, "lr_multipliers": rates},
    )


def with_reset(recipe: Recipe) -> optax.GradientTransformation:
    """Return the recipe's optimizer, but for what does not wait: it is reset when the others begin."""
    rate = recipe.optimizer.learning_rate
    rates = {"head": rate, "proxies": rate * recipe.optimizer.lr_multipliers["proxies"]}
    begins = recipe.finetune.backbone_freeze_steps or 0
    fresh = {role: reset_at(optax.adam(rate), begins) for role, rate in rates.items()}
    rules = {"backbone": optax.adam(rate), **fresh}
    return optim.partition_by_role(rules, optim.backbone_and_head, waiting={"backbone": begins})


def run(job: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """Train one network; score its last weights on the letters."""
    way = WAYS[job["way"]]
    recipe = recipe_of(job["base"], way)
    train, ((_, test, letters), *_) = load("omniglot", data_dir)
    watched = np.random.default_rng(0).permutation(len(test))[:WATCHED]
    images = test.images[watched]

    def recall(embedder: Any) -> dict[str, float]:
        x = jdml.sphere(jnp.asarray(embedder(images)))
        return {"R@1": jdml.evaluate_retrieval(x, letters[watched], recall_at=(1,))["R@1"]}

    result = train_recipe.train(
        recipe,
        train,
        optimizer=with_reset(recipe) if way.get("reset") else None,
        seed=job["seed"],
        evaluation=Evaluation(recall, max(1, STEPS // 12)),
        progress=False,
    )
    x = jdml.sphere(jnp.asarray(result.embedder(test.images)))
    scores = {**regularized.retrieval(x, letters), **regularized.structure(x, letters)}
    del scores["MAP@R"], scores["spectrum"]
    return {
        **{name: round(float(value), 5) for name, value in scores.items()},
        "skipped": int(sum(record["skipped"] for record in result.history)),
        "curve": curve(result.history, "R@1"),
    }


def tables(results: dict[str, Any]) -> str:
    """Return means of each way, and the differences that decide."""
    bases = present(BASES, results, "base")
    sections = []
    for base in bases:
        rows = []
        for way in WAYS:
            values = [list(by_seed(results, m, base=base, way=way).values()) for m in SCORES]
            skipped = sum(by_seed(results, "skipped", base=base, way=way).values())
            rows.append([way, *map(cell, values), str(len(values[0])), str(skipped)])
        sections.append(markdown_table([base, *SCORES, "seeds", "steps skipped"], rows))
    recalls = {
        base: {way: by_seed(results, "R@1", base=base, way=way) for way in WAYS} for base in bases
    }
    sections.append(paired_table("R@1, points", TESTS, recalls, planned=len(BASES)))
    return "\n".join(sections)


main = record_study(Path(__file__).with_name("results.jsonl"), run, make_jobs, tables)


if __name__ == "__main__":
    start(main, Settings, __doc__)
