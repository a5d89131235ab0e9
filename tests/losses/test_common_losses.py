"""Two towers, both directions, nested prefixes, margins per class: signatures that the registry does not cover."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from oracles import common_losses

B, D, C = 6, 5, 4
RNG = np.random.default_rng(11)
Q, N = RNG.normal(size=(B, D)), RNG.normal(size=(B, D))
Y = np.array([0, 1, 1, 2, 3, 0])
PAIRS = np.eye(B, dtype=bool)
TOWERS = {
    "info_nce_loss": (common_losses.info_nce, {"temperature": 0.2}),
    "sigmoid_contrastive_loss": (common_losses.sigmoid_contrastive, {"scale": 5.0, "bias": -2.0}),
}


@pytest.mark.parametrize("name", TOWERS)
def test_without_labels_row_i_belongs_to_reference_i(name: str) -> None:
    oracle, settings = TOWERS[name]
    with jax.enable_x64(True):
        for references, where in ((N, None), (np.concatenate([N, Q + 1.0]), np.arange(B) != 2)):
            positive = np.eye(B, len(references), dtype=bool)
            value = getattr(jdml, name)(
                jnp.asarray(Q),
                references=jnp.asarray(references),
                where=where,
                anchor_block=4,
                **settings,
            )
            expected = oracle(
                Q, None, references=references, positive=positive, where=where, **settings
            )
            np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_ids_mask_copies_of_a_partner_but_not_the_partner() -> None:
    """Two queries of one document are not negatives of each other."""
    ids = np.array([0, 1, 0, 3, 4, 5])
    value = jdml.info_nce_loss(Q, references=N, ids=ids, reference_ids=ids)
    rows = jnp.stack(
        [
            jdml.info_nce_loss(
                Q[i : i + 1], references=N[[i, *(j for j in range(6) if ids[j] != ids[i])]]
            )
            for i in range(6)
        ]
    )
    np.testing.assert_allclose(value, rows.mean(), rtol=1e-5)


@pytest.mark.parametrize("name", [*TOWERS, "triplet_loss"])
def test_both_ways_averages_the_two_directions(name: str) -> None:
    loss = getattr(jdml, name)
    there = loss(Q, references=N, positive=PAIRS)
    back = loss(N, references=Q, positive=PAIRS)
    both = jdml.both_ways(loss)
    np.testing.assert_allclose(both(Q, N), (there + back) / 2, rtol=1e-5)
    np.testing.assert_allclose(both(Q, N, positive=PAIRS), (there + back) / 2, rtol=1e-5)
    kept = np.arange(B) < 4
    np.testing.assert_allclose(both(Q, N, where=kept), both(Q[:4], N[:4]), rtol=1e-5)
    labelled = both(Q, N, labels=Y)
    there = loss(Q, Y, references=N, reference_labels=Y)
    np.testing.assert_allclose(
        labelled, (there + loss(N, Y, references=Q, reference_labels=Y)) / 2, rtol=1e-5
    )


def test_matryoshka_truncates_embeddings_proxies_and_references() -> None:
    dims, weights = (2, D), (0.5, 2.0)
    proxies = RNG.normal(size=(C, 2, D))

    def summed(value):
        return sum(w * value(d) for w, d in zip(weights, dims, strict=True))

    nested = jdml.matryoshka(jdml.soft_triple_loss, dims, weights)
    expected = summed(lambda d: jdml.soft_triple_loss(Q[:, :d], Y, proxies[..., :d], tau=0.1))
    np.testing.assert_allclose(nested(Q, Y, proxies, tau=0.1), expected, rtol=1e-6)
    nested = jdml.matryoshka(jdml.info_nce_loss, dims, weights)
    expected = summed(lambda d: jdml.info_nce_loss(Q[:, :d], references=N[:, :d]))
    np.testing.assert_allclose(nested(Q, references=N), expected, rtol=1e-6)
    nested = jdml.matryoshka(jdml.both_ways(jdml.info_nce_loss), dims, weights)
    both = jdml.both_ways(jdml.info_nce_loss)
    expected = summed(lambda d: both(Q[:, :d], N[:, :d], temperature=0.5))
    np.testing.assert_allclose(nested(Q, N, temperature=0.5), expected, rtol=1e-6)
    nested_own = jdml.matryoshka(lambda x, **others: x.sum() + others["references"].sum(), dims)
    expected = sum(Q[:, :d].sum() + N[:, :d].sum() for d in dims)
    np.testing.assert_allclose(nested_own(Q, references=N), expected, rtol=1e-6)
    by_entry = jax.grad(lambda q: nested(q, N))(jnp.asarray(Q, jnp.float32))
    chex.assert_tree_all_finite(by_entry)


def test_both_ways_transposes_weights_and_miner_arrays() -> None:
    """Weights of pairs, and a miner with other embeddings."""
    rng = np.random.default_rng(5)
    weights = jnp.asarray(rng.uniform(size=(len(Q), len(N))), jnp.float32)
    labels, loss = jnp.arange(len(Q)) // 2, jdml.contrastive_loss
    both = jdml.both_ways(loss)(Q, N, labels=labels, weights=weights)
    ways = (Q, N, weights), (N, Q, weights.T)
    each = [loss(x, labels, references=y, reference_labels=labels, weights=w) for x, y, w in ways]
    np.testing.assert_allclose(both, sum(each) / 2, rtol=1e-6)
    first, second = (jnp.asarray(rng.normal(size=(len(Q), 5)), jnp.float32) for _ in range(2))
    trusted = jdml.mining.trusted_negative
    there, back = (
        trusted(embeddings=x, references=y) for x, y in ((first, second), (second, first))
    )
    loss = jdml.info_nce_loss
    both = jdml.both_ways(loss)(Q, N, mine=there)
    each = [loss(Q, references=N, mine=there), loss(N, references=Q, mine=back)]
    np.testing.assert_allclose(both, sum(each) / 2, rtol=1e-6)
    assert each[1] != loss(N, references=Q, mine=there)


def test_both_ways_and_matryoshka_commute() -> None:
    ids = jnp.arange(len(Q))
    dims = (Q.shape[1],)
    inside = jdml.both_ways(jdml.matryoshka(jdml.info_nce_loss, dims))
    outside = jdml.matryoshka(jdml.both_ways(jdml.info_nce_loss), dims)
    settings = {"ids": ids, "reference_ids": ids}
    np.testing.assert_allclose(inside(Q, N, **settings), outside(Q, N, **settings), rtol=1e-6)


def test_decoupled_sup_con_equals_oracle() -> None:
    for labels in (Y, np.zeros(B, int)):  # one class has no negatives
        with jax.enable_x64(True):
            value = jdml.sup_con_loss(jnp.asarray(Q), labels, decoupled=True, temperature=0.3)
        expected = common_losses.decoupled_sup_con(Q, labels, temperature=0.3)
        np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_subcenter_arcface_with_margins_per_class() -> None:
    margins = np.array([0.1, 0.2, 0.6, 0.9])
    proxies, labels = RNG.normal(size=(C, 3, D)), jnp.array([0, 1, 1, 2, 3, 9])
    with jax.enable_x64(True):
        value = jdml.subcenter_arcface_loss(
            jnp.asarray(Q), labels, jnp.asarray(proxies), margin=jnp.asarray(margins), scale=8.0
        )
        slopes = jax.grad(
            lambda m: jdml.subcenter_arcface_loss(Q, labels, proxies, margin=m, scale=8.0)
        )(jnp.asarray(margins))
    expected = common_losses.subcenter_arcface(
        Q, np.asarray(labels), proxies, margin=margins, scale=8.0
    )
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    assert (np.asarray(slopes)[:3] > 0).all()


def smooth_ap(x: jax.Array, t: jax.Array) -> jax.Array:
    return jdml.smooth_ap_loss(x, np.arange(B) % 2, temperature=t)


LEARNED = {
    "info_nce": (lambda x, t: jdml.info_nce_loss(x, references=N, temperature=t), (0.4,)),
    "sigmoid": (lambda x, t, b: jdml.sigmoid_contrastive_loss(x, Y, scale=t, bias=b), (3.0, -1.0)),
    "smooth_ap": (smooth_ap, (0.3,)),
}


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_temperature_and_bias(name: str) -> None:
    """The parameters that CLIP and SigLIP learn: gradients equal finite differences."""
    function, at = LEARNED[name]
    with jax.enable_x64(True):
        value = jax.jit(lambda at: function(jnp.asarray(Q), *at))
        slopes = jax.jit(jax.grad(lambda at: function(jnp.asarray(Q), *at)))(at)
        for turn, slope in enumerate(slopes):
            ends = [
                value(tuple(a + s * 1e-6 * (i == turn) for i, a in enumerate(at))) for s in (1, -1)
            ]
            np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-5)


def test_fast_ap_bins_at_once_on_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same histograms; an additional row that is not valid forces a new trace."""
    slope = jax.grad(jdml.fast_ap_loss)
    expected = slope(jnp.asarray(Q), Y)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    more, labels = np.concatenate([Q, Q[:1]]), np.append(Y, -1)
    np.testing.assert_allclose(slope(jnp.asarray(more), labels)[:-1], expected, atol=1e-6)


def test_flax_nnx_variables_are_accepted_as_arrays() -> None:
    """Any object with ``__jax_array__``; its gradient is that of its array."""
    nnx = pytest.importorskip("flax.nnx")
    proxies = jnp.asarray(RNG.normal(size=(C, D)), jnp.float32)
    x, y = jnp.asarray(Q, jnp.float32), jnp.asarray(Y)
    expected = jax.value_and_grad(jdml.proxy_anchor_loss, 2)(x, y, proxies)
    value, grads = jax.value_and_grad(jdml.proxy_anchor_loss, 2)(x, y, nnx.Param(proxies))
    chex.assert_trees_all_close((value, jax.tree.leaves(grads)[0]), expected, rtol=1e-6)
    chex.assert_trees_all_close(
        jdml.info_nce_loss(nnx.Param(x), y), jdml.info_nce_loss(x, y), rtol=1e-6
    )
