"""Birds, fine-tuned: the whole network learns, with ten methods, compared with their heads on frozen features."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cub_crops import main as birds
from experiments.cub_crops.main import BACKBONE, COLUMNS, FEATURES, HELD_OUT, NORMALIZE, SIDE
from experiments.omniglot.methods import EVALUATIONS, METHODS, Parts, hold_out, on_data
from experiments.study import RecordOptions, absolute, best_of, by_seed, curve, read_toml, start
from jdml import data, models
from jdml.recipes import Recipe
from jdml.recipes.network import ALL_BUT_HEAD
from jdml.report import holm_correction, markdown_table, mean_std, paired_difference
from jdml.runs.run_files import read_results
from jdml.training import Devices, Evaluation, pretrained, train_recipe

HERE = Path(__file__).parent
Results = Mapping[str, Any]
STUDY = read_toml(__file__)["finetuned"]
STEPS, ALONE, AT_ONCE = (STUDY[name] for name in ("steps", "alone", "at_once"))
CHOOSING, CHOOSE, RATES, TEN = (STUDY[name] for name in ("choosing", "choose", "rates", "ten"))
SEEDS = tuple(STUDY["seeds"])
MEAN = "mean of the ten"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(RecordOptions):
    """Settings of the study."""

    @property
    def weights_file(self) -> str | None:
        """The weights as jobs have them; runs need them."""
        if self.weights is None and not (self.table or self.smoke):
            raise ValueError(
                "--weights is needed: without it the network's weights would be random"
            )
        return absolute(self.weights)


def recipe_of(method: str, rate: float = birds.RATE) -> Recipe:
    """As on frozen features, but for the network with its own rate, the steps, and rates that go down to 0."""
    recipe = on_data(METHODS[method], birds.BATCH, birds.RATE, pool=16)
    slower = {ALL_BUT_HEAD: rate / birds.RATE}
    return recipe.replace(
        network={"name": BACKBONE},
        finetune={"freeze_batch_norm": True, "backbone_freeze_steps": ALONE},
        batch={"steps": STEPS},
        optimizer={
            "schedule": "cosine",
            "lr_multipliers": {**recipe.optimizer.lr_multipliers, **slower},
        },
    )


@functools.cache
def load(data_dir: str | None) -> Parts:
    """Photographs that train, are held out, and test; random crops of the first train, centre crops are scored."""
    crops = data.conventional(SIDE)
    parts = (
        data.load("cub", data_dir=data_dir, split=s, transform=crops) for s in ("train", "test")
    )
    return hold_out(*parts, HELD_OUT)


def run(job: Mapping[str, Any], *, data_dir: str | None, weights: str | None) -> dict[str, Any]:
    """Train a method; the best of its evaluations on the held-out species, scored on the test species if it counts."""
    recipe = recipe_of(job["method"], job["rate"])
    return fit(recipe, load(data_dir), job["seed"], weights, test=job["test"])


def fit(
    recipe: Recipe, parts: Parts, seed: int, weights: str | None, *, test: bool = True
) -> dict[str, Any]:
    """Train all of the network on random crops; what the best of the evaluations scores, and the curve of all."""
    result = train_recipe.train(
        recipe,
        parts.train,
        validation=parts.validation,
        seed=seed,
        sampler=functools.partial(data.ImageBatches, seed=seed),
        state=pretrained(functools.partial(models.load_weights, weights)) if weights else None,
        preprocess=NORMALIZE,
        devices=Devices(micro_batch=AT_ONCE),
        evaluation=Evaluation(every=STEPS // EVALUATIONS),
        progress=False,
    )
    scores = {**best_of(result), "curve": curve(result.history)}
    if test:
        scores |= birds.score(recipe, result.embedder(parts.test.images), parts.test.labels)
    return scores


def trials() -> dict[str, dict[str, Any]]:
    """Return the runs that choose."""
    return {
        f"try {method} {rate:g}": dict(method=method, rate=rate, seed=CHOOSING, test=False)
        for method in CHOOSE.values()
        for rate in RATES
    }


def held_out(results: Results, method: str, rate: float) -> float:
    """Return MAP@R of the held-out species in a run that chooses; −1 if it diverged."""
    return float(results[f"try {method} {rate:g}"]["metrics"].get("validation", -1.0))


def tests(results: Results) -> dict[str, dict[str, Any]]:
    """The runs that count, of all methods the first seed, then the next; none before all that choose have ended."""
    if not results.keys() >= trials().keys():
        return {}
    best = {m: max(RATES, key=functools.partial(held_out, results, m)) for m in CHOOSE.values()}
    own = {method: best[CHOOSE[recipe_of(method).loss.kind]] for method in TEN}
    return {
        f"{method}-{seed}": dict(method=method, rate=rate, seed=seed, test=True)
        for seed in SEEDS
        for method, rate in own.items()
    }


def report(results: Results, heads: Results) -> str:
    """Print the choices, each method's scores, and their differences from frozen features with and without a head."""
    tried = [
        [name.removeprefix("try "), f"{100 * held_out(results, job['method'], job['rate']):.1f}"]
        for name, job in trials().items()
        if name in results
    ]
    bare = heads[f"{FEATURES}-0"]["metrics"]
    still = {c: dict.fromkeys(SEEDS, bare[c]) for c in COLUMNS}
    tuned = {c: {m: by_seed(results, c, method=m, test=True) for m in TEN} for c in COLUMNS}
    alone = {c: {m: by_seed(heads, c, method=m, steps=300) for m in TEN} for c in COLUMNS}
    there = [method for method in TEN if tuned["R@1"][method]]
    there.sort(key=lambda method: -np.mean(list(tuned["R@1"][method].values())))
    whole = all(set(tuned["R@1"][method]) == set(SEEDS) for method in TEN)
    for scores in (*tuned.values(), *alone.values()) if whole else ():
        scores[MEAN] = {seed: float(np.mean([scores[m][seed] for m in TEN])) for seed in SEEDS}
    there += [MEAN] if whole else []
    rows = [
        [m, *(mean_std(list(tuned[c][m].values())) for c in COLUMNS), str(len(tuned["R@1"][m]))]
        for m in there
    ]
    first = [FEATURES, *(f"{100 * bare[c]:.1f}" for c in COLUMNS), "1"]
    diverged = [name for name, run in results.items() if "diverged" in run["metrics"]]
    count = sum(len(tuned["R@1"][method]) for method in TEN)
    sections = [
        f"{'All' if whole else 'PARTIAL'}: {count} of {len(TEN) * len(SEEDS)} runs are scored.\n",
        *([f"Diverged: {', '.join(diverged)}.\n"] if diverged else []),
        markdown_table(["tried, rate", "held-out MAP@R"], tried),
        markdown_table(["fine-tuned", *COLUMNS, "runs"], [first, *rows]),
    ]
    for c in ("R@1", "MAP@R"):
        rows = [[method] for method in there]
        for other in ({m: still[c] for m in there}, alone[c]):
            gaps = {m: paired_difference(tuned[c][m], other[m]) for m in there}
            # The mean of all is a test of its own.
            own = {m: gap.p for m, gap in gaps.items() if m in TEN and gap.seeds > 1}
            p = holm_correction(own, len(TEN)) if whole else {}
            for row in rows:
                row += [str(gaps[row[0]]), f"{p[row[0]]:.2g}" if row[0] in p else "–"]
        titles = [f"{c} − {FEATURES}", "Holm", f"{c} − head alone", "Holm"]
        sections.append(markdown_table(["fine-tuned", *titles], rows))
    return "\n".join(sections)


def main(settings: Settings) -> str:
    """Do the runs that are missing, as far as time goes; the tables."""
    weights, results = settings.weights_file, dict[str, Any]()
    digest = hashlib.sha256(Path(weights).read_bytes() if weights else b"").hexdigest()[:12]
    for stage in (lambda _: trials(), tests):
        jobs = {name: {**job, "weights": digest} for name, job in stage(results).items()}
        results = settings.results(run, jobs, HERE / "finetuned.jsonl", weights=weights)
    recorded = read_results(HERE / "results.jsonl")
    heads = {name: run for name, run in recorded.items() if "open_set" not in run["job"]}
    return report(results, heads)


if __name__ == "__main__":
    start(main, Settings, __doc__)
