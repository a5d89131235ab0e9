"""Multi-proxies anchor and potential field losses restated as plain loops, in NumPy float64.

Written from METHODS.md and the papers, never from `jdml.losses`.
"""

import math

import numpy as np

from oracles.numerics import Array, log_sum_exp, normalized, reduced, softplus
from oracles.proxy_losses import Classes, of_samples, proxy_anchor, soft_similarity


def multi_proxy_anchor(
    *arrays: Array,
    alpha: float = 32.0,
    delta: float = 0.1,
    gamma: float = 0.1,
    tau: float = 0.2,
    **options,
) -> float | Array:
    """ProxyAnchor over S(x, c), plus τR shared out over the classes."""
    return proxy_anchor(*arrays, alpha=alpha, delta=delta, gamma=gamma, tau=tau, **options)


@of_samples(tau=0.2)
def multi_proxy_anchor_dw(
    data: Classes, i: int, alpha: float = 32.0, delta: float = 0.1, gamma: float = 0.1
) -> float:
    """log(1 + e^{−α(S_y − δ)}) + log(1 + Σ_{c≠y} e^{α(S_c + δ)}) + τR."""
    pull = -alpha * (soft_similarity(data, i, data.labels[i], gamma) - delta)
    push = [alpha * (soft_similarity(data, i, c, gamma) + delta) for c in data.others(i)]
    return softplus(pull) + log_sum_exp([0.0, *push])


@of_samples(tau=0.2)
def multi_proxy_anchor_ap(
    data: Classes, i: int, alpha: float = 32.0, delta: float = 0.1, gamma: float = 0.1
) -> float:
    """log(1 + Σ_c e^{αS′}) + τR, S′ = δ − S at the own class and S + δ elsewhere."""
    exponents = [0.0]
    for c in range(len(data.proxies)):
        s = soft_similarity(data, i, c, gamma)
        exponents.append(alpha * (delta - s if c == data.labels[i] else s + delta))
    return log_sum_exp(exponents)


def superposed(
    embeddings: Array,
    labels: Array,
    proxies: Array | None,
    attraction,
    repulsion,
    reduce: str,
    *,
    where: Array | None = None,
    weights: Array | None = None,
    normalize: str | None = "sphere",
) -> float | Array:
    """Ψ at each charge: of its class's other charges the attraction, of all others the repulsion."""
    batch = len(embeddings)
    centers = np.zeros((0, 1, embeddings.shape[1])) if proxies is None else np.asarray(proxies)
    centers = centers[:, None, :] if centers.ndim == 2 else centers
    points = [*normalized(embeddings, normalize)]
    owners = [int(label) for label in labels]
    limit = math.inf if proxies is None else len(centers)
    valid = [0 <= owner < limit for owner in owners]
    if where is not None:
        valid = [a and bool(b) for a, b in zip(valid, where, strict=True)]
    some = any(valid)
    for c, group in enumerate(centers):
        for point in normalized(group, normalize):
            points.append(point)
            owners.append(c)
            valid.append(True)
    scale = np.ones(len(points))
    if weights is not None:
        scale[:batch] = weights
    felt = np.zeros(len(points))
    for i in range(len(points)):
        for j in range(len(points)):
            if i != j and valid[i] and valid[j]:
                r = math.sqrt(float((points[i] - points[j]) @ (points[i] - points[j])))
                felt[i] += attraction(r) if owners[i] == owners[j] else repulsion(r)
    counted = np.array(valid, bool) & some
    return reduced(
        np.where(counted, felt * scale, 0.0), counted, "mean" if reduce == "default" else reduce
    )


def potential_field(
    embeddings: Array,
    labels: Array,
    proxies: Array | None = None,
    *,
    delta: float = 0.2,
    alpha: float = 1.0,
    repulsion_delta: float | None = None,
    min_distance: float = 1e-3,
    reduce: str = "default",
    **options,
) -> float | Array:
    """ψ_att = −1/r^α, flat inside δ; ψ_rep = 1/r^α, flat outside δ_rep (and below ε)."""
    reach = delta if repulsion_delta is None else repulsion_delta

    def attraction(r: float) -> float:
        return -1 / delta**alpha if r < delta else -1 / r**alpha

    def repulsion(r: float) -> float:
        r = max(r, min_distance)
        return 1 / r**alpha if r < reach else 1 / reach**alpha

    return superposed(embeddings, labels, proxies, attraction, repulsion, reduce, **options)


def contrastive_potential(
    embeddings: Array,
    labels: Array,
    proxies: Array | None = None,
    *,
    delta: float = 0.2,
    reduce: str = "default",
    **options,
) -> float | Array:
    """ψ_att = r², flat inside δ; ψ_rep = (δ − r)₊²."""
    return superposed(
        embeddings,
        labels,
        proxies,
        lambda r: max(r, delta) ** 2,
        lambda r: max(0.0, delta - r) ** 2,
        reduce,
        **options,
    )
