"""The public checks accept correct losses and miners, and name the fault of wrong ones."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml.mining import Pairs
from jdml.testing import LOSS_CHECKS, LossCase, check_loss, check_miner


def good(
    embeddings: Any, labels: Any, *, margin: Any = 0.5, where: Any = None, reduce_fn=jdml.mean
):
    """A custom loss in plain JAX: (s_ij − margin·1[same])² over all pairs."""
    where = (labels >= 0) & (jnp.ones(labels.shape, bool) if where is None else where)
    wide = jnp.promote_types(embeddings.dtype, jnp.float32)
    x = jdml.sphere(jnp.where(where[:, None], embeddings, 0).astype(wide))
    same = labels[:, None] == labels[None, :]
    terms = jnp.square(x @ x.T - jnp.where(same, 1.0, margin))
    pairs = where[:, None] & where[None, :] & ~jnp.eye(labels.size, dtype=bool)
    terms = jnp.where(pairs, terms, 0)
    return terms if reduce_fn is None else reduce_fn(terms, where=pairs)


def test_custom_loss_passes() -> None:
    check_loss(good, skip=("references",), margin=0.3)


def test_check_loss_on_a_proxy_loss() -> None:
    skip = ("jit", "gradients", "transforms", "memory")  # slow; the property matrix runs them
    loss, settings = jdml.normalized_softmax_loss, {"temperature": 0.3}
    check_loss(loss, kind="proxy", proxies_per_class=2, skip=skip, **settings)


def leaky(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    """Multiplies by the mask: NaN times 0 is NaN."""
    where = options.pop("where", None)
    mask = jnp.ones(labels.shape) if where is None else where.astype(jnp.float32)
    return jnp.sum(jnp.square(embeddings) * mask[:, None])


def ordered(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    return jnp.sum(embeddings[0] * embeddings[1])


def rooted(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    """√ of a squared distance: its gradient at 0 is NaN."""
    return jnp.mean(
        jnp.sqrt(jnp.sum(jnp.square(embeddings - embeddings.mean(axis=0)[None]), axis=1))
    )


def named(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    return jnp.mean(labels[:, None] * embeddings)


def half(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    return jnp.mean(embeddings)


def stopped(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    return jnp.sum(embeddings * jax.lax.stop_gradient(embeddings))


def static(embeddings: jax.Array, labels: jax.Array, *, margin: float = 0.5) -> jax.Array:
    """Retraced for every margin."""
    return jax.jit(lambda x: jnp.sum(x) * margin)(embeddings)


def branching(embeddings: jax.Array, labels: jax.Array, *, margin: float = 0.5) -> jax.Array:
    return jnp.sum(embeddings) if margin > 0.2 else jnp.sum(embeddings**2)


def cubic(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    """Materializes [B, B, D]."""
    differences = embeddings[:, None] - embeddings[None]
    return jnp.sum(jnp.exp(-jnp.sum(jnp.sort(jnp.abs(differences), axis=-1)[..., ::2], axis=-1)))


def eager(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    """Another value without compilation."""
    return jnp.sum(embeddings) * (2 if jax.config.jax_disable_jit else 1)


@jax.custom_batching.custom_vmap
def doubled_in_batches(x: jax.Array) -> jax.Array:
    return jnp.sum(x)


@doubled_in_batches.def_vmap
def _(size: int, batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    return 2 * jnp.sum(x, axis=tuple(range(1, x.ndim))), True


@jax.custom_vjp
def summed(x: jax.Array) -> jax.Array:
    return doubled_in_batches(x)


summed.defvjp(lambda x: (summed(x), x), lambda x, slope: (slope * jnp.ones_like(x),))


def batched(embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
    """Has a wrong custom rule for `jax.vmap`."""
    return summed(embeddings)


class Impure:
    """Returns another value each time it is traced."""

    traces = 0

    def __call__(self, embeddings: jax.Array, labels: jax.Array, **options: Any) -> jax.Array:
        self.traces += 1
        return self.traces * jnp.sum(embeddings)


BAD = [
    (eager, "jit", "eager"),
    (rooted, "degenerate", "identical"),
    (ordered, "invariance", "order"),
    (named, "invariance", "names"),
    (half, "dtypes", "float16"),
    (stopped, "gradients", "difference"),
    (static, "traces", "compiled"),
    (cubic, "memory", "temporaries"),
    (leaky, "mask", "where"),
    (half, "references", "references"),
    (half, "reductions", "reduce_fn"),
    (batched, "transforms", "vmap"),
    (Impure(), "transforms", "checkpoint"),
    (branching, "traces", "boolean"),
]


@pytest.mark.parametrize(("loss_fn", "check", "message"), BAD)
def test_wrong_losses_are_found(loss_fn: Any, check: str, message: str) -> None:
    with pytest.raises((AssertionError, TypeError), match=message):
        LOSS_CHECKS[check](LossCase(loss_fn))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: LossCase(good, kind="triplet"), "kind"),
        (lambda: LossCase(good, batch=5, num_classes=4), "batch"),
        (lambda: check_loss(good, skip=("masks",)), "skip"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        call()


def swap(key: Any, distances: jax.Array, pairs: Pairs) -> Pairs:
    return Pairs(pairs.negative, pairs.positive)


def as_numbers(key: Any, distances: jax.Array, pairs: Pairs) -> Pairs:
    return Pairs(pairs.positive.astype(jnp.float32), pairs.negative)


def everywhere(key: Any, distances: jax.Array, pairs: Pairs) -> Pairs:
    """Compares with the mean of all entries, pairs or not."""
    return pairs._replace(negative=pairs.negative & (distances < distances.mean()))


def in_python(key: Any, distances: jax.Array, pairs: Pairs) -> Pairs:
    return pairs if np.asarray(distances).sum() > 0 else pairs


BAD_MINERS = [
    (swap, "given"),
    (as_numbers, "boolean"),
    (everywhere, "distances"),
    (in_python, "__array__"),
]


@pytest.mark.parametrize(("miner", "message"), BAD_MINERS)
def test_wrong_miners_are_found(miner: Any, message: str) -> None:
    with pytest.raises((AssertionError, TypeError), match=message):
        check_miner(miner)


def test_missing_chex_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chex", None)
    with pytest.raises(ImportError, match="pip install chex"):
        check_loss(good)
