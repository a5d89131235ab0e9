"""The start of Glow's activation normalization in NIR: by embeddings of images, or by points of the sphere."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments.nir import main as regularized
from experiments.potential_fields.main import load
from experiments.smoke import FLOW, small
from experiments.study import RecordOptions, by_seed, cell, record_study, start
from jdml import flows, training
from jdml.report import markdown_table, paired_difference
from jdml.training import TrainState, train_recipe

STARTS = ("images", "sphere")
SCORES = ("R@1", "MAP@R", "nll at the start", "nll at the end")
JOB = {"data": "digits", "method": "ProxyAnchor", "flow": {}, "steps": small(300, 2)}
NIR = {"flow": "glow", "weight": 0.01, "warmup": small(50, 1)}


@dataclasses.dataclass(frozen=True)
class Settings(RecordOptions):
    """Settings of the study."""

    seeds: int = small(10, 1)
    """Runs of each start, with seeds 0, 1, …"""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run by name."""
    return {
        f"actnorm: {by}-{seed}": {**JOB, "actnorm": by, "seed": seed}
        for seed in range(settings.seeds)
        for by in STARTS
    }


def run(job: dict[str, Any], data_dir: str | None) -> dict[str, Any]:
    """Train one network, whose flow begins as the job says; score unseen images."""
    recipe = regularized.recipe_of({**job, "nir": NIR})
    train, ((_, test, labels), *_) = load(job["data"], data_dir)
    model = train_recipe.make_network(recipe, train)
    rows = np.random.default_rng(0).permutation(len(train))[:256]

    def begin(state: TrainState) -> TrainState:
        variables = {"params": state.params["model"], "batch_stats": state.batch_stats}
        images = training.default_preprocess(train.images[rows])
        x, _ = model.apply(variables, images, train=True, mutable=["batch_stats"])
        if job["actnorm"] == "sphere":
            x = jax.random.normal(jax.random.key(job["seed"]), x.shape)
        proxies = state.params["proxies"][train.labels[rows]].reshape(x.shape)
        flow = flows.preset("glow", x.shape[1], x.shape[1], **small({}, FLOW))
        own = flow.init(jax.random.key(job["seed"]), jdml.sphere(x), jdml.sphere(proxies))
        return state._replace(params={**state.params, "flow": own["params"]})

    result = train_recipe.train(
        recipe,
        train,
        model=model,
        state=begin,
        seed=job["seed"],
        run=training.RunConfig(log_every=1),
        progress=False,
    )
    scores = regularized.retrieval(jdml.sphere(jnp.asarray(result.embedder(test.images))), labels)
    nll = [float(step["nll"]) for step in result.history if "nll" in step]
    scores |= {"nll at the start": nll[0], "nll at the end": nll[-1]}
    return {name: round(float(scores[name]), 5) for name in SCORES}


def tables(results: dict[str, Any]) -> str:
    """Return means of each start, and their difference over the same seeds."""
    values = {name: {by: by_seed(results, name, actnorm=by) for by in STARTS} for name in SCORES}
    rows = [
        [by, *(cell([*values[n][by].values()], 100.0 if n in SCORES[:2] else 1.0) for n in SCORES)]
        for by in STARTS
    ]
    gaps = [str(paired_difference(*(values[name][by] for by in STARTS))) for name in SCORES[:2]]
    return markdown_table(["set by", *SCORES], [*rows, ["images − sphere", *gaps, "", ""]])


main = record_study(Path(__file__).with_name("results.jsonl"), run, make_jobs, tables)


if __name__ == "__main__":
    start(main, Settings, __doc__)
