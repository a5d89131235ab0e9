"""Files of arrays that are."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hunt.bad import Bad, Code, cut, mark, put

from jdml import report


def arrays(**named: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        made = {name: value(place) if callable(value) else value for name, value in named.items()}
        np.savez(place / "e.npz", **made)
        return place / "e.npz"

    return make


def objects(place: Path) -> np.ndarray:
    return np.array([Code(mark(place))] * 4, dtype=object)


def pickled(name: str) -> Callable[[Path], Path]:
    return lambda place: put(name, pickle.dumps(Code(mark(place))))(place)


def claiming(shape: tuple[int, ...]) -> Callable[[Path], Path]:
    """An array that says to be larger than it is."""

    def make(place: Path) -> Path:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        with zipfile.ZipFile(place / "e.npz", "w") as archive:
            archive.writestr("embeddings.npy", head.getvalue())
        return place / "e.npz"

    return make


def pipe(place: Path) -> Path:
    os.mkfifo(place / "e.npz")
    return place / "e.npz"


X = np.eye(4, 3, dtype=np.float32)
NO_ARRAYS, OBJECTS = "not a readable .npz file", "holds Python objects, which are not read"
ARRAYS = [
    Bad("embeddings that are code", arrays(embeddings=objects), report.read_runs, OBJECTS),
    Bad("labels that are code", arrays(embeddings=X, labels=objects), report.read_runs, OBJECTS),
    Bad("a pickle by another name", pickled("e.npz"), report.read_runs, NO_ARRAYS),
    Bad(
        "an archive that is cut",
        lambda place: cut(arrays(embeddings=X)(place)),
        report.read_runs,
        NO_ARRAYS,
    ),
    Bad("a header of 4 TB", claiming((10**9, 1000)), report.read_runs, NO_ARRAYS),
    Bad("a shape below 0", claiming((-4, 3)), report.read_runs, NO_ARRAYS),
    Bad("a pipe", pipe, report.read_runs, "e.npz is no file"),
    Bad(
        "embeddings of no numbers",
        arrays(embeddings=X[:, :0]),
        report.read_runs,
        r"must be \[N, D\], got \[4, 0\]",
    ),
    Bad(
        "complex numbers",
        arrays(embeddings=X + 1j),
        report.read_runs,
        "must be real numbers, got complex",
    ),
    Bad(
        "NaN",
        arrays(embeddings=np.where(X > 0, np.nan, X)),
        report.read_runs,
        "must be finite in float32, row 0 is not",
    ),
    Bad(
        "labels near the largest number",
        arrays(embeddings=X, labels=np.array([2**63 - 1, 0, 0, 2**63 - 1])),
        lambda file: report.read_runs(file)[0].data.labels.tolist(),
        read=[1, 0, 0, 1],
    ),
    Bad(
        "a folder by that name",
        lambda place: (place / "e.npz").mkdir() or place / "e.npz",
        report.read_runs,
        "holds no run",
    ),
]
