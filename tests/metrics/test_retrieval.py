import chex
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

from jdml.metrics import evaluate_retrieval, nearest, open_set, verification
from jdml.testing.case import Compilations
from oracles import metrics as oracle

NOBODY = "none of 60 queries"
CUTOFFS = {
    "recall_at": (1, 2, 4, 8),
    "precision_at": (1, 5),
    "true_recall_at": (3,),
    "ndcg_at": (1, 8),
    "map_at": (3, 20),
    "mrr": True,
}


@pytest.fixture(params=[(3, 20), (3, 300)], ids=["device", "host"])
def cutoffs(request):
    """Return ranks: up to 256 are found by `top_k`, more on a CPU by a partial sort."""
    return CUTOFFS | {"map_at": request.param}


def embedded(seed, queries=60, classes=9, dim=5, whole=False):
    """Return random embeddings; `whole` numbers from a small range have many duplicates and ties."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (queries, dim)) if whole else rng.normal(size=(queries, dim))
    # Classes of different sizes, some of one sample; labels are any integers, negative ones are ignored.
    labels = (rng.integers(0, classes, queries) ** 2 - 7) * 10**6
    return vectors.astype(np.float32), labels


def assert_equal_to_oracle(
    *data, self_index=None, ignore=None, relevant=None, kind=np.asarray, cutoffs=CUTOFFS, **options
):
    expected = oracle.per_query(
        *data, self_index=self_index, ignore=ignore, relevant=relevant, **cutoffs
    )
    options |= {"ignore": ignore, "relevant": None if relevant is None else kind(relevant)}
    if len(data) == 4 and self_index is None:
        options["self_index"] = np.full(len(data[0]), -1)  # avoids the warning about equal rows
    elif self_index is not None:
        options["self_index"] = self_index
    actual = evaluate_retrieval(*data, **cutoffs, per_query=True, **options)
    judged = ~np.isnan(expected["RP"])
    without = int((data[1] >= 0).sum() - judged.sum())
    assert actual.pop("unanswered", 0) == without
    assert set(actual) == {*expected, "queries"}
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-6, atol=1e-7, err_msg=name)
    averages = evaluate_retrieval(*data, **cutoffs, **options)
    by_class = evaluate_retrieval(*data, **cutoffs, **options, average="class")
    assert averages["queries"] == by_class["queries"] == actual["queries"] == judged.sum()
    for name, values in expected.items():
        assert type(averages[name]) is float
        np.testing.assert_allclose(averages[name], values[judged].mean(), rtol=1e-6)
        mean = oracle.mean_of_classes(values, data[1])
        np.testing.assert_allclose(by_class[name], mean, rtol=1e-6)


@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
def test_self_retrieval_equals_the_oracle(cutoffs, whole):
    vectors, labels = embedded(0, 130, whole=whole)
    vectors[7] = vectors[3]
    assert_equal_to_oracle(vectors, labels, cutoffs=cutoffs)
    # A few classes of different sizes, R a tenth of the gallery or more, like MNIST.
    vectors, _ = embedded(1, 250, whole=whole)
    labels = np.random.default_rng(5).choice(5, 250, p=[0.1, 0.1, 0.2, 0.25, 0.35])
    assert_equal_to_oracle(vectors, labels, block_size=64)


def test_every_size_is_handled():
    rng = np.random.default_rng(0)
    for queries in (1, 2, 3):
        vectors = rng.integers(-1, 2, (queries, 2)).astype(np.float32)
        labels = rng.integers(0, 2, queries)
        labels[:2] = 0
        if queries > 1:
            assert_equal_to_oracle(vectors, labels)
        assert_equal_to_oracle(vectors, labels, vectors[:1], labels[:1])


@pytest.mark.parametrize(("rows", "dim"), [(3, 1), (64, 512), (130, 3), (257, 129)])
def test_ties_of_duplicates_are_ordered_by_index(rows, dim):
    """All embeddings are the same point: indices alone decide, and every query is excluded."""
    vectors = np.repeat(np.random.default_rng(dim).normal(size=(1, dim)), rows, axis=0)
    assert_equal_to_oracle(vectors.astype(np.float32), (np.arange(rows) % 3 == 0).astype(int))


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision_is_ranked_in_float32(dtype):
    vectors, labels = embedded(7, dim=16)
    vectors = (vectors / 64 + 1).astype(dtype)
    assert_equal_to_oracle(vectors, labels)


@pytest.mark.parametrize("move", [lambda x: x * 1e30, lambda x: x * 1e-25, lambda x: x + 4096.0])
def test_scale_and_offset_cost_no_precision(cutoffs, move):
    vectors, labels = embedded(2)
    vectors = np.round(vectors * 1024) / 1024  # so that the offset is exact in float32
    plain = evaluate_retrieval(vectors.astype(np.float32), labels, **cutoffs)
    moved = evaluate_retrieval(move(vectors.astype(np.float32)), labels, **cutoffs)
    assert moved == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("times", [1e4, 1e30])
def test_outlier_costs_the_others_no_precision(to_disk, times):
    vectors, labels = embedded(2, dim=16)
    vectors[0] *= times
    labels[0] = 1  # alone in its class: no query finds it, and it is no query
    assert_equal_to_oracle(vectors, labels)
    own, gallery = np.arange(1, 60), to_disk(vectors)
    assert_equal_to_oracle(vectors[1:], labels[1:], gallery, labels, self_index=own)
    others = np.delete(vectors, 0, 0)
    found, expected = nearest(others, vectors, 9)[1], nearest(others, others, 9)[1]
    chex.assert_trees_all_equal(found, expected + 1)


def test_no_matches_at_all_is_warned_of():
    vectors, _ = embedded(4)
    lone, others = np.arange(60), np.arange(60) + 60
    with pytest.warns(UserWarning, match=NOBODY) as warned:
        alone = evaluate_retrieval(vectors, lone, ndcg_at=(8,))
    assert warned[0].filename == __file__
    assert alone == dict.fromkeys(alone, 0) | {"unanswered": 60}
    with pytest.warns(UserWarning, match=NOBODY):
        rows = evaluate_retrieval(vectors, lone, per_query=True)
    assert np.isnan(rows["MAP@R"]).all()
    assert rows["queries"] == 0
    assert evaluate_retrieval(vectors[:0], lone[:0], vectors[:0], lone[:0])["queries"] == 0
    for gallery, labels in ((vectors[:0], others[:0]), (vectors + 1, others)):
        with pytest.warns(UserWarning, match=NOBODY):
            assert evaluate_retrieval(vectors, lone, gallery, labels)["queries"] == 0


def queries_from_gallery(seed, whole, size=60):
    """Return queries of which some are rows of the gallery: in another order, some twice, one relabelled."""
    gallery, labels = embedded(seed, size, whole=whole)
    rng = np.random.default_rng(seed)
    queries, query_labels = embedded(seed + 20, queries=23, whole=whole)
    own = np.where(rng.random(23) < 0.6, rng.integers(0, size, 23), -1)
    queries[own >= 0], query_labels[own >= 0] = gallery[own[own >= 0]], labels[own[own >= 0]]
    query_labels[np.argmax(own >= 0)] += 10**6
    return (queries, query_labels, gallery, labels), own


@pytest.mark.parametrize("whole", [False, True], ids=["generic", "ties"])
@pytest.mark.parametrize("block_size", [None, 7])
def test_self_index_excludes_queries_from_the_gallery(cutoffs, whole, block_size):
    data, own = queries_from_gallery(3, whole)
    assert_equal_to_oracle(*data, self_index=own, cutoffs=cutoffs, block_size=block_size)


@pytest.mark.parametrize("kind", ["groups", "names", "pairs"])
def test_ignored_pairs_equal_the_oracle(cutoffs, kind):
    """Pairs of one group and class, or any pairs: as if the row were not in this query's gallery."""
    data, own = queries_from_gallery(4, whole=True)
    rng = np.random.default_rng(4)
    groups = tuple(rng.integers(0, 3, rows) for rows in (23, 60))
    if kind == "names":
        groups = tuple(np.array(["left", "right", "top"])[some] for some in groups)
    ignore = rng.random((23, 60)) < 0.4 if kind == "pairs" else groups
    for self_index in (own, np.full(23, -1)):
        options = {"ignore": ignore, "cutoffs": cutoffs, "block_size": 7}
        assert_equal_to_oracle(*data, self_index=self_index, **options)
    assert_equal_to_oracle(*data[2:], ignore=(groups[1], groups[1]))


KINDS = {
    "csr": sparse.csr_array,
    "coo": lambda pairs: sparse.coo_matrix(1.0 * pairs),
    "dense": np.asarray,
    "jax": jnp.asarray,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extra", ["nothing", "self", "groups", "pairs"])
def test_relevant_pairs_equal_the_oracle(cutoffs, kind, extra):
    """Right answers that no labels can say: a query's are any rows, some queries have none."""
    (queries, _, gallery, _), own = queries_from_gallery(5, whole=True)
    rng = np.random.default_rng(5)
    relevant = (rng.random((23, 60)) < 0.1) & (np.arange(23) % 7 > 0)[:, None]
    extras = {
        "nothing": {},
        "self": {"self_index": own},
        "groups": {"ignore": (rng.integers(0, 3, 23), rng.integers(0, 3, 60))},
        "pairs": {"ignore": rng.random((23, 60)) < 0.4},
    }
    options = {"relevant": relevant, "kind": KINDS[kind], "cutoffs": cutoffs, "block_size": 7}
    assert_equal_to_oracle(queries, np.arange(23) % 4, gallery, None, **options, **extras[extra])


def test_relevant_pairs_of_one_class_equal_labels():
    """Without a gallery, too; a query with a negative label is none."""
    vectors, labels = embedded(2, queries=124, whole=True)
    relevant = sparse.csr_array(oracle.of_one_class(labels, labels))
    for more in ({}, {"ignore": (np.arange(124) % 2,) * 2}, {"per_query": True}):
        expected = evaluate_retrieval(vectors, labels, **more)
        by_pairs = evaluate_retrieval(vectors, labels, relevant=relevant, **more)
        chex.assert_trees_all_equal(by_pairs, expected)
        alone = evaluate_retrieval(vectors, None, relevant=relevant, **more)
        unanswered = expected.get("unanswered", 0) + (labels < 0).sum()
        chex.assert_trees_all_equal(alone, expected | {"unanswered": unanswered})
    negative = np.where(np.arange(124) < 9, -1, labels)
    scores = evaluate_retrieval(vectors, negative, relevant=relevant, per_query=True)
    assert np.isnan(scores["RP"][:9]).all()


def test_first_right_answer_far_down_is_found(to_disk):
    """In memory, on disk, and by distances; few programs whatever the ranks."""
    line = np.arange(5_000, dtype=np.float32)[:, None]
    labels = np.full(5_000, -1)
    labels[[70, 900, 4_999]] = 0, 1, 2
    expected = {"MRR": np.array([1 / 71, 1 / 901, 1 / 5_000], np.float32)}
    queries = np.zeros((3, 1), np.float32)
    for gallery in (line, to_disk(line)):
        options = {"mrr": True, "per_query": True, "self_index": np.full(3, -1)}
        scores = evaluate_retrieval(queries, np.arange(3), gallery, labels, **options)
        np.testing.assert_allclose(scores["MRR"], expected["MRR"], rtol=1e-6)
        relevant = labels == np.arange(3)[:, None]
        scores = evaluate_retrieval(queries, None, gallery, relevant=relevant, **options)
        np.testing.assert_allclose(scores["MRR"], expected["MRR"], rtol=1e-6)


def test_given_distances_equal_the_vectors_own(cutoffs):
    data, own = queries_from_gallery(4, whole=True)
    apart = np.linalg.norm(data[0][:, None].astype(float) - data[2], axis=-1)
    options = {**cutoffs, "self_index": own, "ignore": (np.arange(23) % 3, np.arange(60) % 3)}
    expected = evaluate_retrieval(*data, **options)
    zeros = np.zeros_like(data[0]), data[1], np.zeros_like(data[2]), data[3]
    assert evaluate_retrieval(*zeros, distances=apart, block_size=7, **options) == expected


def test_person_reidentification_protocol():
    """Market-1501's protocol, with distractors in the gallery."""
    rng = np.random.default_rng(1)
    people, cameras = rng.integers(0, 8, (2, 63)) // np.array([[1], [2]])
    people[50:] = np.where(rng.random(13) < 0.5, -1, people[50:])
    x = rng.normal(size=(63, 4)).astype(np.float32) + people[:, None]
    distances = np.linalg.norm(x[:18, None].astype(float) - x[18:], axis=-1)
    curve, precision = oracle.reidentified(
        distances, people[:18], cameras[:18], people[18:], cameras[18:]
    )
    scores = evaluate_retrieval(
        *(x[:18], people[:18], x[18:], people[18:]),
        ignore=(cameras[:18], cameras[18:]),
        recall_at=(1, 2, 5, 10),
        map_at=(45,),
        map_divisor="relevant",
    )
    np.testing.assert_allclose([scores[f"R@{k}"] for k in (1, 2, 5, 10)], curve[[0, 1, 4, 9]])
    assert scores["MAP@45"] == pytest.approx(precision, rel=1e-6)


@pytest.mark.parametrize("named", [False, True], ids=["numbers", "names"])
def test_several_levels_of_labels_equal_each_alone(named):
    vectors, _ = embedded(6, whole=True)
    fine = np.random.default_rng(6).integers(0 if named else -1, 12, 60)
    labels = np.stack([fine // 4, fine, np.arange(60)], axis=1)
    groups = (np.arange(60) % 2,) * 2
    given = labels.astype(str) if named else jnp.asarray(labels)
    for more in ({}, {"average": "class"}, {"per_query": True}):
        options = {**CUTOFFS, "ignore": groups} | more
        with pytest.warns(UserWarning, match=NOBODY):
            together = evaluate_retrieval(vectors, given, **options)
        for level in range(2):
            alone = evaluate_retrieval(vectors, labels[:, level], **options)
            assert set(together) - set(alone) <= {"unanswered"}
            for name, value in alone.items():
                np.testing.assert_allclose(together[name][..., level], value, rtol=1e-12)
    assert together["R@1"].shape == (60, 3)
    assert together["unanswered"].tolist()[2] == 60
    gallery = evaluate_retrieval(vectors[:9], labels[:9, :2], vectors[9:], labels[9:, :2])
    assert gallery["R@1"].shape == (2,)
    assert evaluate_retrieval(vectors[:0], labels[:0])["R@1"].shape == (3,)


def test_queries_equal_to_their_match_are_warned_of_once():
    vectors, labels = embedded(1)
    labels = np.arange(60) % 4
    with pytest.warns(UserWarning, match=r"^60 of 60 .*self_index") as warned:
        evaluate_retrieval(vectors, labels, vectors, labels, block_size=16)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    others = vectors + np.float32(1)
    others[5] = vectors[9]
    with pytest.warns(UserWarning, match=r"^1 of 60 .*queries\[9\] and gallery\[5\]"):
        evaluate_retrieval(vectors, labels, others, labels)
    labels[9] = -1  # not a query
    evaluate_retrieval(vectors, labels, others, labels)
    evaluate_retrieval(vectors, labels, vectors, labels, self_index=np.full(60, -1))
    evaluate_retrieval(vectors, labels)


def test_negative_labels_are_distractors():
    """They rank as wrong matches, and are not queries."""
    vectors, _ = embedded(0, queries=30)
    labels = np.random.default_rng(0).integers(0, 3, 30)
    labels[::4] = -1
    scores = evaluate_retrieval(vectors, labels)
    assert scores["queries"] == (labels >= 0).sum()
    assert "unanswered" not in scores
    names = np.where(labels < 0, 100 + np.arange(30), labels)  # each its own class
    assert scores | {"unanswered": 8} == evaluate_retrieval(vectors, names)
    for dtype in (str, bytes, object):  # a table's column
        named = labels.astype(str).astype(dtype)
        assert evaluate_retrieval(vectors, named) == scores
    with pytest.warns(UserWarning, match="none of 30"):
        nobody = evaluate_retrieval(vectors, np.full(30, -1))
    assert nobody == dict.fromkeys(nobody, 0)


SEARCHES = {
    "nearest": (0, lambda q, own, g, labels, k: nearest(q, g, k, exclude_self=bool(k % 2))),
    "retrieval": (12, lambda *data: evaluate_retrieval(*data[:4], recall_at=data[4:])),
    "verification": (12, lambda *data: verification(*data[:4])),
    "open_set": (12, lambda q, own, *data: open_set(q, np.append(99, own[1:]), *data[:2])),
}


@pytest.mark.parametrize(("most", "search"), SEARCHES.values(), ids=SEARCHES)
def test_varied_calls_compile_few_programs(most, search):
    """A gallery that grows row by row, 3 to 64 queries, any k up to 100: 200 calls."""
    rng, compilations = np.random.default_rng(5), Compilations()
    vectors, labels = rng.normal(size=(564, 16)).astype(np.float32), rng.integers(0, 20, 564)
    with compilations:
        for call in range(200):
            rows, k = slice(64, 304 + call), int(rng.integers(1, 101))
            some = slice(0, int(rng.integers(3, 65)))
            search(vectors[some], labels[some], vectors[rows], labels[rows], k)
    assert len(compilations.names) <= most, compilations.names


@pytest.mark.slow  # loads PyTorch
@pytest.mark.parametrize("map_at", [(), (300,)], ids=["device", "host"])
def test_equals_pytorch_metric_learning(map_at):
    reason = "compares with pytorch-metric-learning and faiss"
    torch = pytest.importorskip("torch", reason=reason)
    pytest.importorskip("faiss", reason=reason)
    accuracy = pytest.importorskip(
        "pytorch_metric_learning.utils.accuracy_calculator", reason=reason
    )
    names = {"precision_at_1": "P@1", "r_precision": "RP", "mean_average_precision_at_r": "MAP@R"}
    calculator = accuracy.AccuracyCalculator(include=tuple(names), device=torch.device("cpu"))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 40, 300)
    vectors = (rng.normal(size=(40, 16))[labels] + rng.normal(size=(300, 16))).astype(np.float32)
    narrow = torch.tensor(vectors, requires_grad=True).to(torch.bfloat16)
    expected = evaluate_retrieval(vectors.astype(jnp.bfloat16), labels, map_at=map_at)
    assert evaluate_retrieval(narrow, torch.from_numpy(labels), map_at=map_at) == expected
    for data in ((vectors, labels), (vectors[:100], labels[:100], vectors[100:], labels[100:])):
        theirs = calculator.get_accuracy(*map(torch.from_numpy, data))
        ours = evaluate_retrieval(*data, map_at=map_at)
        for name, key in names.items():
            assert ours[key] == pytest.approx(theirs[name], rel=1e-6)


def test_gallery_on_disk_equals_memory(large, to_disk):
    gallery, labels = large
    queries, query_labels = gallery[::183] + np.float32(0.25), labels[::183]
    there = to_disk(gallery)
    own = np.full(23, -1)
    groups = np.arange(23) % 3, np.arange(4_200) % 3
    others = np.where(np.arange(23) % 3 == 0, own, np.arange(23)[::-1] * 180)
    pairs = np.random.default_rng(4).random((23, 4_200)) < 0.4
    for self_index, ignore in ((others, None), (others, groups), (own, pairs)):
        options = {**CUTOFFS, "self_index": self_index, "ignore": ignore}
        expected = evaluate_retrieval(queries, query_labels, gallery, labels, **options)
        actual = evaluate_retrieval(queries, query_labels, there, labels, **options, block_size=10)
        assert actual == pytest.approx(expected, rel=1e-6)
    with pytest.warns(UserWarning, match="^23 of 23 "):
        evaluate_retrieval(gallery[::183], np.abs(query_labels), there, np.abs(labels))
    broken = np.where(np.arange(45)[:, None] == 11, np.nan, gallery[:45])
    for measure in (evaluate_retrieval, verification):
        with pytest.raises(ValueError, match=r"^gallery .*row 11\b"):
            measure(queries, query_labels, to_disk(broken), labels[:45])
