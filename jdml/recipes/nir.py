"""NIR's recipe, and what it is compared with: the same setting without the flow."""

import functools
from typing import Any, Literal

import jax

from jdml import losses, objectives
from jdml.objectives import Objective
from jdml.ops import checks
from jdml.recipes.base import Recipe
from jdml.recipes.shared import LARGE, proxy

LOSSES = ("proxy_anchor", "proxy_nca_margin", "soft_triple")
"""Proxy losses: ProxyAnchor, ProxyNCA* and SoftTriple."""


def regularized(
    dataset: str,
    backbone: str,
    *,
    loss: str = "proxy_anchor",
    flow: Literal["paper", "released"] = "released",
    conditioning: str = "dense",
    weight: float | None = None,
    shape: Literal["exp", "identity", "softplus"] = "exp",
    temperature: float = 1.0,
    per_dimension: bool = False,
    of_mean: bool = False,
    stop_proxy_gradient: bool = False,
    wrong_class_weight: float = 0.0,
    self_regularization: Literal["both", "generate", "match", "none"] = "none",
    warmup: int = 1,
    pooling: str = "average",
    proxies_rate: float = 4000.0,
    flow_rate: float = 50.0,
) -> Recipe:
    """Make the recipe of NIR over a proxy loss.

    Args:
        dataset: One of `DATASETS`, or another.
        backbone: The network; all are trained alike.
        loss: One of `LOSSES`.
        flow: As of :func:`jdml.flows.preset`.
        conditioning: As of :class:`jdml.flows.ConditionalFlow`.
        weight: ω; None: .0075 on CUB, .01 elsewhere.
        shape: As of :func:`jdml.objectives.with_nir`, and so are the six that follow.
        temperature: See `shape`.
        per_dimension: See `shape`.
        of_mean: See `shape`.
        stop_proxy_gradient: See `shape`.
        wrong_class_weight: See `shape`.
        self_regularization: See `shape`.
        warmup: Epochs in which the backbone waits.
        pooling: Of the embedding head; `"average+max"` is what the paper's table marks with a cross.
        proxies_rate: Of the proxies, in units of the model's.
        flow_rate: Of the flow, in units of the model's.

    Returns:
        The recipe.

    Raises:
        ValueError: If there is no such loss.
    """
    from jdml import flows

    checks.count("warmup", warmup, least=0)
    base = _base(loss, dataset)
    regularizer: dict[str, Any] = {
        "weight": (0.0075 if dataset == "cub" else 0.01) if weight is None else weight,
        "shape": shape,
        "temperature": temperature,
        "per_dimension": per_dimension,
        "of_mean": of_mean,
        "stop_proxy_gradient": stop_proxy_gradient,
        "wrong_class_weight": wrong_class_weight,
        "self_regularization": self_regularization,
    }

    def objective(classes: int, dim: int, **own: Any) -> Objective:
        around = flows.preset(flow, dim, dim, conditioning=conditioning)
        return objectives.with_nir(base(classes, dim, **own), around, **regularizer)

    rates = {"proxies": proxies_rate, "flow": flow_rate}
    return _setting(objective, rates, warmup, pooling)


def unregularized(
    dataset: str,
    backbone: str,
    *,
    loss: str = "proxy_anchor",
    weight: float = 1.0,
    warmup: int = 0,
    pooling: str = "average",
    proxies_rate: float = 2000.0,
) -> Recipe:
    """Make the recipe of what NIR is compared with, by default as the released scripts run it.

    Args:
        dataset: One of `DATASETS`, or another.
        backbone: The network; all are trained alike.
        loss: One of `LOSSES`.
        weight: Of the loss: ω as NIR has it, which Adam feels beside weight decay alone.
        warmup: Epochs in which the backbone waits: the released scripts of CUB and Cars196 have none here, and one for
            NIR.
        pooling: Of the embedding head.
        proxies_rate: Of the proxies, in units of the model's: half of NIR's in the released program.

    Returns:
        The recipe.

    Raises:
        ValueError: If there is no such loss.
    """
    base = _base(loss, dataset)

    def objective(classes: int, dim: int, **own: Any) -> Objective:
        made = base(classes, dim, **own)

        @functools.wraps(made.loss)
        def loss_fn(*args: Any, **settings: Any) -> tuple[jax.Array, Any]:
            value, seen = made.loss(*args, **settings)
            return weight * value, {**seen, "loss": weight * value}

        return made if weight == 1 else made._replace(loss=loss_fn)

    return _setting(objective, {"proxies": proxies_rate}, warmup, pooling)


def _base(loss: str, dataset: str) -> Any:
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    several = (2 if dataset in LARGE else 10) if loss == "soft_triple" else 1
    return proxy(getattr(losses, f"{loss}_loss"), several)


def _setting(objective: Any, rates: dict[str, float], warmup: int, pooling: str) -> Recipe:
    return Recipe(
        objective,
        batch=(45, 2),
        rate=1e-5,
        role_rates=rates,
        weight_decay=4e-3,
        warmup_epochs=warmup,
        pooling=pooling,
        dim=128,
        nmi=True,
        skip_nonfinite=10,
        map_divisor="class",
    )
