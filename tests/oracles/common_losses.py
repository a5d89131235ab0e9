"""InfoNCE, SupCon, SigLIP, NCA, SmoothAP, Recall@k and sub-centre ArcFace as loops, from their papers."""

import math
from collections.abc import Sequence

import numpy as np

from oracles.numerics import Array, log_sum_exp, softplus
from oracles.pair_losses import Comparison, complete, of_anchors, valid_anchors, with_positives
from oracles.proxy_losses import Classes, cross_entropy, of_samples


@of_anchors(with_positives)
def info_nce(pairs: Comparison, i: int, temperature: float = 0.07) -> float:
    """The mean over positives of −log(e^{s_p/T} / (e^{s_p/T} + Σ_n e^{s_n/T}))."""
    negatives = [pairs.similarity(i, n) / temperature for n in pairs.negatives(i)]
    losses = []
    for p in pairs.positives(i):
        own = pairs.similarity(i, p) / temperature
        losses.append(log_sum_exp([own, *negatives]) - own)
    return sum(losses) / len(losses)


def _mean_over_positives(pairs: Comparison, i: int, others: list[int], temperature: float) -> float:
    """The mean over positives of −log(e^{s_p/T} / Σ_a e^{s_a/T})."""
    whole = log_sum_exp([pairs.similarity(i, a) / temperature for a in others])
    positives = pairs.positives(i)
    return sum(whole - pairs.similarity(i, p) / temperature for p in positives) / len(positives)


@of_anchors(with_positives)
def sup_con(pairs: Comparison, i: int, temperature: float = 0.1) -> float:
    """The mean over positives, a over all others."""
    others = pairs.negatives(i) + pairs.positives(i)
    return _mean_over_positives(pairs, i, others, temperature)


@of_anchors(complete)
def decoupled_sup_con(pairs: Comparison, i: int, temperature: float = 0.1) -> float:
    """The mean over positives, a over the negatives."""
    return _mean_over_positives(pairs, i, pairs.negatives(i), temperature)


@of_anchors(valid_anchors)
def sigmoid_contrastive(
    pairs: Comparison, i: int, scale: float = 10.0, bias: float = -10.0
) -> float:
    """Σ_r −log σ(z (t s + b)) per anchor, z = ±1."""
    pull = sum(softplus(-(scale * pairs.similarity(i, j) + bias)) for j in pairs.positives(i))
    return pull + sum(softplus(scale * pairs.similarity(i, j) + bias) for j in pairs.negatives(i))


@of_anchors(with_positives)
def nca(pairs: Comparison, i: int, scale: float = 1.0) -> float:
    """−log of the softmax's mass on the positives, over −σ d²."""

    def logit(j: int) -> float:
        return -scale * pairs.distance(i, j) ** 2

    positives, negatives = pairs.positives(i), pairs.negatives(i)
    whole = log_sum_exp([logit(j) for j in positives + negatives])
    return whole - log_sum_exp([logit(j) for j in positives])


def _soft_rank(
    pairs: Comparison, i: int, p: int, among: Sequence[int], temperature: float
) -> float:
    """1 + Σ_{z≠p} σ((s_z − s_p)/T)."""
    own = pairs.similarity(i, p)
    return 1 + sum(
        math.exp(-softplus(-(pairs.similarity(i, z) - own) / temperature)) for z in among if z != p
    )


@of_anchors(with_positives)
def smooth_ap(pairs: Comparison, i: int, temperature: float = 0.01) -> float:
    """1 − the mean over positives of (rank among positives) / (rank among all)."""
    positives = pairs.positives(i)
    everyone = positives + pairs.negatives(i)
    precision = 0.0
    for p in positives:
        among_positives = _soft_rank(pairs, i, p, positives, temperature)
        precision += among_positives / _soft_rank(pairs, i, p, everyone, temperature)
    return 1 - precision / len(positives)


@of_anchors(with_positives)
def recall_at_k(
    pairs: Comparison,
    i: int,
    k: Sequence[int] = (1, 2, 4, 8, 16),
    temperature: float = 0.01,
    k_temperature: float = 1.0,
) -> float:
    """1 − the share of positives within k, a sigmoid of k − rank, averaged over k."""
    positives = pairs.positives(i)
    everyone = positives + pairs.negatives(i)
    losses = []
    for cutoff in k:
        recalled = 0.0
        for p in positives:
            rank = _soft_rank(pairs, i, p, everyone, temperature)
            recalled += math.exp(-softplus(-(cutoff - rank) / k_temperature))
        losses.append(1 - recalled / len(positives))
    return sum(losses) / len(losses)


@of_samples()
def subcenter_arcface(
    data: Classes, i: int, scale: float = 64.0, margin: float | Array = 0.5
) -> float:
    """Cross-entropy of λ cos of the angle to each class's nearest centre, widened by the true class's margin."""
    margins = np.broadcast_to(margin, len(data.proxies))
    logits = []
    for c in range(len(data.proxies)):
        cosine = data.similarity(i, c)
        if c == data.labels[i]:
            angle, m = math.acos(min(1.0, max(-1.0, cosine))), margins[c]
            rises = angle > math.pi - m
            beyond = cosine - max(m * math.sin(m), 1 - math.cos(m))
            cosine = beyond if rises else math.cos(angle + m)
        logits.append(scale * cosine)
    return cross_entropy(logits, data.labels[i])
