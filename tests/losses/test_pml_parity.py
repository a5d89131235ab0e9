"""Values and gradients equal pytorch-metric-learning 2.9.0's in float64, to 1e-8 and 1e-6."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdml
from oracles import mining as mining_oracles

pytestmark = pytest.mark.slow  # loads PyTorch

torch: Any
pml_distances: Any
pml_losses: Any


@pytest.fixture(scope="module", autouse=True)
def peers() -> None:
    """Import PyTorch and pytorch-metric-learning only when a test runs, so that collection takes little memory."""
    global torch, pml_distances, pml_losses
    reason = "parity needs the extra `parity`: torch and pytorch-metric-learning"
    torch = pytest.importorskip("torch", reason=reason)
    pml = pytest.importorskip("pytorch_metric_learning", reason=reason)
    if not pml.__version__.startswith("2.9."):
        pytest.skip("parity is stated for pytorch-metric-learning 2.9")
    pml_losses = importlib.import_module("pytorch_metric_learning.losses")
    pml_distances = importlib.import_module("pytorch_metric_learning.distances")


RNG = np.random.default_rng(3)
B, D, C, K = 14, 6, 5, 3
X = RNG.normal(size=(B, D))
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 0, 3, 3, 2, 1, 4])  # class 4 has one sample
PROXIES = RNG.normal(size=(C, D))
REFERENCES = RNG.normal(size=(9, D))
REFERENCE_LABELS = RNG.integers(0, 6, size=9)


def theirs(function: Any, arrays: list[np.ndarray], call: Callable[..., Any]) -> Any:
    """Return value and gradients by torch's autograd."""
    tensors = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    value = call(function, *tensors)
    value.backward()
    return value.item(), [t.grad.numpy() for t in tensors]


def ours(function: Callable[..., jax.Array], arrays: list[np.ndarray]) -> Any:
    """Return value and gradients by JAX."""
    with jax.enable_x64(True):
        points = [jnp.asarray(a) for a in arrays]
        value, grads = jax.jit(jax.value_and_grad(lambda a: function(*a)))(points)
        return float(value), [np.asarray(g) for g in grads]


def assert_parity(mine: Any, other: Any) -> None:
    """Compare values to 1e-8 and gradients to 1e-6, relative to their size."""
    assert mine[0] == pytest.approx(other[0], rel=1e-8, abs=1e-8)
    for a, b in zip(mine[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(b).max()))


# A loss, its settings, PML's loss, its settings.
MARGINS = {"positive_margin": 0.2, "negative_margin": 1.1}
THEIR_MARGINS = {"pos_margin": 0.2, "neg_margin": 1.1}
FAR = {"positive_margin": 0.4, "negative_margin": 2.1}
THEIR_FAR = {"pos_margin": 0.4, "neg_margin": 2.1}
MS = {"alpha": 2.0, "beta": 40.0, "base": 0.4}
CIRCLE, THEIR_CIRCLE = {"margin": 0.25, "gamma": 4.0}, {"m": 0.25, "gamma": 4}
Row = tuple[Callable[..., jax.Array], dict[str, Any], str, dict[str, Any]]
PAIRS: dict[str, Row] = {
    "contrastive": (jdml.contrastive_loss, MARGINS, "ContrastiveLoss", THEIR_MARGINS),
    "triplet": (jdml.triplet_loss, {"margin": 0.2}, "TripletMarginLoss", {"margin": 0.2}),
    "triplet, squared": (
        jdml.triplet_loss,
        {"margin": 0.2, "squared": True},
        "TripletMarginLoss",
        {"margin": 0.2, "distance": lambda: pml_distances.LpDistance(power=2)},
    ),
    "multi-similarity": (jdml.multi_similarity_loss, MS, "MultiSimilarityLoss", MS),
    "circle": (jdml.circle_loss, CIRCLE, "CircleLoss", THEIR_CIRCLE),
    "FastAP": (jdml.fast_ap_loss, {}, "FastAPLoss", {}),
    "lifted structure": (jdml.lifted_structure_loss, {}, "LiftedStructureLoss", {}),
    "SNR": (jdml.snr_contrastive_loss, FAR, "SignalToNoiseRatioContrastiveLoss", THEIR_FAR),
    "SupCon": (jdml.sup_con_loss, {"temperature": 0.2}, "SupConLoss", {"temperature": 0.2}),
    "NCA": (jdml.nca_loss, {"scale": 3.0}, "NCALoss", {"softmax_scale": 3}),
}
WITHOUT_REFERENCES = ("FastAP", "lifted structure")


@pytest.mark.parametrize("name", PAIRS)
def test_pair_loss(name: str) -> None:
    """Within the batch, and against references where PML takes some."""
    function, settings, peer, their_settings = PAIRS[name]

    def build() -> Any:
        made = {n: v() if callable(v) else v for n, v in their_settings.items()}
        return getattr(pml_losses, peer)(**made)

    mine = ours(lambda x: function(x, Y, **settings), [X])
    assert_parity(mine, theirs(build(), [X], lambda f, x: f(x, torch.tensor(Y))))
    if name in WITHOUT_REFERENCES:
        return

    def ours_with(x: jax.Array, r: jax.Array) -> jax.Array:
        return function(x, Y, references=r, reference_labels=REFERENCE_LABELS, **settings)

    def call(f: Any, x: Any, r: Any) -> Any:
        labels = {"labels": torch.tensor(Y), "ref_labels": torch.tensor(REFERENCE_LABELS)}
        return f(x, ref_emb=r, **labels)

    arrays = [X, REFERENCES]
    assert_parity(ours(ours_with, arrays), theirs(build(), arrays, call))


def test_margin_loss_of_one_mined_triplet_per_anchor() -> None:
    """The nearest positive and the nearest negative of every anchor, given to PML as a tuple.

    PML's margin loss sums over triplets, so it agrees where each pair stands in one triplet.
    """
    labels = Y.copy()
    labels[-1] = 0  # every anchor has a positive
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    distances = np.linalg.norm(unit[:, None] - unit[None], axis=-1)
    positive, negative = mining_oracles.all_pairs(labels)
    positive, negative = mining_oracles.easy_positive(distances, positive, negative)
    positive, negative = mining_oracles.hard_negative(distances, positive, negative)
    triplets = (np.arange(B), positive.argmax(axis=1), negative.argmax(axis=1))
    mine = jdml.mining.chain(jdml.mining.easy_positive(), jdml.mining.hard_negative())
    got = ours(lambda x: jdml.margin_loss(x, labels, mine=mine, beta=0.9, alpha=0.2), [X])

    def call(f: Any, x: Any) -> Any:
        return f(x, torch.tensor(labels), tuple(torch.tensor(t) for t in triplets))

    assert_parity(got, theirs(pml_losses.MarginLoss(margin=0.2, beta=0.9), [X], call))


def test_n_pair_loss_on_one_pair_per_class() -> None:
    """PML takes one pair of each class: anchors against the positives as references."""
    anchors = np.array([0, 1, 2, 9])
    positives = np.array([3, 4, 5, 10])
    order = np.concatenate([anchors, positives])
    labels = np.array([0, 1, 2, 3])

    def ours_pairs(x: jax.Array) -> jax.Array:
        return jdml.n_pair_loss(
            x[anchors], labels, references=x[positives], reference_labels=labels
        )

    def call(f: Any, x: Any) -> Any:
        return f(x[order], torch.tensor(np.concatenate([labels, labels])))

    loss = pml_losses.NPairsLoss(distance=pml_distances.CosineSimilarity())
    assert_parity(ours(ours_pairs, [X]), theirs(loss, [X], call))


def with_weights(loss: Any, attribute: str, weights: np.ndarray) -> Any:
    """Give a PML loss these weights."""
    setattr(loss, attribute, torch.nn.Parameter(torch.tensor(weights, dtype=torch.float64)))
    return loss


def sub_centres(x: jax.Array, y: Any, p: jax.Array, **settings: Any) -> jax.Array:
    return jdml.subcenter_arcface_loss(x, y, p.reshape(C + 2, -1, D), **settings)


ANCHOR, THEIR_ANCHOR = {"alpha": 16.0, "delta": 0.2}, {"alpha": 16, "margin": 0.2}
ANGLE, THEIR_ANGLE = {"margin": 0.5, "scale": 24.0}, {"margin": float(np.rad2deg(0.5)), "scale": 24}
WIDE, THEIR_WIDE = {"margin": 1.4, "scale": 8.0}, {"margin": float(np.rad2deg(1.4)), "scale": 8}
PROXY_LOSSES: dict[str, Row] = {
    "ProxyAnchor": (jdml.proxy_anchor_loss, ANCHOR, "ProxyAnchorLoss", THEIR_ANCHOR),
    "ProxyNCA++": (jdml.proxy_nca_pp_loss, {}, "ProxyNCALoss", {"softmax_scale": 9}),
    "normalized softmax": (jdml.normalized_softmax_loss, {}, "NormalizedSoftmaxLoss", {}),
    "CosFace": (jdml.cosface_loss, {}, "CosFaceLoss", {}),
    "ArcFace": (jdml.arcface_loss, ANGLE, "ArcFaceLoss", THEIR_ANGLE),
    "sub-centre": (sub_centres, ANGLE, "SubCenterArcFaceLoss", {**THEIR_ANGLE, "sub_centers": K}),
    "ArcFace, wide margin": (jdml.arcface_loss, WIDE, "ArcFaceLoss", THEIR_WIDE),
}


@pytest.mark.parametrize("name", PROXY_LOSSES)
def test_proxy_loss(name: str) -> None:
    """Two classes more than there are labels."""
    function, settings, peer, their_settings = PROXY_LOSSES[name]
    per_class = their_settings.get("sub_centers", 1)
    proxies = np.random.default_rng(5).normal(size=((C + 2) * per_class, D))
    mine = ours(lambda x, p: function(x, Y, p, **settings), [X, proxies])
    loss = getattr(pml_losses, peer)(num_classes=C + 2, embedding_size=D, **their_settings)
    columns = hasattr(loss, "W")
    attribute = "W" if columns else "proxies"
    loss = with_weights(loss, attribute, proxies.T if columns else proxies)
    value, (grad,) = theirs(loss, [X], lambda f, x: f(x, torch.tensor(Y)))
    by_proxy = getattr(loss, attribute).grad.numpy()
    assert_parity(mine, (value, [grad, by_proxy.T if columns else by_proxy]))


def test_soft_triple_without_regularizer() -> None:
    centers = np.random.default_rng(6).normal(size=(C, K, D))
    settings = {"scale": 12.0, "gamma": 0.2, "margin": 0.05}
    mine = ours(lambda x, p: jdml.soft_triple_loss(x, Y, p, tau=0.0, **settings), [X, centers])
    loss = pml_losses.SoftTripleLoss(C, D, K, la=12, gamma=0.2, margin=0.05)
    loss = with_weights(loss, "fc", centers.reshape(C * K, D).T)
    value, (grad,) = theirs(loss, [X], lambda f, x: f(x, torch.tensor(Y)))
    by_center = loss.fc.grad.numpy().T.reshape(C, K, D)
    assert_parity(mine, (value, [grad, by_center]))


def test_nt_xent() -> None:
    """PML averages over all positive pairs, so rows count by their number of positives."""
    loss = pml_losses.NTXentLoss(temperature=0.2)
    for labels, reduce_fn in ((np.arange(B) % (B // 2), jdml.mean), (Y, None)):
        positives = (labels[:, None] == labels[None, :]).sum(axis=1) - 1

        def value(x: jax.Array, y: Any = labels, n: Any = positives, f: Any = reduce_fn) -> Any:
            terms = jdml.info_nce_loss(x, y, temperature=0.2, reduce_fn=f)
            return terms if f is jdml.mean else jnp.sum(terms * n) / n.sum()

        other = theirs(loss, [X], lambda f, x, y=labels: f(x, torch.tensor(y)))
        assert_parity(ours(value, [X]), other)


def test_smooth_ap() -> None:
    """PML expects classes of one size, one after the other, and as many classes as samples per class."""
    labels = np.arange(9) // 3

    def with_itself(x: jax.Array) -> jax.Array:
        return jdml.smooth_ap_loss(
            x, labels, references=x, reference_labels=labels, temperature=0.05
        )

    loss = pml_losses.SmoothAPLoss(temperature=0.05)
    (value, slopes), (other, other_slopes) = (
        ours(with_itself, [X[:9]]),
        theirs(loss, [X[:9]], lambda f, x: f(x, torch.tensor(labels))),
    )
    assert value == pytest.approx(other, rel=1e-6)  # PML sums in float32
    np.testing.assert_allclose(slopes[0], other_slopes[0], rtol=1e-5, atol=1e-7)
