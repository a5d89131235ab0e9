"""How good an embedding is: retrieval, ranking and clustering metrics.

:func:`evaluate_retrieval` takes embeddings and labels and gives the table of a paper; the functions on a ranked
relevance matrix are its parts, for rankings that come from elsewhere. The hit rate of recommenders is Recall@k,
:func:`recall_at_k`; what they call recall@k is :func:`true_recall_at_k`.
"""

from jdml.metrics.chance import ClassCovering, Violation, class_covering, violation_probability
from jdml.metrics.clustering import adjusted_mutual_information, nmi
from jdml.metrics.geometry import (
    class_density,
    concentration_variance,
    covering_radius,
    spectral_decay,
    uniformity,
)
from jdml.metrics.neighbors import nearest
from jdml.metrics.proxies import ProxySpread, proxy_distance, proxy_spread, vmf_mixture_likelihood
from jdml.metrics.ranking import (
    map_at_k,
    map_at_r,
    ndcg_at_k,
    precision_at_1,
    precision_at_k,
    r_precision,
    recall_at_k,
    true_recall_at_k,
)
from jdml.metrics.reranking import augment_gallery, expand_queries, rerank
from jdml.metrics.retrieval import evaluate_retrieval
from jdml.metrics.verification import open_set, rejection_threshold, verification

__all__ = [
    "ClassCovering",
    "ProxySpread",
    "Violation",
    "adjusted_mutual_information",
    "augment_gallery",
    "class_covering",
    "class_density",
    "concentration_variance",
    "covering_radius",
    "evaluate_retrieval",
    "expand_queries",
    "true_recall_at_k",
    "map_at_k",
    "map_at_r",
    "ndcg_at_k",
    "nearest",
    "nmi",
    "open_set",
    "precision_at_1",
    "precision_at_k",
    "proxy_distance",
    "proxy_spread",
    "r_precision",
    "recall_at_k",
    "rejection_threshold",
    "rerank",
    "spectral_decay",
    "uniformity",
    "verification",
    "violation_probability",
    "vmf_mixture_likelihood",
]
