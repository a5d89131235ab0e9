"""Arrays as people have them: understood, or refused in a sentence that says what to write."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from losses.registry import REGISTRY, loss

import jdml
from oracles.numerics import LIBRARIES, array_of

RNG = np.random.default_rng(1)
B, D, C = 6, 3, 3
X = RNG.normal(size=(B, D)).astype(np.float32)
Y = np.arange(B) % C
PROXIES = RNG.normal(size=(C, D)).astype(np.float32)
PROXY = [name for name, spec in REGISTRY.items() if spec.kind == "proxy"]


@pytest.mark.parametrize("name", PROXY)
def test_classes_that_there_are_not_are_refused_in_numpy_s_labels(name: str) -> None:
    """Labels 1…C for 0…C−1: the last class would train nothing, and nobody would know."""
    compute, proxies = loss(name), PROXIES[:, None] if REGISTRY[name].shape == "BCK" else PROXIES
    message = r"labels\[2\] is 3, expected 0…2 as proxies has 3 classes: number them from 0"
    for labels in (Y + 1, (Y + 1).astype(np.uint8)):
        with pytest.raises(ValueError, match=message):
            compute(X, labels, proxies)
        with pytest.raises(ValueError, match=message):
            jax.grad(compute)(X, labels, proxies)
    traced = jax.jit(compute)
    hidden = np.where(Y + 1 < C, Y + 1, -1)  # a row of no class
    for left_out in (traced(X, Y + 1, proxies), compute(X, jnp.asarray(Y + 1), proxies)):
        np.testing.assert_allclose(left_out, compute(X, hidden, proxies), rtol=1e-6, atol=1e-6)


def test_boundaries_per_class_are_classes() -> None:
    for beta in (np.ones(C, np.float32), jnp.ones(C)):
        with pytest.raises(ValueError, match=r"labels\[2\] is 3, expected 0…2 as beta has 3"):
            jdml.margin_loss(X, Y + 1, beta=beta)
        jdml.margin_loss(X, Y - 1, beta=beta)
    jdml.margin_loss(X, Y + 1, beta=1.2)
    assert jnp.isfinite(jax.jit(jdml.margin_loss)(X, Y + 1, beta=jnp.ones(C)))


def test_rows_that_do_not_count_may_have_any_label() -> None:
    where = np.arange(B) != 4
    labels = np.where(where, Y, 99)
    expected = jdml.proxy_anchor_loss(X, Y, PROXIES, where=where)
    assert jdml.proxy_anchor_loss(X, labels, PROXIES, where=where) == expected
    masked = jax.jit(lambda where: jdml.proxy_anchor_loss(X, labels, PROXIES, where=where))
    np.testing.assert_allclose(masked(where), expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"labels\[4\] is 99"):
        jdml.proxy_anchor_loss(X, labels, PROXIES, where=where | True)


def pair(embeddings: Any, labels: Any) -> jax.Array:
    return jdml.contrastive_loss(embeddings, labels)


def proxy(embeddings: Any, labels: Any) -> jax.Array:
    return jdml.arcface_loss(embeddings, labels, PROXIES)


def both(embeddings: Any, labels: Any) -> jax.Array:
    towers = jdml.losses.both_ways(jdml.info_nce_loss)
    return towers(embeddings, X, labels=labels)


DOORS = pytest.mark.parametrize("compute", [pair, proxy, both])
Door = Callable[[Any, Any], jax.Array]


@DOORS
@pytest.mark.parametrize("order", ["<", ">"])
def test_any_order_of_bytes(compute: Door, order: str) -> None:
    value = compute(X.astype(f"{order}f4"), Y.astype(f"{order}i4"))
    assert value == compute(X, Y)
    assert compute(X.astype(f"{order}f8"), Y.astype(f"{order}i8")) == value


def test_proxies_masks_and_weights_of_the_other_order() -> None:
    weights = RNG.uniform(size=B).astype(np.float32)
    swapped = jdml.arcface_loss(X, Y, PROXIES.astype(">f4"), weights=weights.astype(">f4"))
    assert swapped == jdml.arcface_loss(X, Y, PROXIES, weights=weights)


@DOORS
@pytest.mark.parametrize("library", LIBRARIES)
def test_other_libraries_arrays_are_refused_with_what_to_write(compute: Door, library: str) -> None:
    kind, written = LIBRARIES[library]
    with pytest.raises(TypeError, match=rf"got {kind}: write {written.format('labels')}"):
        compute(X, array_of(library, kind, Y))
    name = "queries" if compute is both else "embeddings"
    with pytest.raises(TypeError, match=rf"{name} .* got {kind}: write {written.format(name)}"):
        compute(array_of(library, kind, X), Y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": Y.astype(object)}, r"got Python objects: write labels.astype\(int\)"),
        (
            {"labels": np.array(["a", None] * 3, object)},
            r"got Python objects: write numpy.unique\(labels.astype\(str\), return_inverse=True\)",
        ),
        ({"labels": np.array(["a", "b"] * 3, object)}, r"write numpy.unique\(labels.astype\(str\)"),
        ({"labels": np.array(["a", "b"] * 3)}, r"got strings: write numpy.unique\(labels, return"),
        ({"labels": np.array(["2020-01-01"] * 6, "M8[D]")}, "labels must be .* datetime64"),
        ({"labels": np.ma.masked_less(Y, 1)}, r"labels .* MaskedArray: write labels.filled\(…\)"),
        ({"embeddings": X.astype(object)}, r"dtype object: write embeddings.astype\(numpy.float32"),
        ({"embeddings": X.astype(str)}, "embeddings must be numbers, got dtype <U"),
        (
            {"embeddings": X.astype(np.longdouble)},
            r"float128: write embeddings.astype\(numpy.float",
        ),
        ({"proxies": PROXIES.astype(object)}, "proxies must be numbers, got dtype object"),
        ({"proxies": np.ma.masked_less(PROXIES, 0)}, "proxies must be .* got MaskedArray"),
        ({"where": np.array([True] * 6, object)}, "where must be numbers, got dtype object"),
        ({"weights": array_of("pandas", "Series", Y)}, r"write weights.to_numpy\(\)"),
    ],
)
def test_arrays_that_are_not_numbers(changes: dict[str, Any], message: str) -> None:
    arrays = {"embeddings": X, "labels": Y, "proxies": PROXIES} | changes
    positional = [arrays.pop(name) for name in ("embeddings", "labels", "proxies")]
    with pytest.raises(TypeError, match=message):
        jdml.arcface_loss(*positional, **arrays)


def test_names_of_two_sides_are_numbered_together() -> None:
    names = np.array(["a", "b"] * 3)
    with pytest.raises(TypeError, match=r"reference_labels must be .* of both sides in one call"):
        jdml.contrastive_loss(X, Y, references=X, reference_labels=names)


SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("kind", SMALL)
def test_small_floats_of_jax_are_numbers(kind: str) -> None:
    small = X.astype(getattr(ml_dtypes, kind))
    for compute in (pair, proxy):
        for embeddings in (small, jnp.asarray(small)):
            expected = compute(small.astype(np.float32), Y)
            np.testing.assert_allclose(compute(embeddings, Y), expected, rtol=1e-2)


@DOORS
def test_labels_of_jax_beyond_int32_are_not_negative(compute: Door) -> None:
    """Unsigned ones would be cut down to negative ones, rows of no class."""
    assert compute(X, jnp.asarray(Y, jnp.uint32)) == compute(X, Y)
    with pytest.raises(ValueError, match=r"labels\[0\] is 2147483648, expected an int32"):
        compute(X, jnp.asarray(Y + 2**31, jnp.uint32))
