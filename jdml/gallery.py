"""A gallery of embeddings that grows: added to, searched, saved, and mapped from disk."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jdml._paths import check_local, json_of, lock_of, write_text
from jdml.metrics import gallery_search
from jdml.metrics.quantization import Codec, Kind
from jdml.ops import checks, sphere

__all__ = ["Gallery"]

Id = int | str
Label = int | str

FORMAT = "jdml gallery 2"
METADATA = "gallery.json"
FIRST_SAVE = {"vectors-1.bin", "ids-1.jsonl", f"{METADATA}.tmp"}
"""The files of a first save that was killed."""
PIECE = 1 << 16
"""Rows of quantized vectors that are decoded at a time."""
PADDED = 1 << 10
"""Rows up to which embeddings are padded to a power of two, so that few programs are compiled to normalize them."""
NUMBER = checks.Constraint(lambda value: value == value, "other than NaN")
SLACK, SHARE = 64, 50
"""Removed rows that stay where they are: so many, or one of so many."""


class Gallery:
    """Embeddings by id, among which queries find their nearest ones.

    Args:
        model: what makes the embeddings: a model of ``jdml.training.load``, of which the identity is kept, or a text.
        normalize: :func:`jdml.sphere`: embeddings and queries are put on the unit sphere; None: taken as given.

    Raises:
        TypeError: a model without an identity.
        ValueError: another normalization.

    Implementation notes:
        Search is exact: a matrix product on the host proposes neighbours, of which distances are computed from
        differences; where rounding could have hidden one :func:`jdml.nearest` searches instead. Ties go to what was
        added first. A saved gallery is a folder: ``vectors-N.bin`` (rows, one after the other), ``ids-N.jsonl`` and
        ``gallery.json``, which says how many rows count and is replaced atomically, last. Saving into the folder it
        came from appends the new rows; an append that is killed leaves the gallery as it was. Removed rows are skipped,
        and left out of the files once they are more than one in fifty.

    Example:
        >>> import numpy as np
        >>> gallery = Gallery()
        >>> gallery.add(np.float32([[0.0, 0.0], [3.0, 4.0]]), ["a.jpg", "b.jpg"])
        >>> gallery.search(np.float32([[3.0, 3.0]]), k=1)
        (array([['b.jpg']], dtype=object), array([[1.]], dtype=float32))
        >>> gallery.remove(["b.jpg"])
        >>> len(gallery), gallery.ids
        (1, ['a.jpg'])
    """

    def __init__(self, *, model: Any = None, normalize: Callable[..., Any] | None = None) -> None:
        if normalize not in (None, sphere):
            raise ValueError(f"normalize must be jdml.sphere or None, got {normalize!r}")
        self.model = _identity(model)
        self.normalize = normalize
        self.recall: float | None = None
        self._codec = Codec()
        self._dim: int | None = None
        self._stored: np.ndarray | None = None  # [n, W], what is saved, maybe on disk
        self._new: list[np.ndarray] = []
        self._halves: dict[int, tuple[np.ndarray, float]] = {}  # of a part: ‖g‖²/2, the longest
        self._ids: list[Id] = []  # of every row, and its label
        self._labels: list[Label] = []
        self._rows: dict[Id, int] = {}  # of what is not removed, in order
        self._removed: list[int] = []
        self._folder: Path | None = None
        self._version: tuple[int, int] | None = None  # of the files: generation and rows

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        size = "empty" if self._dim is None else f"{len(self)} × {self._dim}, {self._codec.kind}"
        recall = "" if self.recall is None else f", recall@10 {self.recall:.3f}"
        return f"Gallery({size}{recall})"

    @property
    def dim(self) -> int | None:
        """The dimension D of the embeddings; None before the first."""
        return self._dim

    @property
    def ids(self) -> list[Id]:
        """The ids, in the order in which they were added."""
        return list(self._rows)

    @property
    def labels(self) -> np.ndarray:
        """The labels ``[N]`` in the order of the ids; −1, or "" among names, where none was given."""
        labels = [self._labels[row] for row in self._rows.values()]
        if any(isinstance(label, str) for label in labels):
            return np.array(["" if label == -1 else label for label in labels])
        return np.array(labels, np.int64)

    @property
    def embeddings(self) -> np.ndarray:
        """The embeddings ``[N, D]``, float32, in the order of the ids, as far as a quantized gallery keeps them."""
        return self._codec.decode(self._encoded(), self._dim or 0)

    def add(
        self, embeddings: Any, ids: Sequence[Id], labels: Any = None, *, model: Any = None
    ) -> None:
        """Add embeddings, each in the place of what has its id.

        Args:
            embeddings: ``[N, D]`` floating.
            ids: N texts, such as paths relative to the images' folder, or N integers from 0.
            labels: ``[N]`` integers, or texts, the names of classes; or None.
            model: what made these embeddings, refused if it is not the gallery's.

        Raises:
            TypeError: arguments of the wrong kind.
            ValueError: shapes that do not fit, an id twice, texts among integers as ids or labels, rows that are not
                finite, embeddings of another model or dimension.
        """
        self._check_model(model)
        vectors = self._check_vectors("embeddings", embeddings)
        ids = _as_ids(ids)
        if len(ids) != len(vectors):
            raise ValueError(f"ids must be {len(vectors)}, one for each row, got {len(ids)}")
        if len(set(ids)) != len(ids):
            twice = next(name for place, name in enumerate(ids) if name in ids[:place])
            raise ValueError(f"ids must not repeat, got {twice!r} twice")
        if len({type(name) for name in [*ids, *itertools.islice(self._rows, 1)]}) > 1:
            raise ValueError("ids must be all texts or all integers, got both")
        own = self._checked_labels(labels, ids)
        self._dim = vectors.shape[1]
        self._removed += [self._rows.pop(name) for name in ids if name in self._rows]
        self._rows |= {name: len(self._ids) + place for place, name in enumerate(ids)}
        self._new.append(self._codec.encode(vectors))
        self._ids += ids
        self._labels += own
        self._leave_out()

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove embeddings by their ids.

        Raises:
            ValueError: an id that the gallery does not have.
        """
        ids = _as_ids(ids)
        for name in ids:
            if name not in self._rows:
                raise ValueError(f"ids must be in the gallery, got {name!r}")
        self._removed += [self._rows.pop(name) for name in dict.fromkeys(ids)]
        self._leave_out()

    def search(
        self, queries: Any, k: int = 10, *, max_distance: float | None = None, model: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the nearest embeddings of each query.

        Args:
            queries: ``[Q, D]`` floating.
            k: how many.
            max_distance: leave out what is farther.
            model: what made the queries, refused if it is not the gallery's.

        Returns:
            Ids ``[Q, k]``, nearest first, and distances ``[Q, k]``: None (−1 among integers) and ∞ where there are
            fewer. Of a quantized gallery these are distances to the vectors that it keeps.

        Raises:
            TypeError: arguments of the wrong kind.
            ValueError: queries of another model or dimension, or not finite; k below 1; a distance that is NaN.
        """
        self._check_model(model)
        checks.count("k", k)
        checks.optional(NUMBER)("max_distance", max_distance)
        points = self._check_vectors("queries", queries)
        distances = np.full((len(points), k), np.inf, np.float32)
        rows = np.full((len(points), k), -1)
        gone = np.array(self._removed, int)
        for start, part in self._parts():
            here = np.count_nonzero((gone >= start) & (gone < start + len(part)))
            candidates, places = self._nearest(points, start, part, min(k + int(here), len(part)))
            candidates = np.where(np.isin(start + places, gone), np.inf, candidates)
            candidates = np.hstack([distances, candidates])
            order = np.argsort(candidates, axis=1, kind="stable")[:, :k]
            distances = np.take_along_axis(candidates, order, 1)
            rows = np.take_along_axis(np.hstack([rows, start + places]), order, 1)
        if max_distance is not None:
            distances = np.where(distances <= max_distance, distances, np.inf).astype(np.float32)
        there = np.isfinite(distances)
        integers = any(isinstance(name, int) for name in self._ids[-1:])
        ids = np.full(rows.shape, -1 if integers else None, np.int64 if integers else object)
        ids[there] = [self._ids[row] for row in rows[there]]
        return ids, distances

    def quantize(self, kind: Literal["int8", "binary"], rescore: int = Codec.rescore) -> float:
        """Keep embeddings in fewer bytes: a quarter with ``"int8"``, a 32nd with ``"binary"``.

        Args:
            kind: ``"int8"``: 256 steps between each entry's smallest and largest value; ``"binary"``: its sign.
            rescore: of ``"binary"``: so many times k are chosen by their bits, and then ordered by the distance of the
                query as it is to their signs.

        Returns:
            Recall@10 against exact search: the mean share of the ten nearest that are still found, of up to 200 of its
            own vectors.

        Raises:
            ValueError: another kind, an empty or quantized gallery, ``rescore`` below 1.
        """
        checks.one_of("kind", kind, get_args(Kind)[1:])
        checks.count("rescore", rescore)
        if self._codec.kind != "float32" or not len(self):
            raise ValueError(f"a gallery must hold float32 vectors to be quantized, got {self!r}")
        self._leave_out(all_of_them=True)
        vectors = self._encoded()
        every = -(-len(vectors) // 200)
        probes, own = vectors[::every], self.ids[::every]
        exact, _ = self.search(probes, min(11, len(self)))
        self._codec = Codec.fit(kind, vectors, rescore)
        self._stored, self._new, self._halves = None, [self._codec.encode(vectors)], {}
        approximate, _ = self.search(probes, exact.shape[1])
        others = [({*a} - {name}, {*b}) for a, b, name in zip(exact, approximate, own, strict=True)]
        self.recall = float(np.mean([len(a & b) / max(len(a), 1) for a, b in others]))
        return self.recall

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save into a folder; into the one it came from only what is new is written.

        Raises:
            ValueError: a folder that holds other files or ends as a file of embeddings does, or a gallery that another
                process has changed since.
        """
        check_local("path", path)
        folder = Path(path)
        if folder.suffix in (".npz", ".npy", ".parquet"):
            raise ValueError(f"path must be a folder's name, without {folder.suffix}, got {folder}")
        with lock_of(folder, needed=False):
            self._save(folder)

    def _save(self, folder: Path) -> None:
        before = _read(folder) if (folder / METADATA).exists() else {}
        is_own = self._folder is not None and folder.resolve() == self._folder.resolve()
        others = (file for file in folder.glob("*") if file.name not in FIRST_SAVE)
        if not is_own and (before or any(others)):
            raise ValueError(f"path must be a new folder or the gallery's own, {folder} is neither")
        if is_own and before.get("version") != self._version:
            raise ValueError(f"path was changed by another process: load {folder} again")
        folder.mkdir(parents=True, exist_ok=True)
        if self._stored is None or not before:  # all rows are written
            generation, saved_rows, saved_bytes = before.get("version", (0, 0))[0] + 1, 0, 0
            parts = [part for _, part in self._parts()]
        else:
            (generation, saved_rows), saved_bytes = before["version"], before["bytes_of_ids"]
            parts = self._new
        lines = zip(self._ids[saved_rows:], self._labels[saved_rows:], strict=True)
        files = _files(folder, generation)
        blocks = (np.ascontiguousarray(part).data for part in parts)
        _append(files[0], saved_rows * self._codec.row_bytes(self._dim or 0), blocks)
        text = (json.dumps(line).encode() + b"\n" for line in lines)
        metadata = {
            "format": FORMAT,
            "model": self.model,
            "normalize": self.normalize and "sphere",
            "dimension": self._dim,
            "codec": dataclasses.asdict(self._codec),
            "recall": self.recall,
            "version": (generation, len(self._ids)),
            "bytes_of_ids": _append(files[1], saved_bytes, text),
            "removed": self._removed,
        }
        write_text(folder / METADATA, json.dumps(metadata))
        for file in [*folder.glob("vectors-*.bin"), *folder.glob("ids-*.jsonl")]:
            if file not in files:
                file.unlink()
        mapped = self._stored is None or isinstance(self._stored, np.memmap)
        self._folder, self._version = folder, (generation, len(self._ids))
        self._stored = self._read_vectors(files[0], len(self._ids), mmap=mapped)
        self._new = []

    @classmethod
    def load(cls, path: str | os.PathLike[str], mmap: bool = True) -> "Gallery":
        """Load a saved gallery.

        Args:
            path: its folder.
            mmap: leave the vectors on disk, from where search reads them; False: read them into memory.

        Raises:
            FileNotFoundError: no such gallery.
            ValueError: files that are damaged.
        """
        folder = Path(path)
        metadata = _read(folder)
        try:
            return cls._load(folder, metadata, mmap=mmap)
        except FileNotFoundError:
            # Another process may just have written all rows anew, and removed these files.
            if _read(folder)["version"] == metadata["version"]:
                raise
            return cls.load(path, mmap)

    @classmethod
    def _load(cls, folder: Path, metadata: dict[str, Any], *, mmap: bool) -> "Gallery":
        gallery = cls(model=metadata["model"], normalize=metadata["normalize"] and sphere)
        gallery._codec, gallery.recall = Codec(**metadata["codec"]), metadata["recall"]
        gallery._dim, gallery._folder = metadata["dimension"], folder
        gallery._version = generation, rows = metadata["version"]
        vectors, file = _files(folder, generation)
        lines = file.read_bytes()[: metadata["bytes_of_ids"]].splitlines()
        if len(lines) != rows:
            raise ValueError(f"{file} must have {rows} lines, got {len(lines)}")
        for number, line in enumerate(lines, start=1):
            name, label = json_of(line, f"{file}:{number}", list)
            gallery._ids.append(name)
            gallery._labels.append(label)
        gallery._removed = metadata["removed"]
        gone = {*gallery._removed}
        gallery._rows = {name: r for r, name in enumerate(gallery._ids) if r not in gone}
        gallery._stored = gallery._read_vectors(vectors, rows, mmap=mmap)
        return gallery

    def _read_vectors(self, file: Path, rows: int, *, mmap: bool) -> np.ndarray | None:
        """Map or read the rows that are saved."""
        if not rows:
            return None
        width = self._codec.row_bytes(self._dim or 0)
        if file.stat().st_size < rows * width:
            raise ValueError(f"{file} must have {rows * width} bytes, is shorter")
        dtype = np.dtype(np.float32 if self._codec.kind == "float32" else np.uint8)
        mapped = np.memmap(file, dtype, "r", shape=(rows, width // dtype.itemsize))
        return mapped if mmap else np.array(mapped)

    def _check_vectors(self, name: str, vectors: Any) -> np.ndarray:
        vectors = checks.as_array(vectors)
        checks.check_embeddings(name, vectors, dim=self._dim, like="the gallery")
        rows = np.asarray(checks.as_finite(name, vectors))
        if self.normalize is None:
            return rows
        size = len(rows)
        if size < PADDED:
            rows = gallery_search.pad_rows(rows, 1 << max(size - 1, 0).bit_length())
        return np.asarray(self.normalize(rows))[:size]

    def _check_model(self, model: Any) -> None:
        other = _identity(model)
        if other is not None and self.model is not None and other != self.model:
            raise ValueError(f"model must be the gallery's, {self.model}, got {other}")

    def _checked_labels(self, labels: Any, ids: Sequence[Id]) -> list[Label]:
        if labels is None:
            return [-1] * len(ids)
        own = np.asarray(labels)
        is_text = own.dtype.kind == "U"
        checks.check_labels("labels", np.zeros(own.shape, int) if is_text else own, len(ids))
        new: list[Label] = own.tolist()
        replaced = {*ids}
        others = (self._labels[row] for name, row in self._rows.items() if name not in replaced)
        one = next((label for label in others if label != -1), -1)  # all have one kind
        if len({type(label) for label in (one, *new) if label != -1}) > 1:
            raise ValueError("labels must be all texts or all integers, got both")
        return new

    def _parts(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield what is stored and what is new, with the number of the first row."""
        if len(self._new) > 1:
            self._new = [np.concatenate(self._new)]
        start = 0
        for part in ([] if self._stored is None else [self._stored]) + self._new:
            size = len(part) if self._codec.kind != "int8" else PIECE
            for first in range(0, len(part), size):
                yield start + first, part[first : first + size]
            start += len(part)

    def _nearest(
        self, points: np.ndarray, start: int, part: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and rows ``[Q, k]`` of the nearest of the part that begins with the row ``start``."""
        if self._codec.kind != "float32":
            return self._codec.nearest(points, part, k)
        halves, longest = self._halves.get(start, (np.zeros(0, np.float32), 0.0))
        if len(halves) < len(part):  # rows are only appended: those before are known
            more, longer = gallery_search.norms(part[len(halves) :])
            halves, longest = np.concatenate([halves, more]), max(longest, longer)
            self._halves[start] = halves, longest
        return gallery_search.exact_nearest(points, part, halves, longest, k)

    def _encoded(self) -> np.ndarray:
        """Return the rows that are not removed, as they are stored."""
        whole = [np.asarray(part) for _, part in self._parts()] or [np.zeros((0, 0), np.float32)]
        return np.concatenate(whole)[list(self._rows.values())]

    def _leave_out(self, *, all_of_them: bool = False) -> None:
        """Copy the rows that are left, once many are gone: the next save writes them all."""
        gone = len(self._removed)
        if not gone or (gone <= max(SLACK, len(self._ids) // SHARE) and not all_of_them):
            return
        self._stored, self._new, self._halves = None, [self._encoded()], {}
        self._labels = [self._labels[row] for row in self._rows.values()]
        self._ids = self.ids
        self._rows = {name: row for row, name in enumerate(self._ids)}
        self._removed = []


def _identity(model: Any) -> str | None:
    identity = getattr(model, "identity", model)
    if identity is not None and not isinstance(identity, str):
        raise TypeError(f"model must be a trained model or a text, got a {type(model).__name__}")
    return identity


def _as_ids(ids: Any) -> list[Id]:
    """Return ids as texts or integers; one text is not several ids."""
    if isinstance(ids, str | bytes):
        raise TypeError(f"ids must be several, got the text {ids!r}: write [{ids!r}]")
    known: list[Id] = []
    for place, name in enumerate(ids):
        if isinstance(name, str | os.PathLike):
            known.append(name if isinstance(name, str) else Path(name).as_posix())
        elif isinstance(name, int | np.integer) and not isinstance(name, bool) and name >= 0:
            known.append(int(name))
        else:
            raise TypeError(f"ids[{place}] must be a text or an integer from 0, got {name!r}")
    return known


def _files(folder: Path, generation: int) -> tuple[Path, Path]:
    return folder / f"vectors-{generation}.bin", folder / f"ids-{generation}.jsonl"


def _read(folder: Path) -> dict[str, Any]:
    """Read and check what a gallery's folder says of itself."""
    file = folder / METADATA
    if not file.exists():
        raise FileNotFoundError(f"path must be a gallery's folder, {file} is missing")
    metadata: dict[str, Any] = json_of(file.read_bytes(), file, dict)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{file} is not of format {FORMAT!r}, got {metadata.get('format')!r}")
    return {**metadata, "version": tuple(metadata["version"])}


def _append(file: Path, size: int, blocks: Any) -> int:
    """Write blocks from the ``size``-th byte on, in the place of all behind it; return the new size."""
    with file.open("r+b" if size else "wb") as out:
        out.truncate(size)
        out.seek(size)
        for block in blocks:
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
        return out.tell()
