"""Every method of the library as a row of one table: its recipe, how it is trained and scored, and the rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jdml
from experiments.eps_omniglot.tables import PAPER as EPS_PAPER
from experiments.options import Tabled, check_names
from experiments.shown import cell
from experiments.smoke import FLOW, NETWORK, small
from jdml import data
from jdml.recipes import CCPConfig, LossConfig, NetworkConfig, NIRConfig, ProxyConfig, Recipe
from jdml.recipes.ccp import NEVER
from jdml.studies.runner import over_seeds
from jdml.training import Evaluation, FitResult, RunConfig, train_recipe

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
        loss=LossConfig(loss, settings, miner=miner, proxies=ProxyConfig(clip_value=CLIP)),
        network=NetworkConfig(small("small", NETWORK), DIM),
    )


def several(loss: str, **settings: Any) -> Recipe:
    """A loss with several proxies per class."""
    return of(loss, **settings).replace(loss={"proxies": {"per_class": MULTI}})


def margin(positive: str) -> Recipe:
    """Margin loss with a learned β per class."""
    return of("margin", f"{positive}+{WEIGHTED}").replace(loss={"learn_beta": "class"})


def remembering(recipe: Recipe, memory: int = REMEMBERED) -> Recipe:
    """The same with a cross-batch memory."""
    return recipe.replace(loss={"memory_size": memory, "memory_start_step": WARMUP})


def regularized(recipe: Recipe) -> Recipe:
    """The same with non-isotropy regularization."""
    nir = NIRConfig(start_step=WARMUP, flow_settings=small({}, FLOW))
    return recipe.replace(loss={"method": nir})


def against_proxies(recipe: Recipe, patience: int) -> Recipe:
    """CCP's reading of a pair loss: a single proxy problem, or alternating ones; proxies begin as embeddings."""
    ccp = CCPConfig(patience=patience, run_patience=NEVER, anchor_first=False, in_batch_weight=0.1)
    proxies = {"lr_multipliers": {"proxies": 10.0}}
    return recipe.replace(loss={"method": ccp, "normalize": "ball"}, optimizer=proxies)


def on_data(recipe: Recipe, batch: Mapping[str, int], rate: float, pool: int) -> Recipe:
    """The recipe on a data set: its batches, the learning rate of network and flow, the size of CCP's pools."""
    own = {"nir": {"flow_learning_rate": rate}, "ccp": {"pool_size": pool}}
    loss = {} if recipe.loss.method is None else {"method": own[recipe.loss.method.name]}
    return recipe.replace(loss=loss, batch=batch, optimizer={"learning_rate": rate})


CONTRASTIVE: dict[str, Any] = {"positive_margin": 0.0, "negative_margin": 0.5}
EASY_MS = f"multi_similarity_negative+{EASY}"
FIELD = {"delta": 0.2, "reduce_fn": "sum"}  # the paper's U

BASES: dict[str, Recipe] = {
    "contrastive": of("contrastive", **CONTRASTIVE),
    "contrastive (similarity)": of("similarity_contrastive"),
    "SNR contrastive": of("snr_contrastive", positive_margin=0.0, negative_margin=1.0).replace(
        loss={"normalize": "none"}
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
        check_names("only", self.only, METHODS)
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


def normalized(recipe: Recipe, embeddings: Any) -> Any:
    """Embeddings as retrieval compares them: in the ball where proxies are chosen, else on the sphere."""
    normalize = jdml.ball if recipe.loss.needs_validation else jdml.sphere
    return np.asarray(normalize(jnp.asarray(embeddings)))


def table_rows(results: Mapping[str, Any], columns: Sequence[str]) -> list[list[str]]:
    """A row per method, best in the first column first: its name, its scores, how many runs have them."""
    rows = []
    for name in dict.fromkeys(key.rpartition("-")[0] for key in results):
        scores = [over_seeds(results, name, column) for column in columns]
        first = float(np.mean(scores[0])) if scores[0] else -1.0
        cells = (cell(runs, none="diverged") for runs in scores)
        rows.append((first, name, [name, *cells, str(len(scores[0]))]))
    return [row for *_, row in sorted(rows, reverse=True)]


def retrieve(recipe: Recipe, embeddings: np.ndarray, labels: Any) -> Any:
    """Retrieval where the loss lives."""
    return jdml.evaluate_retrieval(normalized(recipe, embeddings), labels, recall_at=(1, 8))


def train(
    recipe: Recipe, parts: Parts, view: str, *, steps: int, seed: int, model: Any = None
) -> FitResult:
    """The network at its best validation, by MAP@R of a view of the labels."""

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
