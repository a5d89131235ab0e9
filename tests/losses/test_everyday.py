"""Two towers, both directions, nested prefixes, margins per class: what the registry's one signature does not tell."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from jdml.ops import ranks
from oracles import everyday_losses

pytestmark = pytest.mark.slow

B, D, C = 6, 5, 4
RNG = np.random.default_rng(11)
Q, N = RNG.normal(size=(B, D)), RNG.normal(size=(B, D))
Y = np.array([0, 1, 1, 2, 3, 0])
PAIRS = np.eye(B, dtype=bool)
TOWERS = {
    "info_nce_loss": (everyday_losses.info_nce, {"temperature": 0.2}),
    "sigmoid_contrastive_loss": (everyday_losses.sigmoid_contrastive, {"scale": 5.0, "bias": -2.0}),
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


def test_towers_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match="labels is missing"):
        jdml.info_nce_loss(Q)
    with pytest.raises(ValueError, match="references must have a row for each of the 6"):
        jdml.info_nce_loss(Q, references=N[:3])
    with pytest.raises(ValueError, match="reference_labels need labels"):
        jdml.info_nce_loss(Q, references=N, reference_labels=Y)
    with pytest.raises(ValueError, match="documents must have a row for each of the 6 queries"):
        jdml.both_ways(jdml.info_nce_loss)(Q, N[:3])


def test_ids_leave_out_copies_of_a_partner_and_not_the_partner() -> None:
    """Two queries of one document: neither is the other's negative."""
    ids = np.array([0, 1, 0, 3, 4, 5])
    value = jdml.info_nce_loss(Q, references=N, ids=ids, reference_ids=ids)
    rows = jnp.stack(
        [
            jdml.info_nce_loss(
                Q[i : i + 1],
                references=N[[i, *(j for j in range(6) if ids[j] != ids[i])]],
            )
            for i in range(6)
        ]
    )
    np.testing.assert_allclose(value, rows.mean(), rtol=1e-5)


@pytest.mark.parametrize("name", [*TOWERS, "triplet_loss"])
def test_both_ways(name: str) -> None:
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


def test_matryoshka_cuts_embeddings_proxies_and_references() -> None:
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


def test_what_belongs_to_pairs_is_turned_on_the_way_back() -> None:
    """Weights of pairs, and a miner that is told by other embeddings."""
    rng = np.random.default_rng(5)
    weights = jnp.asarray(rng.uniform(size=(len(Q), len(N))), jnp.float32)
    labels, loss = jnp.arange(len(Q)) // 2, jdml.contrastive_loss
    both = jdml.both_ways(loss)(Q, N, labels=labels, weights=weights)
    ways = (Q, N, weights), (N, Q, weights.T)
    each = [loss(x, labels, references=y, reference_labels=labels, weights=w) for x, y, w in ways]
    np.testing.assert_allclose(both, sum(each) / 2, rtol=1e-6)
    told = (jnp.asarray(rng.normal(size=(len(Q), 5)), jnp.float32) for _ in range(2))
    first, second = told
    trusted = jdml.mining.trusted_negative
    there, back = (
        trusted(embeddings=x, references=y) for x, y in ((first, second), (second, first))
    )
    loss = jdml.info_nce_loss
    both = jdml.both_ways(loss)(Q, N, mine=there)
    each = [loss(Q, references=N, mine=there), loss(N, references=Q, mine=back)]
    np.testing.assert_allclose(both, sum(each) / 2, rtol=1e-6)
    assert each[1] != loss(N, references=Q, mine=there)


def test_what_belongs_to_pairs_is_an_array() -> None:
    with pytest.raises(TypeError, match="weights must be a real array"):
        jdml.both_ways(jdml.info_nce_loss)(Q, N, weights=[[1.0] * len(N)] * len(Q))


def test_towers_by_their_places_in_whatever_wraps_the_loss() -> None:
    ids = jnp.arange(len(Q))
    dims = (Q.shape[1],)
    inside = jdml.both_ways(jdml.matryoshka(jdml.info_nce_loss, dims))
    outside = jdml.matryoshka(jdml.both_ways(jdml.info_nce_loss), dims)
    told = {"ids": ids, "reference_ids": ids}
    np.testing.assert_allclose(inside(Q, N, **told), outside(Q, N, **told), rtol=1e-6)


def test_what_matryoshka_and_both_ways_refuse() -> None:
    with pytest.raises(ValueError, match="dims must be at most the embeddings' dimension, 5"):
        jdml.matryoshka(jdml.triplet_loss, (2, 8))(Q, Y)
    with pytest.raises(ValueError, match="weights must have one entry per dimension, 2, got 1"):
        jdml.matryoshka(jdml.triplet_loss, (2, 4), weights=(1.0,))
    for wrong, error in ((np.nan, ValueError), (-1.0, ValueError), ("a", TypeError)):
        with pytest.raises(error, match=r"weights\[1\] must be"):
            jdml.matryoshka(jdml.triplet_loss, (2, 4), weights=(1.0, wrong))
    with pytest.raises(ValueError, match="dims must hold at least one"):
        jdml.matryoshka(jdml.triplet_loss, ())
    with pytest.raises(TypeError, match=r"dims must be several widths such as \(64, 128\), got 4"):
        jdml.matryoshka(jdml.triplet_loss, 4)
    for wrap in (jdml.both_ways, lambda loss_fn: jdml.matryoshka(loss_fn, (2,))):
        with pytest.raises(TypeError, match="loss_fn must be"):
            wrap(None)
        with pytest.raises(TypeError, match="loss_fn must be a function or None, got 'triplet'"):
            wrap("triplet")


def test_decoupled_sup_con() -> None:
    for labels in (Y, np.zeros(B, int)):  # of one class there is nothing to compare with
        with jax.enable_x64(True):
            value = jdml.sup_con_loss(jnp.asarray(Q), labels, decoupled=True, temperature=0.3)
        expected = everyday_losses.sup_con(Q, labels, decoupled=True, temperature=0.3)
        np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_margins_per_class() -> None:
    margins = np.array([0.1, 0.2, 0.6, 0.9])
    proxies, labels = RNG.normal(size=(C, 3, D)), jnp.array([0, 1, 1, 2, 3, 9])
    with jax.enable_x64(True):
        value = jdml.subcenter_arcface_loss(
            jnp.asarray(Q), labels, jnp.asarray(proxies), margin=jnp.asarray(margins), scale=8.0
        )
        slopes = jax.grad(
            lambda m: jdml.subcenter_arcface_loss(Q, labels, proxies, margin=m, scale=8.0)
        )(jnp.asarray(margins))
    expected = everyday_losses.subcenter_arcface(
        Q, np.asarray(labels), proxies, margin=margins, scale=8.0
    )
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    assert (np.asarray(slopes)[:3] > 0).all()
    with pytest.raises(ValueError, match=r"margin must be a scalar or have shape \[C\] = \[4\]"):
        jdml.subcenter_arcface_loss(Q, labels, proxies, margin=margins[:2])
    with pytest.raises(ValueError, match="margin must be an angle"):
        jdml.subcenter_arcface_loss(Q, labels, proxies, margin=np.array([30.0] * C))


def test_learned_temperature_and_bias() -> None:
    """Gradients by what CLIP and SigLIP learn, beside finite differences."""
    with jax.enable_x64(True):

        def nce(t):
            return jdml.info_nce_loss(jnp.asarray(Q), references=jnp.asarray(N), temperature=t)

        def sigmoid(t, b):
            return jdml.sigmoid_contrastive_loss(jnp.asarray(Q), Y, scale=t, bias=b)

        for function, at in ((nce, (0.4,)), (sigmoid, (3.0, -1.0))):
            slopes = jax.grad(function, tuple(range(len(at))))(*at)
            for turn, slope in enumerate(slopes):
                ends = [
                    function(*(a + s * 1e-6 * (i == turn) for i, a in enumerate(at)))
                    for s in (1, -1)
                ]
                np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-5)


def test_soft_ranks_have_slopes_by_values_and_temperature() -> None:
    labels = np.arange(B) % 2
    with jax.enable_x64(True):

        def value(x, t):
            return jdml.smooth_ap_loss(x, labels, temperature=t)

        by_temperature = jax.grad(value, 1)(jnp.asarray(Q), 0.3)
        ends = [value(jnp.asarray(Q), 0.3 + s * 1e-6) for s in (1, -1)]
        np.testing.assert_allclose(by_temperature, (ends[0] - ends[1]) / 2e-6, rtol=1e-5)


def test_couples_are_counted_alike_by_search_and_by_place() -> None:
    """Ties, entries that are neither, rows without one kind."""
    rng = np.random.default_rng(1)
    values = jnp.asarray(rng.integers(0, 9, (5, 20)), jnp.int32)
    kinds = jnp.asarray(rng.integers(0, 3, (5, 20)))
    positive, negative = kinds == 0, kinds == 1
    positive = positive.at[3].set(False)
    bounds = values + 2
    active = (bounds[:, :, None] > values[:, None, :]) & positive[:, :, None] & negative[:, None, :]
    listed = active.sum(2) + active.sum(1)
    for counted in (ranks._counted_by_search, ranks._counted_by_place):
        np.testing.assert_array_equal(counted(bounds, values, positive, negative), listed)


def test_all_bins_at_once_on_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same histograms; one row more, which is not valid, has the program made anew."""
    slope = jax.grad(jdml.fast_ap_loss)
    expected = slope(jnp.asarray(Q), Y)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    more, labels = np.concatenate([Q, Q[:1]]), np.append(Y, -1)
    np.testing.assert_allclose(slope(jnp.asarray(more), labels)[:-1], expected, atol=1e-6)


def test_recall_takes_one_rank_or_several() -> None:
    one = [jdml.recall_at_k_loss(Q, Y, k=k) for k in (1, 2)]
    np.testing.assert_allclose(jdml.recall_at_k_loss(Q, Y, k=(1, 2)), np.mean(one), rtol=1e-6)
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        jdml.recall_at_k_loss(Q, Y, k=(1, 0))
    with pytest.raises(TypeError, match="k must be a Python integer >= 1"):
        jdml.recall_at_k_loss(Q, Y, k=1.5)


@pytest.mark.parametrize("name", ["smooth_ap_loss", "recall_at_k_loss"])
def test_ranking_losses_are_not_cubic_in_memory(name: str) -> None:
    """B = 4,096 in well under 1 GiB, with classes of any size."""
    x = jax.ShapeDtypeStruct((4096, 64), jnp.float32)
    y = jax.ShapeDtypeStruct((4096,), jnp.int32)
    step = jax.jit(jax.value_and_grad(getattr(jdml, name))).lower(x, y).compile()
    assert step.memory_analysis().temp_size_in_bytes < 128 * 2**20


def test_nca_is_content_with_one_near_positive() -> None:
    """Two modes of a class: SupCon pulls them together, NCA lets them be."""
    angles = np.array([0.0, 0.05, 2.0, 2.05, 4.0, 4.05])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels = np.array([0, 0, 0, 0, 1, 1])
    pulls = [
        np.abs(jax.grad(loss)(jnp.asarray(x, jnp.float32), labels)).max()
        for loss in (
            lambda x, y: jdml.nca_loss(x, y, scale=20.0),
            lambda x, y: jdml.sup_con_loss(x, y, temperature=1 / 40),
        )
    ]
    assert pulls[0] < 0.01 * pulls[1]


def test_permuted_towers() -> None:
    for order in itertools.islice(itertools.permutations(range(B)), 0, 700, 233):
        some = list(order)
        np.testing.assert_allclose(
            jdml.both_ways(jdml.info_nce_loss)(Q[some], N[some]),
            jdml.both_ways(jdml.info_nce_loss)(Q, N),
            rtol=1e-5,
        )


def test_variables_of_flax_nnx_are_arrays() -> None:
    """Whatever has ``__jax_array__``; its gradient is that of what it holds."""
    nnx = pytest.importorskip("flax.nnx")
    proxies = jnp.asarray(RNG.normal(size=(C, D)), jnp.float32)
    x, y = jnp.asarray(Q, jnp.float32), jnp.asarray(Y)
    expected = jax.value_and_grad(jdml.proxy_anchor_loss, 2)(x, y, proxies)
    value, grads = jax.value_and_grad(jdml.proxy_anchor_loss, 2)(x, y, nnx.Param(proxies))
    chex.assert_trees_all_close((value, jax.tree.leaves(grads)[0]), expected, rtol=1e-6)
    chex.assert_trees_all_close(
        jdml.info_nce_loss(nnx.Param(x), y), jdml.info_nce_loss(x, y), rtol=1e-6
    )
