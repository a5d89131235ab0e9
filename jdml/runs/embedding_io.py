"""Tables of embeddings: in files, and in galleries' folders, of which only new or changed images are embedded."""

import contextlib
import json
import os
from collections import UserDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from jdml._optional_imports import require_package
from jdml._paths import atomic_write, json_of, write_text
from jdml.data import Dataset, ImageFiles
from jdml.data.images import Row
from jdml.data.load import Source, image_id
from jdml.gallery import ENDINGS, METADATA, Gallery
from jdml.runs.identity import file_digest, file_stat
from jdml.runs.inference import Trained

MODEL = "model"
"""The name of the model's identity in files."""
PARQUET = {"embeddings": "embedding", "labels": "label", "files": "file"}
"""Columns of Parquet files."""
FILES = "files.json"
"""The record of a gallery's files: their root, and the size, time and checksum of each."""
PIECE = 1 << 13
"""Images that are embedded before the gallery is saved."""

Record = tuple[int | None, int | None, str | None]
"""Size, modification time in ns, and checksum of a file."""


class EmbeddingTable(NamedTuple):
    """Embeddings, their labels, their files, and the model."""

    vectors: np.ndarray
    labels: np.ndarray | None = None
    files: np.ndarray | None = None
    model: str = ""


def join_tables(tables: Mapping[str, EmbeddingTable]) -> EmbeddingTable:
    """Return the rows of several tables by their names, which rows without a file are named by."""
    if len(tables) == 1:
        return next(iter(tables.values()))
    labels: list[Any] = []
    files: list[str] = []
    for name, table in tables.items():
        size = len(table.vectors)
        labels += [-1] * size if table.labels is None else table.labels.tolist()
        files += (
            [f"{name}[{row}]" for row in range(size)] if table.files is None else [*table.files]
        )
    if any(isinstance(label, str) for label in labels):
        labels = ["" if label == -1 else str(label) for label in labels]
    vectors = np.concatenate([table.vectors for table in tables.values()])
    is_labelled = any(table.labels is not None for table in tables.values())
    return EmbeddingTable(vectors, np.array(labels) if is_labelled else None, np.array(files))


def write_embeddings(path: Path, table: EmbeddingTable) -> None:
    """Write embeddings atomically, in the format of the file's ending; of a .npy file the rest in .npy.json."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"path must end in {' or '.join(ENDINGS)}, got {path}")
    named = {"labels": table.labels, "files": table.files, MODEL: np.array(table.model)}
    rest: Any = {name: values for name, values in named.items() if values is not None}
    if path.suffix == ".parquet":
        require_package("pyarrow", f"writing {path}")
    _rest_of(path).unlink(missing_ok=True)  # no file lies next to another's description
    with atomic_write(path) as file:
        if path.suffix == ".npz":
            np.savez(file, embeddings=table.vectors, **rest)
        elif path.suffix == ".npy":
            np.save(file, table.vectors)
        else:
            _write_parquet(file, table.vectors, **rest)
    if path.suffix == ".npy":
        lists = {name: values.tolist() for name, values in rest.items()}
        write_text(_rest_of(path), json.dumps(lists))


def holds_embeddings(path: Path) -> bool:
    """Return whether a path is a file of embeddings, there or not, and not of images."""
    if path.suffix == ".parquet" and path.is_file():
        require_package("pyarrow", f"reading {path}")
        from pyarrow import parquet

        return "embedding" in parquet.read_schema(path).names
    return path.suffix in (".npz", ".npy")


def read_embeddings(path: Path) -> EmbeddingTable:
    """Read the embeddings of a ``.npz``, ``.npy`` or ``.parquet`` file, of jdml or another program."""
    readers = {".npy": _read_npy, ".parquet": _read_parquet}
    arrays = readers.get(path.suffix, NpzArrays)(path)
    if "embeddings" not in arrays:
        raise ValueError(f"{path} has no array 'embeddings'; it has {', '.join(sorted(arrays))}")
    with np.errstate(over="ignore"):
        vectors = np.asarray(arrays["embeddings"], np.float32)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"embeddings of {path} must be [N, D], got {list(vectors.shape)}")
    broken = ~np.isfinite(vectors).all(axis=1)
    if broken.any():
        row = int(broken.argmax())
        raise ValueError(f"embeddings of {path} must be finite in float32, row {row} is not")
    columns = {name: arrays[name] for name in ("labels", "files") if name in arrays}
    for name, values in columns.items():
        if values.dtype.kind == "S":
            columns[name] = np.char.decode(values, "utf-8")
        elif values.dtype.kind not in ("iuU" if name == "labels" else "U"):
            kinds = "integers or strings" if name == "labels" else "strings"
            raise ValueError(f"{name} of {path} must be {kinds}, got {values.dtype}")
        by_level = name == "labels" and values.ndim == 2 and values.shape[1] > 0
        if values.shape[:1] != (len(vectors),) or (values.ndim != 1 and not by_level):
            shape = list(values.shape)
            raise ValueError(f"{name} of {path} must be [N] = [{len(vectors)}], got {shape}")
    return EmbeddingTable(vectors, **columns, model=str(arrays.get(MODEL, "")))


class NpzArrays(UserDict[str, np.ndarray]):
    """The arrays of a .npz file, read on access; a ValueError names a file or an array that cannot be read."""

    def __init__(self, file: Path) -> None:
        """Read the names."""
        self._file = file
        with self._open(f"{file}, a .npz file (numpy.savez),") as content:
            super().__init__(dict.fromkeys(content.files))

    def __getitem__(self, name: str) -> np.ndarray:
        """Read an array."""
        if name not in self:
            raise KeyError(name)
        with self._open(f"{name!r} of {self._file}") as content:
            array: np.ndarray = content[name]
        return array

    @contextlib.contextmanager
    def _open(self, what: str) -> Iterator[Any]:
        """Open the file, which NumPy itself would leave open where it is damaged."""
        with _of_numpy(what), self._file.open("rb") as stream, np.load(stream) as content:
            yield content


def map_array(file: Path) -> np.ndarray:
    """Open a .npy file as a memory map."""
    with _of_numpy(f"{file}, a .npy file (numpy.save),"):
        array: np.ndarray = np.load(file, mmap_mode="r")
    return array


@contextlib.contextmanager
def _of_numpy(what: str) -> Iterator[None]:
    """Raise a ValueError for content that NumPy cannot read; its errors are of many kinds."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{what} cannot be read: {error}") from error


def _rest_of(path: Path) -> Path:
    """Return the file of what a .npy file does not hold."""
    return path.with_name(path.name + ".json")


def _read_npy(path: Path) -> Mapping[str, np.ndarray]:
    arrays, file = {"embeddings": map_array(path)}, _rest_of(path)
    rest = json_of(file.read_bytes(), file, dict) if file.is_file() else {}
    return arrays | {name: np.array(values) for name, values in rest.items()}


def _read_parquet(path: Path) -> Mapping[str, np.ndarray]:
    require_package("pyarrow", f"reading {path}")
    from pyarrow import parquet

    table = parquet.read_table(path)
    arrays = {
        name: _values_of(table[of].combine_chunks())
        for name, of in PARQUET.items()
        if of in table.column_names
    }
    model = (table.schema.metadata or {}).get(f"jdml {MODEL}".encode(), b"")
    return arrays | {MODEL: np.array(model.decode())}


def _values_of(column: Any) -> np.ndarray:
    """Return a column's values; those of lists of a fixed size are not copied."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_fixed_size_list(kind) and not column.null_count:
        flat = column.flatten()
        if pa.types.is_floating(kind.value_type) and not flat.null_count:
            values: np.ndarray = flat.to_numpy().reshape(len(column), kind.list_size)
            return values
    return np.array(column.to_pylist())


def _write_parquet(
    file: IO[bytes], vectors: np.ndarray, *, model: np.ndarray, **columns: np.ndarray
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    arrays = {"embedding": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}
    arrays |= {PARQUET[name]: pa.array(values.tolist()) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays, metadata={f"jdml {MODEL}": str(model)}), file)


# Galleries: folders of embeddings, with a record of their image files.


def embed_source(
    trained: Trained, source: Source, *, skip: bool, progress: bool
) -> tuple[EmbeddingTable, int]:
    """Embed a source; with ``skip`` without its damaged images, whose number is returned."""
    bad: Literal["nan", "stop"] = "nan" if skip else "stop"
    vectors = trained.embed(source.images, on_bad_image=bad, progress=progress)
    whole = ~np.isnan(vectors).any(axis=1)
    if not whole.any():
        raise ValueError("every image is damaged: nothing to embed")
    labels, files = (
        None if column is None else column[whole] for column in (source.labels, source.files)
    )
    return EmbeddingTable(vectors[whole], labels, files, trained.identity), int((~whole).sum())


def is_gallery(folder: Path) -> bool:
    """Return whether a folder is that of a gallery."""
    return (folder / METADATA).is_file()


def update_gallery(
    folder: Path,
    trained: Trained,
    source: Source,
    *,
    by_content: bool = False,
    on_bad_image: Any = "nan",
    progress: bool = False,
    piece: int = PIECE,
) -> tuple[Gallery, dict[str, int]]:
    """Embed the images of a source that are new or changed into a gallery's folder, and remove what is gone.

    An image's id is its path relative to the source's root. It is changed if its class is another, or its size or
    modification time; with ``by_content``, and for images without a file, its checksum. Other rows of the gallery stay.
    It is saved every ``piece`` images, before the record of its files: a killed update embeds the last of them again.
    Return the gallery, and numbers of images by what was done with them.
    """
    gallery, records = Gallery(model=trained), dict[str, Record]()
    if is_gallery(folder):
        gallery = Gallery.load(folder)
        records = {name: tuple(record) for name, record in _read(folder)["files"].items()}
        if gallery.model != trained.identity:
            raise ValueError(f"--out must be a new folder, {folder} is of another model")
    root, images = source.root, source.images
    images = images.images if isinstance(images, Dataset) else images
    files = list(images.files) if isinstance(images, ImageFiles) else None
    of_id: dict[str, int] = {}
    for row in range(len(images)):
        of_id.setdefault(str(row) if files is None else _id_of(files[row], root), row)
    labels = [-1] * len(images) if source.labels is None else source.labels.tolist()
    had = dict(zip(gallery.ids, gallery.labels.tolist(), strict=True))
    todo: dict[str, Record] = {}
    for name, row in of_id.items():
        file = Row(images, row) if files is None else files[row]
        known = records.get(name) if had.get(name) == labels[row] else None
        record = _record(file, known, by_content=by_content)
        by_checksum = by_content or None in record[:2]
        is_same = known and (record is known or (by_checksum and record[2] == known[2]))
        (records if is_same else todo)[name] = record
    gone = [name for name in had if name in records and name not in of_id]
    gallery.remove(gone)
    embedded: set[str] = set()
    for start in range(0, max(len(todo), 1), piece):
        names = list(todo)[start : start + piece]
        if names:
            rows = np.array([of_id[name] for name in names])
            part = images.select(rows) if isinstance(images, ImageFiles) else images[rows]
            vectors = trained.embed(part, on_bad_image=on_bad_image, progress=progress)
            whole = ~np.isnan(vectors).any(axis=1)
            good = [name for name, is_whole in zip(names, whole, strict=True) if is_whole]
            gallery.remove([*{*names}.difference(good).intersection(gallery.ids)])
            if good:
                gallery.add(vectors[whole], good, [labels[of_id[name]] for name in good])
            records |= {name: todo[name] for name in good}
            embedded |= {*good}
        if len(gallery):
            gallery.save(folder)
            own = {name: records[name] for name in gallery.ids if name in records}
            # Also relative to the gallery: both may be moved together.
            roots = [os.path.relpath(root, folder.absolute()), str(root)]
            write_text(folder / FILES, json.dumps({"roots": roots, "files": own}))
    if not len(gallery):
        raise ValueError("every image is damaged: nothing to embed")
    changed = sum(name in had for name in embedded)
    return gallery, {
        "added": len(embedded) - changed,
        "changed": changed,
        "removed": len(gone),
        "unchanged": len(of_id) - len(todo),
        "damaged": len(todo) - len(embedded),
    }


def read_table(path: Path, model: str) -> EmbeddingTable | None:
    """Read a model's embeddings from a gallery's folder or a file; None for what holds none, such as images."""
    if not is_gallery(path) and not holds_embeddings(path):
        return None
    table = _read_gallery(path) if is_gallery(path) else read_embeddings(path)
    if model and table.model and model != table.model:
        raise ValueError(f"{path} was embedded with another model: embed it again (jdml embed)")
    return table


def _read_gallery(folder: Path) -> EmbeddingTable:
    """Read a gallery's embeddings, its labels if it has any, and its files, as paths where their root is there."""
    gallery = Gallery.load(folder)
    known = _read(folder)
    roots, files = known["roots"], known["files"]
    places = (Path(os.path.normpath(Path(folder.absolute(), root))) for root in roots)
    there = [place for place in places if place.is_dir()]
    root = there[:1]
    names = [str(Path(*root, name)) if name in files else name for name in map(str, gallery.ids)]
    labels = gallery.labels
    is_labelled = labels.dtype.kind == "U" or bool((labels >= 0).any())
    return EmbeddingTable(
        gallery.embeddings, labels if is_labelled else None, np.array(names), gallery.model or ""
    )


def _read(folder: Path) -> dict[str, Any]:
    file = folder / FILES
    empty: dict[str, Any] = {"roots": [], "files": {}}
    return {**empty, **json_of(file.read_bytes(), file, dict)} if file.is_file() else empty


def _id_of(file: Any, root: Path) -> str:
    name = image_id(file)
    if isinstance(file, Row) and os.path.exists(str(file.source)):
        name = os.path.abspath(name)
    path = Path(name)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else name


def _record(file: Any, known: Record | None, *, by_content: bool) -> Record:
    """Return a file's record; what is known where its size and time are as before, and these are enough."""
    stat = file_stat(file)
    if known is not None and stat == known[:2] and not by_content:
        return known
    checksum = None
    with contextlib.suppress(OSError):
        checksum = file_digest(file)[:16]
    return *(stat or (None, None)), checksum
