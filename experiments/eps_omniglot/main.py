"""EPS on Omniglot: trained on alphabets only, tested on the letters and languages of unseen alphabets."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jdml
from experiments import study
from experiments.letters.protocol import with_copies
from experiments.omniglot.methods import DIM, METHODS
from experiments.smoke import small
from experiments.study import FolderOptions, Results, cells, gains, over_seeds, start, with_seeds
from jdml import data, metrics, mining
from jdml.recipes import Recipe
from jdml.recipes.loss import build_miner
from jdml.report import markdown_table, mean_std
from jdml.training import train_recipe

LETTERS = study.PAPER["eps_omniglot"]["letters"]
PRINTED = ("triplet, printed", "triplet, mined, printed", "EPS + triplet, printed")
"""The triplet loss as paper and framework have it: squared distances, averaged over all; also with mined positives."""
LONGER = "EPS + MS, longer"
"""Four times the steps, a rate that goes from 3e-3 to 0, distorted copies."""
SIZE, LEARNING_RATE = 28, 5e-4
SWEEPS, COLUMNS = (study.read_toml(__file__)[name] for name in ("sweeps", "columns"))

Curve = Literal["positives", "batches", "trimmed", "positives_margin", "trimmed_margin"]
Part = Literal["methods", "printed", "longer", Curve]


@dataclasses.dataclass(frozen=True)
class Settings(FolderOptions):
    """Settings of the study."""

    steps: int = small(1200, 2)
    """Training steps of each run."""
    parts: tuple[Part, ...] = small(
        ("methods", "positives", "batches", "trimmed"),
        ("methods", "positives", "trimmed"),
    )
    """methods: Tables 3 and 4. printed: the triplet loss as it is printed, squared and averaged over all. longer: as
    held-out alphabets chose. positives: Fig. 5b. batches: another make-up of the batch. trimmed: Fig.
    4. positives_margin, trimmed_margin: the same of the margin loss, as the paper has them."""


def some_positives(count: int) -> mining.Miner:
    """Keep ``count`` of every anchor's positives, drawn uniformly."""

    def mine(key: Array | None, distances: Array, pairs: mining.Pairs) -> mining.Pairs:
        assert key is not None
        draws = jnp.where(pairs.positive, jax.random.uniform(key, distances.shape), jnp.inf)
        last = jnp.sort(draws, axis=1)[:, min(count, draws.shape[1]) - 1]
        return pairs._replace(positive=pairs.positive & (draws <= last[:, None]))

    return mine


def recipe_of(job: dict[str, Any]) -> Recipe:
    """Return the recipe of a row of the table: with a random positive, or with the easy one."""
    method, samples = job["method"], job["samples_per_class"]
    known = METHODS[method.removesuffix(", printed").removesuffix(", mined")]
    loss: dict[str, Any] = {"proxies": {"clip_value": None}}
    if method.endswith(", printed"):
        loss["settings"] = {"margin": 0.2, "squared": True, "reduce_fn": "mean"}
    if method == "triplet, mined, printed":
        loss["miner"] = "soft_hard_pairs"
    batch = {"classes": job["batch"] // samples, "samples_per_class": samples}
    rate, schedule = job.get("rate", LEARNING_RATE), job.get("schedule", "constant")
    return known.replace(
        loss=loss,
        batch={**batch, "steps": job["steps"]},
        optimizer={"learning_rate": rate, "schedule": schedule},
    )


load = functools.cache(functools.partial(data.load, "omniglot"))
"""Omniglot's 30 training or 20 test alphabets, labelled by alphabet."""


def score(embeddings: np.ndarray, dataset: data.Dataset, clusters: int) -> dict[str, float]:
    """Return retrieval of letters and languages, and how well k-means finds them."""
    x = np.asarray(jdml.sphere(jnp.asarray(embeddings)))
    scores = {}
    for view in ("letter", "alphabet"):
        retrieval = jdml.evaluate_retrieval(x, dataset.views[view])
        names = ("R@1", "R@2", "R@4", "R@8", "MAP@R")
        scores |= {f"{view} {name}": retrieval[name] for name in names}
    letters, languages = dataset.views["letter"], dataset.views["alphabet"]
    nmi = functools.partial(metrics.nmi, x, key=jax.random.key(0))
    of_languages = {"alphabet NMI": nmi(languages), "alphabet NMI+": nmi(languages, clusters)}
    return {**scores, "letter NMI": nmi(letters), **of_languages}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one network and score it on the unseen alphabets (on those it was trained on)."""
    places = {name: job[name] for name in ("data_dir", "image_size")}
    train, test = (load(split=split, **places) for split in ("train", "test"))
    recipe, own = recipe_of(job), dict[str, Any]()
    # What no recipe names: a trimmed mean of the loss; the easy one of some positives in place of all.
    if job["trim"]:
        own["reduce_fn"] = jdml.trimmed_mean(job["trim"])
    if "candidates" in job:
        positive, negative = (build_miner(words, DIM) for words in recipe.loss.miner.split("+"))
        few = mining.chain(some_positives(job["candidates"]), positive)
        own["mine"] = mining.chain(few, negative)
    shape = (train.num_classes, recipe.network.dim)
    result = train_recipe.train(
        recipe,
        with_copies(train) if job.get("distorted") else train,
        seed=job["seed"],
        objective=recipe.loss.build(*shape, dtype=recipe.network.dtype, **own),
        progress=False,
    )
    scores = score(result.embedder(test.images), test, 30 * test.num_classes)
    if job["score_train"]:
        trained = score(result.embedder(train.images), train, 30 * train.num_classes)
        scores |= {f"train {name}": value for name, value in trained.items()}
    return scores


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run of the study by name, the tables' first."""
    base = {"batch": small(160, 12), "samples_per_class": small(40, 4), "trim": 0.0}
    base |= {"data_dir": settings.folder, "steps": settings.steps, "score_train": False}
    base["image_size"] = SIZE
    named: dict[str, dict[str, Any]] = {}
    trained = ("triplet", "EPS + triplet")
    for name in small(LETTERS, trained) if "methods" in settings.parts else ():
        named[name] = {"method": name, "score_train": name in trained}
    if "printed" in settings.parts:
        named |= {name: {"method": name, "score_train": True} for name in PRINTED}
    if "longer" in settings.parts:
        changed = {"steps": 4 * settings.steps, "rate": 3e-3, "schedule": "cosine"}
        named |= {LONGER: {"method": "EPS + MS", "distorted": True, **changed}}
    points = {
        f"{part} {value:g}": {"method": sweep["method"], sweep["changes"]: value}
        for part, sweep in SWEEPS.items()
        if part in settings.parts
        for value in small(sweep["values"], sweep["values"][:1])
    }
    jobs = with_seeds(base, named, settings.seeds)
    return {**jobs, **with_seeds(base, points, settings.sweep_seeds)}


def scores_table(
    results: Results, columns: str, methods: Mapping[str, Sequence[float]] | Sequence[str]
) -> str:
    """Return a row for each method; of a mapping with the paper's numbers in brackets."""
    rows = []
    for method in methods:
        own = cells(results, method, COLUMNS[columns].values())
        if isinstance(methods, Mapping):
            own = list(map("{} ({})".format, own, methods[method]))
        rows.append([method, *own])
    return markdown_table(["method", *COLUMNS[columns]], rows)


def report(results: Results, parts: Sequence[str]) -> str:
    """Return all tables as Markdown."""
    sections = []
    if "methods" in parts:
        sections += ["Unseen alphabets, in brackets the paper:"]
        sections += [scores_table(results, "unseen", LETTERS)]
        rows = []
        for method in small(("triplet", "margin", "MS"), ("triplet",)):
            added = mean_std(gains(results, f"EPS + {method}", method, "letter R@1"))
            paper = LETTERS[f"EPS + {method}"][0] - LETTERS[method][0]
            rows.append([method, *cells(results, method, ["letter R@1"]), added, f"{paper:.1f}"])
        sections += ["EPS against the same loss without it, paired by seed:"]
        sections += [markdown_table(["loss", "letters R@1", "EPS adds", "paper"], rows)]
        sections += ["The alphabets trained on:"]
        sections += [scores_table(results, "trained", study.PAPER["eps_omniglot"]["trained"])]
    if "printed" in parts:
        there = {name.rpartition("-")[0] for name in results}
        usual = [f"{name}, again" for name in ("triplet", "EPS + triplet")]
        usual = [name if name in there else name.removesuffix(", again") for name in usual]
        sections += ["Triplets as printed, beside those above:"]
        sections += [scores_table(results, "printed", [*usual, *PRINTED])]
    if "longer" in parts:
        paper = {LONGER: LETTERS["EPS + MS"]}
        sections += ["As held-out alphabets chose:", scores_table(results, "unseen", paper)]
    for part, sweep in SWEEPS.items():
        if part in parts:
            values = {
                float(name.removeprefix(f"{part} ")): over_seeds(results, name, "letter R@1")
                for name in dict.fromkeys(key.rpartition("-")[0] for key in results)
                if name.startswith(f"{part} ")
            }
            if "methods" in parts:
                for value, method in sweep["known"].items():
                    values[float(value)] = over_seeds(results, method, "letter R@1")
            rows = [[f"{v:g}", mean_std(values[v]), str(len(values[v]))] for v in sorted(values)]
            table = markdown_table([sweep["column"], "letters R@1", "runs"], rows)
            sections += [sweep["heading"], table]
    return "\n".join(sections)


def main(settings: Settings) -> str:
    """Run what is missing; return the tables."""
    results = settings.results(__file__, run, make_jobs(settings))
    return report(results, get_args(Part) if settings.table else settings.parts)


if __name__ == "__main__":
    start(main, Settings, __doc__)
