"""Birds, adapted: does a network that learns from 20 species find 20 others better than as it came?

An EfficientNet-Lite0 with ImageNet's weights and a head that is the identity at the start, so that step 0 is the frozen
features; then the head alone learns (its features computed once), changes of rank 8 of all kernels of its blocks with
the head (LoRA), or everything. Batch norm keeps its statistics. Rate and steps of each way are chosen on four of the
twenty training species, of a run on the sixteen others; then it is trained on all twenty and tested, three seeds.

**What counts**, written before the first run: a way beats the frozen features if the 95 % interval of its R@1 less
theirs, over the three seeds, lies above 0. Finished runs are kept in adapted.jsonl and not made again.

That low-rank changes train at all is shown on random weights: of a vision transformer of two blocks on the 8×8 digits,
beside its head alone, with the same seeds.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.cub_crops.features import BACKBONE, CHANNELS, NORMALIZE, SIDE
from experiments.omniglot.methods import hold_out
from experiments.options import Kept, resolved, start
from experiments.smoke import SMOKE, record, small
from jdml import data, models
from jdml.recipes import Recipe
from jdml.report import markdown_table, mean_std, paired, paired_table
from jdml.studies.runner import by_seed
from jdml.training import Evaluation, RunConfig, pretrained, train_recipe

HERE = Path(__file__).parent
HELD_OUT, SEEDS, FROZEN = small(4, 1), small((1, 2, 3), (1,)), "frozen features"
SMALLER = small(160, 8)
"""What the whole network learns on, where it does: half of the pixels, which two cores can do. It is scored at 224."""
BASE = Recipe().replace(
    loss={"name": "proxy_anchor", "proxies": {"init": "samples"}},
    network={"name": BACKBONE, "dim": CHANNELS},
    finetune={"freeze_batch_norm": True},
    batch={"classes": small(8, 2), "samples_per_class": 3},
)
WAYS: dict[str, Recipe] = {
    "head": BASE.replace(finetune={"freeze": "backbone"}),
    "all": BASE,
    "LoRA": BASE.replace(finetune={"lora": 8, "lora_paths": small(None, ".*kernel")}),
}
RATES = {"head": (1e-5, 1e-4, 1e-3), "LoRA": (3e-4, 1e-3), "all": (3e-5, 1e-4)}
STEPS = {"head": [20, 40, 80, 160], "LoRA": [5, 10], "all": [5, 10]}
if SMOKE:
    del WAYS["all"], RATES["all"]
    RATES, STEPS = {way: rates[:1] for way, rates in RATES.items()}, dict.fromkeys(WAYS, [1])
"""Of which the best on the held-out species is taken."""
COLUMNS = ("R@1", "R@8", "MAP@R")
TINY = {"width": 32, "depth": small(2, 1), "heads": 2, "patch": 4, "grid": 2}
DIGITS = Recipe().replace(
    loss={"name": "proxy_anchor"},
    network={"name": "vit_s16", "dim": 16},
    finetune={"freeze": "backbone"},
    batch={"size": 64, "steps": small(100, 10)},
    optimizer={"learning_rate": 3e-3},
)
RANDOM: dict[str, Recipe] = {
    "random, head": DIGITS,
    "random, LoRA and head": DIGITS.replace(finetune={"freeze": None, "lora": 4}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Kept):
    """What is run."""

    weights: Path | None = None
    """Pretrained weights of EfficientNet-Lite0, from jdml weights convert."""
    features: Path = record(Path("runs/cub_crops/kept"))
    """Folder of kept features."""
    out: Path = record(HERE / "adapted.jsonl")
    """File of the runs."""


def begin(weights: str | None, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The network with its weights, and a head that changes nothing."""
    loaded = dict(variables) if weights is None else models.load_weights(weights, variables)
    identity = {"kernel": jnp.eye(CHANNELS), "bias": jnp.zeros(CHANNELS)}
    return {**loaded, "params": {**loaded["params"], "head": {"embedding": identity}}}


@functools.cache
def parts(data_dir: str | None, side: int, *, test: bool) -> tuple[data.Dataset, data.Dataset]:
    """What trains, and what is scored: the test species, or some of those that would train."""
    crops = functools.partial(
        data.load, "cub", data_dir=data_dir, transform=data.conventional(side)
    )
    train, scored = (crops(split=split) for split in ("train", "test"))
    return (train, scored) if test else hold_out(train, scored, HELD_OUT)[:2]


def run(
    job: Mapping[str, Any], *, data_dir: str | None, weights: str | None, features: str
) -> dict[str, Any]:
    """Train one way, and score it: on the held-out species at several steps, or on the test species at the end."""
    steps, every = max(job["steps"]), max(1, min(job["steps"]))
    recipe = WAYS.get(job["way"], BASE).replace(
        batch={"steps": steps}, optimizer={"learning_rate": job["rate"]}
    )
    once = recipe.finetune.caches_features
    train, _ = parts(data_dir, SIDE if once else SMALLER, test=job["test"])
    _, scored = parts(data_dir, SIDE, test=job["test"])

    def evaluate(embedder: Any) -> dict[str, float]:
        x = np.asarray(jdml.sphere(jnp.asarray(embedder(scored.images))))
        found = jdml.evaluate_retrieval(x, scored.labels, recall_at=(1, 8))
        return {name: found[name] for name in COLUMNS}

    model = train_recipe.make_network(recipe, train)
    if once:
        model = train_recipe.frozen(recipe, model, train, NORMALIZE, cache_folder=features)
    result = train_recipe.train(
        recipe,
        train,
        model=model,
        seed=job["seed"],
        evaluation=Evaluation(evaluate, every),
        state=pretrained(functools.partial(begin, weights)),
        preprocess=NORMALIZE,
        progress=False,
    )
    records = {record["step"]: record for record in result.history}
    if job["test"]:
        return {name: records[steps][name] for name in COLUMNS}
    return {f"MAP@R at {step}": records[step]["MAP@R"] for step in job["steps"]}


def on_digits(job: Mapping[str, Any], **places: Any) -> dict[str, Any]:
    """Train a network of random weights on the digits: the loss of its first and last ten steps, and what it finds."""
    digits = data.load("digits").relabel("digit")
    recipe, run = RANDOM[job["way"]], RunConfig(log_every=10)
    recipe = recipe.replace(evaluation={"every": recipe.batch.steps})
    model = models.create("vit_s16", dim=recipe.network.dim).clone(**TINY)
    own = {"model": model, "validation": digits, "seed": job["seed"], "run": run}
    result = train_recipe.train(recipe, digits, progress=False, **own)
    first, last = result.history[0], result.history[-1]
    return {"loss at first": first["loss"], "loss": last["loss"], "MAP@R": last["MAP@R"]}


def trials() -> dict[str, dict[str, Any]]:
    """The runs that choose, and the frozen features."""
    jobs = {
        f"try {way} {rate:g}": dict(way=way, rate=rate, steps=STEPS[way], seed=0, test=False)
        for way, rates in RATES.items()
        for rate in rates
    }
    still = {"way": FROZEN, "rate": 1.0, "steps": [0], "seed": 0}
    return {f"try {FROZEN}": {**still, "test": False}, FROZEN: {**still, "test": True}, **jobs}


def chosen(results: Mapping[str, Any], way: str) -> tuple[float, int]:
    """Rate and steps of a way that were best on the held-out species."""
    tried = {
        (rate, step): results[f"try {way} {rate:g}"]["metrics"][f"MAP@R at {step}"]
        for rate in RATES[way]
        for step in STEPS[way]
    }
    return max(tried, key=lambda setting: tried[setting])


def tests(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The runs that count."""
    best = {way: chosen(results, way) for way in WAYS}
    return {
        f"{way}-{seed}": dict(way=way, rate=rate, steps=[steps], seed=seed, test=True)
        for way, (rate, steps) in best.items()
        for seed in SEEDS
    }


def compared_on_digits(results: Mapping[str, Any]) -> str:
    """The table of the networks of random weights, and how far one is from the other."""
    columns = {"loss at first": 1.0, "loss": 1.0, "MAP@R": 100.0}
    values = {way: {c: by_seed(results, c, way=way) for c in columns} for way in RANDOM}
    rows = [
        [way, *(mean_std(list(of[c].values()), scale=scale) for c, scale in columns.items())]
        for way, of in values.items()
    ]
    alone, changed = values.values()
    gaps = [str(paired(changed[c], alone[c], scale=scale)) for c, scale in columns.items()]
    return markdown_table(["random weights", *columns], [*rows, ["second − first", *gaps]])


def report(results: Mapping[str, Any]) -> str:
    """What each way scored, with its settings; and how far it is from the frozen features."""
    still, held = (results[name]["metrics"] for name in (FROZEN, f"try {FROZEN}"))
    scores: dict[str, Any] = {c: {FROZEN: dict.fromkeys(SEEDS, still[c])} for c in COLUMNS}
    cells = [[FROZEN, "", "", f"{100 * held['MAP@R at 0']:.1f}"]]
    for way in (name for name in WAYS if f"{name}-{SEEDS[0]}" in results):
        rate, steps = chosen(results, way)
        best = results[f"try {way} {rate:g}"]["metrics"][f"MAP@R at {steps}"]
        cells.append([way, f"{rate:g}", str(steps), f"{100 * best:.1f}"])
        for column in COLUMNS:
            scores[column][way] = by_seed(results, column, way=way, test=True)
    rows = [[*row, *(mean_std(list(scores[c][row[0]].values())) for c in COLUMNS)] for row in cells]
    head = ["what learns", "rate", "steps", "held-out MAP@R", *COLUMNS]
    compared = {way: (way, FROZEN) for way, *_ in cells[1:]}
    return f"{markdown_table(head, rows)}\n{paired_table('difference', compared, scores)}"


def main(settings: Settings) -> str:
    """Do the runs that are missing; the tables."""
    places = {"weights": resolved(settings.weights), "features": resolved(settings.features)}
    results = settings.results(run, trials(), settings.out, **places)
    results = settings.results(run, tests(results), settings.out, **places)
    jobs = {f"{way}-{seed}": {"way": way, "seed": seed} for way in RANDOM for seed in SEEDS}
    results = settings.results(on_digits, jobs, settings.out)
    return f"{report(results)}\n{compared_on_digits(results)}"


if __name__ == "__main__":
    start(main, Settings, __doc__)
