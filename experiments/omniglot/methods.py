"""Every method of the library as a row of one table: its objective, and the little else in which it differs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

import jdml
from jdml import flows, mining, objectives
from jdml.objectives import Objective

DIM = 128
MULTI = 15  # proxies per class, where a loss takes several
MARGIN = 0.2
REMEMBERED = 1280  # eight batches
WARMUP = 50  # steps before a memory or a flow has a say

EASY = mining.easy_positive()
RANDOM = mining.random_positive()
SEMI_HARD = mining.semi_hard_negative(MARGIN)
HARD = mining.multi_similarity_pairs()


class Method(NamedTuple):
    """A row.

    Attributes:
        make: from the number of classes to the objective.
        paper: R@1 on letters at 80×80 with ResNet-50 (EPS, Table 3), where it is known.
        problems: how its proxies are chosen: None (learned only), 1 (k-center, once) or more (CCP: again and again).
        normalize: what stands between the network and its loss, and retrieval.
    """

    make: Callable[[int], Objective]
    paper: float | None = None
    problems: int | None = None
    normalize: Callable[..., Any] = jdml.sphere


def pair(loss: Callable[..., Any], paper: float | None = None, **settings: Any) -> Method:
    """A pair loss."""
    return Method(lambda classes: objectives.pair(loss, **settings), paper)


def margin(mine: mining.Miner, paper: float) -> Method:
    """Margin loss with a learned β per class."""
    negatives = mining.distance_weighted_negative(dim=DIM)
    chained = mining.chain(mine, negatives)
    return Method(
        lambda classes: objectives.pair(
            jdml.margin_loss, learned={"beta": jnp.full(classes, 1.2)}, mine=chained
        ),
        paper,
    )


def proxy(
    loss: Callable[..., Any], per_class: int = 1, paper: float | None = None, **settings: Any
) -> Method:
    """A proxy loss."""
    return Method(
        lambda classes: objectives.proxy(loss, classes, DIM, per_class, **settings), paper
    )


def remembering(method: Method) -> Method:
    """The same with a cross-batch memory."""
    return method._replace(
        make=lambda classes: objectives.with_memory(
            method.make(classes), REMEMBERED, DIM, warmup=WARMUP
        )
    )


def regularized(method: Method) -> Method:
    """The same with non-isotropy regularization."""
    flow = flows.preset("released", DIM, DIM)
    return method._replace(
        make=lambda classes: objectives.with_nir(method.make(classes), flow, warmup=WARMUP)
    )


def against_proxies(loss: Callable[..., Any], problems: int, **settings: Any) -> Method:
    """CCP's reading of a pair loss: a single proxy problem, or alternating ones."""
    return Method(
        lambda classes: objectives.as_proxy_objective(
            loss, classes, DIM, 8, in_batch_weight=0.1, **settings
        ),
        problems=problems,
        normalize=jdml.ball,
    )


CONTRASTIVE = {"positive_margin": 0.0, "negative_margin": 0.5}
MS = {"beta": 40.0}
EASY_MS = mining.chain(mining.multi_similarity_pairs(mine_positives=False), EASY)
FIELD = {"delta": 0.2, "reduce_fn": jnp.sum}  # the paper's U

BASES: dict[str, Method] = {
    "contrastive": pair(jdml.contrastive_loss, **CONTRASTIVE),
    "contrastive (similarity)": pair(jdml.similarity_contrastive_loss),
    "SNR contrastive": pair(
        jdml.snr_contrastive_loss, positive_margin=0.0, negative_margin=1.0, normalize=None
    ),
    "triplet": pair(jdml.triplet_loss, 49.4, margin=MARGIN, mine=mining.chain(RANDOM, SEMI_HARD)),
    "margin": margin(RANDOM, 49.4),
    "MS": pair(jdml.multi_similarity_loss, 57.7, mine=HARD, **MS),
    "N-pair": pair(jdml.n_pair_loss),
    "lifted structure": pair(jdml.lifted_structure_loss),
    "circle": pair(jdml.circle_loss),
    "FastAP": pair(jdml.fast_ap_loss),
    "ProxyNCA": proxy(jdml.proxy_nca_loss, paper=49.1, scale=9.0),
    "ProxyNCA++": proxy(jdml.proxy_nca_pp_loss),
    "ProxyNCA*": proxy(jdml.proxy_nca_margin_loss),
    "ProxyAnchor": proxy(jdml.proxy_anchor_loss),
    "normalized softmax": proxy(jdml.normalized_softmax_loss),
    "CosFace": proxy(jdml.cosface_loss),
    "ArcFace": proxy(jdml.arcface_loss),
    "SoftTriple": proxy(jdml.soft_triple_loss, MULTI),
    "MPA": proxy(jdml.multi_proxy_anchor_loss, MULTI),
    "MPA-DW": proxy(jdml.multi_proxy_anchor_dw_loss, MULTI),
    "MPA-AP": proxy(jdml.multi_proxy_anchor_ap_loss, MULTI),
    "CPML": proxy(jdml.contrastive_potential_loss, MULTI, **FIELD),
    "PFML": proxy(jdml.potential_field_loss, MULTI, alpha=1.0, **FIELD),
}
EPS: dict[str, Method] = {
    "EPS + contrastive": pair(jdml.contrastive_loss, mine=EASY, **CONTRASTIVE),
    "EPS + triplet": pair(
        jdml.triplet_loss, 68.4, margin=MARGIN, mine=mining.chain(EASY, SEMI_HARD)
    ),
    "EPS + margin": margin(EASY, 66.2),
    "EPS + MS": pair(jdml.multi_similarity_loss, 68.7, mine=EASY_MS, **MS),
    "EPS + circle": pair(jdml.circle_loss, mine=EASY),
}
COMBINED: dict[str, Method] = {
    "MS + XBM": remembering(BASES["MS"]._replace(paper=None)),
    "EPS + MS + XBM": remembering(EPS["EPS + MS"]._replace(paper=None)),
    "contrastive, one problem": against_proxies(jdml.contrastive_loss, 1, **CONTRASTIVE),
    "contrastive + CCP": against_proxies(jdml.contrastive_loss, 2, **CONTRASTIVE),
    "MS + CCP": against_proxies(jdml.multi_similarity_loss, 2, **MS),
    "EPS + contrastive, one problem": against_proxies(
        jdml.contrastive_loss, 1, mine=EASY, **CONTRASTIVE
    ),
    "EPS + contrastive + CCP": against_proxies(jdml.contrastive_loss, 2, mine=EASY, **CONTRASTIVE),
    "EPS + MS + CCP": against_proxies(jdml.multi_similarity_loss, 2, mine=EASY_MS, **MS),
    **{
        f"{name} + NIR": regularized(BASES[name])
        for name in ("ProxyAnchor", "ProxyNCA*", "SoftTriple", "MPA", "MPA-AP", "PFML")
    },
}
METHODS: dict[str, Method] = {**BASES, **EPS, **COMBINED}
QUICK = ("triplet", "EPS + MS + XBM", "contrastive + CCP", "MPA-AP", "PFML + NIR")


def choose(only: tuple[str, ...], quick: bool) -> tuple[str, ...]:
    """The names of the methods to run: some, one of each kind, or all."""
    unknown = sorted(set(only) - set(METHODS))
    if unknown:
        raise ValueError(f"--only must name methods among {', '.join(METHODS)}; got {unknown}")
    return only or (QUICK if quick else tuple(METHODS))
