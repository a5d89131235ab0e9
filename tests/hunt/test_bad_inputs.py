"""Damaged, hostile or unusual files: refused by name, or read correctly, in bounded memory and time."""

import inspect
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.pictures import encoded
from hunt.bad import DEEP, Bad, Code, X, check_bad, classes, mark, put
from PIL import Image
from safetensors.numpy import save

from jdml import data, models, report

# Images


def colour(file: Path) -> list[int]:
    """Return the middle of an image as training reads it."""
    return data.ImageFiles([file], data.conventional(8))[0][4, 4].tolist()


RED_FILE = encoded(Image.new("RGB", (12, 10), "red"))


def unreadable(place: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("needs an ordinary user: root reads every file")
    file = put("a.png", RED_FILE)(place)
    file.chmod(0)
    return file


RED = [255, 0, 0]
POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%touch code) (w) file\n"
)
IMAGES = [
    Bad("one pixel", put("a.png", encoded(Image.new("RGB", (1, 1), "red"))), colour, read=RED),
    Bad("PostScript under another name", put("a.png", POSTSCRIPT), colour, ""),
    Bad("a file without permission", unreadable, colour, ""),
]

# Folders, lists and tables


def images_of(root: Path) -> list[str]:
    files = data.load("folder", data_dir=root, split="all").images.files
    return [os.path.relpath(file, root) for file in files]


def with_links_and_devices(place: Path) -> Path:
    root = classes(place, "ant", "bee")
    (root / "ant" / "up").symlink_to(root)
    (root / "bee" / "round").symlink_to(root / "bee" / "round")
    os.mkfifo(root / "ant" / "pipe.png")
    (root / "bee" / "device.png").symlink_to("/dev/zero")
    return root


def listed(text: str | bytes) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / "sub").mkdir()
        for name in ("a.png", " b.png", "sub/c.png"):
            (place / name).write_bytes(RED_FILE)
        content = text.replace("HERE", str(place)).encode() if isinstance(text, str) else text
        return put("list.csv", content)(place)

    return make


def rows_of(file: Path) -> list[list[str]]:
    part = data.load("folder", data_dir=file, split="all")
    labels = [part.class_names["class"][number] for number in part.views["class"]]
    names = [os.path.relpath(f, file.parent) for f in part.images.files]
    return [list(row) for row in zip(names, labels, strict=True)]


def table(**columns: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        arrow = pytest.importorskip("pyarrow", reason="reads tables: pip install 'jdml[parquet]'")
        from pyarrow import parquet

        parquet.write_table(arrow.table(columns), place / "t.parquet")
        return place / "t.parquet"

    return make


def pixels_in(file: Path) -> Any:
    return data.from_parquet(file, transform=data.conventional(8)).images[:]


BOTH = ["ant/0.png", "bee/0.png"]
FOLDERS = [
    Bad("links in a circle, a pipe and a device", with_links_and_devices, images_of, read=BOTH),
    Bad(
        "absolute paths, .., a space before a name, and cells that are formulas",
        listed("file,label\nHERE/a.png,=1+1\nsub/../sub/c.png,@SUM(A1)\n b.png,y\n"),
        rows_of,
        read=[["a.png", "=1+1"], ["sub/c.png", "@SUM(A1)"], [" b.png", "y"]],
    ),
    Bad("UTF-16", listed("file,label\na.png,x\n".encode("utf-16")), rows_of, ""),
    Bad(
        "a state of save_to_disk that is nested without end",
        lambda place: put("state.json", DEEP.encode())(place).parent,
        lambda place: data.load("folder", data_dir=place),
        "is not a readable table",
    ),
]

# Arrays and weights


def arrays(**named: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        made = {name: value(place) if callable(value) else value for name, value in named.items()}
        np.savez(place / "e.npz", **made)
        return place / "e.npz"

    return make


def objects(place: Path) -> np.ndarray:
    return np.array([Code(mark(place))] * 4, dtype=object)


def safetensors(header: Any, content: bytes = b"") -> Callable[[Path], Path]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return put("w.safetensors", struct.pack("<Q", len(text)) + text + content)


def load_weights(file: Path) -> Any:
    return models.load_weights(file, {})


def convert(file: Path) -> Any:
    return models.convert_weights(file, file.parent / "out.safetensors", arch="resnet18")


def tensor_and_code(place: Path) -> Path:
    torch = pytest.importorskip("torch", reason="reads files of PyTorch: pip install torch")
    torch.save({"a": torch.ones(2), "b": Code(mark(place))}, place / "w.pth")
    return place / "w.pth"


LARGE = np.array([2**63 - 1, 0, 0, 2**63 - 1])
ARRAYS = [
    Bad(
        "labels that are code",
        arrays(embeddings=X, labels=objects),
        report.read_runs,
        "e.npz.*labels|labels.*e.npz",
    ),
    Bad(
        "labels near the largest number",
        arrays(embeddings=X, labels=LARGE),
        lambda file: report.read_runs(file)[0].data.labels.tolist(),
        read=[1, 0, 0, 1],
    ),
]
F32 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
WEIGHTS = [
    Bad("an array beyond the end", safetensors({"a": F32}, bytes(8)), load_weights, ""),
    Bad("a header nested without end", safetensors(b'{"a":' + DEEP.encode()), load_weights, ""),
    Bad(
        "settings that are no object",
        put("w.safetensors", lambda: save({"a": X}, {"settings": DEEP})),
        models.weights_settings,
        "",
    ),
    Bad("arrays that are code", arrays(a=objects), convert, ""),
]
TORCH = [
    pytest.param(
        Bad("a tensor next to code", tensor_and_code, convert, ""),
        marks=pytest.mark.slow,  # imports torch
    )
]


@pytest.mark.parametrize(
    "bad", [*IMAGES, *FOLDERS, *ARRAYS, *WEIGHTS, *TORCH], ids=lambda bad: bad.what
)
def test_bad_files_are_refused_or_read(tmp_path, bad):
    place = tmp_path / "there"
    place.mkdir()
    check_bad(bad, bad.make(place), place)


def test_deeply_nested_folders_are_read(tmp_path):
    """Folders may be nested deeper than Python's recursion limit."""
    root = classes(tmp_path, "ant", "bee")
    (root / "ant").joinpath(*["d"] * 600).mkdir(parents=True)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 300)
    try:
        assert images_of(root) == BOTH
    finally:
        sys.setrecursionlimit(limit)
