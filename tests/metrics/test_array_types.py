"""Arrays that metrics accept: of any library and byte order, with classes by number or name."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdml import metrics
from jdml.metrics import evaluate_retrieval, nearest
from jdml.metrics.arrays import evaluate_arrays
from jdml.metrics.clustering import agreement
from oracles.numerics import LIBRARIES, array_of

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 4
NAMES = np.array(["cat", "dog", "emu", "fox"])[Y]
EXPECTED = evaluate_retrieval(X, Y)
METRICS = (  # these read the whole array
    metrics.uniformity,
    lambda x: metrics.class_density(x, Y),
    lambda x: metrics.covering_radius(x, x[:3]),
    lambda x: metrics.violation_probability(x, Y, beta=1.0, alpha=0.5),
    lambda x: metrics.class_covering(x, Y),
    lambda x: metrics.proxy_distance(x[:4], x, Y),
    lambda x: metrics.proxy_spread(x[:4].reshape(2, 2, 3)),
    lambda x: metrics.vmf_mixture_likelihood(x, Y, x[:4], concentrations=100.0),
)


@pytest.mark.parametrize("order", ["<", ">"])
def test_any_byte_order_and_width(order):
    x, y = X.astype(f"{order}f4"), Y.astype(f"{order}i8")
    assert evaluate_retrieval(x, y) == EXPECTED
    for wide in (False, True):
        with jax.enable_x64(wide):
            assert evaluate_retrieval(X.astype(f"{order}f8"), y) == EXPECTED
    chex.assert_trees_all_equal(nearest(x, x, 3), nearest(X, X, 3))
    assert metrics.class_density(x, y) == metrics.class_density(X, Y)
    assert metrics.uniformity(X.astype(f"{order}f8")) == metrics.uniformity(X)


def test_any_byte_order_on_disk(to_disk):
    there, queries = to_disk(X, ">f4"), X + np.float32(0.1)
    chex.assert_trees_all_close(nearest(queries, there, 3), nearest(queries, X, 3), rtol=1e-6)
    assert evaluate_retrieval(queries, Y, there, Y) == evaluate_retrieval(queries, Y, X, Y)
    for metric in METRICS:
        assert metric(there) == metric(X)


def test_variable_width_strings():
    names = NAMES.astype(np.dtypes.StringDType())
    assert evaluate_retrieval(X, names) == EXPECTED
    views = np.where(np.arange(20) < 10, "left", "right")
    wide = views.astype(np.dtypes.StringDType())
    expected = evaluate_retrieval(X, NAMES, ignore=(views, views))
    assert evaluate_retrieval(X, names, ignore=(wide, wide)) == expected


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bit_numbers_are_computed_in_float32(dtype):
    narrow = jnp.asarray(X, dtype)
    for metric in METRICS:
        assert metric(narrow) == metric(narrow.astype(jnp.float32))


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_of_other_libraries(library):
    kind = LIBRARIES[library]
    assert evaluate_retrieval(array_of(library, kind, X), array_of(library, kind, Y)) == EXPECTED
    names = array_of(library, kind, NAMES.astype(object))
    assert evaluate_retrieval(X, names) == EXPECTED
    assert nearest(array_of(library, kind, X), X, 2)[1].shape == (20, 2)


def test_labels_as_keyword_list_objects_or_hashes():
    objects = np.array([np.int64(label) for label in Y], object)
    hashes = Y.astype(np.uint64) + np.uint64(2**62 + 2**31)  # negative ones in int32
    for labels in (Y, list(NAMES), Y.astype(object), NAMES.astype(object), objects, hashes):
        assert evaluate_retrieval(queries=X, labels=labels, gallery=None) == EXPECTED
    by_number, by_name = (
        evaluate_retrieval(X[:9], labels[:9], X, labels, self_index=np.arange(9))
        for labels in (Y, NAMES)
    )
    assert by_name == by_number
    assert metrics.class_density(X, NAMES.astype(object)) == metrics.class_density(X, Y)


# `evaluate_arrays`: arrays by name, as a file has them.

ROWS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
CLASSES = np.arange(12) % 3


def test_evaluate_arrays_equals_evaluate_retrieval():
    by_name = {"q": ROWS, "c": CLASSES, "g": ROWS[::-1], "gc": CLASSES[::-1]}
    by_name["own"] = np.arange(12)[::-1]
    names = {"embeddings": "q", "labels": "c", "gallery_embeddings": "g", "gallery_labels": "gc"}
    expected = evaluate_retrieval(ROWS, CLASSES, recall_at=(1,), map_at=(2,))
    settings = {"recall_at": (1,), "map_at": (2,)}
    assert evaluate_arrays(by_name, **names, self_index="own", **settings) == expected
    alone = {"embeddings": ROWS, "labels": CLASSES.astype(str)}
    measured = evaluate_arrays(alone, **settings, nmi=True)
    assert measured == expected | agreement(ROWS, CLASSES)


def test_second_look_equals_its_steps_with_self_index():
    rows = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    classes = np.arange(60) % 6
    alone, own = {"embeddings": rows, "labels": classes}, np.arange(60)
    turned = {"gallery_embeddings": rows[::-1], "gallery_labels": classes[::-1]}
    settings = {"recall_at": (1,), "map_at": (2,)}

    def searched(queries, gallery):
        return evaluate_retrieval(queries, classes, gallery, classes, self_index=own, **settings)

    expected = {
        "reciprocal": evaluate_retrieval(rows, classes, distances=metrics.rerank(rows), **settings),
        "augment": searched(rows, metrics.augment_gallery(rows)),
        "expand": searched(metrics.expand_queries(rows, rows, self_index=own), rows),
    }
    for kind, scores in expected.items():
        assert evaluate_arrays(alone, rerank=kind, **settings) == scores
        searched_in = {**alone, **turned, "self_index": own[::-1]}
        assert evaluate_arrays(searched_in, rerank=kind, **settings) == pytest.approx(scores)
        clusters = evaluate_arrays(alone, rerank=kind, nmi=True)
        assert {name: clusters[name] for name in ("NMI", "AMI")} == agreement(rows, classes)


def test_gallery_on_disk_is_normalized_on_disk(to_disk):
    gallery = to_disk(3 * ROWS[::-1])
    arrays = {"embeddings": 2 * ROWS, "labels": CLASSES, "gallery_labels": CLASSES[::-1]}
    arrays["self_index"] = np.arange(12)[::-1]
    scores = [
        evaluate_arrays({**arrays, "gallery_embeddings": each}, normalize="sphere")
        for each in (gallery, np.asarray(gallery), to_disk(3 * ROWS[::-1], ">f8"))
    ]
    assert scores[0] == pytest.approx(scores[1]) == scores[2]
