"""Metrics of arrays by name: what a file holds, measured as its arrays are."""

import numpy as np
import pytest

from jdml.metrics import evaluate_retrieval, nmi
from jdml.metrics.arrays import evaluate_arrays

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.arange(12) % 3


def test_arrays_are_measured_as_they_are():
    by_name = {"q": X, "c": Y, "g": X[::-1], "gc": Y[::-1], "own": np.arange(12)[::-1]}
    names = {"embeddings": "q", "labels": "c", "gallery_embeddings": "g", "gallery_labels": "gc"}
    expected = evaluate_retrieval(X, Y, recall_at=(1,), map_at=(2,))
    settings = {"recall_at": (1,), "map_at": (2,)}
    assert evaluate_arrays(by_name, **names, self_index="own", **settings) == expected
    alone = {"embeddings": X, "labels": Y.astype(str)}
    assert evaluate_arrays(alone, **settings, clustered=True) == {**expected, "NMI": nmi(X, Y)}


def test_a_gallery_on_disk_is_scaled_there(tmp_path):
    np.save(tmp_path / "g.npy", 3 * X[::-1])
    gallery = np.load(tmp_path / "g.npy", mmap_mode="r")
    arrays = {"embeddings": 2 * X, "labels": Y, "gallery_labels": Y[::-1]}
    arrays["self_index"] = np.arange(12)[::-1]
    scores = [
        evaluate_arrays({**arrays, "gallery_embeddings": each}, on_sphere=True)
        for each in (gallery, np.asarray(gallery))
    ]
    assert scores[0] == pytest.approx(scores[1])


def test_an_array_that_is_asked_for_must_be_there():
    with pytest.raises(ValueError, match="no array 'rows'; it has embeddings, labels"):
        evaluate_arrays({"embeddings": X, "labels": Y}, self_index="rows")
