"""Losses made of losses: both directions between two towers, nested prefixes of an embedding."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
from jax import Array

from jdml.losses.contrastive import info_nce_loss, sigmoid_contrastive_loss
from jdml.mining.pairs import transpose
from jdml.ops import checks
from jdml.ops.meshes import as_axis

__all__ = ["both_ways", "matryoshka"]

P = ParamSpec("P")

_VECTORS = frozenset({"embeddings", "queries", "documents", "references", "proxies"})
_SWAPPED = {
    "labels": "reference_labels",
    "reference_labels": "labels",
    "where": "reference_where",
    "reference_where": "where",
    "ids": "reference_ids",
    "reference_ids": "ids",
}


def both_ways(loss_fn: Callable[..., Array]) -> Callable[..., Array]:
    """Make a loss of two towers from a pair loss: the mean of queries against documents and documents against queries.

    Formula:
        ``½ L(queries; references=documents) + ½ L(documents; references=queries)``

    Args:
        loss_fn: a pair loss, such as :func:`jdml.info_nce_loss`.

    Returns:
        ``(queries [B, D], documents [B, D], **settings) -> scalar``. Query i and document i belong together, unless
        ``labels=`` (of both, or with ``reference_labels=`` of the documents) or ``positive=`` says otherwise. ``where``
        hides rows of the queries and ``reference_where`` those of the documents, which are hidden together where only
        one is given.

    Raises:
        TypeError: ``loss_fn`` cannot be called.
        ValueError: towers of different numbers of rows, on call.

    Paper settings:
        With InfoNCE it is CLIP's loss.

    Reference:
        Radford et al., *Learning Transferable Visual Models From Natural Language Supervision*, figure 3.

    Example:
        >>> import jax.numpy as jnp, jdml
        >>> clip_loss = both_ways(jdml.info_nce_loss)
        >>> clip_loss(jnp.eye(2), jnp.array([[0.6, 0.8], [0.0, 1.0]]), temperature=1.0).round(4)
        Array(0.5367, dtype=float32)
    """
    checks.check_function("loss_fn", loss_fn, or_none=False)

    def loss(queries: Array, documents: Array, **settings: Any) -> Array:
        queries, documents = checks.as_array(queries), checks.as_array(documents)
        checks.check_embeddings("queries", queries)
        checks.check_embeddings("documents", documents, dim=queries.shape[1], like="queries")
        if len(queries) != len(documents):
            raise ValueError(
                f"documents must have a row for each of the {len(queries)} queries, got {len(documents)}"
            )
        settings = _fill_settings(loss_fn, len(queries), settings)
        there = loss_fn(queries, references=documents, **settings)
        back = {_SWAPPED.get(name, name): value for name, value in settings.items()}
        for name in ("positive", "weights"):  # of pairs
            if back.get(name) is not None and jnp.ndim(back[name]) == 2:
                back[name] = checks.as_array(back[name]).T
        if "mine" in back:
            back["mine"] = transpose(back["mine"])
        return 0.5 * (there + loss_fn(documents, references=queries, **back))

    name = getattr(loss_fn, "__name__", "loss")
    loss.__name__ = loss.__qualname__ = f"both_ways({name})"
    return loss


def _fill_settings(
    loss_fn: Callable[..., Array], size: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Settings with what is meant where nothing is said: pairs by their places, masks of both towers."""
    settings = dict(settings)
    labels = checks.as_array(settings.get("labels"))
    if labels is None and settings.get("positive") is None and not _pairs_by_place(loss_fn):
        labels = as_axis(settings.get("axis_name")).index * size + jnp.arange(size, dtype=jnp.int32)
    if labels is not None:
        settings["labels"] = labels
        settings.setdefault("reference_labels", labels)
    masks = [settings.get(name) for name in ("where", "reference_where")]
    shown = next((mask for mask in masks if mask is not None), None)
    if shown is not None:
        settings["where"], settings["reference_where"] = (shown if m is None else m for m in masks)
    return settings


def _pairs_by_place(loss_fn: Any) -> bool:
    """Whether it is a loss of two towers, in whatever it is wrapped."""
    while loss_fn is not None and loss_fn not in (info_nce_loss, sigmoid_contrastive_loss):
        inner = getattr(loss_fn, "__wrapped__", None)
        loss_fn = loss_fn.func if isinstance(loss_fn, functools.partial) else inner
    return loss_fn is not None


def matryoshka(
    loss_fn: Callable[P, Array],
    dims: Sequence[int],
    weights: Sequence[float] | Array | None = None,
) -> Callable[P, Array]:
    """Make a loss over nested prefixes of the embedding, so that it can be cut short when it is used.

    Formula:
        ``Σ_m w_m L(x[:, :m])`` over the dimensions m; proxies and references are cut as the embeddings are.

    Args:
        loss_fn: a pair or a proxy loss, or one of two towers.
        dims: the numbers m of leading entries, such as ``(64, 128, 256, 512)``.
        weights: w, one per prefix; None: 1 each.

    Returns:
        A loss with the arguments of ``loss_fn``; each prefix is normalized by itself.

    Raises:
        TypeError: ``loss_fn`` cannot be called, a dimension is not an integer, or a weight no number.
        ValueError: no dimension, one below 1 or (on call) beyond the embedding's, weights of another number or below 0.

    Paper settings:
        Dimensions halved from D down to 8 or 16, all of weight 1.

    Reference:
        Kusupati et al., *Matryoshka Representation Learning*, eq. 1.

    Example:
        >>> import jax.numpy as jnp, jdml
        >>> nested = matryoshka(jdml.contrastive_loss, dims=(2, 1), weights=(1.0, 0.5))
        >>> x = jnp.array([[1.0, 0.0], [0.6, 0.8]])
        >>> nested(x, jnp.array([0, 0])).round(4), jdml.contrastive_loss(x, jnp.array([0, 0])).round(4)
        (Array(0.8944, dtype=float32), Array(0.8944, dtype=float32))
    """
    checks.check_function("loss_fn", loss_fn, or_none=False)
    if not isinstance(dims, Iterable):
        raise TypeError(f"dims must be several widths such as (64, 128), got {dims!r}")
    sizes = tuple(dims)
    checks.counts("dims", sizes)
    shares: list[float | Array] = [1.0] * len(sizes) if weights is None else [*weights]
    if len(shares) != len(sizes):
        raise ValueError(
            f"weights must have one entry per dimension, {len(sizes)}, got {len(shares)}"
        )
    for place, share in enumerate(shares):
        checks.non_negative(f"weights[{place}]", share)
    signature = inspect.signature(loss_fn)

    @functools.wraps(loss_fn)
    def loss(*args: P.args, **settings: P.kwargs) -> Array:
        bound = signature.bind(*args, **settings)
        first = next(iter(bound.arguments))  # the embeddings, whatever a user's own loss calls them
        embeddings = checks.as_array(bound.arguments[first])
        checks.check_embeddings("embeddings", embeddings)
        dim = embeddings.shape[1]
        if max(sizes) > dim:
            raise ValueError(f"dims must be at most the embeddings' dimension, {dim}, got {sizes}")

        def of_prefix(size: int) -> Array:
            cut = inspect.BoundArguments(signature, _cut(bound.arguments, size, {first}))
            return loss_fn(*cut.args, **cut.kwargs)

        values = [share * of_prefix(size) for share, size in zip(shares, sizes, strict=True)]
        return jax.tree.reduce(jnp.add, values)

    loss.__doc__ = f"The sum of losses over the first {sizes} entries of the embeddings."
    return loss


def _cut(arguments: dict[str, Any], size: int, own: Collection[str] = ()) -> dict[str, Any]:
    """Arguments whose vectors, and those of ``own``, are their first entries."""

    def cut(name: str, value: Any) -> Any:
        if isinstance(value, dict):  # a function's **settings
            return _cut(value, size)
        vectors = (name in _VECTORS or name in own) and value is not None
        return checks.as_array(value)[..., :size] if vectors else value

    return {name: cut(name, value) for name, value in arguments.items()}
