"""What is found for a query: the nearest of a gallery, but not itself."""

import numpy as np
import pytest

from jdml.report.searching import search_images
from jdml.training.embedded import Embedded


def test_a_query_and_its_copies_are_not_found(tmp_path):
    files = [tmp_path / name for name in "abcd"]
    for file, content in zip(files, ("one", "one", "two", "three"), strict=True):
        file.write_text(content)
    names = np.array([str(file) for file in files])
    gallery = Embedded(np.array([[0.0], [0.0], [1.0], [3.0]]), np.array([5, 5, 5, 7]), names)
    (answer,) = search_images(np.array([[0.0]]), [str(files[0])], gallery, k=2)
    assert [(hit["file"], hit["label"]) for hit in answer["found"]] == [
        (names[2], 5),
        (names[3], 7),
    ]
    assert [hit["rank"] for hit in answer["found"]] == [1, 2]


def test_a_gallery_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match=r"must hold embeddings \[N, 2\], got \[4, 3\]"):
        search_images(np.zeros((1, 2)), ["q"], Embedded(np.zeros((4, 3))), k=1)
