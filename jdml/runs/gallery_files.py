"""Galleries of image files: embed only what is new or changed, and read a gallery with its files' paths."""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jdml._paths import json_of, write_text
from jdml.data import Dataset, ImageFiles
from jdml.data.images import Row
from jdml.data.load import Source, image_id
from jdml.gallery import METADATA, Gallery
from jdml.runs.embedding_io import EmbeddingTable, holds_embeddings, read_embeddings
from jdml.runs.inference import Trained

FILES = "files.json"
"""The record of a gallery's files: their root, and the size, time and checksum of each."""
PIECE = 1 << 13
"""Images that are embedded before the gallery is saved."""

Record = tuple[int | None, int | None, str | None]
"""Size, modification time in ns, and checksum of a file."""


class Update(NamedTuple):
    """Numbers of images by what was done with them."""

    added: int
    changed: int
    removed: int
    unchanged: int
    damaged: int


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
) -> tuple[Gallery, Update]:
    """Embed the images of a source that are new or changed into a gallery's folder, and remove what is gone.

    An image's id is its path relative to the source's root. It is changed if its class is another, or its size or
    modification time; with ``by_content``, and for images without a file, its checksum. Other rows of the gallery stay.
    It is saved every ``piece`` images, before the record of its files: a killed update embeds the last of them again.
    """
    gallery, records = Gallery(model=trained), dict[str, Record]()
    if is_gallery(folder):
        gallery = Gallery.load(folder)
        records = {name: tuple(record) for name, record in _read(folder)["files"].items()}
        if gallery.model != trained.identity:
            raise ValueError(
                f"--out holds embeddings of another model: embed into a new folder, not into {folder}"
            )
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
            good = _replace(gallery, names, vectors, [labels[row] for row in rows])
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
    return gallery, Update(
        added=len(embedded) - changed,
        changed=changed,
        removed=len(gone),
        unchanged=len(of_id) - len(todo),
        damaged=len(todo) - len(embedded),
    )


def _replace(
    gallery: Gallery, names: list[str], vectors: np.ndarray, labels: list[Any]
) -> list[str]:
    """Put embeddings in the place of those of their names, and remove those of damaged images; return the others."""
    whole = ~np.isnan(vectors).any(axis=1)
    good = [name for name, is_whole in zip(names, whole, strict=True) if is_whole]
    own = [label for label, is_whole in zip(labels, whole, strict=True) if is_whole]
    gallery.remove([*{*names}.difference(good).intersection(gallery.ids)])
    if good:
        gallery.add(vectors[whole], good, own)
    return good


def read_table(path: Path, model: str) -> EmbeddingTable | None:
    """Read a model's embeddings from a gallery's folder or a file; None for what holds none, such as images."""
    if not is_gallery(path) and not holds_embeddings(path):
        return None
    table = _read_gallery(path) if is_gallery(path) else read_embeddings(path)
    if model and table.model and model != table.model:
        raise ValueError(
            f"{path} was embedded with another model, so its distances mean nothing: embed it again (jdml embed)"
        )
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
    stat: tuple[int | None, int | None] = None, None
    with contextlib.suppress(OSError, ValueError):  # a row's is that of its table
        own = os.stat(str(file.source) if isinstance(file, Row) else str(file))
        stat = own.st_size, own.st_mtime_ns
    if known is not None and stat == known[:2] and None not in stat and not by_content:
        return known
    try:
        content = file.source[file.number] if isinstance(file, Row) else file.read_bytes()
    except OSError:
        return *stat, None
    content = content if isinstance(content, bytes) else np.asarray(content).tobytes()
    return *stat, hashlib.sha256(content).hexdigest()[:16]
