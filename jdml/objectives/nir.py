"""Non-isotropy regularization around a proxy objective."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml.losses.nir import SHAPES, STEEPEST, Shape, nir_loss
from jdml.mining.pairs import portable_key
from jdml.objectives.base import Metrics, Objective, Params
from jdml.ops import checks, mean, sphere
from jdml.ops.meshes import is_explicit, spread
from jdml.ops.numerics import accumulate_in, upcast


class NirState(NamedTuple):
    """State of :func:`with_nir`: that of the objective inside, and the number of steps."""

    inner: Any
    steps: Array


def with_nir(
    objective: Objective,
    flow: Any,
    *,
    weight: float | Array = 0.01,
    shape: Shape = checks.default_of(nir_loss, "shape"),
    temperature: float | Array = checks.default_of(nir_loss, "temperature"),
    per_dimension: bool = checks.default_of(nir_loss, "per_dimension"),
    norm_weight: float | Array = checks.default_of(nir_loss, "norm_weight"),
    of_mean: bool = checks.default_of(nir_loss, "of_mean"),
    stop_proxy_gradient: bool = False,
    wrong_class_weight: float | Array = 0.0,
    self_regularization: Literal["none", "generate", "match", "both"] = "none",
    warmup: int = 0,
) -> Objective:
    """Add non-isotropy regularization (NIR) to a proxy objective: a flow from each class's proxy to its samples.

    Formula:
        ``L = mean_i f(t · NLL(x_i | ρ_i)) + ω (L_proxy + L_self)`` with ρ_i the unit-norm proxy of the sample's class
        (of several the nearest).

    Args:
        objective: a proxy objective (:func:`proxy`), whose parameters hold ``"proxies"``.
        flow: a :class:`jdml.flows.ConditionalFlow` with the proxies' dimension as ``dim`` and ``condition_dim``.
        weight: ω, of the proxy loss.
        shape: f, see :func:`jdml.nir_loss`.
        temperature: t.
        per_dimension: divide the negative log-likelihood by the dimension.
        norm_weight: of ‖ζ‖² in the negative log-likelihood; 1 is what eq. 10 prints.
        of_mean: ``f(t · mean_i NLL)``, as in eq. 11, instead of ``mean_i f(t · NLL)``.
        stop_proxy_gradient: whether the regularizer has no gradient for the proxies.
        wrong_class_weight: weight of ``mean_i f(−t · NLL(x_i | ρ_j))`` with j the next sample of another class.
        self_regularization: add the proxy loss ``L(ψ, P)`` of samples ψ that the flow draws around the proxies:
            ``"generate"`` trains the proxies only, ``"match"`` the flow only, ``"both"`` both, with a gradient to the
            proxies through ψ, too. Needs ``key``.
        warmup: steps in which embeddings get no gradient: only flow and proxies learn. The objective's state counts
            them; a loss without it is past the warm-up. The paper's warm-up differs, see below.

    Returns:
        An objective with the parameters ``{"proxies": …, "flow": …}``. Metrics: ``loss``, ``proxy_loss``, ``nir_loss``,
        ``nll`` (mean negative log-likelihood) and ``capped`` (share of samples with an exponent above 60).

    Raises:
        TypeError: a warm-up that is not a number.
        ValueError: a negative weight or warm-up, another self-regularization; on a call without a needed ``key``.

    Implementation notes:
        The exponential vanishes for likely samples (a negative log-likelihood of −20 has weight 2e-9): it is a barrier
        for outliers, effective early in training. With ``per_dimension`` it stays effective, but a density has no upper
        bound, and the embeddings collapse to a point. Numbers are in ``experiments/nir``.

        In the paper's warm-up the backbone is frozen and the embedding layer learns; the optimizer has no state of the
        backbone until then: ``partition_by_role(…, backbone_and_head, waiting={"backbone": steps})`` of
        :mod:`jdml.optim`, with any objective. With ``warmup`` the embedding layer waits, too, and Adam's bias
        correction counts gradients of 0: its first real steps are 1.2 to 1.6 times as large.

    Paper settings:
        ω from .001 to .01 (the released scripts: .0075 on CUB, .01 on Cars196, neither printed); learning rates: model
        1e-5, proxies ×4000, flow ×50; one epoch with a frozen backbone.

    Reference:
        Roth, Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*.

    Example:
        >>> import jax, jax.numpy as jnp, jdml
        >>> flow = jdml.flows.ConditionalFlow(4, 4, num_blocks=2, hidden=8, depth=2)
        >>> base = jdml.objectives.proxy(jdml.proxy_anchor_loss, num_classes=3, dim=4)
        >>> objective = with_nir(base, flow)
        >>> params = objective.init(jax.random.key(0))
        >>> sorted(params)
        ['flow', 'proxies']
        >>> loss, metrics = objective.loss(params, jnp.eye(4), jnp.array([0, 1, 2, 0]))
        >>> sorted(metrics)
        ['capped', 'loss', 'nir_loss', 'nll', 'proxy_loss']
    """
    checks.non_negative("weight", weight)
    checks.non_negative("wrong_class_weight", wrong_class_weight)
    checks.at_least(0)("warmup", warmup)
    checks.one_of("shape", shape, SHAPES)
    checks.one_of("self_regularization", self_regularization, ("none", "generate", "match", "both"))
    shaped: dict[str, Any] = {
        "shape": shape,
        "temperature": temperature,
        "per_dimension": per_dimension,
        "norm_weight": norm_weight,
        "of_mean": of_mean,
    }
    has_wrong_classes = not (
        isinstance(wrong_class_weight, int | float) and wrong_class_weight == 0
    )

    def init(key: Array) -> Params:
        inner_key, flow_key, x_key, condition_key = jax.random.split(key, 4)
        params = objective.init(inner_key)
        dim, dtype = params["proxies"].shape[-1], params["proxies"].dtype
        # Random points of the sphere, as embeddings and proxies are: a flow may set its scales by them.
        x, condition = (
            sphere(jax.random.normal(k, (256, dim), dtype)) for k in (x_key, condition_key)
        )
        return {**params, "flow": flow.init(flow_key, x, condition)["params"]}

    def init_state() -> NirState:
        return NirState(objective.init_state(), jnp.zeros((), jnp.int32))

    def update_state(
        state: NirState, embeddings: Array, labels: Array, where: Array | None = None
    ) -> NirState:
        inner = objective.update_state(state.inner, embeddings, labels, where)
        return NirState(inner, state.steps + 1)

    def loss(
        params: Params, embeddings: Array, labels: Array, **extra: Any
    ) -> tuple[Array, Metrics]:
        inputs = {"params": params, "embeddings": embeddings, "labels": labels, "extra": extra}

        def inside(here: dict[str, Any]) -> tuple[Array, Metrics]:
            return regularized_loss(**here.pop("extra"), **here)

        # The flow's gathers and products do not say how results are sharded.
        return spread(inside, inputs) if is_explicit(inputs) else inside(inputs)

    def regularized_loss(
        params: Params,
        embeddings: Array,
        labels: Array,
        *,
        key: Array | None = None,
        where: Array | None = None,
        state: NirState | None = None,
        **extra: Any,
    ) -> tuple[Array, Metrics]:
        checks.check_classes(labels, len(params["proxies"]), "proxies", where)
        labels = checks.widen_labels(labels)
        inner = {name: value for name, value in params.items() if name != "flow"}
        if state is not None:
            waits = state.steps < warmup
            embeddings = jnp.where(waits, jax.lax.stop_gradient(embeddings), embeddings)
        inner_state = None if state is None else state.inner
        base: Callable[..., tuple[Array, Metrics]] = functools.partial(
            objective.loss, where=where, state=inner_state, **extra
        )
        proxy_loss, metrics = base(inner, embeddings, labels, key=key)
        x, condition, rows = _conditions(embeddings, labels, params["proxies"], where)
        regularizer, measured = regularize(params, x, condition, labels, rows)
        value = regularizer + weight * proxy_loss
        kind = self_regularization
        if kind != "none":
            drawn_key = checks.check_key("key", key, needed_by=f"self_regularization={kind!r}")
            latent_key, loss_key = jax.random.split(portable_key(drawn_key))
            latents = jax.random.normal(latent_key, condition.shape, condition.dtype)
            if kind == "match":
                inner, condition = jax.lax.stop_gradient((inner, condition))
            drawn = flow.apply({"params": params["flow"]}, latents, condition, method="inverse")[0]
            drawn = jax.lax.stop_gradient(drawn) if kind == "generate" else drawn
            value += weight * base(inner, drawn, labels, key=loss_key)[0]
        return value, {**metrics, **measured, "loss": value, "proxy_loss": proxy_loss}

    def regularize(
        params: Params, x: Array, condition: Array, labels: Array, rows: Array
    ) -> tuple[Array, Metrics]:
        if stop_proxy_gradient:
            condition = jax.lax.stop_gradient(condition)
        flow_of = functools.partial(flow.apply, {"params": params["flow"]})
        latents, log_dets = flow_of(x, condition)
        value = nir_loss(latents, log_dets, where=rows, **shaped)
        surprise = _surprise(latents, log_dets, rows, shaped)
        if has_wrong_classes:
            wrong = _of_wrong_classes(flow_of, x, condition, labels, rows, shaped)
            value += wrong_class_weight * wrong
        divisor = x.shape[1] if per_dimension else 1
        beyond = temperature * surprise / divisor > STEEPEST
        return value, {
            "nir_loss": value,
            "nll": mean(surprise, rows),
            "capped": mean(beyond.astype(x.dtype), rows),
        }

    return Objective(init, loss, init_state, update_state)


def _conditions(
    embeddings: Array, labels: Array, proxies: Array, where: Array | None
) -> tuple[Array, Array, Array]:
    """Return unit embeddings, the unit proxy (of several the nearest) of each row's class, and the valid rows."""
    dtype = accumulate_in(embeddings, proxies)
    centres = sphere(upcast(checks.as_centres("proxies", proxies), dtype))
    rows = (labels >= 0) & (labels < centres.shape[0])
    rows = rows if where is None else rows & where
    x = sphere(upcast(jnp.where(rows[:, None], embeddings, 0), dtype))
    own = centres[jnp.where(rows, labels, 0)]
    nearest = jnp.argmax(jnp.einsum("bd,bkd->bk", jax.lax.stop_gradient(x), own), axis=1)
    return x, jnp.take_along_axis(own, nearest[:, None, None], axis=1)[:, 0], rows


def _surprise(latents: Array, log_dets: Array, rows: Array, shaped: dict[str, Any]) -> Array:
    """Return the ``NLL`` of each row, ``[B]``, before f."""
    settings: Any = {"norm_weight": shaped["norm_weight"], "shape": "identity", "reduce_fn": None}
    return nir_loss(latents, log_dets, where=rows, **settings)


def _of_wrong_classes(
    flow_of: Any, x: Array, condition: Array, labels: Array, rows: Array, shaped: dict[str, Any]
) -> Array:
    """Return ``mean f(−t · NLL)`` of samples given the proxy of the next sample of another class."""
    size = len(labels)
    following = (jnp.arange(size)[:, None] + 1 + jnp.arange(size)[None, :]) % size
    others = rows[following] & (labels[following] != labels[:, None])
    wrong = rows & others.any(1)
    next_other = jnp.take_along_axis(following, others.argmax(1)[:, None], axis=1)[:, 0]
    latents, log_dets = flow_of(x, condition[next_other])
    surprise = _surprise(latents, log_dets, wrong, shaped)
    # A zero latent of log-determinant u has the negative log-likelihood −u.
    return nir_loss(jnp.zeros_like(latents), surprise, where=wrong, **shaped)
