"""Refusals of losses, by the class of the error and the name of the argument."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses.registry import REGISTRY, case, loss

import jdml
from jdml import mining
from oracles.numerics import LIBRARIES, array_of

RNG = np.random.default_rng(1)
B, R, D, C = 6, 5, 3, 2
X = jnp.asarray(RNG.normal(size=(B, D)), jnp.float32)
Y = np.arange(B) % C
REFERENCES = jnp.asarray(RNG.normal(size=(R, D)), jnp.float32)
REFERENCE_LABELS = np.arange(R) % C
PROXIES = jnp.asarray(RNG.normal(size=(C, D)), jnp.float32)
REFS = {"references": REFERENCES, "reference_labels": REFERENCE_LABELS}
MASK = np.ones((B, B), bool)
Row = tuple[dict[str, Any], type[Exception], str]


def call(name: str, **changes: Any) -> jax.Array:
    """Return the loss of a valid batch with changed arguments."""
    arrays = [changes.pop("embeddings", X), changes.pop("labels", Y)]
    if REGISTRY[name].kind == "proxy":
        arrays.append(changes.pop("proxies", PROXIES))
    return loss(name)(*arrays, **changes)


def assert_refused(name: str, rows: Iterable[Row]) -> None:
    """Check that each change of the arguments raises its error, which begins with the argument's name."""
    for changes, error, argument in rows:
        with pytest.raises(error, match=rf"^{argument}\b"):
            call(name, **changes)


COMMON: list[Row] = [
    ({"embeddings": X[0]}, ValueError, "embeddings"),
    ({"embeddings": X[None]}, ValueError, "embeddings"),
    ({"embeddings": jnp.ones((B, D), jnp.int32)}, TypeError, "embeddings"),
    ({"embeddings": "x"}, TypeError, "embeddings"),
    ({"labels": Y[:-1]}, ValueError, "labels"),
    ({"labels": Y[:, None]}, ValueError, "labels"),
    ({"labels": Y.astype(np.float32)}, TypeError, "labels"),
    ({"where": np.ones(B + 1, bool)}, ValueError, "where"),
    ({"where": np.ones(B, np.float32)}, TypeError, "where"),
    ({"weights": np.ones(B + 1, np.float32)}, ValueError, "weights"),
    ({"normalize": "sphere"}, TypeError, "normalize"),
    ({"reduce_fn": "mean"}, TypeError, "reduce_fn"),
]
OF_KIND: dict[str, list[Row]] = {
    "pair": [
        ({"references": REFERENCES}, ValueError, "reference_labels"),
        ({"reference_labels": REFERENCE_LABELS}, ValueError, "reference_labels, .*references"),
        (REFS | {"references": REFERENCES[:, :-1]}, ValueError, "references"),
        (REFS | {"references": REFERENCES[0]}, ValueError, "references"),
        (REFS | {"reference_labels": REFERENCE_LABELS[1:]}, ValueError, "reference_labels"),
        (REFS | {"reference_labels": REFERENCE_LABELS * 1.5}, TypeError, "reference_labels"),
        (REFS | {"reference_where": np.ones(R + 2, bool)}, ValueError, "reference_where"),
        ({"ids": Y * 1.5}, TypeError, "ids"),
        ({"ids": Y[1:]}, ValueError, "ids"),
        ({"ids": Y.astype(np.int64) + 2**40}, ValueError, r"ids\[0\] is"),
        ({"reference_ids": Y}, ValueError, "reference_.*references"),
        (REFS | {"ids": Y}, ValueError, "reference_ids"),
        (REFS | {"reference_ids": REFERENCE_LABELS}, ValueError, "ids"),
        (REFS | {"ids": Y, "reference_ids": Y}, ValueError, "reference_ids"),
        ({"labels": None}, ValueError, "labels"),
        ({"positive": MASK}, ValueError, "positive"),
        ({"labels": None, "positive": MASK[1:]}, ValueError, "positive"),
        ({"labels": None, "positive": MASK.astype(np.int32)}, TypeError, "positive"),
        ({"mine": "easy"}, TypeError, "mine"),
        ({"mine": mining.random_positive()}, ValueError, "key"),
    ],
    "proxy": [
        ({"proxies": PROXIES[0]}, ValueError, "proxies"),
        ({"proxies": PROXIES[None, None], "labels": 0 * Y}, ValueError, "proxies"),
        ({"proxies": PROXIES[:, :-1]}, ValueError, "proxies"),
        ({"proxies": jnp.ones((C, D), jnp.int32)}, TypeError, "proxies"),
        # Labels 1…C in place of 0…C−1: the last class would silently train nothing.
        ({"labels": Y + 1}, ValueError, r"labels\[1\] is 2"),
        ({"labels": (Y + 1).astype(np.uint8)}, ValueError, r"labels\[1\] is 2"),
    ],
}


@pytest.mark.parametrize("name", REGISTRY)
def test_wrong_arrays_are_refused(name: str) -> None:
    assert_refused(name, [*COMMON, *OF_KIND[REGISTRY[name].kind]])
    if REGISTRY[name].shape == "BR":
        assert jnp.isfinite(call(name, weights=np.ones((B, B), np.float32)))
    else:
        assert_refused(name, [({"weights": np.ones((B, B), np.float32)}, ValueError, "weights")])


@pytest.mark.parametrize("name", REGISTRY)
def test_hyper_parameters_that_are_not_finite_are_refused(name: str) -> None:
    for argument in case(name).sweep:
        values = ((float("nan"), ValueError), (float("inf"), ValueError), ("0.1", TypeError))
        assert_refused(name, [({argument: v}, error, argument) for v, error in values])


OUT_OF_RANGE: dict[str, dict[str, Any]] = {
    "triplet_loss": {"margin": -0.1, "anchor_block": 0},
    "margin_loss": {"alpha": -0.1, "beta": np.ones((2, 2), np.float32), "sample_beta": X[:3, 0]},
    "multi_similarity_loss": {"alpha": 0.0, "beta": -1.0},
    "circle_loss": {"gamma": 0.0},
    "fast_ap_loss": {"num_bins": 0},
    "recall_at_k_loss": {"k": (1, 0)},
    "proxy_nca_loss": {"scale": 0.0},
    "proxy_nca_pp_loss": {"temperature": 0.0},
    "proxy_nca_margin_loss": {"alpha": -32.0},
    "proxy_anchor_loss": {"alpha": 0.0, "class_block": 0},
    "soft_triple_loss": {"scale": -20.0, "gamma": 0.0, "tau": -0.2},
    "normalized_softmax_loss": {"temperature": -0.05},
    "cosface_loss": {"scale": 0.0},
    "arcface_loss": {"scale": -64.0, "margin": 28.6},  # an angle in radians, not in degrees
    "subcenter_arcface_loss": {"margin": np.array([30.0] * C)},
    "potential_field_loss": {"alpha": 0, "delta": -0.1, "tile": 0, "repulsion_delta": 0.0},
    "contrastive_potential_loss": {"repulsion": "soft"},
}
OF_ANOTHER_TYPE: dict[str, dict[str, Any]] = {
    "triplet_loss": {"squared": 1, "margin": jnp.array(True), "anchor_block": 2.0},
    "recall_at_k_loss": {"k": 1.5},
    "proxy_anchor_loss": {"class_block": 2.0},
    "potential_field_loss": {"tile": "auto"},
}


@pytest.mark.parametrize("error", [ValueError, TypeError])
def test_wrong_settings_are_refused(error: type[Exception]) -> None:
    for name, changes in (OUT_OF_RANGE if error is ValueError else OF_ANOTHER_TYPE).items():
        assert_refused(
            name, [({argument: value}, error, argument) for argument, value in changes.items()]
        )
    if error is ValueError:
        assert_refused("triplet_loss", [({"anchor_block": "all"}, error, "anchor_block")])
        assert_refused("proxy_anchor_loss", [({"class_block": "all"}, error, "class_block")])
        assert_refused("subcenter_arcface_loss", [({"margin": np.ones(3)}, error, "margin")])


@pytest.mark.parametrize("traced", [jax.jit, jax.grad])
def test_refusals_while_tracing(traced: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"^labels\b"):
        traced(jdml.triplet_loss)(X, Y[:-1])
    if traced is jax.grad:
        with pytest.raises(ValueError, match=r"^labels\[1\] is 2"):
            jax.grad(jdml.proxy_anchor_loss)(X, Y + 1, PROXIES)
    with pytest.raises(TypeError, match="margni"):
        traced(jdml.triplet_loss)(X, Y, margni=0.1)


WORDS = np.array(["a", "b"] * 3)
NO_NUMBERS: list[dict[str, Any]] = [
    {"labels": Y.astype(object)},
    {"labels": np.array(["a", None] * 3, object)},
    {"labels": WORDS.astype(object)},
    {"labels": WORDS},
    {"labels": np.array(["2020-01-01"] * 6, "M8[D]")},
    {"labels": np.ma.masked_less(Y, 1)},
    {"embeddings": np.asarray(X).astype(object)},
    {"embeddings": np.asarray(X).astype(str)},
    {"proxies": np.asarray(PROXIES).astype(object)},
    {"proxies": np.ma.masked_less(np.asarray(PROXIES), 0)},
    {"where": np.array([True] * 6, object)},
    {"weights": array_of("pandas", "Series", Y)},
]


def test_arrays_of_objects_are_refused() -> None:
    assert_refused("arcface_loss", [(changes, TypeError, *changes) for changes in NO_NUMBERS])
    words = {"references": X, "reference_labels": WORDS}
    assert_refused("contrastive_loss", [(words, TypeError, "reference_labels")])


def refusal(compute: Callable[..., Any], *arrays: Any) -> str:
    """Return the error's message."""
    with pytest.raises(TypeError) as caught:
        compute(*arrays)
    return str(caught.value)


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_of_other_libraries_are_refused(library: str) -> None:
    kind = LIBRARIES[library]
    towers = jdml.both_ways(jdml.info_nce_loss)
    computes: list[tuple[Callable[..., Any], str]] = [
        (jdml.contrastive_loss, "embeddings"),
        (lambda x, y: jdml.arcface_loss(x, y, PROXIES), "embeddings"),
        (lambda x, y: towers(x, X, labels=y), "queries"),
    ]
    for compute, name in computes:
        of_labels = refusal(compute, X, array_of(library, kind, Y))
        of_rows = refusal(compute, array_of(library, kind, np.asarray(X)), Y)
        for message, argument in ((of_labels, "labels"), (of_rows, name)):
            assert message.startswith(argument)
            assert kind in message


@pytest.mark.parametrize(
    ("labels", "written"),
    [
        (Y.astype(object), "labels.astype(int)"),
        (WORDS, "numpy.unique(labels, return_inverse=True)[1]"),
        (WORDS.astype(object), "numpy.unique(labels.astype(str), return_inverse=True)[1]"),
    ],
)
def test_labels_that_are_not_integers_are_refused_with_the_conversion(
    labels: Any, written: str
) -> None:
    assert refusal(jdml.contrastive_loss, X, labels).endswith(written)
    numbers = eval(written, {"numpy": np, "labels": labels})
    assert jdml.contrastive_loss(X, numbers) == jdml.contrastive_loss(X, Y)


def test_labels_beyond_int32_are_refused() -> None:
    """They would wrap around to other classes or to negative labels."""
    wide = np.array([0, 2**32, 1, 1, 0, 0])
    assert_refused(
        "contrastive_loss", [({"labels": wide}, ValueError, r"labels\[1\] is 4294967296")]
    )
    large, first = jnp.asarray(Y + 2**31, jnp.uint32), r"labels\[0\] is 2147483648"
    for name in ("contrastive_loss", "arcface_loss"):
        assert_refused(name, [({"labels": large}, ValueError, first)])
    with pytest.raises(ValueError, match=first):  # of either side
        jdml.both_ways(jdml.info_nce_loss)(X, X, labels=large)


Q, N = np.asarray(X, np.float64), RNG.normal(size=(B, D))
LATENTS, LOG_DETS = jnp.asarray(N), jnp.zeros(B)
nce, both, nested = jdml.info_nce_loss, jdml.both_ways(jdml.info_nce_loss), jdml.matryoshka
triplet, margin, nir = jdml.triplet_loss, jdml.margin_loss, partial(jdml.nir_loss, LATENTS)
CALLS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: margin(X, Y + 1, beta=np.ones(2, np.float32)), ValueError, r"labels\[1\] is 2"),
    (lambda: margin(X, Y + 1, beta=jnp.ones(2)), ValueError, r"labels\[1\] is 2"),
    (lambda: triplet(X, Y, mine=lambda _, d, pairs: tuple(pairs)), TypeError, "mine"),
    (lambda: triplet(X, Y, mine=mining.easy_positive), TypeError, "mine"),
    (lambda: nce(Q), ValueError, "labels"),
    (lambda: nce(Q, references=N[:3]), ValueError, "references"),
    (lambda: nce(Q, references=N, reference_labels=Y), ValueError, "reference_labels"),
    (lambda: both(Q, N[:3]), ValueError, "documents"),
    (lambda: both(Q, N, weights=[[1.0] * B] * B), TypeError, "weights"),
    (lambda: jdml.both_ways("triplet"), TypeError, "loss_fn"),
    (lambda: nested(None, (2,)), TypeError, "loss_fn"),
    (lambda: nested(triplet, (2, 8))(Q, Y), ValueError, "dims"),
    (lambda: nested(triplet, ()), ValueError, "dims"),
    (lambda: nested(triplet, 4), TypeError, "dims"),
    (lambda: nested(triplet, (2, 3), weights=(1.0,)), ValueError, "weights"),
    (lambda: nested(triplet, (2, 3), weights=(1.0, np.nan)), ValueError, r"weights\[1\] must"),
    (lambda: nested(triplet, (2, 3), weights=(1.0, -1.0)), ValueError, r"weights\[1\] must"),
    (lambda: nested(triplet, (2, 3), weights=(1.0, "a")), TypeError, r"weights\[1\] must"),
    (lambda: nir(LOG_DETS, shape="square"), ValueError, "shape"),
    (lambda: nir(LOG_DETS, temperature=0), ValueError, "temperature"),
    (lambda: nir(LOG_DETS, norm_weight=0), ValueError, "norm_weight"),
    (lambda: nir([0.0] * B), TypeError, "log_dets"),
    (lambda: nir(jnp.zeros(3)), ValueError, "log_dets"),
    (lambda: nir(LOG_DETS, where=jnp.ones(3, bool)), ValueError, "where"),
    (lambda: nir(LOG_DETS, of_mean=True, reduce_fn=None), ValueError, "of_mean"),
    (lambda: jdml.sphere(jnp.array([[3, 4]])), TypeError, "vectors"),
]


@pytest.mark.parametrize(("compute", "error", "argument"), CALLS)
def test_wrong_calls_are_refused(
    compute: Callable[[], Any], error: type[Exception], argument: str
) -> None:
    with pytest.raises(error, match=rf"^{argument}\b"):
        compute()


# Values inside a compiled program are checked under `jdml.checked` only.

MANY = jnp.asarray(RNG.normal(size=(4, 3, D)), jnp.float32)
OWN = jnp.zeros(B)
CHECKED: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (jdml.arcface_loss, (X, np.where(np.arange(B) == 4, C, Y), PROXIES), {}, r"labels\[4\] is 2"),
    (jdml.multi_similarity_loss, (X.at[2, 0].set(jnp.inf), Y), {}, r"embeddings\[2\]"),
    (jdml.cosface_loss, (X.at[3, 1].set(jnp.nan), Y, PROXIES), {}, r"embeddings\[3\]"),
    (jdml.proxy_anchor_loss, (X, Y, PROXIES), {"alpha": jnp.float32(-1.0)}, "alpha"),
    (jdml.potential_field_loss, (X, Y, MANY.at[1, 1, 0].set(jnp.nan)), {}, r"proxies\[1\]"),
    (jdml.potential_field_loss, (X, jnp.asarray(Y).at[3].set(4), MANY), {}, r"labels\[3\] is 4"),
    (jdml.potential_field_loss, (X, jnp.asarray(Y).at[3].set(-1)), {}, r"labels\[3\] is -1"),
    (jdml.margin_loss, (X, Y), {"sample_beta": OWN.at[0].set(jnp.nan)}, r"sample_beta\[0\]"),
    (jdml.nir_loss, (LATENTS.at[3, 0].set(jnp.nan), LOG_DETS), {}, r"latents\[3\]"),
]


@pytest.mark.parametrize(("compute", "arrays", "settings", "named"), CHECKED)
def test_checked_refuses_wrong_values(
    compute: Callable[..., Any], arrays: tuple[Any, ...], settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"^{named}"):
        jdml.checked(compute)(*arrays, **settings)


def test_checked_accepts_masked_and_valid_values() -> None:
    hidden = jnp.arange(B) != 3
    checked = jdml.checked(jdml.margin_loss)
    expected = jdml.margin_loss(X, Y, where=hidden)
    spoiled = X.at[3].set(jnp.nan)
    value = checked(spoiled, Y, where=hidden, sample_beta=None)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    checked(X, Y, where=hidden, sample_beta=OWN.at[3].set(jnp.nan))
    no_class = jnp.asarray(Y).at[3].set(-1)
    jdml.checked(jdml.potential_field_loss)(X, no_class, where=hidden)
    value = jdml.checked(jdml.proxy_anchor_loss)(X, Y, PROXIES, alpha=jnp.float32(16.0))
    expected = jdml.proxy_anchor_loss(X, Y, PROXIES, alpha=16.0)
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_unknown_keyword_names_the_loss_and_the_nearest_keyword():
    with pytest.raises(TypeError, match=r"^triplet_loss\b.*'mining'.*\bmine\b"):
        call("triplet_loss", mining=None)
    with pytest.raises(TypeError, match=r"^proxy_anchor_loss\b.*'weight'.*\bweights\b"):
        call("proxy_anchor_loss", weight=None)


def test_word_in_place_of_a_miner_lists_the_miners():
    with pytest.raises(TypeError, match=r"^mine\b.*hard_negative\(\).*'hard'"):
        call("triplet_loss", mine="hard")
