"""Wrong arguments of a report's functions are refused by name, before anything is written."""

import numpy as np
import pytest

from jdml import report
from jdml.data import Dataset
from jdml.report import Run
from jdml.report.images import search_images
from jdml.runs.embedding_io import EmbeddingTable

X, Y = np.eye(3, 8)[np.arange(12) % 3], np.arange(12) % 3
PIXELS = np.zeros((12, 4, 4, 1), np.uint8)
RUNS = [Run(f"{name}-0", {"loss": name}, 0, {"R@1": 0.5}) for name in "ab"]
EMBEDDED = Run("a", embeddings=X, data=Dataset("d", X, Y))
LOG = [{"step": 1, "loss": 0.5}]

REFUSALS = [
    (lambda: report.compare_runs([]), "runs"),
    (lambda: report.compare_runs(RUNS, baseline="x"), "baseline"),
    (lambda: report.compare_runs(RUNS, metrics=["x"]), "metrics"),
    (lambda: report.compare_runs(RUNS, confidence=1.0), "confidence"),
    (lambda: report.holm_correction({"a": 0.1, "b": 0.2}, tests=1), "tests"),
    (lambda: report.mean_std([]), "values"),
    (lambda: report.gallery(PIXELS[:3], X, Y), "images"),
    (lambda: report.gallery(PIXELS, X, Y, order="x"), "order"),
    (lambda: report.confusions(X, Y[:3]), "labels"),
    (lambda: report.embedding_map(X[0], Y), "embeddings"),
    (lambda: report.embedding_map(X, Y, method="x"), "method"),
    (lambda: report.curves({"a": LOG}, metrics=["x"]), "metrics"),
    (lambda: report.curves({"a": [{"step": 1}]}), "runs"),
    (lambda: report.html_report([], "r.html"), "runs"),
    (lambda: report.html_report(EMBEDDED, "r.html", labels="x"), "labels"),
    (lambda: report.read_runs(), "places"),
    (lambda: search_images(X[:1], ["q"], EmbeddingTable(X[:, :3]), k=1), "gallery"),
]


@pytest.mark.parametrize(("call", "name"), REFUSALS, ids=[name for _, name in REFUSALS])
def test_wrong_arguments_are_refused(call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        call()
    assert list(tmp_path.iterdir()) == []
