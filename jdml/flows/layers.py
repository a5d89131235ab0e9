"""The layers of a flow: fixed permutations, GLOW's learned matrix, and the nets that scale and shift a half."""

import functools
from collections.abc import Callable
from typing import Any

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jdml.ops.numerics import accumulate_in, upcast


class Permute(distrax.Bijector):
    """A fixed permutation of the dimensions."""

    def __init__(self, order: np.ndarray) -> None:
        """Take the place from which each dimension comes."""
        super().__init__(event_ndims_in=1, is_constant_jacobian=True)
        # 32 bits: JAX forgets the width of others once a program of 64-bit types was traced in the same process.
        self._order, self._back = np.int32(order), np.int32(np.argsort(order))

    def forward_and_log_det(self, x: Array) -> tuple[Array, Array]:
        """Put the dimensions into the new order; volumes stay."""
        return x[..., self._order], jnp.zeros(x.shape[:-1], x.dtype)

    def inverse_and_log_det(self, y: Array) -> tuple[Array, Array]:
        """Put the dimensions into the old order."""
        return y[..., self._back], jnp.zeros(y.shape[:-1], y.dtype)

    def same_as(self, other: distrax.Bijector) -> bool:
        """Tell whether the other is the same permutation."""
        return isinstance(other, Permute) and bool(np.array_equal(self._order, other._order))


class Linear(distrax.Bijector):
    """``x ↦ L U x``, L of ones on its diagonal, U of ``sign · exp`` of what the triangles hold there."""

    def __init__(self, triangles: Array, signs: np.ndarray) -> None:
        super().__init__(event_ndims_in=1, is_constant_jacobian=True)
        triangles = _wide(triangles)
        logs = jnp.diag(triangles)
        self._lower = jnp.tril(triangles, -1) + jnp.eye(len(logs), dtype=triangles.dtype)
        self._upper = jnp.triu(triangles, 1) + jnp.diag(jnp.asarray(signs) * jnp.exp(logs))
        self._matrix = jnp.matmul(self._lower, self._upper, precision=jax.lax.Precision.HIGHEST)
        self._log_det = jnp.sum(logs)

    def forward_and_log_det(self, x: Array) -> tuple[Array, Array]:
        """The product, and the sum of U's logarithms."""
        return self._times(x), jnp.broadcast_to(self._log_det, x.shape[:-1])

    def inverse_and_log_det(self, y: Array) -> tuple[Array, Array]:
        """Two triangular systems; solved again for what rounding left over, as both are worse conditioned than LU."""
        x = self._solve(y)
        x = x + self._solve(y - self._times(x))
        return x, -jnp.broadcast_to(self._log_det, y.shape[:-1])

    def _times(self, x: Array) -> Array:
        return jnp.matmul(x, self._matrix.T, precision=jax.lax.Precision.HIGHEST)

    def _solve(self, y: Array) -> Array:
        columns = y.reshape(-1, y.shape[-1]).T
        inner = jax.scipy.linalg.solve_triangular(
            self._lower, columns, lower=True, unit_diagonal=True
        )
        return jax.scipy.linalg.solve_triangular(self._upper, inner).T.reshape(y.shape)


@functools.lru_cache(maxsize=64)
def start_of_linear(dim: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a random rotation P L U: P's order, L and U in one with log|diagonal| on it, and the diagonal's signs."""
    from scipy.linalg import lu

    rotation, _ = np.linalg.qr(np.random.RandomState(seed).normal(size=(dim, dim)))
    permutation, lower, upper = lu(rotation)
    diagonal = np.diag(upper)
    triangles = np.tril(lower, -1) + np.triu(upper, 1) + np.diag(np.log(np.abs(diagonal)))
    signs = np.sign(diagonal).astype(np.float32)
    return permutation.argmax(axis=1), triangles.astype(np.float32), signs


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
            kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
            bias_init = functools.partial(_uniform, x.shape[-1] ** -0.5)
            dense = nn.Dense(width, kernel_init=kernel_init, bias_init=bias_init)
            x = dense(nn.relu(x) if i else x)
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

        scale = jnp.exp(_wide(self.param("log_scale", start(log_scale))))
        return scale, _wide(self.param("mean", start(lambda x: jnp.mean(x, axis=0))))


def with_condition(
    net: Callable[[Array], Array], condition: Array | None
) -> Callable[[Array], Array]:
    """The net as a function of a half alone: the condition is concatenated."""

    def parameters(x: Array) -> Array:
        if condition is None:
            return net(x)
        everywhere = jnp.broadcast_to(condition, (*x.shape[:-1], condition.shape[-1]))
        return net(jnp.concatenate([x, everywhere.astype(x.dtype)], axis=-1))

    return parameters


def unbound(net: Net) -> Callable[[Array], Array]:
    """Return the net as a function that holds its parameters."""
    plain, variables = net.clone(parent=None), net.variables
    # Flax declares (value, state) too, which comes back only where something is mutable.
    return lambda x: plain.apply(variables, x)  # type: ignore[return-value]


def _wide(values: Array) -> Array:
    """Parameters in single precision at least, whatever they are held in."""
    return upcast(values, accumulate_in(values))


def _uniform(bound: float, key: Array, shape: Any, dtype: Any = jnp.float32) -> Array:
    return jax.random.uniform(key, shape, dtype, -bound, bound)
