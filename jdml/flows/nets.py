"""The nets of a flow: what scales and shifts a half, and the scale that the first batch sets."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


class Net(nn.Module):
    """Linear layers with ReLU between them."""

    hidden: int
    depth: int
    out: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """``[B, in]`` to ``[B, out]``."""
        widths = [self.hidden] * (self.depth - 1) + [self.out]
        for i, width in enumerate(widths):
            bound = x.shape[-1] ** -0.5
            x = nn.Dense(
                width,
                kernel_init=nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
                bias_init=_uniform(bound),
            )(nn.relu(x) if i else x)
        return x


class ActNorm(nn.Module):
    """A scale and a mean per dimension, those of the batch with which the parameters were made."""

    dim: int

    @nn.compact
    def __call__(self, x: Array | None) -> tuple[Array, Array]:
        """The scale and the mean; ``x`` is looked at only while parameters are made."""

        def start(statistic: Callable[[Array], Array]) -> Callable[[Array], Array]:
            if x is None or not len(x):
                return lambda _: jnp.zeros(self.dim)
            return lambda _: statistic(x).astype(jnp.float32)

        def log_scale(x: Array) -> Array:
            spread = jnp.std(x, axis=0)
            return jnp.where(spread > 1e-6, -jnp.log(jnp.maximum(spread, 1e-6)), 0.0)

        scale = jnp.exp(self.param("log_scale", start(log_scale)))
        return scale, self.param("mean", start(lambda x: jnp.mean(x, axis=0)))


def conditioned(net: Callable[[Array], Array], condition: Array | None) -> Callable[[Array], Array]:
    """The net as a function of a half alone: the condition is put beside it."""

    def parameters(x: Array) -> Array:
        if condition is None:
            return net(x)
        everywhere = jnp.broadcast_to(condition, (*x.shape[:-1], condition.shape[-1]))
        return net(jnp.concatenate([x, everywhere.astype(x.dtype)], axis=-1))

    return parameters


def unbound(net: Net) -> Callable[[Array], Array]:
    """The net as a function that holds its parameters."""
    plain, variables = net.clone(parent=None), net.variables
    # Flax declares (value, state) too, which comes back only where something is mutable.
    return lambda x: plain.apply(variables, x)  # type: ignore[return-value]


def _uniform(bound: float) -> Callable[..., Array]:
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
        key, shape, dtype, -bound, bound
    )
