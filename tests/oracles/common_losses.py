"""InfoNCE, SupCon, SigLIP, NCA, SmoothAP, Recall@k and sub-centre ArcFace as loops, from their papers."""

import math
from collections.abc import Sequence

import numpy as np

from oracles.numerics import Array, log_sum_exp, softplus
from oracles.pair_losses import Comparison, compare, per_anchor
from oracles.proxy_losses import classes, cross_entropy, per_sample


def info_nce(
    embeddings: Array,
    labels: Array | None,
    *,
    temperature: float = 0.07,
    reduce: str = "default",
    **options,
) -> float | Array:
    """The mean over positives of −log(e^{s_p/T} / (e^{s_p/T} + Σ_n e^{s_n/T}))."""
    pairs = compare(embeddings, labels, **options)

    def term(i: int) -> float:
        negatives = [pairs.similarity(i, n) / temperature for n in pairs.negatives(i)]
        losses = []
        for p in pairs.positives(i):
            own = pairs.similarity(i, p) / temperature
            losses.append(log_sum_exp([own, *negatives]) - own)
        return sum(losses) / len(losses)

    return per_anchor(pairs, term, pairs.positive.any(axis=1), reduce)


def sup_con(
    embeddings: Array,
    labels: Array | None,
    *,
    temperature: float = 0.1,
    decoupled: bool = False,
    reduce: str = "default",
    **options,
) -> float | Array:
    """The mean over positives of −log(e^{s_p/T} / Σ_a e^{s_a/T}), a over all others or the negatives."""
    pairs = compare(embeddings, labels, **options)

    def term(i: int) -> float:
        others = pairs.negatives(i) + ([] if decoupled else pairs.positives(i))
        whole = log_sum_exp([pairs.similarity(i, a) / temperature for a in others])
        positives = pairs.positives(i)
        return sum(whole - pairs.similarity(i, p) / temperature for p in positives) / len(positives)

    counted = pairs.positive.any(axis=1)
    if decoupled:
        counted &= pairs.negative.any(axis=1)
    return per_anchor(pairs, term, counted, reduce)


def sigmoid_contrastive(
    embeddings: Array,
    labels: Array | None,
    *,
    scale: float = 10.0,
    bias: float = -10.0,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Σ_r −log σ(z (t s + b)) per anchor, z = ±1."""
    pairs = compare(embeddings, labels, **options)

    def term(i: int) -> float:
        pull = sum(softplus(-(scale * pairs.similarity(i, j) + bias)) for j in pairs.positives(i))
        return pull + sum(
            softplus(scale * pairs.similarity(i, j) + bias) for j in pairs.negatives(i)
        )

    return per_anchor(pairs, term, pairs.valid, reduce)


def nca(
    embeddings: Array,
    labels: Array | None,
    *,
    scale: float = 1.0,
    reduce: str = "default",
    **options,
) -> float | Array:
    """−log of the softmax's mass on the positives, over −σ d²."""
    pairs = compare(embeddings, labels, **options)

    def term(i: int) -> float:
        def logit(j: int) -> float:
            return -scale * pairs.distance(i, j) ** 2

        positives, negatives = pairs.positives(i), pairs.negatives(i)
        whole = log_sum_exp([logit(j) for j in positives + negatives])
        return whole - log_sum_exp([logit(j) for j in positives])

    return per_anchor(pairs, term, pairs.positive.any(axis=1), reduce)


def _soft_rank(
    pairs: Comparison, i: int, p: int, among: Sequence[int], temperature: float
) -> float:
    """1 + Σ_{z≠p} σ((s_z − s_p)/T)."""
    own = pairs.similarity(i, p)
    return 1 + sum(
        math.exp(-softplus(-(pairs.similarity(i, z) - own) / temperature)) for z in among if z != p
    )


def smooth_ap(
    embeddings: Array,
    labels: Array | None,
    *,
    temperature: float = 0.01,
    reduce: str = "default",
    **options,
) -> float | Array:
    """1 − the mean over positives of (rank among positives) / (rank among all)."""
    pairs = compare(embeddings, labels, **options)

    def term(i: int) -> float:
        positives = pairs.positives(i)
        everyone = positives + pairs.negatives(i)
        precision = 0.0
        for p in positives:
            among_positives = _soft_rank(pairs, i, p, positives, temperature)
            precision += among_positives / _soft_rank(pairs, i, p, everyone, temperature)
        return 1 - precision / len(positives)

    return per_anchor(pairs, term, pairs.positive.any(axis=1), reduce)


def recall_at_k(
    embeddings: Array,
    labels: Array | None,
    *,
    k: Sequence[int] = (1, 2, 4, 8, 16),
    temperature: float = 0.01,
    k_temperature: float = 1.0,
    reduce: str = "default",
    **options,
) -> float | Array:
    """1 − the share of positives within k, a sigmoid of k − rank, averaged over k."""
    pairs = compare(embeddings, labels, **options)

    def term(i: int) -> float:
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

    return per_anchor(pairs, term, pairs.positive.any(axis=1), reduce)


def subcenter_arcface(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float = 64.0,
    margin: float | Array = 0.5,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Cross-entropy of λ cos of the angle to each class's nearest centre, widened by the true class's margin."""
    data = classes(embeddings, labels, proxies, **options)
    margins = np.broadcast_to(margin, len(data.proxies))

    def term(i: int) -> float:
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

    return per_sample(data, term, reduce)
