"""Mistakes are told at the door: by argument, by what it was, by what was expected."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses.registry import REGISTRY, loss

import jdml

RNG = np.random.default_rng(1)
B, R, D, C = 6, 5, 3, 2
X = jnp.asarray(RNG.normal(size=(B, D)), jnp.float32)
Y = np.arange(B) % C
REFERENCES = jnp.asarray(RNG.normal(size=(R, D)), jnp.float32)
REFERENCE_LABELS = np.arange(R) % C
PROXIES = jnp.asarray(RNG.normal(size=(C, D)), jnp.float32)
PAIR = [name for name, spec in REGISTRY.items() if spec.kind == "pair"]
PROXY = [name for name, spec in REGISTRY.items() if spec.kind == "proxy"]
PAIR_SHAPED = [name for name, spec in REGISTRY.items() if spec.shape == "BR"]


def call(name: str, **changes: Any) -> jax.Array:
    """The loss on a good batch, with changes."""
    arrays = [changes.pop("embeddings", X), changes.pop("labels", Y)]
    if REGISTRY[name].kind == "proxy":
        arrays.append(changes.pop("proxies", PROXIES))
    return loss(name)(*arrays, **changes)


# What every loss refuses: the changed arguments, the error, and what the message must name.
COMMON: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"embeddings": X[0]}, ValueError, r"embeddings.*shape \[\w, D\]"),
    ({"embeddings": X[None]}, ValueError, r"embeddings.*shape \[\w, D\]"),
    ({"embeddings": jnp.ones((B, D), jnp.int32)}, TypeError, "embeddings"),
    ({"embeddings": "x"}, TypeError, "embeddings"),
    ({"labels": Y[:-1]}, ValueError, r"labels.*6.*5"),
    ({"labels": Y[:, None]}, ValueError, "labels"),
    ({"labels": Y.astype(np.float32)}, TypeError, "labels.*float32"),
    ({"where": np.ones(B + 1, bool)}, ValueError, r"where.*6.*7"),
    ({"where": np.ones(B, np.float32)}, TypeError, "where"),
    ({"weights": np.ones(B + 1, np.float32)}, ValueError, r"weights.*7"),
    ({"normalize": "sphere"}, TypeError, "normalize"),
    ({"reduce_fn": "mean"}, TypeError, "reduce_fn"),
]
REFS = {"references": REFERENCES, "reference_labels": REFERENCE_LABELS}
MASK = np.ones((B, B), bool)
PAIR_ONLY: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"references": REFERENCES}, ValueError, "reference_labels"),
    ({"reference_labels": REFERENCE_LABELS}, ValueError, "references"),
    (REFS | {"references": REFERENCES[:, :-1]}, ValueError, r"references.*3"),
    (REFS | {"references": REFERENCES[0]}, ValueError, "references"),
    (REFS | {"reference_labels": REFERENCE_LABELS[1:]}, ValueError, r"reference_labels.*5.*4"),
    (REFS | {"reference_labels": REFERENCE_LABELS * 1.5}, TypeError, "reference_labels"),
    (REFS | {"reference_where": np.ones(R + 2, bool)}, ValueError, r"reference_where.*5.*7"),
    ({"ids": Y * 1.5}, TypeError, "ids must be integers"),
    ({"ids": Y[1:]}, ValueError, r"ids.*6.*5"),
    ({"ids": Y.astype(np.int64) + 2**40}, ValueError, r"ids\[0\] is"),
    ({"reference_ids": Y}, ValueError, "reference_ids need references"),
    (REFS | {"ids": Y}, ValueError, "reference_ids is missing"),
    (REFS | {"reference_ids": REFERENCE_LABELS}, ValueError, "ids is missing"),
    (REFS | {"ids": Y, "reference_ids": Y}, ValueError, r"reference_ids.*5.*6"),
    ({"labels": None}, ValueError, "labels.*positive|positive.*labels"),
    ({"positive": MASK}, ValueError, "labels.*positive|positive.*labels"),
    ({"labels": None, "positive": MASK[1:]}, ValueError, r"positive.*5"),
    (
        {"labels": None, "positive": MASK.astype(np.int32)},
        TypeError,
        "positive.*bool|positive.*int32",
    ),
    ({"mine": "easy"}, TypeError, "mine"),
    ({"mine": jdml.mining.random_positive()}, ValueError, "key"),
]
PROXY_ONLY: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"proxies": PROXIES[0]}, ValueError, r"proxies.*\[C, D\]"),
    ({"proxies": PROXIES[None, None]}, ValueError, r"proxies"),
    ({"proxies": PROXIES[:, :-1]}, ValueError, r"proxies.*3"),
    ({"proxies": jnp.ones((C, D), jnp.int32)}, TypeError, "proxies"),
]


@pytest.mark.parametrize(("changes", "error", "message"), COMMON)
@pytest.mark.parametrize("name", REGISTRY)
def test_common(name: str, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(name, **changes)


@pytest.mark.parametrize(("changes", "error", "message"), PAIR_ONLY)
@pytest.mark.parametrize("name", PAIR)
def test_pair(name: str, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(name, **changes)


@pytest.mark.parametrize(("changes", "error", "message"), PROXY_ONLY)
@pytest.mark.parametrize("name", PROXY)
def test_proxy(name: str, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(name, **changes)


@pytest.mark.parametrize("name", REGISTRY)
def test_pair_weights_only_where_terms_are_pairs(name: str) -> None:
    if name in PAIR_SHAPED:
        assert jnp.isfinite(call(name, weights=np.ones((B, B), np.float32)))
        return
    with pytest.raises(ValueError, match="weights"):
        call(name, weights=np.ones((B, B), np.float32))


# Values of hyper-parameters that have no meaning.
SETTINGS: list[tuple[str, str, Any]] = [
    ("triplet_loss", "margin", -0.1),
    ("margin_loss", "alpha", -0.1),
    ("margin_loss", "beta", np.ones((2, 2), np.float32)),
    ("multi_similarity_loss", "alpha", 0.0),
    ("multi_similarity_loss", "beta", -1.0),
    ("circle_loss", "gamma", 0.0),
    ("fast_ap_loss", "num_bins", 0),
    ("proxy_nca_loss", "scale", 0.0),
    ("proxy_nca_pp_loss", "temperature", 0.0),
    ("proxy_nca_margin_loss", "alpha", -32.0),
    ("proxy_anchor_loss", "alpha", 0.0),
    ("soft_triple_loss", "scale", -20.0),
    ("soft_triple_loss", "gamma", 0.0),
    ("soft_triple_loss", "tau", -0.2),
    ("normalized_softmax_loss", "temperature", -0.05),
    ("cosface_loss", "scale", 0.0),
    ("arcface_loss", "scale", -64.0),
]
NOT_A_NUMBER: list[tuple[str, str]] = [
    ("contrastive_loss", "negative_margin"),
    ("similarity_contrastive_loss", "negative_margin"),
    ("multi_similarity_loss", "base"),
    ("lifted_structure_loss", "negative_margin"),
    ("circle_loss", "margin"),
    ("snr_contrastive_loss", "positive_margin"),
    ("proxy_anchor_loss", "delta"),
    ("cosface_loss", "margin"),
    ("arcface_loss", "margin"),
]


@pytest.mark.parametrize(("name", "argument", "value"), SETTINGS)
def test_wrong_settings(name: str, argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=argument):
        call(name, **{argument: value})


@pytest.mark.parametrize(("name", "argument"), NOT_A_NUMBER)
def test_settings_that_are_no_numbers(name: str, argument: str) -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=argument):
            call(name, **{argument: value})
    with pytest.raises(TypeError, match=argument):
        call(name, **{argument: "0.1"})


def test_misspelled_keyword() -> None:
    with pytest.raises(TypeError, match="margni"):
        jdml.triplet_loss(X, Y, margni=0.1)


@pytest.mark.parametrize("name", ["proxy_anchor_loss", "soft_triple_loss", "arcface_loss"])
def test_checked_names_the_row_of_a_label_out_of_range(name: str) -> None:
    labels = Y.copy()
    labels[4] = C
    traced = jax.jit(loss(name))(
        X, labels, PROXIES
    )  # where nobody can see it, the row does not count
    assert traced == call(name, labels=np.where(labels == C, -1, labels))
    with pytest.raises(ValueError, match=r"labels?.*4"):
        jdml.checked(loss(name))(X, labels, PROXIES)


@pytest.mark.parametrize("name", ["triplet_loss", "multi_similarity_loss", "cosface_loss"])
def test_checked_names_the_row_of_a_nan(name: str) -> None:
    more = () if name in PAIR else (PROXIES,)
    checked = jdml.checked(loss(name))
    np.testing.assert_allclose(checked(X, Y, *more), loss(name)(X, Y, *more), rtol=1e-6)
    with pytest.raises(ValueError, match="embeddings.*3"):
        checked(X.at[3, 1].set(jnp.nan), Y, *more)
    with pytest.raises(ValueError, match="embeddings.*2"):
        checked(X.at[2, 0].set(jnp.inf), Y, *more)


def test_checked_ignores_what_is_hidden() -> None:
    spoiled = X.at[3].set(jnp.nan)
    where = np.arange(B) != 3
    value = jdml.checked(jdml.triplet_loss)(spoiled, Y, where=where)
    np.testing.assert_allclose(value, jdml.triplet_loss(spoiled, Y, where=where), rtol=1e-6)


def test_checked_catches_a_traced_hyper_parameter() -> None:
    with pytest.raises(ValueError, match="alpha"):
        jdml.checked(jdml.proxy_anchor_loss)(X, Y, PROXIES, alpha=jnp.float32(-1.0))


def test_checked_works_under_jit() -> None:
    checked = jdml.checked(jdml.proxy_anchor_loss)
    value = checked(X, Y, PROXIES, alpha=jnp.float32(16.0))
    np.testing.assert_allclose(value, jdml.proxy_anchor_loss(X, Y, PROXIES, alpha=16.0), rtol=1e-6)


def test_errors_come_at_trace_time_inside_jit() -> None:
    with pytest.raises(ValueError, match="labels"):
        jax.jit(jdml.triplet_loss)(X, Y[:-1])
