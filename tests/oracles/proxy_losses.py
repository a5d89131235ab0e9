"""Proxy and softmax losses restated as plain loops over samples and classes, in NumPy float64.

Written from METHODS.md and the papers, never from `jdml.losses`. Every oracle takes `reduce`:
"default", "none", "total", "mean" or "mean_nonzero".
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from oracles.numerics import Array, log_sum_exp, normalized, reduced, softplus


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


def per_sample(data: Classes, term: Callable[[int], float], reduce: str) -> float | Array:
    """One weighted term per valid sample."""
    terms = np.zeros(len(data.embeddings))
    for i in range(len(terms)):
        if data.valid[i]:
            terms[i] = term(i) * data.weights[i]
    return reduced(terms, data.valid, "mean" if reduce == "default" else reduce)


def cross_entropy(logits: list[float], label: int) -> float:
    """−log softmax at the label."""
    return log_sum_exp(logits) - logits[label]


def proxy_nca(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float = 1.0,
    reduce: str = "default",
    **options,
) -> float | Array:
    """scale·d²(x, p_y) + log Σ_{c≠y} e^{−scale·d²(x, p_c)}."""
    data = classes(embeddings, labels, proxies, **options)

    def term(i: int) -> float:
        wrong = [-scale * data.squared_distance(i, c) for c in data.others(i)]
        return scale * data.squared_distance(i, data.labels[i]) + log_sum_exp(wrong)

    return per_sample(data, term, reduce)


def proxy_nca_pp(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    temperature: float = 1 / 9,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Cross-entropy of the logits −d²/T over all classes."""
    data = classes(embeddings, labels, proxies, **options)

    def term(i: int) -> float:
        count = len(data.proxies)
        logits = [-data.squared_distance(i, c) / temperature for c in range(count)]
        return cross_entropy(logits, data.labels[i])

    return per_sample(data, term, reduce)


def proxy_nca_margin(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float = 32.0,
    delta: float = 0.1,
    reduce: str = "default",
    **options,
) -> float | Array:
    """log(1 + e^{−α(s_y − δ)}) + log(1 + Σ_{c≠y} e^{α(s_c + δ)})."""
    data = classes(embeddings, labels, proxies, **options)

    def term(i: int) -> float:
        pull = -alpha * (data.similarity(i, data.labels[i]) - delta)
        push = [alpha * (data.similarity(i, c) + delta) for c in data.others(i)]
        return softplus(pull) + log_sum_exp([0.0, *push])

    return per_sample(data, term, reduce)


def proxy_anchor(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    alpha: float = 32.0,
    delta: float = 0.1,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Pull of the classes in the batch over |P⁺|, plus push of all classes over C.

    A sample's weight multiplies its exponential; none is below 0.
    """
    data = classes(embeddings, labels, proxies, **options)
    count = len(data.proxies)
    present = {int(data.labels[i]) for i in range(len(data.labels)) if data.valid[i]}
    terms = np.zeros(count)
    for c in range(count):
        pull, push = 0.0, 0.0
        for i in range(len(data.labels)):
            if not data.valid[i]:
                continue
            s = data.similarity(i, c)
            if data.labels[i] == c:
                pull += max(0.0, data.weights[i]) * math.exp(-alpha * (s - delta))
            else:
                push += max(0.0, data.weights[i]) * math.exp(alpha * (s + delta))
        terms[c] = math.log1p(push) / count
        if c in present:
            terms[c] += math.log1p(pull) / len(present)
    reduce = "total" if reduce == "default" else reduce
    return reduced(terms, np.ones(count, bool), reduce)


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


def soft_triple(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
    tau: float = 0.2,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Cross-entropy of λ(S(x, c) − δ·1[c = y]), S softmax-weighted over centers; plus τR per sample."""
    data = classes(embeddings, labels, proxies, **options)

    def term(i: int) -> float:
        logits = []
        for c in range(len(data.proxies)):
            logits.append(
                scale
                * (soft_similarity(data, i, c, gamma) - (margin if c == data.labels[i] else 0.0))
            )
        return cross_entropy(logits, data.labels[i])

    regularizer = np.full(len(data.labels), tau * center_regularizer(proxies))
    terms = per_sample(data, term, "none") + np.where(data.valid, regularizer, 0.0)
    return reduced(terms, data.valid, "mean" if reduce == "default" else reduce)


def angular_softmax(
    data: Classes, scale: float, at_target: Callable[[float], float], reduce: str
) -> float | Array:
    """Cross-entropy of scaled cosines, the true class's changed by `at_target`."""

    def term(i: int) -> float:
        logits = []
        for c in range(len(data.proxies)):
            s = data.similarity(i, c)
            logits.append(scale * (at_target(s) if c == data.labels[i] else s))
        return cross_entropy(logits, data.labels[i])

    return per_sample(data, term, reduce)


def normalized_softmax(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    temperature: float = 0.05,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Cross-entropy of s/T."""
    data = classes(embeddings, labels, proxies, **options)
    return angular_softmax(data, 1 / temperature, lambda s: s, reduce)


def cosface(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float = 64.0,
    margin: float = 0.35,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Cross-entropy of scaled cosines, s − m at the true class."""
    data = classes(embeddings, labels, proxies, **options)
    return angular_softmax(data, scale, lambda s: s - margin, reduce)


def arcface(
    embeddings: Array,
    labels: Array,
    proxies: Array,
    *,
    scale: float = 64.0,
    margin: float = 0.5,
    reduce: str = "default",
    **options,
) -> float | Array:
    """Cross-entropy of scaled cosines, cos(θ + m) at the true class.

    Past θ = π − m, where cos(θ + m) would rise again, s − m·sin m takes over, or s − (1 − cos m) where that is less.
    """
    data = classes(embeddings, labels, proxies, **options)

    beyond = max(margin * math.sin(margin), 1 - math.cos(margin))

    def widened(s: float) -> float:
        angle = math.acos(min(1.0, max(-1.0, s)))
        return math.cos(angle + margin) if angle <= math.pi - margin else s - beyond

    return angular_softmax(data, scale, widened, reduce)
