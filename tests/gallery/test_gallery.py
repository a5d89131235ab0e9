"""`jdml.Gallery`: what is added is found, what is removed is not, before and after it was saved."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jdml
from jdml import Gallery
from jdml.gallery import METADATA
from jdml.testing.case import Compilations


def vectors(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def names(rows: int, first: int = 0) -> list[str]:
    return [f"{number}.jpg" for number in range(first, first + rows)]


def filled(rows: int = 50, **settings: Any) -> Gallery:
    gallery = Gallery(**settings)
    gallery.add(vectors(rows), names(rows), np.arange(rows) % 5)
    return gallery


def assert_like(gallery: Gallery, content: dict[str, np.ndarray], k: int = 5) -> None:
    """Compare a gallery's answers with distances to all that it should hold."""
    queries = vectors(7, seed=9)
    ids, distances = gallery.search(queries, k)
    stored = np.stack(list(content.values()))
    apart = np.linalg.norm(queries[:, None].astype(np.float64) - stored, axis=-1)
    order = np.argsort(apart, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, np.array(list(content), object)[order])
    np.testing.assert_allclose(distances, np.take_along_axis(apart, order, 1), rtol=1e-5)
    assert gallery.ids == list(content)
    assert len(gallery) == len(content)


def test_finds_what_was_added_replaced_and_not_removed(tmp_path: Path) -> None:
    gallery, content = Gallery(), {}
    for turn in range(4):
        rows, ids = vectors(30, seed=turn), names(30, first=20 * turn)
        for name in ids:
            content.pop(name, None)
        gallery.add(rows, ids)
        content |= dict(zip(ids, rows, strict=True))
        gone = ids[turn : turn + 3]
        gallery.remove(gone)
        for name in gone:
            del content[name]
        assert_like(gallery, content)
        gallery.save(tmp_path / "g")
        assert_like(gallery, content)
        gallery = Gallery.load(tmp_path / "g", mmap=turn % 2 == 0)
        assert_like(gallery, content)


def test_many_removals_shrink_the_files(tmp_path: Path) -> None:
    gallery = filled(400)
    gallery.save(tmp_path)
    gallery.remove(names(300))
    gallery.save(tmp_path)
    (file,) = tmp_path.glob("*.bin")
    assert file.stat().st_size == 100 * 8 * 4
    content = dict(zip(names(400)[300:], vectors(400)[300:], strict=True))
    assert_like(Gallery.load(tmp_path), content)


@pytest.mark.parametrize("cut", [0, 1, 100, 10_000])
def test_killed_append_loses_nothing(tmp_path: Path, cut: int) -> None:
    """An append writes rows, then ids, then the file that counts them: here it ends before that, or within a file."""
    gallery = filled()
    gallery.save(tmp_path)
    later = Gallery.load(tmp_path)
    later.add(vectors(10, seed=1), names(10, first=50))
    shutil.copytree(tmp_path, tmp_path / "copy")
    later.save(tmp_path)
    for file in tmp_path.glob("*-*.*"):
        old = (tmp_path / "copy" / file.name).read_bytes()
        assert file.read_bytes().startswith(old)
        os.truncate(file, min(len(old) + cut, file.stat().st_size))
    shutil.copy(tmp_path / "copy" / METADATA, tmp_path / METADATA)
    shutil.rmtree(tmp_path / "copy")
    found = Gallery.load(tmp_path)
    assert_like(found, dict(zip(names(50), vectors(50), strict=True)))
    found.add(vectors(10, seed=2), names(10, first=70))
    found.save(tmp_path)
    content = dict(
        zip(names(50) + names(10, first=70), [*vectors(50), *vectors(10, seed=2)], strict=True)
    )
    assert_like(Gallery.load(tmp_path), content)


def test_fewer_neighbours_than_asked_and_a_largest_distance() -> None:
    gallery = Gallery()
    gallery.add(np.float32([[0.0, 0.0], [3.0, 4.0]]), [7, 3])
    ids, distances = gallery.search(np.float32([[0.0, 0.0]]), k=3)
    np.testing.assert_array_equal(ids, [[7, 3, -1]])
    np.testing.assert_array_equal(distances, [[0.0, 5.0, np.inf]])
    ids, distances = gallery.search(np.float32([[0.0, 0.0]]), k=2, max_distance=4.0)
    np.testing.assert_array_equal(ids, [[7, -1]])
    with pytest.raises(ValueError, match=r"^max_distance\b"):
        gallery.search(np.float32([[0.0, 0.0]]), max_distance=float("nan"))
    texts = filled(1).search(vectors(1), k=2)[0]
    assert texts.tolist() == [["0.jpg", None]]
    assert Gallery().search(vectors(2), k=2)[0].shape == (2, 2)


def test_normalizes_and_knows_its_model_and_labels(tmp_path: Path) -> None:
    gallery = filled(model="run 1", normalize=jdml.sphere)
    gallery.save(tmp_path / "g")
    found = Gallery.load((tmp_path / "g").rename(tmp_path / "moved"))
    assert (found.model, found.normalize) == ("run 1", jdml.sphere)
    np.testing.assert_array_equal(found.labels, np.arange(50) % 5)
    ids, distances = found.search(10 * vectors(50), k=1)
    assert ids[:, 0].tolist() == names(50)
    np.testing.assert_allclose(distances, 0.0, atol=1e-6)
    with pytest.raises(ValueError, match=r"^model\b"):
        found.add(vectors(1), ["new.jpg"], model="run 2")
    with pytest.raises(ValueError, match=r"^model\b"):
        found.search(vectors(1), model="run 2")


@pytest.mark.parametrize(
    ("kind", "least", "bytes_per_row"), [("int8", 0.95, 32), ("binary", 0.3, 4)]
)
def test_quantized_galleries_find_most(
    tmp_path: Path, kind: Any, least: float, bytes_per_row: int
) -> None:
    gallery = Gallery(normalize=jdml.sphere)
    gallery.add(vectors(500, 32), names(500))
    recall = gallery.quantize(kind, rescore=8)
    assert least < recall <= 1.0
    gallery.save(tmp_path)
    (file,) = tmp_path.glob("*.bin")
    assert file.stat().st_size == 500 * bytes_per_row
    found = Gallery.load(tmp_path)
    assert found.recall == recall
    assert "recall" in repr(found)
    np.testing.assert_array_equal(
        found.search(vectors(9, 32))[0], gallery.search(vectors(9, 32))[0]
    )
    found.add(vectors(1, 32, seed=3), ["new.jpg"])
    assert "new.jpg" in found.search(vectors(1, 32, seed=3), k=3)[0]


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ((vectors(2), ["a.jpg"]), ValueError, "ids"),
        ((vectors(2), ["a.jpg", "a.jpg"]), ValueError, "ids"),
        ((vectors(1), [3]), ValueError, "ids"),
        ((vectors(1), [None]), TypeError, "ids"),
        ((vectors(1, 9), ["a.jpg"]), ValueError, "embeddings"),
        ((np.full((1, 8), np.nan, np.float32), ["a.jpg"]), ValueError, "embeddings"),
        ((vectors(1), ["a.jpg"], [0.5]), TypeError, "labels"),
    ],
)
def test_refuses_what_does_not_fit(arguments: Any, error: type[Exception], name: str) -> None:
    gallery = filled()
    with pytest.raises(error, match=rf"^{name}\b"):
        gallery.add(*arguments)
    assert_like(gallery, dict(zip(names(50), vectors(50), strict=True)))


def test_gallery_that_grows_compiles_few_programs(tmp_path: Path) -> None:
    gallery, content, compilations = Gallery(normalize=jdml.sphere), {}, Compilations()
    with compilations:
        for size in range(1, 33):
            first = len(gallery)
            new = vectors(size, seed=size) * size  # the longest come last
            gallery.add(new, names(size, first))
            content |= dict(zip(names(size, first), new, strict=True))
            gallery.search(vectors(size), k=3)
            if size % 2:
                gallery.save(tmp_path / "g")
    assert len(compilations.names) <= 12, compilations.names
    unit = np.asarray(jdml.sphere(np.stack(list(content.values()))))
    np.testing.assert_allclose(gallery.embeddings, unit, atol=1e-6)


def test_loading_while_another_process_writes_all_rows_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled().save(tmp_path / "g")
    load = Gallery._load

    def load_too_late(folder: Path, metadata: dict[str, Any], *, mmap: bool) -> Gallery:
        monkeypatch.setattr(Gallery, "_load", load)  # as before
        writer = Gallery.load(folder)
        writer.quantize("int8")
        writer.save(folder)
        return load(folder, metadata, mmap=mmap)

    monkeypatch.setattr(Gallery, "_load", load_too_late)  # no other moment between two reads
    assert "int8" in repr(Gallery.load(tmp_path / "g"))
    (tmp_path / "g" / "vectors-2.bin").unlink()
    with pytest.raises(FileNotFoundError, match="vectors-2"):
        Gallery.load(tmp_path / "g")


def test_refuses_unknown_ids_and_foreign_or_damaged_folders(tmp_path: Path) -> None:
    gallery = filled()
    with pytest.raises(ValueError, match=r"^ids\b"):
        gallery.remove(["none.jpg"])
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"^path\b"):
        gallery.save(tmp_path / "foreign")
    with pytest.raises(FileNotFoundError, match=r"^path\b"):
        Gallery.load(tmp_path / "none")
    with pytest.raises(ValueError, match=r"^path\b.*\.npz"):
        gallery.save(tmp_path / "g.npz")
    gallery.save(tmp_path / "g")
    os.truncate(tmp_path / "g" / "vectors-1.bin", 100)
    with pytest.raises(ValueError, match=r"vectors-1\.bin"):
        Gallery.load(tmp_path / "g")
    (tmp_path / "g" / METADATA).unlink()  # as where the first save was killed
    filled(60).save(tmp_path / "g")
    assert len(Gallery.load(tmp_path / "g")) == 60


def test_names_of_classes_and_stored_embeddings(tmp_path: Path) -> None:
    gallery = Gallery()
    gallery.add(vectors(3), names(3), ["cat", "dog", "cat"])
    gallery.add(vectors(1, seed=1), ["\udcff.jpg"])  # of a file whose name is not UTF-8
    gallery.remove(["1.jpg"])
    gallery.save(tmp_path / "g")
    found = Gallery.load(tmp_path / "g")
    assert (found.labels.tolist(), found.ids[2], found.dim) == (["cat", "cat", ""], "\udcff.jpg", 8)
    content = np.concatenate([vectors(3)[[0, 2]], vectors(1, seed=1)])
    np.testing.assert_array_equal(found.embeddings, content)
    for labels in ([1, 2], ["cat"]):
        with pytest.raises(ValueError, match=r"^labels\b"):
            found.add(vectors(2), ["a", "b"], labels)
    found.quantize("int8")
    np.testing.assert_allclose(found.embeddings, content, atol=0.02)
    with pytest.warns(UserWarning, match="int8"):  # which are outside of its range
        found.add(100 * vectors(1), ["far.jpg"])


def test_saving_leaves_other_galleries_files_and_writers_alone(tmp_path: Path) -> None:
    gallery = filled(400)
    gallery.save(tmp_path / "g")
    (tmp_path / "g" / "umap-1.png").touch()
    other = Gallery.load(tmp_path / "g")
    other.add(vectors(1), ["new.jpg"])
    other.save(tmp_path / "g")
    gallery.add(vectors(1), ["more.jpg"])
    with pytest.raises(ValueError, match=r"^path\b"):
        gallery.save(tmp_path / "g")
    gallery.remove(names(300))  # so many that all rows would be written anew
    with pytest.raises(ValueError, match=r"^path\b"):
        gallery.save(tmp_path / "g")
    with pytest.raises(ValueError, match=r"^path\b"):
        filled(3).save(tmp_path / "g")
    assert len(Gallery.load(tmp_path / "g")) == 401
    assert (tmp_path / "g" / "umap-1.png").exists()


def test_ids_are_several_and_rows_are_copied() -> None:
    gallery, rows = Gallery(), vectors(3)
    gallery.add(rows, iter(["1", "2", "12"]))
    rows[:] = 0.0
    assert gallery.search(vectors(3), k=1)[0][:, 0].tolist() == ["1", "2", "12"]
    for call in (gallery.remove, lambda ids: gallery.add(vectors(2), ids)):
        with pytest.raises(TypeError, match=r"^ids\b"):
            call("12")
    gallery.remove(name for name in ("12", "12"))
    assert gallery.ids == ["1", "2"]


def test_emptied_galleries_take_other_labels_and_tell_integers() -> None:
    gallery = Gallery()
    gallery.add(np.eye(3, dtype=np.float32), [0, 1, 2], [0, 1, 1])
    gallery.add(np.eye(3, dtype=np.float32), [0, 1, 2], ["a", "b", "b"])  # all are replaced
    assert gallery.labels.tolist() == ["a", "b", "b"]
    gallery.remove([0, 1, 2])
    ids, distances = gallery.search(np.eye(3, dtype=np.float32), 2)
    assert (ids == -1).all()
    assert np.isinf(distances).all()
    gallery.add(np.eye(3, dtype=np.float32), [3, 4, 5], [7, 8, 9])
    assert gallery.labels.tolist() == [7, 8, 9]
