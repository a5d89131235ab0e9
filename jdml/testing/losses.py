"""Properties that every loss must have, one function each."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdml.ops import total
from jdml.testing.case import (
    Compilations,
    LossCase,
    Tree,
    assert_close,
    assert_finite,
    import_chex,
)


def check_jit(case: LossCase) -> None:
    """Check that value and gradients are the same with and without compilation."""
    compiled = case.value_and_grad()
    where = np.ones(case.batch, bool) if "where" in case.keywords else None
    with jax.disable_jit():
        params, labels = case.cast(case.params, jnp.float32), jnp.asarray(case.labels)
        eager = jax.value_and_grad(case.loss)(params, labels, where)
    assert compiled[0].shape == (), f"the loss must be a scalar, got shape {compiled[0].shape}"
    assert_close(compiled, eager, 1e-4, "jit and eager")


def check_gradients(case: LossCase) -> None:
    """Check that gradients equal central differences in float64, along random directions."""
    with jax.enable_x64(True):
        value, grads = case.value_and_grad(dtype=jnp.float64)
        assert value.dtype == np.float64, f"float64 inputs must give float64, got {value.dtype}"
        for role, name in enumerate(("embeddings", "proxies")):
            if case.params[role] is not None:
                _differences(case, grads[role], role, name)


def _differences(case: LossCase, grad: np.ndarray, role: int, name: str) -> None:
    rng, step = np.random.default_rng(case.seed + 1), 1e-6
    for _ in range(3):
        direction = rng.normal(size=grad.shape)
        ends = []
        for sign in (1, -1):
            params = list(case.params)
            params[role] = np.asarray(params[role]) + sign * step * direction
            ends.append(case.value_and_grad(tuple(params), dtype=jnp.float64)[0])
        slope = (ends[0] - ends[1]) / (2 * step)
        assert_close(
            np.vdot(grad, direction), slope, 1e-5, f"gradient by {name} and finite difference"
        )


def check_mask(case: LossCase) -> None:
    """Check that rows that are not valid count as removed, whatever they hold, NaN and infinity included.

    They are hidden by ``where``, or by a label outside the range.
    """
    assert "where" in case.keywords, "the loss takes no `where`"
    expected = case.value_and_grad()
    at, garbage = (0, case.batch // 2, case.batch), (np.nan, np.inf, 1e30)
    embeddings, proxies = case.params
    padded = np.insert(embeddings, at, np.array(garbage)[:, None], axis=0)
    valid = np.insert(np.ones(case.batch, bool), at, False)
    outside = case.num_classes if case.kind == "proxy" else -2
    for name, labels, where in (
        ("where", np.insert(case.labels, at, 0), valid),
        ("label", np.insert(case.labels, at, (-1, outside, -1)), None),
    ):
        value, (grad, *others) = case.value_and_grad((padded, proxies), labels, where)
        assert_close(
            (value, (grad[valid], *others)), expected, 1e-5, f"rows hidden by {name} and removed"
        )
        assert not grad[~valid].any(), f"rows hidden by {name} got a gradient: {grad[~valid]}"


def check_references(case: LossCase, *, gradients: bool = True) -> None:
    """Check references: gradients by them, their order, and hidden ones counting as removed.

    Args:
        case: the loss.
        gradients: compare gradients by the references with finite differences. To be left out for
            a loss whose gradient is by definition not its slope.
    """
    assert "references" in case.keywords, "the loss takes no `references`"
    rng = np.random.default_rng(case.seed + 2)
    references = rng.normal(size=(case.batch + 1, case.dim))
    labels = (np.arange(len(references)) % case.num_classes).astype(np.int32)
    anchors, own = case.params[0], jnp.asarray(case.labels)

    def loss(points: Tree, labels: jax.Array, where: jax.Array) -> jax.Array:
        more = {"references": points[1], "reference_labels": labels, "reference_where": where}
        return case.loss((points[0], None), own, **more)

    compiled = jax.jit(jax.value_and_grad(loss))

    def run(points: np.ndarray, labels: np.ndarray, where: np.ndarray) -> tuple[Any, Any]:
        params = case.cast((anchors, points), jnp.float64)
        return jax.device_get(compiled(params, jnp.asarray(labels), jnp.asarray(where)))

    with jax.enable_x64(True):
        everyone = np.ones(len(references), bool)
        value, (by_anchor, by_reference) = run(references, labels, everyone)
        if gradients:
            step, direction = 1e-6, rng.normal(size=references.shape)
            ends = [run(references + s * step * direction, labels, everyone)[0] for s in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * step)
            assert_close(np.vdot(by_reference, direction), slope, 1e-5, "gradient by references")

        order = rng.permutation(len(references))
        permuted = run(references[order], labels[order], everyone)
        expected = (value, (by_anchor, by_reference[order]))
        assert_close(permuted, expected, 1e-9, "references in another order")

        at = (0, len(references))
        padded = np.insert(references, at, np.array([np.nan, np.inf])[:, None], axis=0)
        valid = np.insert(everyone, at, False)
        hidden = run(padded, np.insert(labels, at, 0), valid)
        unlabeled = run(padded, np.insert(labels, at, -1), np.ones_like(valid))
    expected = (value, (by_anchor, by_reference))
    for name, (v, (a, r)) in (("reference_where", hidden), ("label", unlabeled)):
        assert_close((v, (a, r[valid])), expected, 1e-9, f"references hidden by {name} and removed")
        assert not r[~valid].any(), f"references hidden by {name} got a gradient"


def check_invariance(case: LossCase) -> None:
    """Check that the order of the rows and the names of the classes make no difference."""
    rng = np.random.default_rng(case.seed + 3)
    value, (grad, by_proxy) = case.value_and_grad()
    embeddings, proxies = case.params
    order = rng.permutation(case.batch)
    permuted = case.value_and_grad((embeddings[order], proxies), case.labels[order])
    assert_close(permuted, (value, (grad[order], by_proxy)), 1e-5, "rows in another order")
    if proxies is None:
        renamed = case.value_and_grad(labels=7 * case.labels + 3)
        assert_close(renamed, (value, (grad, None)), 1e-5, "classes under other names")
        return
    names = rng.permutation(case.num_classes)
    moved = case.value_and_grad((embeddings, proxies[names]), np.argsort(names)[case.labels])
    assert_close(moved, (value, (grad, by_proxy[names])), 1e-5, "classes in another order")


def check_degenerate(case: LossCase) -> None:
    """Check that value and gradients stay finite in every batch; with no valid row they are 0."""
    embeddings, proxies = case.params
    one_class = np.zeros_like(case.labels)
    distinct = np.arange(case.batch, dtype=np.int32)
    batches: dict[str, tuple[Tree, np.ndarray]] = {
        "identical embeddings": ((np.ones_like(embeddings), proxies), case.labels),
        "zero embeddings": ((np.zeros_like(embeddings), proxies), case.labels),
        "one class": (case.params, one_class),
        "no two of a class": (case.params, distinct),
        "opposite embeddings": (
            (np.sign(embeddings[:, :1]) * embeddings[:1], proxies),
            case.labels,
        ),
        "large embeddings": ((1e6 * embeddings, proxies), case.labels),
        "tiny embeddings": ((1e-25 * embeddings, proxies), case.labels),
    }
    if proxies is not None:
        first = proxies.reshape(case.num_classes, -1, case.dim)[:, 0]
        batches |= {
            "embeddings on proxies": ((first[case.labels], proxies), case.labels),
            "embeddings opposite proxies": ((-first[case.labels], proxies), case.labels),
            "zero proxies": ((embeddings, np.zeros_like(proxies)), case.labels),
            "identical proxies": ((embeddings, np.ones_like(proxies)), case.labels),
        }
    broken = {}
    for name, (params, labels) in batches.items():
        try:
            assert_finite(case.value_and_grad(params, labels), name)
        except AssertionError as error:
            broken[name] = str(error)
    assert not broken, "; ".join(broken.values())
    if "where" in case.keywords:
        value, grads = case.value_and_grad(where=np.zeros(case.batch, bool))
        assert value == 0, f"no valid row: the loss must be 0, got {value}"
        assert not any(g.any() for g in jax.tree.leaves(grads)), "no valid row: gradient not 0"


def check_dtypes(case: LossCase) -> None:
    """Check that float16 and bfloat16 inputs give a float32 loss, accumulated in float32."""
    for dtype in (jnp.float16, jnp.bfloat16):
        name = jnp.dtype(dtype).name
        rounded = jax.tree.map(np.asarray, case.cast(case.params, dtype))
        value, grads = case.value_and_grad(dtype=dtype)
        assert value.dtype == np.float32, f"{name} inputs must give float32, got {value.dtype}"
        assert all(g.dtype == dtype for g in jax.tree.leaves(grads)), f"{name}: gradient's dtype"
        expected_value, expected_grads = case.value_and_grad(rounded)
        assert_close(value, expected_value, 1e-5, f"{name} inputs")
        assert_close(grads, expected_grads, 2e-2, f"gradient of {name} inputs")
        assert_finite(
            case.value_and_grad((100 * case.params[0], case.params[1]), dtype=dtype), name
        )


def check_reductions(case: LossCase) -> None:
    """Check that the unreduced terms sum to the loss under ``jdml.total``."""
    assert "reduce_fn" in case.keywords, "the loss takes no `reduce_fn`"
    params, labels = case.cast(case.params, jnp.float32), jnp.asarray(case.labels)

    @jax.jit
    def both(params: Tree, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        terms = case.loss(params, labels, reduce_fn=None)
        return jnp.sum(terms), case.loss(params, labels, reduce_fn=total)

    summed, reduced = both(params, labels)
    assert_close(summed, reduced, 1e-5, "sum of the unreduced terms and jdml.total")


def check_transforms(case: LossCase) -> None:
    """Check that ``jax.vmap`` gives what a loop gives, and ``jax.checkpoint`` changes nothing."""
    rng = np.random.default_rng(case.seed + 4)
    params, labels = case.cast(case.params, jnp.float32), jnp.asarray(case.labels)
    batches = [case.params[0], *rng.normal(size=(2, case.batch, case.dim))]
    stacked = (jnp.asarray(np.stack(batches), jnp.float32), params[1])
    saved = jax.value_and_grad(jax.checkpoint(case.loss))
    vmapped = jax.jit(jax.vmap(saved, ((0, None), None)))(stacked, labels)
    for i, batch in enumerate(batches):
        one = jax.tree.map(lambda a, i=i: a[i], vmapped)
        assert_close(
            one,
            case.value_and_grad((batch, case.params[1])),
            1e-5,
            "jax.vmap of jax.checkpoint and a loop",
        )


def check_traces(case: LossCase) -> None:
    """Check that other values of inputs and hyper-parameters cause no second trace or compilation."""
    chex = import_chex()
    chex.clear_trace_counter()
    settings = {n: v for n, v in case.settings.items() if n not in case.sweep}

    @jax.jit
    @chex.assert_max_traces(n=1)
    def traced(params: Tree, labels: jax.Array, numbers: dict[str, Any]) -> jax.Array:
        embeddings, proxies = params
        more = () if proxies is None else (proxies,)
        return case.loss_fn(embeddings, labels, *more, **settings, **numbers)

    counter = Compilations()
    values = []
    for turn in range(2):
        numbers = {name: pair[turn] for name, pair in case.sweep.items()}
        params = case.cast(jax.tree.map(lambda a, t=turn: a * (1 + t), case.params), jnp.float32)
        labels = jnp.asarray(np.roll(case.labels, turn))
        values.append(traced(params, labels, numbers))
        with counter:
            direct = case.loss(params, labels, **numbers)
        assert_close(direct, values[-1], 1e-4, "hyper-parameters as numbers and as traced values")
    assert not counter.names, f"other values compiled again: {', '.join(counter.names)}"


def check_memory(case: LossCase, *, size: int = 256, dim: int = 256, arrays: int = 16) -> None:
    """Check that the compiled gradient's temporaries stay under ``arrays`` matrices ``[B, R]`` of float32.

    Embedding-shaped temporaries ``[B, D]`` and ``[R, D]`` are allowed for; a ``[B, R, D]`` array is not.

    Args:
        case: the loss; its own batch is not used.
        size: B, and R: the number of references or proxies.
        dim: D.
        arrays: how many ``[B, R]`` matrices are allowed.
    """
    per_class = case.proxies_per_class or 1
    classes = size // per_class if case.kind == "proxy" else case.num_classes
    big = LossCase(
        case.loss_fn, case.kind, min(classes, size // 2), size, dim, settings=case.settings
    )
    shape = (classes, dim) if case.proxies_per_class is None else (classes, per_class, dim)
    proxies = jax.ShapeDtypeStruct(shape, jnp.float32) if case.kind == "proxy" else None
    params = (jax.ShapeDtypeStruct((size, dim), jnp.float32), proxies)
    labels = jax.ShapeDtypeStruct((size,), jnp.int32)
    analysis = (
        jax.jit(jax.value_and_grad(big.loss)).lower(params, labels).compile().memory_analysis()
    )
    if analysis is None:  # some backends do not tell
        return
    allowed = 4 * (arrays * size * size + 16 * size * dim)
    used = analysis.temp_size_in_bytes
    assert used <= allowed, f"temporaries take {used:,} bytes, more than {allowed:,}"


LOSS_CHECKS: Mapping[str, Callable[[LossCase], None]] = {
    "jit": check_jit,
    "gradients": check_gradients,
    "mask": check_mask,
    "references": check_references,
    "invariance": check_invariance,
    "degenerate": check_degenerate,
    "dtypes": check_dtypes,
    "reductions": check_reductions,
    "transforms": check_transforms,
    "traces": check_traces,
    "memory": check_memory,
}
"""The properties that :func:`check_loss` checks, by name."""


def check_loss(
    loss_fn: Callable[..., jax.Array],
    *,
    kind: str = LossCase.kind,
    num_classes: int = LossCase.num_classes,
    batch: int = LossCase.batch,
    dim: int = LossCase.dim,
    proxies_per_class: int | None = None,
    hyper_parameters: Mapping[str, tuple[float, float]] | None = None,
    seed: int = 0,
    skip: Collection[str] = (),
    **settings: Any,
) -> None:
    """Check every property of a loss, yours or this library's.

    The properties are those of ``LOSS_CHECKS``: jit = eager, gradients = finite differences,
    hidden rows = removed rows, references, invariances, degenerate batches, dtypes, reductions,
    vmap and checkpoint, one trace, memory. A proxy loss has no references, so "references" is
    left out for it.

    Args:
        loss_fn: ``f(embeddings [B, D], labels [B], *, where=…, references=…, reduce_fn=…, …)``, with
            ``proxies`` third for proxy losses, returning a scalar.
        kind: "pair" or "proxy".
        num_classes: number of classes C in the batch.
        batch: number of embeddings B.
        dim: number of components D.
        proxies_per_class: K for proxies ``[C, K, D]``; None for ``[C, D]``.
        hyper_parameters: numeric hyper-parameters with two values each; by default every keyword
            whose default is a float.
        seed: seed of the random batch.
        skip: names in ``LOSS_CHECKS`` that do not apply to this loss.
        settings: other keywords of the loss.

    Raises:
        AssertionError: a property does not hold; the message says which.
        ImportError: chex is not installed.
        ValueError: ``skip`` names no check, or the batch is too small.

    Example:
        >>> import jdml
        >>> check_loss(jdml.contrastive_loss, skip=("references", "memory"), negative_margin=0.3)
    """
    import_chex()
    unknown = set(skip) - set(LOSS_CHECKS)
    if unknown:
        raise ValueError(f"skip must name checks of {sorted(LOSS_CHECKS)}, got {sorted(unknown)}")
    case = LossCase(
        loss_fn,
        kind,
        num_classes,
        batch,
        dim,
        proxies_per_class,
        hyper_parameters,
        seed,
        settings,
    )
    for name, check in LOSS_CHECKS.items():
        if name not in skip and not (name == "references" and kind == "proxy"):
            check(case)
