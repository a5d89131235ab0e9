"""Proxy and softmax losses restated as plain loops over samples and classes, in NumPy float64.

Written from METHODS.md and the papers, never from `jdml.losses`. A function of one sample's term is
made a loss by its decorator, with the function's own settings, those of `classes`, `tau` (a weight of
the regularizer) and `reduce`: "default", "none", "total", "mean" or "mean_nonzero".
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from oracles.numerics import Array, log_sum_exp, normalized, reduced, softplus
from oracles.pair_losses import Oracle, own_settings, with_settings


class Classes(NamedTuple):
    """Embeddings against class proxies."""

    embeddings: Array  # [B, D], normalized
    proxies: Array  # [C, K, D], normalized
    labels: Array  # [B]
    valid: Array  # [B] bool
    weights: Array  # [B]

    def similarities(self, i: int, c: int) -> list[float]:
        """Dot products of embedding i with the proxies of class c."""
        return [float(self.embeddings[i] @ proxy) for proxy in self.proxies[c]]

    def similarity(self, i: int, c: int) -> float:
        """Dot product of embedding i with the nearest proxy of class c."""
        return max(self.similarities(i, c))

    def squared_distance(self, i: int, c: int) -> float:
        """Squared distance of embedding i to the nearest proxy of class c."""
        differences = [self.embeddings[i] - proxy for proxy in self.proxies[c]]
        return min(float(d @ d) for d in differences)

    def others(self, i: int) -> list[int]:
        """Every class but that of embedding i."""
        return [c for c in range(len(self.proxies)) if c != self.labels[i]]


def classes(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    where: Array | None = None,
    weights: Array | None = None,
    normalize: str | None = "sphere",
) -> Classes:
    """Normalize both sides and find the valid rows: `where` and a label in 0…C−1."""
    centers = np.asarray(proxies, np.float64)
    centers = centers[:, None, :] if centers.ndim == 2 else centers
    centers = np.array([normalized(group, normalize) for group in centers])
    valid = np.ones(len(embeddings), bool) if where is None else np.array(where, bool)
    for i in range(len(valid)):
        valid[i] &= 0 <= labels[i] < len(centers)
    w = np.ones(len(embeddings)) if weights is None else np.asarray(weights, np.float64)
    return Classes(normalized(embeddings, normalize), centers, np.asarray(labels), valid, w)


def of_samples(tau: float = 0.0) -> Callable[[Oracle], Oracle]:
    """Average one weighted term per valid sample, with τR where a loss has the regularizer."""

    def decorate(term: Oracle) -> Oracle:
        def oracle(
            embeddings: Array,
            labels: Array,
            proxies: Array,
            *,
            tau: float = tau,
            reduce: str = "default",
            **options,
        ) -> float | Array:
            compute = own_settings(term, options)
            data = classes(embeddings, labels, proxies, **options)
            terms = np.zeros(len(data.embeddings))
            for i in np.flatnonzero(data.valid):
                terms[i] = compute(data, i) * data.weights[i] + tau * center_regularizer(proxies)
            return reduced(terms, data.valid, "mean" if reduce == "default" else reduce)

        return with_settings(oracle, term)

    return decorate


def cross_entropy(logits: list[float], label: int) -> float:
    """−log softmax at the label."""
    return log_sum_exp(logits) - logits[label]


@of_samples()
def proxy_nca(data: Classes, i: int, scale: float = 1.0) -> float:
    """scale·d²(x, p_y) + log Σ_{c≠y} e^{−scale·d²(x, p_c)}."""
    wrong = [-scale * data.squared_distance(i, c) for c in data.others(i)]
    return scale * data.squared_distance(i, data.labels[i]) + log_sum_exp(wrong)


@of_samples()
def proxy_nca_pp(data: Classes, i: int, temperature: float = 1 / 9) -> float:
    """Cross-entropy of the logits −d²/T over all classes."""
    logits = [-data.squared_distance(i, c) / temperature for c in range(len(data.proxies))]
    return cross_entropy(logits, data.labels[i])


@of_samples()
def proxy_nca_margin(data: Classes, i: int, alpha: float = 32.0, delta: float = 0.1) -> float:
    """log(1 + e^{−α(s_y − δ)}) + log(1 + Σ_{c≠y} e^{α(s_c + δ)})."""
    pull = -alpha * (data.similarity(i, data.labels[i]) - delta)
    push = [alpha * (data.similarity(i, c) + delta) for c in data.others(i)]
    return softplus(pull) + log_sum_exp([0.0, *push])


def proxy_anchor(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float = 32.0,
    delta: float = 0.1,
    gamma: float | None = None,
    tau: float = 0.0,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Pull of the classes in the batch over |P⁺|, plus push of all classes over C, plus τR shared out.

    A sample's weight multiplies its exponential; none is below 0. With γ the similarities are soft (MPA).
    """
    data = classes(embeddings, labels, proxies, **options)
    count = len(data.proxies)
    present = {int(data.labels[i]) for i in range(len(data.labels)) if data.valid[i]}
    terms = np.full(count, tau * center_regularizer(proxies) / count if present else 0.0)
    for c in range(count):
        pull, push = 0.0, 0.0
        for i in np.flatnonzero(data.valid):
            s = data.similarity(i, c) if gamma is None else soft_similarity(data, i, c, gamma)
            if data.labels[i] == c:
                pull += max(0.0, data.weights[i]) * math.exp(-alpha * (s - delta))
            else:
                push += max(0.0, data.weights[i]) * math.exp(alpha * (s + delta))
        terms[c] += math.log1p(push) / count
        if c in present:
            terms[c] += math.log1p(pull) / len(present)
    return reduced(terms, np.ones(count, bool), "total" if reduce == "default" else reduce)


def center_regularizer(proxies: Array, *, normalize: str | None = "sphere") -> float:
    """Σ_c Σ_{t<s} sqrt(2 − 2 p_ct·p_cs) / (C K (K−1)); 0 for one proxy per class."""
    centers = np.asarray(proxies, np.float64)
    if centers.ndim == 2 or centers.shape[1] == 1:
        return 0.0
    count, per_class, _ = centers.shape
    total = 0.0
    for c in range(count):
        group = normalized(centers[c], normalize)
        for s in range(per_class):
            for t in range(s):
                total += math.sqrt(max(0.0, 2 - 2 * float(group[s] @ group[t])))
    return total / (count * per_class * (per_class - 1))


def soft_similarity(data: Classes, i: int, c: int, gamma: float) -> float:
    """Σ_k softmax_k(x·p_ck / γ) x·p_ck."""
    dots = data.similarities(i, c)
    log_total = log_sum_exp([s / gamma for s in dots])
    return sum(math.exp(s / gamma - log_total) * s for s in dots)


@of_samples(tau=0.2)
def soft_triple(
    data: Classes, i: int, scale: float = 20.0, gamma: float = 0.1, margin: float = 0.01
) -> float:
    """Cross-entropy of λ(S(x, c) − δ·1[c = y]), S softmax-weighted over centers."""
    logits = [scale * soft_similarity(data, i, c, gamma) for c in range(len(data.proxies))]
    logits[data.labels[i]] -= scale * margin
    return cross_entropy(logits, data.labels[i])


def angular(data: Classes, i: int, scale: float, at_target: Callable[[float], float]) -> float:
    """Cross-entropy of scaled cosines, the true class's changed by `at_target`."""
    cosines = [data.similarity(i, c) for c in range(len(data.proxies))]
    cosines[data.labels[i]] = at_target(cosines[data.labels[i]])
    return cross_entropy([scale * s for s in cosines], data.labels[i])


@of_samples()
def normalized_softmax(data: Classes, i: int, temperature: float = 0.05) -> float:
    """Cross-entropy of s/T."""
    return angular(data, i, 1 / temperature, lambda s: s)


@of_samples()
def cosface(data: Classes, i: int, scale: float = 64.0, margin: float = 0.35) -> float:
    """Cross-entropy of scaled cosines, s − m at the true class."""
    return angular(data, i, scale, lambda s: s - margin)


@of_samples()
def arcface(data: Classes, i: int, scale: float = 64.0, margin: float = 0.5) -> float:
    """Cross-entropy of scaled cosines, cos(θ + m) at the true class.

    Past θ = π − m, where cos(θ + m) would rise again, s − m·sin m takes over, or s − (1 − cos m) where that is less.
    """
    beyond = max(margin * math.sin(margin), 1 - math.cos(margin))

    def widened(s: float) -> float:
        angle = math.acos(min(1.0, max(-1.0, s)))
        return math.cos(angle + margin) if angle <= math.pi - margin else s - beyond

    return angular(data, i, scale, widened)
