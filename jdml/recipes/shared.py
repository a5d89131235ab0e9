"""Settings that several recipes share: CCP's, by loss and data set, and the default batch."""

from typing import Any

DATASETS = ("cub", "cars", "sop", "inshop")
"""Data sets that the papers give settings for; all others are treated like ``cub``."""
LARGE = ("sop", "inshop")
"""Many classes of few images."""
ROWS, SAMPLES = 64, 4
"""Default batch: at most so many rows, and at least so many samples of a class."""


def pair_settings(loss: str, dataset: str) -> dict[str, Any]:
    """Return the settings of a pair loss in CCP's tables: no mining, all pairs."""
    if loss == "contrastive":
        large = (0.2858, 0.5130)
        margins = {"cars": (0.2652, 0.5409), "sop": large, "inshop": large}
        positive, negative = margins.get(dataset, (0.0, 0.3841))
        return {"positive_margin": positive, "negative_margin": negative}
    if loss == "multi_similarity":
        alpha, beta, base = {"cars": (14.35, 75.83, 0.66), "inshop": (8.49, 57.38, 0.41)}.get(
            dataset, (2.0, 40.0, 0.5)
        )
        return {"alpha": alpha, "beta": beta, "base": base}
    if loss == "triplet":
        return {"margin": {"cars": 0.1190, "sop": 0.0451, "inshop": 0.0451}.get(dataset, 0.0961)}
    return {}


def in_protocol(method: str, dataset: str) -> dict[str, Any]:
    """Return what changes in a method's recipe in CCP's tables of the MLRC protocol.

    SoftTriple has the centres of its row in the tables: 10 per class, 1 where there are many classes. Its γ divides,
    also on Cars196 and SOP, where the printed ones (19.18, 47.9) make the softmax over the centres nearly their mean:
    so they do in CCP's program and in that of the protocol, from which they come.
    """
    if method in ("multi_similarity", "triplet"):
        return {"loss": {"settings": pair_settings(method, dataset), "miner": "none"}}
    by_class: dict[str, Any] = {
        "batch": {"classes": 32, "samples_per_class": 1},
        "finetune": {"backbone_freeze_epochs": 1},
    }
    if method == "soft_triple":
        scale, gamma, tau, margin = {
            "cars": (17.69, 19.18, 0.0669, 0.3588),
            "sop": (100.0, 47.9, 0.2, 0.3145),
        }.get(dataset, (20.0, 0.1, 0.2, 0.01))
        settings = {"scale": scale, "gamma": gamma, "tau": tau, "margin": margin}
        proxies = {"per_class": 1 if dataset in LARGE else 10}
        return {**by_class, "loss": {"settings": settings, "proxies": proxies}}
    if method == "proxy_nca_pp":  # cosines over the printed .1 are squared distances over .2
        return {**by_class, "loss": {"settings": {"temperature": 0.2}}}
    return by_class if method == "proxy_anchor" else {}
