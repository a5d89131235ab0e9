"""Non-isotropy regularization (NIR): the negative log-likelihood of a flow's residuals, shaped."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from jdml import ops
from jdml.losses.comparison import mask_of, weights_of
from jdml.ops import ReduceFn, checks, mean
from jdml.ops.meshes import as_axis
from jdml.ops.numerics import accumulate_in, upcast

__all__ = ["nir_loss"]

Shape = Literal["exp", "softplus", "identity"]

FARTHEST = 1e15
"""Bound of a latent, whose square must not overflow."""

LARGEST = 1e30
"""Bound of a negative log-likelihood, where squares overflow."""

STEEPEST = 60.0
"""Exponent beyond which ``exp`` goes on as its tangent, so that values and their sums stay finite in float32."""


@ops.public(temperature=checks.positive, norm_weight=checks.positive)
def nir_loss(
    latents: Array,
    log_dets: Array,
    *,
    shape: Shape = "exp",
    temperature: float | Array = 1.0,
    per_dimension: bool = False,
    norm_weight: float | Array = 0.5,
    of_mean: bool = False,
    where: Array | None = None,
    weights: Array | None = None,
    axis_name: str | tuple[str, ...] | None = None,
    reduce_fn: ReduceFn | None = mean,
) -> Array:
    """Compute NIR: samples must be likely residuals of their class's proxy under a conditional flow.

    Formula:
        ``reduce_i f(t · NLL_i)`` with ``NLL_i = ½‖ζ_i‖² − log|det J_i|`` (``norm_weight`` in the place of ½; divided
        by D with ``per_dimension``) and f the exponential, softplus ``log(1 + e^u)`` or the identity; with ``of_mean``
        ``f(t · reduce_i NLL_i)``.

    Args:
        latents: ``[B, D]`` residuals ζ.
        log_dets: ``[B]`` log|det ∂ζ/∂x|.
        shape: f: ``"exp"``, ``"softplus"`` or ``"identity"``.
        temperature: t, multiplies the negative log-likelihood.
        per_dimension: divide the negative log-likelihood by D.
        norm_weight: of ‖ζ‖²: ½ is the normal density's, and the program's; 1 is what eq. 10 prints.
        of_mean: take f of the reduced negative log-likelihood, as eq. 11 has it; by default reduce f, as released. With
            ``norm_weight=1.0`` this is eq. 10 and 11 to the letter.
        where: ``[B]`` bool, the valid rows.
        weights: ``[B]``: each row's term is multiplied by its weight.
        axis_name: inside a ``jax.shard_map``, the mesh axis over which the batch is spread: the rows of all devices
            are one batch. The value is the same on every device.

    Raises:
        ValueError: another f; ``of_mean`` without a ``reduce_fn``.

    Implementation notes:
        The normal density's constant is dropped. The mean of f is ruled by the least likely sample; f of the mean pulls
        all alike. Beyond an exponent of 60 the exponential goes on as its tangent, up to 1e5, where it is flat. Latents
        are cut at ±1e15. Beyond an exponent of about 40 the square of the gradient, as Adam and norms form it,
        overflows float32: clip it element by element, or take softplus or ``fit(callbacks=[SkipNonfinite(…)])``.

    Paper settings:
        exp; temperatures of .3 and 3 and softplus as ablations. The loss it is added to is weighted by ω from .001 to
        .01, more is not printed: see :func:`jdml.objectives.with_nir`.

    Reference:
        Roth, Vinyals & Akata, *Non-isotropy Regularization for Proxy-based Deep Metric Learning*, eq. 10 and 11.

    Example:
        >>> import jax.numpy as jnp
        >>> nir_loss(jnp.array([[1.0, 1.0]]), jnp.array([0.5]), shape="identity")
        Array(0.5, dtype=float32)
    """
    checks.check_embeddings("latents", latents)
    size, dim = latents.shape
    if not isinstance(log_dets, Array) or not jnp.issubdtype(log_dets.dtype, jnp.floating):
        raise TypeError(
            f"log_dets must be a floating-point array of shape [{size}], got {log_dets!r}"
        )
    if log_dets.shape != (size,):
        raise ValueError(f"log_dets must have shape [{size}], got {list(log_dets.shape)}")
    checks.one_of("shape", shape, SHAPES)
    rows = mask_of("where", where, size)
    if of_mean and reduce_fn is None:
        raise ValueError("of_mean takes f of the reduced values: it needs a reduce_fn, got None")
    dtype = accumulate_in(latents, log_dets)
    residuals = jnp.where(rows[:, None], upcast(latents, dtype), 0)
    volumes = jnp.where(rows, upcast(log_dets, dtype), 0)
    checks.require_finite("latents", residuals)
    checks.require_finite("log_dets", volumes)
    residuals = jnp.clip(residuals, -FARTHEST, FARTHEST)
    surprise = norm_weight * jnp.sum(jnp.square(residuals), axis=-1) - volumes
    exponents = temperature * jnp.clip(surprise, -LARGEST, LARGEST) / (dim if per_dimension else 1)
    exponents = jnp.clip(exponents, -LARGEST, LARGEST)
    values = exponents if of_mean else SHAPES[shape](exponents)
    scale = weights_of(weights, size, dtype)
    axis = as_axis(axis_name)
    if reduce_fn is None and not axis.whole:
        return ops.reduce_terms(None, values * scale, rows)
    if axis.holds_part("latents", latents):
        values, scale, rows = axis.rows((values, scale, rows))
    reduced = ops.reduce_terms(reduce_fn, values * scale, rows)
    if of_mean:  # nothing to average is no loss, where f(0) is none
        reduced = jnp.where(rows.any(), SHAPES[shape](reduced), 0.0)
    return axis.psum_once(reduced)


def _safe_exp(values: Array) -> Array:
    beyond = jnp.clip(values - STEEPEST, 0.0, 1e5)
    return jnp.exp(jnp.minimum(values, STEEPEST)) * (1.0 + beyond)


SHAPES = {"exp": _safe_exp, "softplus": jax.nn.softplus, "identity": lambda values: values}
