"""Every method of the library as a row of one table: its recipe, how it is trained and scored, and the rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.smoke import FLOW, NETWORK, small
from experiments.study import PAPER as OF_PAPERS
from experiments.study import FolderOptions, cell, over_seeds, read_toml
from jdml import data
from jdml.recipes import CCPConfig, LossConfig, NetworkConfig, NIRConfig, ProxyConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.training import Evaluation, FitResult, RunConfig, train_recipe

DIM = small(128, 8)
MULTI, REMEMBERED = small((15, 1280), (2, 16))
"""Proxies per class, where a loss takes several; rows of a memory, eight batches."""
EVALUATIONS, WARMUP = small((8, 50), (2, 1))
"""Evaluations of a run; steps before a memory or a flow has an effect."""
CLIP = 5.0
"""Largest entry of any proxy's gradient: charges that almost touch need it, other losses hardly reach it."""
EASY = "easy_positive"
TABLE = read_toml(__file__, "methods.toml")


def read_method(values: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a row of methods.toml; proxies learn 100 times as fast as the network."""
    proxies = ProxyConfig(
        MULTI if values.get("multi") else None,
        values.get("init", "random"),
        clip_value=CLIP if values.get("clip", True) else None,
    )
    own = {name: values[name] for name in ("miner", "normalize", "learn_beta") if name in values}
    loss = LossConfig(values["loss"], values.get("settings", {}), proxies=proxies, **own)
    return Recipe(loss=loss, network=NetworkConfig(small("small", NETWORK), DIM))


def read_methods(section: str) -> dict[str, Recipe]:
    """Return the methods of a section of methods.toml."""
    return {name: read_method(values) for name, values in TABLE[section].items()}


def remembering(recipe: Recipe, memory: int = REMEMBERED) -> Recipe:
    """Return the same with a cross-batch memory."""
    return recipe.replace(loss={"memory_size": memory, "memory_start_step": WARMUP})


def regularized(recipe: Recipe) -> Recipe:
    """Return the same with non-isotropy regularization."""
    nir = NIRConfig(start_step=WARMUP, flow_settings=small({}, FLOW))
    return recipe.replace(loss={"method": nir})


def against_proxies(recipe: Recipe, patience: int) -> Recipe:
    """CCP's reading of a pair loss: a single proxy problem, or alternating ones; proxies begin as embeddings."""
    ccp = CCPConfig(patience=patience, run_patience=NEVER, anchor_first=False, in_batch_weight=0.1)
    proxies = {"lr_multipliers": {"proxies": 10.0}}
    return recipe.replace(loss={"method": ccp, "normalize": "ball"}, optimizer=proxies)


def on_data(recipe: Recipe, batch: Mapping[str, int], rate: float, pool: int) -> Recipe:
    """Return the recipe on a data set: its batches, the learning rate of network and flow, the size of CCP's pools."""
    own = {"nir": {"flow_learning_rate": rate}, "ccp": {"pool_size": pool}}
    loss = {} if recipe.loss.method is None else {"method": own[recipe.loss.method.name]}
    return recipe.replace(loss=loss, batch=batch, optimizer={"learning_rate": rate})


def combine(values: Mapping[str, Any]) -> Recipe:
    """Return a method with what a row of methods.toml adds to it."""
    miner = {"miner": values["miner"]} if "miner" in values else {}
    recipe = {**BASES, **EPS}[values["of"]].replace(loss=miner)
    if values.get("memory"):
        return remembering(recipe)
    if values.get("nir"):
        return regularized(recipe)
    return against_proxies(recipe, values.get("patience", NEVER))


BASES, EPS = read_methods("alone"), read_methods("eps")
COMBINED = {name: combine(values) for name, values in TABLE["combined"].items()}
ALONE = {"EPS + MS + XBM of one batch": remembering(EPS["EPS + MS"], 160)}
METHODS: dict[str, Recipe] = {**BASES, **EPS, **COMBINED, **ALONE}
PAPER = {name: figures[0] for name, figures in OF_PAPERS["eps_omniglot"]["letters"].items()}
"""R@1 on letters at 80×80 with ResNet-50 (EPS, Table 3)."""


@dataclasses.dataclass(frozen=True)
class OfMethods(FolderOptions):
    """Options of a study of all methods."""

    match: tuple[str, ...] = small((), (r"^(EPS \+ MS \+ XBM|contrastive \+ CCP|PFML \+ NIR)-",))
    """Regular expressions: do only the runs in whose names one of them occurs."""

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Method and seed of each run: all methods with the first seed, then with the next."""
        names = METHODS if self.match else {**BASES, **EPS, **COMBINED}
        return [(name, seed) for seed in range(self.seeds) for name in names]


class Parts(NamedTuple):
    """Images to train on, to choose the weights by, and to report."""

    train: data.Dataset
    validation: data.Dataset
    test: data.Dataset


def hold_out(train: data.Dataset, test: data.Dataset, classes: int) -> Parts:
    """Return the last of the training classes held out."""
    held_out = train.labels >= train.num_classes - classes
    return Parts(train.select(~held_out), train.select(held_out), test)


def normalized(recipe: Recipe, embeddings: Any) -> Any:
    """Return embeddings as retrieval compares them: in the ball where proxies are chosen, else on the sphere."""
    normalize = jdml.ball if recipe.loss.needs_validation else jdml.sphere
    return np.asarray(normalize(jnp.asarray(embeddings)))


def table_rows(results: Mapping[str, Any], columns: Sequence[str]) -> list[list[str]]:
    """Return a row per method, best in the first column first: its name, its scores, how many runs have them."""
    rows = []
    for name in dict.fromkeys(key.rpartition("-")[0] for key in results):
        scores = [over_seeds(results, name, column) for column in columns]
        first = float(np.mean(scores[0])) if scores[0] else -1.0
        cells = (cell(runs, none="diverged") for runs in scores)
        rows.append((first, name, [name, *cells, str(len(scores[0]))]))
    return [row for *_, row in sorted(rows, reverse=True)]


def retrieve(recipe: Recipe, embeddings: np.ndarray, labels: Any) -> Any:
    """Return retrieval where the loss lives."""
    return jdml.evaluate_retrieval(normalized(recipe, embeddings), labels, recall_at=(1, 8))


def train(
    recipe: Recipe, parts: Parts, view: str, *, steps: int, seed: int, model: Any = None
) -> FitResult:
    """Return the network at its best validation, by MAP@R of a view of the labels."""

    def evaluate(embedder: Any) -> dict[str, float]:
        labels = parts.validation.views[view]
        return {"MAP@R": retrieve(recipe, embedder(parts.validation.images), labels)["MAP@R"]}

    return train_recipe.train(
        recipe.replace(batch={"steps": steps}),
        parts.train,
        model=model,
        seed=seed,
        evaluation=Evaluation(evaluate, max(1, steps // EVALUATIONS), "MAP@R"),
        run=RunConfig(log_every=steps),
        progress=False,
    )
