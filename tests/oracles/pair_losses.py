"""Pair losses restated as plain loops over anchors, pairs and triplets, in NumPy float64.

Written from METHODS.md and the papers (and, for lifted structure, circle, FastAP and SNR, from
what pytorch-metric-learning 2.9.0 computes), never from `jdml.losses`: slow, and easy to check by
eye. A function below is one term of a loss; its decorator makes the loss, with the function's own
settings, those of `compare`, and `reduce`: "default", "none", "total", "mean" or "mean_nonzero".
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from oracles.numerics import Array, log_sum_exp, normalized, reduced, relu, softplus

Miner = Callable[[Array, Array, Array], tuple[Array, Array]]
Oracle = Callable[..., Any]


class Comparison(NamedTuple):
    """Anchors and references with the masks of their pairs."""

    labels: Array | None  # [B]
    anchors: Array  # [B, D], normalized
    references: Array  # [R, D], normalized
    positive: Array  # [B, R] bool
    negative: Array  # [B, R] bool
    valid: Array  # [B] bool
    weights: Array  # [B, R]
    row_weights: Array  # [B]

    def distance(self, i: int, j: int) -> float:
        """Euclidean distance between anchor i and reference j."""
        difference = self.anchors[i] - self.references[j]
        return math.sqrt(float(difference @ difference))

    def similarity(self, i: int, j: int) -> float:
        """Dot product between anchor i and reference j: the cosine on the sphere."""
        return float(self.anchors[i] @ self.references[j])

    def positives(self, i: int) -> list[int]:
        """References that are positive for anchor i."""
        return [j for j in range(len(self.references)) if self.positive[i, j]]

    def negatives(self, i: int) -> list[int]:
        """References that are negative for anchor i."""
        return [j for j in range(len(self.references)) if self.negative[i, j]]


def compare(
    embeddings: Array,
    labels: Array | None,
    *,
    references: Array | None = None,
    reference_labels: Array | None = None,
    ids: Array | None = None,
    reference_ids: Array | None = None,
    positive: Array | None = None,
    where: Array | None = None,
    reference_where: Array | None = None,
    weights: Array | None = None,
    mine: Miner | None = None,
    normalize: str | None = "sphere",
) -> Comparison:
    """Normalize, find the pairs pair by pair, and let a miner choose among them."""
    anchors = normalized(embeddings, normalize)
    others = anchors if references is None else normalized(references, normalize)
    batch, size = len(anchors), len(others)
    valid = np.ones(batch, bool) if where is None else np.array(where, bool)
    if labels is not None:
        valid &= np.asarray(labels) >= 0
    usable = valid.copy() if references is None else np.ones(size, bool)
    if reference_labels is not None:
        usable &= np.asarray(reference_labels) >= 0
    if reference_where is not None:
        usable &= np.asarray(reference_where)
    their_ids = ids if reference_ids is None else reference_ids
    their_labels = labels if reference_labels is None else reference_labels
    is_positive, is_negative = np.zeros((batch, size), bool), np.zeros((batch, size), bool)
    for i in range(batch):
        for j in range(size):
            if not (valid[i] and usable[j]) or (references is None and i == j):
                continue
            if ids is not None and ids[i] == their_ids[j] and ids[i] != -1:
                continue  # the same sample
            same = positive[i, j] if labels is None else labels[i] == their_labels[j]
            (is_positive if same else is_negative)[i, j] = True
    w = np.ones(batch) if weights is None else np.asarray(weights, np.float64)
    pair_weights = np.repeat(w[:, None], size, axis=1) if w.ndim == 1 else w
    row_weights = w if w.ndim == 1 else np.ones(batch)
    comparison = Comparison(
        labels, anchors, others, is_positive, is_negative, valid, pair_weights, row_weights
    )
    if mine is None:
        return comparison
    distances = np.array([[comparison.distance(i, j) for j in range(size)] for i in range(batch)])
    is_positive, is_negative = mine(distances, is_positive, is_negative)
    for i in range(batch):
        if not is_positive[i].any() or not is_negative[i].any():
            is_positive[i] = is_negative[i] = False
    return comparison._replace(positive=is_positive, negative=is_negative)


def own_settings(term: Oracle, options: dict[str, Any]) -> Oracle:
    """Take a term's own settings from the options."""
    names = [name for name in inspect.signature(term).parameters if name in options]
    return partial(term, **{name: options.pop(name) for name in names})


def with_settings(oracle: Oracle, term: Oracle) -> Oracle:
    """Show a term's own settings among the oracle's parameters."""
    own, shared = (list(inspect.signature(f).parameters.values()) for f in (term, oracle))
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.default is not p.empty]
    oracle.__signature__ = inspect.Signature([*shared[:-1], *own, shared[-1]])  # type: ignore[attr-defined]
    return oracle


def of_pairs(kinds: str) -> Callable[[Oracle], Oracle]:
    """Sum weighted terms of pairs, pull and push; the two kinds are averaged `apart` or `together`."""

    def decorate(term: Oracle) -> Oracle:
        def oracle(embeddings: Array, labels: Array | None, *, reduce: str = "default", **options):
            compute = own_settings(term, options)
            pairs = compare(embeddings, labels, **options)
            terms = np.zeros(pairs.positive.shape)
            for i, j in np.argwhere(pairs.positive | pairs.negative):
                pull, push = compute(pairs, i, j)
                terms[i, j] = (pull if pairs.positive[i, j] else push) * pairs.weights[i, j]
            reduce = "mean_nonzero" if reduce == "default" else reduce
            if kinds == "together":
                return reduced(terms, pairs.positive | pairs.negative, reduce)
            pulled = reduced(terms, pairs.positive, reduce)
            return pulled + reduced(terms, pairs.negative, reduce)

        return with_settings(oracle, term)

    return decorate


def valid_anchors(pairs: Comparison) -> Array:
    """All valid anchors."""
    return pairs.valid


def with_positives(pairs: Comparison) -> Array:
    """The anchors that have a positive."""
    return pairs.positive.any(axis=1)


def complete(pairs: Comparison) -> Array:
    """The anchors that have a positive and a negative."""
    return pairs.positive.any(axis=1) & pairs.negative.any(axis=1)


def of_anchors(counted: Callable[[Comparison], Array]) -> Callable[[Oracle], Oracle]:
    """Average one weighted term per anchor over the anchors that count."""

    def decorate(term: Oracle) -> Oracle:
        def oracle(embeddings: Array, labels: Array | None, *, reduce: str = "default", **options):
            compute = own_settings(term, options)
            pairs = compare(embeddings, labels, **options)
            some, terms = counted(pairs), np.zeros(len(pairs.anchors))
            for i in np.flatnonzero(some):
                terms[i] = compute(pairs, i) * pairs.row_weights[i]
            return reduced(terms, some, "mean" if reduce == "default" else reduce)

        return with_settings(oracle, term)

    return decorate


def reduced_sums(sums: Array, count: int, reduce: str) -> float | Array:
    """Reduce sums of terms that are as many."""
    if reduce == "none":
        return sums
    whole = float(sums.sum())
    return whole if reduce == "total" else whole / max(count, 1)


@of_pairs("apart")
def contrastive(
    pairs: Comparison, i: int, j: int, positive_margin: float = 0.0, negative_margin: float = 0.5
) -> tuple[float, float]:
    """C2: (d − m⁺)₊ over positives and (m⁻ − d)₊ over negatives."""
    d = pairs.distance(i, j)
    return relu(d - positive_margin), relu(negative_margin - d)


@of_anchors(valid_anchors)
def similarity_contrastive(pairs: Comparison, i: int, negative_margin: float = 0.5) -> float:
    """C1: per anchor Σ_pos (1 − s) + Σ_neg s·1[s > m]."""
    total = sum(1 - pairs.similarity(i, j) for j in pairs.positives(i))
    for j in pairs.negatives(i):
        s = pairs.similarity(i, j)
        total += s if s > negative_margin else 0.0
    return total


def triplet(
    embeddings: Array,
    labels: Array | None,
    *,
    margin: float | None = 0.1,
    squared: bool = False,
    reduce: str = "default",
    **options,
) -> float | Array:
    """All (d_ap − d_an + m)₊, or log(1 + e^(d_ap − d_an)), one triplet after another."""
    pairs = compare(embeddings, labels, **options)
    power = 2 if squared else 1
    sums, triplets, active = np.zeros(len(pairs.anchors)), 0, 0
    for i in range(len(sums)):
        for p in pairs.positives(i):
            for n in pairs.negatives(i):
                gap = pairs.distance(i, p) ** power - pairs.distance(i, n) ** power
                hinge = np.logaddexp(0.0, gap) if margin is None else relu(gap + margin)
                sums[i] += hinge * pairs.row_weights[i]
                triplets += 1
                active += hinge * pairs.row_weights[i] != 0
    return reduced_sums(sums, triplets if reduce == "mean" else active, reduce)


@of_pairs("together")
def margin(
    pairs: Comparison,
    i: int,
    j: int,
    beta: float | Array = 1.2,
    alpha: float = 0.2,
    squared: bool = False,
) -> tuple[float, float]:
    """(d − β + α)₊ over positives, (β − d + α)₊ over negatives, all active ones together."""
    d = pairs.distance(i, j) ** (2 if squared else 1)
    boundary = float(beta) if np.ndim(beta) == 0 else float(beta[pairs.labels[i]])
    return relu(d - boundary + alpha), relu(boundary - d + alpha)


@of_anchors(valid_anchors)
def multi_similarity(
    pairs: Comparison, i: int, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5
) -> float:
    """log(1 + Σ_pos e^{−α(s−λ)})/α + log(1 + Σ_neg e^{β(s−λ)})/β per anchor."""
    pull = [-alpha * (pairs.similarity(i, j) - base) for j in pairs.positives(i)]
    push = [beta * (pairs.similarity(i, j) - base) for j in pairs.negatives(i)]
    return log_sum_exp([0.0, *pull]) / alpha + log_sum_exp([0.0, *push]) / beta


@of_anchors(with_positives)
def n_pair(pairs: Comparison, i: int) -> float:
    """Per anchor the mean over its positives of log(1 + Σ_neg e^{s_an − s_ap})."""
    losses = []
    for p in pairs.positives(i):
        s = pairs.similarity(i, p)
        losses.append(log_sum_exp([0.0, *(pairs.similarity(i, n) - s for n in pairs.negatives(i))]))
    return sum(losses) / len(losses)


def lifted_structure(
    embeddings: Array,
    labels: Array | None,
    *,
    negative_margin: float = 1.0,
    positive_margin: float = 0.0,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Half the squared positive part of log Σ_{negatives of i, j} e^{m⁻ − d} + d_ij − m⁺.

    Batch against itself only (its own rows are the references).
    """
    pairs = compare(embeddings, labels, **options)
    sums, counted = np.zeros(len(pairs.anchors)), 0
    for i in range(len(sums)):
        for j in pairs.positives(i):
            push = [negative_margin - pairs.distance(i, n) for n in pairs.negatives(i)]
            push += [negative_margin - pairs.distance(j, n) for n in pairs.negatives(j)]
            if push:
                gap = log_sum_exp(push) + pairs.distance(i, j) - positive_margin
                sums[i] += relu(gap) ** 2 / 2 * pairs.row_weights[i]
                counted += 1
    return reduced_sums(sums, counted, reduce)


@of_anchors(complete)
def circle(pairs: Comparison, i: int, margin: float = 0.4, gamma: float = 80.0) -> float:
    """softplus(log Σ_pos e^{−γ(1+m−s)₊(s−1+m)} + log Σ_neg e^{γ(s+m)₊(s−m)}) per anchor."""
    pull = []
    for j in pairs.positives(i):
        s = pairs.similarity(i, j)
        pull.append(-gamma * relu(1 + margin - s) * (s - (1 - margin)))
    push = []
    for j in pairs.negatives(i):
        s = pairs.similarity(i, j)
        push.append(gamma * relu(s + margin) * (s - margin))
    return softplus(log_sum_exp(pull) + log_sum_exp(push))


@of_anchors(with_positives)
def fast_ap(pairs: Comparison, i: int, num_bins: int = 10) -> float:
    """1 − Σ_bins h⁺ H⁺ / H / N⁺, soft histograms of the squared distances on [0, 4]."""
    width = 4.0 / num_bins

    def histogram(members: list[int], edge: int) -> float:
        return sum(relu(1 - abs(pairs.distance(i, j) ** 2 - edge * width) / width) for j in members)

    precision, seen_positive, seen = 0.0, 0.0, 0.0
    for edge in range(num_bins + 1):
        hits = histogram(pairs.positives(i), edge)
        seen_positive += hits
        seen += hits + histogram(pairs.negatives(i), edge)
        if hits * seen_positive > 0:
            precision += hits * seen_positive / seen
    return 1 - precision / len(pairs.positives(i))


@of_pairs("apart")
def snr_contrastive(
    pairs: Comparison, i: int, j: int, positive_margin: float = 0.0, negative_margin: float = 1.0
) -> tuple[float, float]:
    """Contrastive on d_SNR = var(a − r)/var(a), variances over the D components."""
    anchor = pairs.anchors[i]
    noise = float(np.var(anchor - pairs.references[j]) / np.var(anchor))
    return relu(noise - positive_margin), relu(negative_margin - noise)
