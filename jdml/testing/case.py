"""The batch that properties are tried on, and the assertions that the checks share."""

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml._optional_imports import require_package

Tree = Any


@dataclass(frozen=True, eq=False)
class LossCase:
    """A loss, its settings, and the random batch on which its properties are tried.

    Args:
        loss_fn: ``f(embeddings [B, D], labels [B], *, …)`` or, of kind "proxy",
            ``f(embeddings [B, D], labels [B], proxies, *, …)``, returning a scalar.
        kind: "pair" or "proxy".
        num_classes: number of classes C in the batch.
        batch: number of embeddings B; at least ``2 * num_classes``.
        dim: number of components D.
        proxies_per_class: K for proxies ``[C, K, D]``; None for ``[C, D]``.
        hyper_parameters: numeric hyper-parameters with two values each, which must not cause a
            second compilation. By default every keyword whose default value is a float.
        seed: seed of the random batch.
        settings: other keywords of the loss, the same in every call.
    """

    loss_fn: Callable[..., jax.Array]
    kind: str = "pair"
    num_classes: int = 4
    batch: int = 12
    dim: int = 8
    proxies_per_class: int | None = None
    hyper_parameters: Mapping[str, tuple[float, float]] | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an unknown kind and a batch in which a class has no positive."""
        if self.kind not in ("pair", "proxy"):
            raise ValueError(f'kind must be "pair" or "proxy", got {self.kind!r}')
        if self.batch < 2 * self.num_classes:
            raise ValueError(
                f"batch must be at least 2 * num_classes = {2 * self.num_classes}, got {self.batch}"
            )

    @cached_property
    def labels(self) -> np.ndarray:
        """Labels ``[B]``, every class at least twice."""
        return (np.arange(self.batch) % self.num_classes).astype(np.int32)

    @cached_property
    def params(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Embeddings ``[B, D]`` and proxies (None for pair losses)."""
        rng = np.random.default_rng(self.seed)
        embeddings = rng.normal(size=(self.batch, self.dim))
        per_class = () if self.proxies_per_class is None else (self.proxies_per_class,)
        proxies = rng.normal(size=(self.num_classes, *per_class, self.dim))
        return embeddings, (proxies if self.kind == "proxy" else None)

    @cached_property
    def keywords(self) -> Mapping[str, inspect.Parameter]:
        """The keywords that the loss takes."""
        parameters = inspect.signature(self.loss_fn).parameters
        return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}

    @cached_property
    def sweep(self) -> Mapping[str, tuple[float, float]]:
        """Two values of each numeric hyper-parameter."""
        if self.hyper_parameters is not None:
            return self.hyper_parameters
        defaults = {n: p.default for n, p in self.keywords.items() if isinstance(p.default, float)}
        defaults |= {n: v for n, v in self.settings.items() if isinstance(v, float)}
        return {n: (v, 1.125 * v if v else 0.0625) for n, v in defaults.items()}

    def loss(self, params: Tree, labels: Any, where: Any = None, **more: Any) -> jax.Array:
        """Compute the loss of embeddings and proxies ``params``."""
        embeddings, proxies = params
        arrays = (embeddings, labels) if proxies is None else (embeddings, labels, proxies)
        if where is not None:
            more["where"] = where
        return self.loss_fn(*arrays, **{**self.settings, **more})

    @cached_property
    def _compile(self) -> Callable[..., tuple[jax.Array, Tree]]:
        return jax.jit(jax.value_and_grad(self.loss))

    def value_and_grad(
        self, params: Tree = None, labels: Any = None, where: Any = None, dtype: Any = jnp.float32
    ) -> tuple[np.ndarray, Tree]:
        """Compute value and gradients, compiled once per shape and dtype, as NumPy arrays."""
        params = self.cast(self.params if params is None else params, dtype)
        labels = jnp.asarray(self.labels if labels is None else labels)
        if "where" in self.keywords:
            where = jnp.asarray(np.ones(len(labels), bool) if where is None else where)
        return jax.device_get(self._compile(params, labels, where))

    @staticmethod
    def cast(params: Tree, dtype: Any) -> Tree:
        """Put the arrays of ``params`` on the device, as ``dtype``."""
        return jax.tree.map(lambda a: jnp.asarray(np.asarray(a, np.float64), dtype), params)


def assert_close(actual: Tree, expected: Tree, tolerance: float, what: str) -> None:
    """Assert equality to ``tolerance`` times the largest expected magnitude (at least 1)."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        assert a.shape == e.shape, f"{what}: shape {a.shape} instead of {e.shape}"
        scale = max(1.0, float(np.max(np.abs(e), initial=0.0)))
        error = float(np.max(np.abs(a - e), initial=0.0))
        assert error <= tolerance * scale, (
            f"{what}: differs by {error:.3g} (allowed {tolerance * scale:.3g}); got {a}, not {e}"
        )


def assert_finite(tree: Tree, what: str) -> None:
    """Assert that every number is finite."""
    try:
        import_chex().assert_tree_all_finite(tree)
    except AssertionError as error:
        raise AssertionError(f"{what}: not finite: {error}") from None


def import_chex() -> Any:
    """Chex, or a clear word about its absence."""
    require_package("chex", "jdml.testing")
    import chex

    return chex


class Compilations(logging.Handler):
    """Names of the functions compiled inside the latest ``with``."""

    def __enter__(self) -> None:
        """Listen to what JAX compiles."""
        self.names: list[str] = []
        self._context = jax.log_compiles()
        self._context.__enter__()
        self._logger = logging.getLogger("jax")
        self._propagate, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagate
        self._context.__exit__(*error)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is being compiled."""
        message = record.getMessage()
        if message.startswith("Compiling "):
            self.names.append(message.split(" with ")[0].removeprefix("Compiling "))
