"""Potential fields (PFML) compared with proxy losses: retrieval, label noise, proxies' distances, sweeps."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

import jdml
from experiments import study
from experiments.eps_mnist import main as digits  # the same images, by parity
from experiments.omniglot.methods import BASES
from experiments.smoke import NETWORK, small
from experiments.study import FolderOptions, Results, cells, over_seeds, start, with_seeds
from jdml import data, metrics, registry
from jdml.recipes import BatchConfig, LossConfig, NetworkConfig, OptimizerConfig, Recipe
from jdml.report import markdown_table
from jdml.training import Embedder, Evaluation, train_recipe

CLIP = 5.0  # largest entry of the proxies' gradient, for charges that almost touch


LOSSES: dict[str, tuple[str, dict[str, Any]]] = {}
"""The loss of each method and its settings, with the number of proxies, without how terms are reduced."""
for name, recipe in BASES.items():
    own = {key: value for key, value in recipe.loss.settings.items() if key != "reduce_fn"}
    if recipe.loss.proxies.per_class is not None:
        own["proxies_per_class"] = recipe.loss.proxies.per_class
    LOSSES[name] = (recipe.loss.name, own)
CPML, SETTINGS = LOSSES["CPML"]
LOSSES["CPML, mirrored"] = (CPML, {**SETTINGS, "repulsion": "mirrored"})
LOSSES["CPML, decaying"] = (CPML, {**SETTINGS, "repulsion": "decaying", "alpha": 1.0})
MEASURES = ("R@1", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R")
FIELDS = ("PFML", "CPML", "CPML, mirrored", "CPML, decaying")
POINTS = 4
"""How often proxies are measured in the last epoch."""
EPOCH = [f"epoch: {m}" for m in ("assignment", "nearest", "represented", "together", "covered")]


class Task(NamedTuple):
    """Settings that differ between the data sets."""

    steps: int
    dim: int
    rate: float
    views: tuple[str, str]
    batch: BatchConfig = BatchConfig(64)
    network: str | None = small("eps", NETWORK)


DIGITS = ("seen digits", "unseen digits")
OF_ALPHABETS = BatchConfig(classes=4, samples_per_class=40)
TASKS = {
    "digits": Task(small(300, 2), 16, 1e-3, DIGITS),
    "mnist": Task(500, 16, 1e-3, DIGITS),
    "omniglot": Task(
        1200, 128, 5e-4, ("letters", "alphabets"), OF_ALPHABETS, small("small", NETWORK)
    ),
}


Parts = tuple[data.Dataset, list[tuple[str, data.Dataset, np.ndarray]]]
"""Images to train on; titles and images to score, with their labels."""


@functools.cache
def load(name: str, data_dir: str | None) -> Parts:
    """Return the data of a task: labelled by parity or alphabet, scored on digits or letters."""
    if name != "omniglot":
        train, *scored = digits.load(name, data_dir)
        titled = zip(DIGITS, scored, strict=True)
        return train, [(title, part, part.views["digit"]) for title, part in titled]
    whole = functools.partial(data.load, name, data_dir=data_dir, image_size=28)
    train, test = (whole(split=split) for split in ("train", "test"))
    return train, [(title, test, test.views[title[:-1]]) for title in TASKS[name].views]


def base_of(settings: Any) -> dict[str, Any]:
    """Return what the jobs of a study have in common, on clean labels."""
    base = {"data": settings.data, "data_dir": settings.folder, "noise": 0.0}
    steps = settings.steps or TASKS[settings.data].steps
    return {**base, "steps": steps, "proxy_rate": 100.0}


def recipe_of(task: Task, method: str, settings: dict[str, Any]) -> Recipe:
    """Return the recipe of a method on a task, with these settings of its loss and this number of proxies."""
    # The paper's U: a force does not depend on how many charges there are.
    settings = {**settings, **({"reduce_fn": "sum"} if method in FIELDS else {})}
    number = settings.pop("proxies_per_class", None)
    miner = BASES[method].loss.miner if method in BASES else "none"
    loss = LossConfig(LOSSES[method][0], settings, miner=miner)
    return Recipe(
        loss=loss.replace(proxies={"per_class": number}),
        network=NetworkConfig(task.network, task.dim),
        batch=task.batch,
        optimizer=OptimizerConfig(learning_rate=task.rate),
    )


def recipe_of_job(job: dict[str, Any]) -> Recipe:
    """Return the recipe of a job, with the rate of its proxies and the largest entry of their gradient."""
    return recipe_of(TASKS[job["data"]], job["method"], job["settings"]).replace(
        loss={"proxies": {"clip_value": job.get("clip")}},
        batch={"steps": job["steps"]},
        optimizer={"lr_multipliers": {"proxies": job["proxy_rate"]}},
    )


def run(job: dict[str, Any]) -> dict[str, float]:
    """Train one network, score its retrieval, and measure how far its proxies are from the training data."""
    train, scored = load(job["data"], job["data_dir"])
    if job["noise"]:
        labels = data.corrupt_labels(train.labels, job["noise"], jax.random.key(job["seed"]))
        train = dataclasses.replace(train, labels=labels)
    recipe, steps = recipe_of_job(job), job["steps"]
    sampler = recipe.batch.build(train.labels, job["seed"])
    over_epoch: list[dict[str, float]] = []

    def evaluate(embedder: Embedder) -> dict[str, float]:
        if int(embedder.state.step) > steps - sampler.batches_per_epoch:
            proxies = embedder.state.params["proxies"]
            over_epoch.append(measure(proxies, embedder(train.images), train))
        return {}

    every = max(1, min(sampler.batches_per_epoch, steps) // POINTS)
    result = train_recipe.train(
        recipe,
        train,
        sampler=sampler,
        seed=job["seed"],
        evaluation=Evaluation(evaluate, every) if "epoch" in job else None,
        progress=False,
    )
    scores: dict[str, float] = {}
    for title, part, labels in scored:
        x = np.asarray(jdml.sphere(jnp.asarray(result.embedder(part.images))))
        retrieval = jdml.evaluate_retrieval(x, labels, ndcg_at=(2, 4, 8))
        scores |= {f"{title} {name}": retrieval[name] for name in MEASURES}
    if "epoch" in job:
        scores |= {name: float(np.mean([point[name] for point in over_epoch])) for name in EPOCH}
    proxies = result.state.params.get("proxies")
    if proxies is not None:
        if proxies.shape[1] > 1:
            scores["proxies together"] = metrics.proxy_spread(proxies).together
        x = jnp.asarray(result.embedder(train.images))
        for kind in ("assignment", "nearest"):
            measured = metrics.proxy_distance(proxies, x, train.labels, kind=kind)
            scores[f"proxy distance, {kind}"] = measured
    return scores


def measure(proxies: jax.Array, embeddings: np.ndarray, train: data.Dataset) -> dict[str, float]:
    """The proxies' distance from the training data by every reading, and their spread over the modes of classes."""
    x = jnp.asarray(embeddings)
    modes = train.views["letter" if "letter" in train.views else "digit"]
    spread = metrics.proxy_spread(proxies, x, train.labels, modes)
    kinds = ("assignment", "nearest", "represented")
    distances = [metrics.proxy_distance(proxies, x, train.labels, kind=kind) for kind in kinds]
    measured = (*distances, spread.together, float(spread.covered or 0.0))
    return dict(zip(EPOCH, measured, strict=True))


STUDY = study.read_toml(__file__)
TABLES = STUDY["tables"]
NEAR = small(("PFML", "CPML", "SoftTriple", "ProxyNCA", "ProxyAnchor"), ("SoftTriple",))
SWEEPS = small(STUDY["sweeps"], {"alpha": [2.0]})
OF_PAPER = study.PAPER["potential_fields"]

Part = Literal["methods", "noise", "foils", "epoch", "sweeps"]


@dataclasses.dataclass(frozen=True)
class Settings(FolderOptions):
    """Settings of the study."""

    data: Literal["digits", "mnist", "omniglot"] = "digits"
    """digits: 1,797 real 8×8 digits that come with scikit-learn. mnist, omniglot: the full sets in --data-dir.
    300, 500 and 1200 steps, unless --steps are given."""
    parts: tuple[Part, ...] = small(("methods", "noise"), get_args(Part))
    """methods: Tables 1 and 3. noise: Table 2. foils: CPML with other repulsions, and wrong labels. epoch: Table 3 over
    the last epoch, with the proxies' spread. sweeps: Fig. 3."""


def make_jobs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return every run of the study by name."""
    base, named = base_of(settings), {}

    def job(method: str, suffix: str = "", **changed: float) -> dict[str, Any]:
        own: dict[str, Any] = {"clip": changed.pop("clip", CLIP)} if method in FIELDS else {}
        own |= {"method": method, "settings": {**LOSSES[method][1], **changed}}
        own |= {", noise": {"noise": 0.2}, ", epoch": {"epoch": True}}.get(suffix, {})
        return own

    methods = {part: (of["suffix"], small(of["methods"], of["toy"])) for part, of in TABLES.items()}
    for part, (suffix, names) in {**methods, "epoch": (", epoch", NEAR)}.items():
        if part in settings.parts:
            named |= {method + suffix: job(method, suffix) for method in names}
    points = {
        f"{name} {value:g}": job("PFML", **{name: value})
        for name, values in SWEEPS.items()
        for value in values
    }
    seeds = settings.sweep_seeds if "sweeps" in settings.parts else 0
    return {**with_seeds(base, named, settings.seeds), **with_seeds(base, points, seeds)}


def table(results: Results, settings: Settings, values: Mapping[str, Any]) -> str:
    """Return a row per method that was run: retrieval, the proxies' distances, and the paper's number if any."""
    paper, suffix = OF_PAPER.get(values.get("paper"), {}), values["suffix"]
    first, second = TASKS[settings.data].views
    columns = (f"{first} R@1", f"{first} MAP@R", f"{second} R@1")
    of_proxies = ("proxy distance, assignment", "proxy distance, nearest", "proxies together")
    rows = []
    for method in values["methods"]:
        if over_seeds(results, method + suffix, columns[0]):
            scores = cells(results, method + suffix, columns)
            scores += cells(results, method + suffix, of_proxies, 1, 2)
            rows.append([method, *scores, *([str(paper.get(method, "–"))] if paper else [])])
    return markdown_table(["method", *columns, *of_proxies, *(["paper"] if paper else [])], rows)


def report(results: Results, settings: Settings) -> str:
    """Return all tables as Markdown."""
    sections = []
    for part, values in TABLES.items():
        if part in settings.parts:
            sections += [f"{values['title']}:\n", table(results, settings, values)]
    if "epoch" in settings.parts:
        sections += ["Proxies over the last epoch (last column: the paper's, on CUB):\n"]
        rows = []
        for method in NEAR:
            shown = cells(results, f"{method}, epoch", EPOCH, 1, 2)
            if registry.LOSSES[LOSSES[method][0]].proxies == 1:
                shown[EPOCH.index("epoch: together")] = "–"
            rows.append([method, *shown, OF_PAPER["distance"].get(method, "–")])
        titles = (name.removeprefix("epoch: ") for name in EPOCH)
        sections += [markdown_table(["method", *titles, "paper"], rows)]
    if "sweeps" in settings.parts:
        sections += ["PFML by its parameters, one at a time:\n"]
        measure = f"{TASKS[settings.data].views[0]} R@1"
        for name, points in SWEEPS.items():
            rows = [[f"{v:g}", *cells(results, f"{name} {v:g}", [measure])] for v in points]
            sections.append(markdown_table([name.replace("_", " "), measure], rows))
    return "\n".join(sections)


main = study.folder_study(__file__, run, make_jobs, report)


if __name__ == "__main__":
    start(main, Settings, __doc__)
