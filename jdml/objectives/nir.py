"""Non-isotropy regularization around a proxy objective."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jdml.losses.nir import SHAPES, STEEPEST, Shape, nir_loss
from jdml.objectives.base import Metrics, Objective, Params
from jdml.ops import checks, mean, sphere
from jdml.ops.keys import portable_key
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
    shape: Shape = "exp",
    temperature: float | Array = 1.0,
    per_dimension: bool = False,
    norm_weight: float | Array = 0.5,
    of_mean: bool = False,
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
        of_mean: ``f(t · mean_i NLL)``, as eq. 11 has it, in the place of ``mean_i f(t · NLL)``.
        stop_proxy_gradient: whether the regularizer leaves the proxies alone.
        wrong_class_weight: weight of ``mean_i f(−t · NLL(x_i | ρ_j))`` with j the next sample of another class: such
            pairs are made unlikely.
        self_regularization: also take the proxy loss ``L(ψ, P)`` of samples ψ that the flow draws around the proxies:
            ``"generate"`` holds ψ fixed and trains the proxies, ``"match"`` holds the proxies fixed and trains the
            flow, ``"both"`` holds nothing fixed: one term, whose gradient also reaches the proxies through ψ. Needs
            ``key``.
        warmup: steps during which embeddings get no gradient: only flow and proxies learn. Steps are counted by the
            objective's state; a loss called without it is past the warm-up. The paper's warm-up is not this one: see
            below.

    Returns:
        An objective with the parameters ``{"proxies": …, "flow": …}``. Metrics: ``loss``, ``proxy_loss``, ``nir_loss``,
        ``nll`` (mean negative log-likelihood) and ``capped`` (share of samples whose exponent is beyond 60).

    Raises:
        TypeError: a warm-up that is not a number.
        ValueError: a negative weight or warm-up, another self-regularization, an objective without proxies, a flow of
            another dimension; on a call without ``key`` where one is needed.

    Implementation notes:
        The exponential falls silent once samples are likely (a negative log-likelihood of −20 weighs 2e-9): it is a
        barrier for samples that are out of place, and works early in training. ``per_dimension`` keeps it speaking,
        and a density has no upper bound: embeddings that go on following it end in one point. Numbers are in
        ``experiments/nir``.

        In the paper's warm-up the backbone stands still and the embedding layer learns; the optimizer knows nothing of
        the backbone until then. That is ``partition_by_role(…, backbone_and_head, waiting={"backbone": steps})`` of
        :mod:`jdml.optim`, with any objective. With ``warmup`` the embedding layer waits, too, and Adam's bias
        correction runs ahead on gradients of 0: its first real steps are 1.2 to 1.6 times as large.

    Paper settings:
        ω from .001 to .01 (the released scripts: .0075 on CUB, .01 on Cars196, neither printed); learning rates: model
        1e-5, proxies ×4000, flow ×50; one epoch in which the backbone waits.

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
    shaped = {
        "shape": shape,
        "temperature": temperature,
        "per_dimension": per_dimension,
        "norm_weight": norm_weight,
        "of_mean": of_mean,
    }
    added = _Regularizer(
        objective,
        flow,
        weight,
        shaped,
        stop_proxy_gradient,
        wrong_class_weight,
        self_regularization,
        warmup,
    )
    return Objective(added.init, added.loss, added.init_state, added.update_state)


@dataclasses.dataclass(frozen=True, eq=False)
class _Regularizer:
    """The parts of :func:`with_nir`'s objective; its arguments as attributes."""

    objective: Objective
    flow: Any
    weight: float | Array
    shaped: dict[str, Any]
    stop_proxy_gradient: bool
    wrong_class_weight: float | Array
    self_regularization: str
    warmup: int

    def init(self, key: Array) -> Params:
        """The objective's parameters and the flow's."""
        inner_key, flow_key, x_key, condition_key = jax.random.split(key, 4)
        params = self.objective.init(inner_key)
        dim, flow = params["proxies"].shape[-1], self.flow
        # Random points of the sphere, as embeddings and proxies are: a flow may set its scales by them.
        x, condition = (
            sphere(jax.random.normal(k, (256, dim), params["proxies"].dtype))
            for k in (x_key, condition_key)
        )
        return {**params, "flow": flow.init(flow_key, x, condition)["params"]}

    def init_state(self) -> NirState:
        """No steps yet."""
        return NirState(self.objective.init_state(), jnp.zeros((), jnp.int32))

    def update_state(
        self, state: NirState, embeddings: Array, labels: Array, where: Array | None = None
    ) -> NirState:
        """One more step."""
        inner = self.objective.update_state(state.inner, embeddings, labels, where)
        return NirState(inner, state.steps + 1)

    def loss(
        self,
        params: Params,
        embeddings: Array,
        labels: Array,
        *,
        key: Array | None = None,
        where: Array | None = None,
        state: NirState | None = None,
        **extra: Any,
    ) -> tuple[Array, Metrics]:
        """The regularized loss, and its parts."""
        given: dict[str, Any] = {"params": params, "embeddings": embeddings, "labels": labels}
        given |= {"key": key, "where": where, "state": state, "extra": extra}
        if is_explicit(given):  # the flow's gathers and products say nothing of where results lie
            return spread(lambda here: self._loss(**here), given)
        return self._loss(**given)

    def _loss(
        self,
        params: Params,
        embeddings: Array,
        labels: Array,
        key: Array | None,
        where: Array | None,
        state: NirState | None,
        extra: dict[str, Any],
    ) -> tuple[Array, Metrics]:
        checks.check_classes(labels, len(params["proxies"]), "proxies", where)
        labels = checks.widen_labels(labels)
        inner = {name: value for name, value in params.items() if name != "flow"}
        if state is not None:
            still = state.steps < self.warmup
            embeddings = jnp.where(still, jax.lax.stop_gradient(embeddings), embeddings)
        inner_state = None if state is None else state.inner
        base: Callable[..., tuple[Array, Metrics]] = functools.partial(
            self.objective.loss, where=where, state=inner_state, **extra
        )
        proxy_loss, metrics = base(inner, embeddings, labels, key=key)
        x, condition, rows = _conditions(embeddings, labels, params["proxies"], where)
        regularizer, measured = self._regularizer(params, x, condition, labels, rows)
        value = regularizer + self.weight * proxy_loss
        kind = self.self_regularization
        if kind != "none":
            drawn_key = checks.check_key("key", key, needed_by=f"self_regularization={kind!r}")
            flow_params = {"params": params["flow"]}
            value += self.weight * _of_drawn(
                base, inner, self.flow, flow_params, condition, labels, drawn_key, kind
            )
        return value, {**metrics, **measured, "loss": value, "proxy_loss": proxy_loss}

    def _regularizer(
        self, params: Params, x: Array, condition: Array, labels: Array, rows: Array
    ) -> tuple[Array, Metrics]:
        """``mean f(t · NLL)``, with the pairs of the wrong class where they are asked for."""
        seen = jax.lax.stop_gradient(condition) if self.stop_proxy_gradient else condition
        flow_params = {"params": params["flow"]}
        latents, log_dets = self.flow.apply(flow_params, x, seen)
        value = nir_loss(latents, log_dets, where=rows, **self.shaped)
        surprise = _surprise(latents, log_dets, rows, self.shaped)
        weight = self.wrong_class_weight
        if not (isinstance(weight, int | float) and weight == 0):
            value += weight * _of_wrong_classes(
                self.flow, flow_params, x, seen, labels, rows, self.shaped
            )
        divisor = x.shape[1] if self.shaped["per_dimension"] else 1
        beyond = self.shaped["temperature"] * surprise / divisor > STEEPEST
        return value, {
            "nir_loss": value,
            "nll": mean(surprise, rows),
            "capped": mean(beyond.astype(x.dtype), rows),
        }


def _conditions(
    embeddings: Array, labels: Array, proxies: Array, where: Array | None
) -> tuple[Array, Array, Array]:
    """Unit embeddings, the unit proxy (of several the nearest) of each row's class, and the valid rows."""
    dtype = accumulate_in(embeddings, proxies)
    centres = sphere(upcast(checks.as_centres("proxies", proxies), dtype))
    rows = (labels >= 0) & (labels < centres.shape[0])
    rows = rows if where is None else rows & where
    x = sphere(upcast(jnp.where(rows[:, None], embeddings, 0), dtype))
    own = centres[jnp.where(rows, labels, 0)]
    nearest = jnp.argmax(jnp.einsum("bd,bkd->bk", jax.lax.stop_gradient(x), own), axis=1)
    return x, jnp.take_along_axis(own, nearest[:, None, None], axis=1)[:, 0], rows


def _surprise(latents: Array, log_dets: Array, rows: Array, shaped: dict[str, Any]) -> Array:
    """``NLL`` of each row, ``[B]``, before f."""
    return nir_loss(
        latents,
        log_dets,
        norm_weight=shaped["norm_weight"],
        where=rows,
        shape="identity",
        reduce_fn=None,
    )


def _of_wrong_classes(
    flow: Any,
    flow_params: Params,
    x: Array,
    condition: Array,
    labels: Array,
    rows: Array,
    shaped: dict[str, Any],
) -> Array:
    """``mean f(−t · NLL)`` of samples beside the proxy of the next sample of another class."""
    size = len(labels)
    following = (jnp.arange(size)[:, None] + 1 + jnp.arange(size)[None, :]) % size
    others = rows[following] & (labels[following] != labels[:, None])
    wrong = rows & others.any(1)
    next_other = jnp.take_along_axis(following, others.argmax(1)[:, None], axis=1)[:, 0]
    latents, log_dets = flow.apply(flow_params, x, condition[next_other])
    surprise = _surprise(latents, log_dets, wrong, shaped)
    # A zero latent of log-determinant u has the negative log-likelihood −u.
    return nir_loss(jnp.zeros_like(latents), surprise, where=wrong, **shaped)


def _of_drawn(
    base: Callable[..., tuple[Array, Metrics]],
    inner: Params,
    flow: Any,
    flow_params: Params,
    condition: Array,
    labels: Array,
    key: Array,
    kind: str,
) -> Array:
    """The proxy loss of samples that the flow draws, training the proxies, the flow, or both."""
    latent_key, loss_key = jax.random.split(portable_key(key))
    latents = jax.random.normal(latent_key, condition.shape, condition.dtype)
    if kind == "match":
        inner, condition = jax.lax.stop_gradient((inner, condition))
    drawn, _ = flow.apply(flow_params, latents, condition, method="inverse")
    if kind == "generate":
        drawn = jax.lax.stop_gradient(drawn)
    value, _ = base(inner, drawn, labels, key=loss_key)
    return value
