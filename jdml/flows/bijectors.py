"""Mixing dimensions: fixed permutations, and GLOW's learned matrix."""

import dataclasses
import functools

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Permute(distrax.Bijector):
    """A fixed permutation of the dimensions."""

    def __init__(self, order: np.ndarray) -> None:
        """Take the place from which each dimension comes."""
        super().__init__(event_ndims_in=1, is_constant_jacobian=True)
        self._order, self._back = np.asarray(order), np.argsort(order)

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


@dataclasses.dataclass(frozen=True)
class LinearStart:
    """A rotation as permutation × unit lower × upper triangular matrix, the latter two in one, log|diagonal| on it."""

    permutation: np.ndarray
    triangles: np.ndarray
    signs: np.ndarray


@functools.lru_cache(maxsize=64)
def start_of_linear(dim: int, seed: int) -> LinearStart:
    """The rotation drawn from a seed, taken apart."""
    from scipy.linalg import lu

    rotation, _ = np.linalg.qr(np.random.RandomState(seed).normal(size=(dim, dim)))
    permutation, lower, upper = lu(rotation)
    diagonal = np.diag(upper)
    triangles = np.tril(lower, -1) + np.triu(upper, 1) + np.diag(np.log(np.abs(diagonal)))
    return LinearStart(
        permutation.argmax(axis=1),
        triangles.astype(np.float32),
        np.sign(diagonal).astype(np.float32),
    )
