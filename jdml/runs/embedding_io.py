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
from jdml._paths import atomic_write, write_text
from jdml.data import Dataset, ImageFiles
from jdml.data.images import Row
from jdml.data.load import Source, image_id
from jdml.gallery import METADATA, Gallery
from jdml.models.io import wrap_format_errors
from jdml.runs.identity import file_version
from jdml.runs.inference import Trained
from jdml.runs.run_files import read_json

COLUMNS = {"embeddings": "embedding", "labels": "label", "files": "file"}
"""Names of the arrays in files, and of the columns in Parquet files."""
MODEL = "model"
"""The name of the model's identity in files."""
FILES = "files.json"
"""The record of a gallery's files: their root, and the size and time of each."""
PIECE = 1 << 13
"""Images that are embedded before the gallery is saved."""
OnBadImage = Literal["nan", "stop"]
ALL_DAMAGED = "every image is damaged: nothing to embed"


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
    labels: list[np.ndarray] = []
    files: list[np.ndarray] = []
    for name, (vectors, own, names, _) in tables.items():
        labels.append(np.full(len(vectors), -1) if own is None else own)
        unnamed = [f"{name}[{row}]" for row in range(len(vectors))]
        files.append(np.array(unnamed) if names is None else names)
    joined = np.concatenate(labels)  # of numbers and names: texts
    if joined.dtype.kind == "U":
        joined[np.concatenate([own == -1 for own in labels])] = ""
    is_labelled = any(table.labels is not None for table in tables.values())
    vectors = np.concatenate([table.vectors for table in tables.values()])
    return EmbeddingTable(vectors, joined if is_labelled else None, np.concatenate(files))


def write_embeddings(path: Path, table: EmbeddingTable) -> None:
    """Write embeddings atomically, in the format of the file's ending; of a .npy file the rest in .npy.json."""
    columns = dict(zip(COLUMNS, table[:3], strict=True)) | {MODEL: np.array(table.model)}
    arrays: Any = {name: values for name, values in columns.items() if values is not None}
    description = path.with_name(f"{path.name}.json")
    with atomic_write(path) as file:
        if path.suffix == ".npz":
            np.savez(file, **arrays)
        elif path.suffix == ".npy":
            np.save(file, arrays.pop("embeddings"))
            description.unlink(missing_ok=True)  # that of the file before
        else:
            _write_parquet(file, **arrays)
    if path.suffix == ".npy":
        rest = {name: values.tolist() for name, values in arrays.items()}
        write_text(description, json.dumps(rest))


def read_embeddings(path: Path) -> EmbeddingTable:
    """Read the embeddings of a ``.npz``, ``.npy`` or ``.parquet`` file, of jdml or another program."""
    arrays = READERS[path.suffix](path)
    if "embeddings" not in arrays:
        raise ValueError(f"{path} has no array 'embeddings'; it has {', '.join(sorted(arrays))}")
    vectors = np.asarray(arrays["embeddings"])
    if vectors.dtype.kind not in "biuf" or vectors.ndim != 2 or not vectors.size:
        shape = list(vectors.shape)
        raise ValueError(
            f"embeddings of {path} must be numbers [N, D], got {vectors.dtype} {shape}"
        )
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32, copy=False)
    broken = ~np.isfinite(vectors).all(axis=1)
    if broken.any():
        row = int(broken.argmax())
        raise ValueError(f"embeddings of {path} must be finite in float32, row {row} is not")
    columns = {name: np.asarray(arrays[name]) for name in ("labels", "files") if name in arrays}
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
            return content[name]

    @contextlib.contextmanager
    def _open(self, what: str) -> Iterator[Any]:
        """Open the file, which NumPy itself would leave open where it is damaged."""
        with wrap_format_errors(what), self._file.open("rb") as stream, np.load(stream) as content:
            yield content


def map_array(file: Path) -> np.ndarray:
    """Open a .npy file as a memory map."""
    with wrap_format_errors(f"{file}, a .npy file (numpy.save),"):
        return np.load(file, mmap_mode="r")


def _read_npy(path: Path) -> Mapping[str, Any]:
    description = path.with_name(f"{path.name}.json")
    rest = read_json(description, dict, missing={})
    return {**rest, "embeddings": map_array(path)}


def _read_parquet(path: Path) -> Mapping[str, Any]:
    from pyarrow import parquet

    with wrap_format_errors(path), parquet.ParquetFile(path) as file:
        table = file.read([*COLUMNS.values()])
        arrays: dict[str, Any] = {"embeddings": np.stack(table["embedding"].to_numpy())}
        for name in ("labels", "files"):
            if COLUMNS[name] in table.column_names:
                arrays[name] = np.array(table[COLUMNS[name]].to_pylist())
    return {**arrays, MODEL: (table.schema.metadata or {}).get(b"jdml model", b"").decode()}


def _write_parquet(file: IO[bytes], embeddings: np.ndarray, model: Any, **columns: Any) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    vectors = pa.FixedSizeListArray.from_arrays(embeddings.ravel(), embeddings.shape[1])
    named = {COLUMNS[name]: values for name, values in columns.items()}
    table = pa.table({"embedding": vectors, **named}, metadata={"jdml model": str(model)})
    parquet.write_table(table, file)


READERS: dict[str, Any] = {".npz": NpzArrays, ".npy": _read_npy, ".parquet": _read_parquet}
"""How the arrays of files are read, by the files' endings."""


# Galleries: folders of embeddings, with a record of their image files.


def embed_source(
    trained: Trained, source: Source, *, on_bad_image: OnBadImage, progress: bool
) -> tuple[EmbeddingTable, int]:
    """Embed a source without its damaged images, whose number is returned; or stop at the first of them."""
    vectors = trained.embed(source.images, on_bad_image=on_bad_image, progress=progress)
    whole = ~np.isnan(vectors).any(axis=1)
    if not whole.any():
        raise ValueError(ALL_DAMAGED)
    labels, files = (x if x is None else x[whole] for x in (source.labels, source.files))
    return EmbeddingTable(vectors[whole], labels, files, trained.identity), int((~whole).sum())


def update_gallery(
    folder: Path,
    trained: Trained,
    source: Source,
    *,
    on_bad_image: OnBadImage = "nan",
    progress: bool = False,
    piece: int = PIECE,
) -> tuple[Gallery, dict[str, int]]:
    """Embed what is new or changed into a gallery's folder, remove what is gone; return how many images are which."""
    gallery = Gallery.load(folder) if (folder / METADATA).is_file() else Gallery(model=trained)
    if gallery.model != trained.identity:
        raise ValueError(f"--out must be a new folder, {folder} is of another model")
    records = _read_record(folder)["files"]
    images = source.images.images if isinstance(source.images, Dataset) else source.images
    rows, versions = _rows_by_id(images, source.root)
    labels = np.full(len(images), -1) if source.labels is None else source.labels
    had = dict(zip(gallery.ids, gallery.labels.tolist(), strict=True))
    gone = [name for name in had if name in records and name not in rows]
    gallery.remove(gone)
    todo = [
        name
        for name, row in rows.items()
        if records.get(name) != versions[name] or had.get(name) != labels[row].item()
    ]
    embedded: set[str] = set()
    for start in range(0, max(len(todo), 1), piece):
        if names := todo[start : start + piece]:
            some = np.array([rows[name] for name in names])
            part = images.select(some) if isinstance(images, ImageFiles) else images[some]
            vectors = trained.embed(part, on_bad_image=on_bad_image, progress=progress)
            whole = ~np.isnan(vectors).any(axis=1)
            good = np.array(names)[whole].tolist()
            gallery.remove([*{*names}.difference(good).intersection(gallery.ids)])
            if good:
                gallery.add(vectors[whole], good, labels[some[whole]])
            records |= {name: versions[name] for name in good}
            embedded |= {*good}
        if len(gallery):
            gallery.save(folder)
            own = {name: records[name] for name in gallery.ids if name in records}
            # Also relative to the gallery: both may be moved together.
            roots = [os.path.relpath(source.root, folder.absolute()), str(source.root)]
            write_text(folder / FILES, json.dumps({"roots": roots, "files": own}))
    if not len(gallery):
        raise ValueError(ALL_DAMAGED)
    changed = len(embedded & had.keys())
    return gallery, {
        "added": len(embedded) - changed,
        "changed": changed,
        "removed": len(gone),
        "unchanged": len(rows) - len(todo),
        "damaged": len(todo) - len(embedded),
    }


def _rows_by_id(images: Any, root: Path) -> tuple[dict[str, int], dict[str, list[Any]]]:
    """Return the first row of each image by its id, and what says whether it has changed."""
    rows: dict[str, int] = {}
    versions: dict[str, list[Any]] = {}
    for row in range(len(images)):
        name, file = str(row), Row(images, row)
        if isinstance(images, ImageFiles):
            file = images.files[row]
            name = image_id(file)
            if isinstance(file, Row) and os.path.exists(str(file.source)):
                name = os.path.abspath(name)
            path = Path(name)
            name = path.relative_to(root).as_posix() if path.is_relative_to(root) else name
        if name not in rows:
            rows[name], versions[name] = row, []
            with contextlib.suppress(OSError):  # without a version it is new, and damaged
                versions[name] = file_version(file)
    return rows, versions


def _holds_embeddings(path: Path) -> bool:
    """Return whether a path is a file of embeddings, there or not; Parquet files may also hold images."""
    if path.suffix != ".parquet" or not path.is_file():
        return path.suffix in (".npz", ".npy")
    require_package("pyarrow", f"reading {path}")
    from pyarrow import parquet

    with wrap_format_errors(path):
        return "embedding" in parquet.read_schema(path).names


def read_table(path: Path, model: str) -> EmbeddingTable | None:
    """Read a model's embeddings from a gallery's folder or a file; None for what holds none, such as images."""
    if (path / METADATA).is_file():
        table = _read_gallery(path)
    elif _holds_embeddings(path):
        table = read_embeddings(path)
    else:
        return None
    if model and table.model and model != table.model:
        raise ValueError(f"{path} was embedded with another model: embed it again (jdml embed)")
    return table


def _read_gallery(folder: Path) -> EmbeddingTable:
    """Read a gallery's embeddings, its labels if it has any, and its files, as paths where their root is there."""
    gallery, record = Gallery.load(folder), _read_record(folder)
    places = (Path(os.path.normpath(folder.absolute() / root)) for root in record["roots"])
    root = [place for place in places if place.is_dir()][:1]
    ids = map(str, gallery.ids)
    names = [str(Path(*root, name)) if name in record["files"] else name for name in ids]
    labels = gallery.labels
    is_labelled = labels.dtype.kind == "U" or bool((labels >= 0).any())
    return EmbeddingTable(
        gallery.embeddings, labels if is_labelled else None, np.array(names), gallery.model or ""
    )


def _read_record(folder: Path) -> dict[str, Any]:
    return {"roots": [], "files": {}, **read_json(folder / FILES, dict, missing={})}
