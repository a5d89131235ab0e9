"""Every method of the library as a row of one table: its recipe, how it is trained and scored, and the rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.eps_omniglot.tables import PAPER as EPS_PAPER
from experiments.options import Tabled
from experiments.shown import cell
from experiments.smoke import FLOW, NETWORK, small
from jdml import data, training
from jdml.recipes import Problems, Recipe, Regularizer
from jdml.recipes.base import Batch
from jdml.recipes.ccp import NEVER
from jdml.training import by_recipe
from jdml.training.study import over_seeds

DIM = small(128, 8)
MULTI = small(15, 2)  # proxies per class, where a loss takes several
REMEMBERED = small(1280, 16)  # eight batches
EVALUATIONS = small(8, 2)
WARMUP = small(50, 1)  # steps before a memory or a flow has a say
CLIP = 5.0
"""Largest entry of any proxy's gradient: charges that almost touch need it, other losses hardly reach it."""
EASY, RANDOM = "easy_positive", "random_positive"
SEMI_HARD = "semi_hard_negative:margin=0.2"
WEIGHTED = "distance_weighted_negative"


def of(loss: str, /, miner: str = "none", **settings: Any) -> Recipe:
    """A loss with these settings; proxies learn 100 times as fast as the network."""
    return Recipe(
        loss=loss,
        settings=settings,
        miner=miner,
        network=small("small", NETWORK),
        dim=DIM,
        max_proxy_entry=CLIP,
    )


def several(loss: str, **settings: Any) -> Recipe:
    """A loss with several proxies per class."""
    return dataclasses.replace(of(loss, **settings), proxies_per_class=MULTI)


def margin(positive: str) -> Recipe:
    """Margin loss with a learned β per class."""
    return dataclasses.replace(of("margin", f"{positive}+{WEIGHTED}"), learn_beta="class")


def remembering(recipe: Recipe, memory: int = REMEMBERED) -> Recipe:
    """The same with a cross-batch memory."""
    return dataclasses.replace(recipe, memory=memory, memory_wait=WARMUP)


def regularized(recipe: Recipe) -> Recipe:
    """The same with non-isotropy regularization."""
    regularizer = Regularizer(embeddings_wait=WARMUP, flow_settings=small({}, FLOW))
    return dataclasses.replace(recipe, method=regularizer)


def against_proxies(recipe: Recipe, patience: int) -> Recipe:
    """CCP's reading of a pair loss: a single proxy problem, or alternating ones; proxies begin as embeddings."""
    problems = Problems(
        patience=patience, run_patience=NEVER, anchor_first=False, in_batch_weight=0.1
    )
    return dataclasses.replace(
        recipe, method=problems, normalize="ball", role_rates={"proxies": 10.0}
    )


def on_data(recipe: Recipe, batch: Batch, rate: float, pool: int) -> Recipe:
    """The recipe on a data set: its batches, the learning rate of network and flow, the size of CCP's pools."""
    method = recipe.method
    if isinstance(method, Regularizer):
        method = dataclasses.replace(method, flow_lr=rate)
    elif isinstance(method, Problems):
        method = dataclasses.replace(method, pool_size=pool)
    return dataclasses.replace(recipe, batch=batch, rate=rate, method=method)


CONTRASTIVE = {"positive_margin": 0.0, "negative_margin": 0.5}
EASY_MS = f"multi_similarity_negative+{EASY}"
FIELD = {"delta": 0.2, "reduce_fn": "sum"}  # the paper's U

BASES: dict[str, Recipe] = {
    "contrastive": of("contrastive", **CONTRASTIVE),
    "contrastive (similarity)": of("similarity_contrastive"),
    "SNR contrastive": dataclasses.replace(
        of("snr_contrastive", positive_margin=0.0, negative_margin=1.0), normalize="none"
    ),
    "triplet": of("triplet", f"{RANDOM}+{SEMI_HARD}", margin=0.2),
    "margin": margin(RANDOM),
    "MS": of("multi_similarity", "multi_similarity", beta=40.0),
    "N-pair": of("n_pair"),
    "lifted structure": of("lifted_structure"),
    "circle": of("circle"),
    "FastAP": of("fast_ap"),
    "ProxyNCA": of("proxy_nca", scale=9.0),
    "ProxyNCA++": of("proxy_nca_pp"),
    "ProxyNCA*": of("proxy_nca_margin"),
    "ProxyAnchor": of("proxy_anchor"),
    "normalized softmax": of("normalized_softmax"),
    "CosFace": of("cosface"),
    "ArcFace": of("arcface"),
    "SoftTriple": several("soft_triple"),
    "MPA": several("multi_proxy_anchor"),
    "MPA-DW": several("multi_proxy_anchor_dw"),
    "MPA-AP": several("multi_proxy_anchor_ap"),
    "CPML": several("contrastive_potential", **FIELD),
    "PFML": several("potential_field", alpha=1.0, **FIELD),
}
EPS: dict[str, Recipe] = {
    "EPS + contrastive": of("contrastive", EASY, **CONTRASTIVE),
    "EPS + triplet": of("triplet", f"{EASY}+{SEMI_HARD}", margin=0.2),
    "EPS + margin": margin(EASY),
    "EPS + MS": of("multi_similarity", EASY_MS, beta=40.0),
    "EPS + circle": of("circle", EASY),
}
COMBINED: dict[str, Recipe] = {
    "MS + XBM": remembering(BASES["MS"]),
    "EPS + MS + XBM": remembering(EPS["EPS + MS"]),
    "contrastive, one problem": against_proxies(BASES["contrastive"], NEVER),
    "contrastive + CCP": against_proxies(BASES["contrastive"], 2),
    "MS + CCP": against_proxies(of("multi_similarity", beta=40.0), 2),
    "EPS + contrastive, one problem": against_proxies(EPS["EPS + contrastive"], NEVER),
    "EPS + contrastive + CCP": against_proxies(EPS["EPS + contrastive"], 2),
    "EPS + MS + CCP": against_proxies(EPS["EPS + MS"], 2),
    **{
        f"{name} + NIR": regularized(BASES[name])
        for name in ("ProxyAnchor", "ProxyNCA*", "SoftTriple", "MPA", "MPA-AP", "PFML")
    },
}
ALONE = {"EPS + MS + XBM of one batch": remembering(EPS["EPS + MS"], 160)}
METHODS: dict[str, Recipe] = {**BASES, **EPS, **COMBINED, **ALONE}
PAPER = {method: figures[0] for method, figures in EPS_PAPER.items()}
"""R@1 on letters at 80×80 with ResNet-50 (EPS, Table 3)."""


@dataclasses.dataclass(frozen=True)
class OfMethods(Tabled):
    """What a study of all methods is asked."""

    seeds: int = small(3, 1)
    """Runs per method, with seeds 0, 1, …"""
    only: tuple[str, ...] = small((), ("EPS + MS + XBM", "contrastive + CCP", "PFML + NIR"))
    """Some of the methods, by name."""

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Method and seed of each run: all methods with the first seed, then with the next."""
        unknown = sorted(set(self.only) - set(METHODS))
        if unknown:
            raise ValueError(f"--only must name methods among {', '.join(METHODS)}; got {unknown}")
        names = self.only or tuple({**BASES, **EPS, **COMBINED})
        return [(name, seed) for seed in range(self.seeds) for name in names]


class Parts(NamedTuple):
    """Images to train on, to choose the weights by, and to report."""

    train: data.Dataset
    validation: data.Dataset
    test: data.Dataset


def hold_out(train: data.Dataset, test: data.Dataset, classes: int) -> Parts:
    """The last of the training classes held out."""
    held_out = train.labels >= train.num_classes - classes
    return Parts(train.select(~held_out), train.select(held_out), test)


def normalized(recipe: Recipe, embeddings: np.ndarray) -> np.ndarray:
    """Embeddings as retrieval compares them: in the ball where proxies are chosen, else on the sphere."""
    normalize = jdml.sphere if not recipe.has_hook else jdml.ball
    return np.asarray(normalize(jnp.asarray(embeddings)))


def table_rows(results: Mapping[str, Any], columns: Sequence[str]) -> list[list[str]]:
    """A row per method, best in the first column first: its name, its scores, how many runs have them."""
    names = dict.fromkeys(key.rpartition("-")[0] for key in results)
    scores = {name: [over_seeds(results, name, column) for column in columns] for name in names}

    def first(name: str) -> tuple[float, str]:
        return float(np.mean(scores[name][0])) if scores[name][0] else -1.0, name

    return [
        [name, *(cell(runs, none="diverged") for runs in scores[name]), str(len(scores[name][0]))]
        for name in sorted(names, key=first, reverse=True)
    ]


def retrieve(recipe: Recipe, embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Retrieval where the loss lives."""
    return jdml.evaluate_retrieval(normalized(recipe, embeddings), labels, recall_at=(1, 8))


def train(
    recipe: Recipe, parts: Parts, view: str, *, steps: int, seed: int, model: Any = None
) -> training.FitResult:
    """The network at its best validation, by MAP@R of a view of the labels."""

    def evaluate(embedder: Any) -> dict[str, float]:
        labels = parts.validation.views[view]
        return {"MAP@R": retrieve(recipe, embedder(parts.validation.images), labels)["MAP@R"]}

    return by_recipe.train(
        recipe,
        parts.train,
        model=model,
        steps=steps,
        seed=seed,
        evaluate=evaluate,
        evaluate_every=max(1, steps // EVALUATIONS),
        monitor="MAP@R",
        log_every=steps,
        progress=False,
    )
