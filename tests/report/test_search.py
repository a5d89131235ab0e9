"""The nearest images of a gallery, without the query itself."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from jdml.metrics.reranking import look_again
from jdml.report.images import search_images
from jdml.runs.embedding_io import EmbeddingTable


@pytest.mark.parametrize("copies", [1, 40])
def test_query_and_its_copies_are_not_found(tmp_path, copies):
    contents = ["one"] * (1 + copies) + ["two", "three"]
    files = [tmp_path / f"{number}.png" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_text(content)
    names = np.array([str(file) for file in files])
    vectors = np.array([[0.0]] * (1 + copies) + [[1.0], [3.0]])
    gallery = EmbeddingTable(vectors, np.array([5] * (2 + copies) + [7]), names)
    (answer,) = search_images(np.array([[0.0]]), [names[0]], gallery, k=2, max_distance=1e99)
    found = [(hit["rank"], hit["file"], hit["label"]) for hit in answer["hits"]]
    assert found == [(1, names[-2], 5), (2, names[-1], 7)]


@pytest.mark.parametrize("second_look", ["expand", "reciprocal"])
def test_second_look_excludes_the_query(tmp_path, second_look):
    x = np.random.default_rng(0).normal(size=(15, 4)).astype(np.float32)
    names = np.array([str(tmp_path / f"{row}.png") for row in range(15)])
    for name in names:
        Path(name).write_text(name)
    gallery = EmbeddingTable(x, None, names)
    answers = search_images(x[:3], names[:3].tolist(), gallery, 14, np.inf, second_look)
    own = np.arange(3)
    moved, _, _, apart = look_again(second_look, x[:3], x, own)
    apart = cdist(moved, x) if apart is None else np.array(apart)
    apart[own, own] = np.inf
    for row, answer in enumerate(answers):
        expected = apart[row].argsort()[:14]
        assert [hit["file"] for hit in answer["hits"]] == names[expected].tolist()
