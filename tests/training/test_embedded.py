"""Embeddings in files: what is written is read again, and refused in words where it is none."""

import numpy as np
import pytest

from jdml.training.embedded import Embedded, read_embeddings, write_embeddings

X = np.eye(3, 2, dtype=np.float32)


def test_what_is_written_is_read_again(tmp_path):
    written = Embedded(X, np.array(["a", "b", "b"]), np.array(list("xyz")), "a model")
    write_embeddings(tmp_path / "e.npz", written)
    read = read_embeddings(tmp_path / "e.npz")
    assert [column.tolist() for column in read[:3]] == [c.tolist() for c in written[:3]]
    assert read.model == "a model"
    write_embeddings(tmp_path / "bare.npz", Embedded(X))
    assert read_embeddings(tmp_path / "bare.npz")[1:] == (None, None, "")
    write_embeddings(tmp_path / "e.npy", written)
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), X)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"path must end in .npz or .npy or .parquet, got .*e\.csv"
    ):
        write_embeddings(tmp_path / "e.csv", Embedded(X))
    np.savez(tmp_path / "e.npz", embeddings=X, files=np.array(["x"]))
    with pytest.raises(ValueError, match=r"files of .* must have shape \[N\] = \[3\], got \[1\]"):
        read_embeddings(tmp_path / "e.npz")
