"""What of NIR's gain is its warm-up: seven ways to train each of three proxy losses, on the same seeds.

Omniglot at 28×28, trained on alphabets, scored on the letters of alphabets never seen, 600 steps. The ways, and which
differences decide, are written in README.md and below, before the runs, each of which is kept and never run twice.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jdml
from experiments.nir import regularized
from experiments.options import Kept, start
from experiments.potential_fields import study  # the data and the base losses
from experiments.shown import cell, curve, subplots, those_run
from experiments.smoke import record, small
from jdml import optim
from jdml.recipes import Recipe
from jdml.report import markdown_table, paired_table
from jdml.studies.runner import by_seed
from jdml.training import Evaluation, train_recipe

STEPS, CLASSES, SAMPLES = small((600, 4, 40), (2, 2, 4))
WARMUP = small(50, 1)
BASES = ("ProxyAnchor", "ProxyNCA*", "SoftTriple")
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "warm-up": {"warmup": WARMUP},
    "warm-up, reset": {"warmup": WARMUP, "reset": True},
    "rate x 1.4": {"faster": 1.4},
    "NIR": {"nir": {"weight": 0.01}, "warmup": WARMUP},
    "NIR, no warm-up": {"nir": {"weight": 0.01}},
    "NIR, t = 1e-9": {"nir": {"weight": 0.01, "temperature": 1e-9}, "warmup": WARMUP},
}
"""In the warm-up the backbone waits; "reset" gives Adam fresh moments of all else at its end, too."""
TESTS = {
    "what NIR adds to its own warm-up": ("NIR", "warm-up"),
    "NIR, as a paper's table compares": ("NIR", "alone"),
    "the warm-up": ("warm-up", "alone"),
    "fresh moments at its end": ("warm-up, reset", "warm-up"),
    "a faster start instead": ("rate x 1.4", "alone"),
    "NIR without a warm-up": ("NIR, no warm-up", "alone"),
    "the force of NIR's term": ("NIR", "NIR, t = 1e-9"),
}
"""Differences of R@1 on letters over the same seeds. The first one decides, with Holm's correction over the losses."""
SCORES = ("R@1", "NMI", "mAP@1000")
WATCHED = 3000
"""Images that are scored on the way, of the test images: for the picture alone, nothing is chosen by them."""
KEPT = record(Path(__file__).parent / "results.jsonl")


@dataclasses.dataclass(frozen=True)
class Settings(Kept):
    """What is run."""

    seeds: int = small(10, 1)
    """Runs of each way, with seeds 0, 1, …"""
    bases: tuple[str, ...] = small(BASES, ("ProxyAnchor",))
    """Of the base losses these only."""
    out: Path = KEPT
    """File of the kept runs."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every run by name: all ways of a loss with the first seed, then with the next."""
    return {
        f"{base.replace('*', 'x')}, {way}-{seed}": dict(base=base, way=way, steps=STEPS, seed=seed)
        for base in settings.bases
        for seed in range(settings.seeds)
        for way in small(WAYS, ("warm-up, reset", "NIR", "warm-up"))
    }


def reset_at(rule: optax.GradientTransformation, at: int) -> optax.GradientTransformation:
    """The rule, which forgets at a step all it has seen."""

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
    """The recipe of a loss in one of the ways: NIR, a warm-up, or another rate of the network alone."""
    of_task = {"data": "omniglot", "method": base, "flow": {}, "steps": STEPS}
    of_task["nir"] = way.get("nir")
    recipe, faster = regularized.recipe_of(of_task), way.get("faster", 1.0)
    rates = {role: rate / faster for role, rate in recipe.optimizer.lr_multipliers.items()}
    rate = faster * recipe.optimizer.learning_rate
    return recipe.replace(
        finetune={"backbone_freeze_steps": way.get("warmup", 0)},
        batch={"classes": CLASSES, "samples_per_class": SAMPLES},
        optimizer={"learning_rate": rate, "lr_multipliers": rates},
    )


def with_reset(recipe: Recipe) -> optax.GradientTransformation:
    """The recipe's optimizer, but for what does not wait: it is reset when the others begin."""
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
    train, scored = study.load("omniglot", data_dir, held_out=False)
    _, test, letters = scored[0]
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
    left_out = ("MAP@R", "spectrum")
    return {
        **{name: round(float(v), 5) for name, v in scores.items() if name not in left_out},
        "skipped": int(sum(record["skipped"] for record in result.history)),
        "curve": curve(result.history, "R@1"),
    }


def tables(results: dict[str, Any]) -> str:
    """Means of each way, and the differences that decide."""
    bases = those_run(BASES, results, "base")
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


def draw(results: dict[str, Any], path: Path) -> None:
    """R@1 of some unseen letters by step, mean over the seeds: of each base loss the ways that its gain is made of."""
    bases = those_run(BASES, results, "base")
    figure, (row,) = subplots(columns=len(bases), size=(1 + 4 * len(bases), 3.6))
    for axis, base in zip(row, bases, strict=True):
        for way in WAYS:
            curves = list(by_seed(results, "curve", base=base, way=way).values())
            if not curves:
                continue
            steps, values = np.moveaxis(np.array(curves), -1, 0)
            label = f"{way} ({len(curves)})"
            axis.plot(steps[0], 100 * values.mean(0), label=label, marker="o", markersize=2)
        axis.set(title=base, xlabel="step", ylabel="R@1 of 3,000 images of unseen letters, %")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, title="way (seeds)", title_fontsize=7)
    figure.savefig(path, dpi=110)


def main(settings: Settings) -> str:
    """Run what is missing, as far as time goes; return the tables."""
    results = settings.results(run, make_jobs(settings), settings.out)
    if results:
        draw(results, settings.out.with_name("decided.png"))
    return tables(results)


if __name__ == "__main__":
    start(main, Settings, __doc__)
