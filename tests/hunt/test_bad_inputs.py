"""Damaged, hostile or unusual files: refused by name or read correctly, within bounds; code in them does not run."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hunt.bad import Bad, X, check_bad, put
from PIL import Image

from jdml import data, models, report

DEEP = "[" * 100_000


class Code:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def safetensors(header: bytes, content: bytes = b"") -> Callable[[Path], Path]:
    return put("w.safetensors", struct.pack("<Q", len(header)) + header + content)


def arrays_of_code(place: Path) -> Path:
    code = np.array([Code(place.parent / "code-was-run")] * 4, dtype=object)
    np.savez(place / "e.npz", embeddings=X, labels=code)
    return place / "e.npz"


def tensor_and_code(place: Path) -> Path:
    torch = pytest.importorskip("torch", reason="reads files of PyTorch: pip install torch")
    torch.save({"a": torch.ones(2), "b": Code(place.parent / "code-was-run")}, place / "w.pth")
    return place / "w.pth"


def large_labels(place: Path) -> Path:
    np.savez(place / "e.npz", embeddings=X, labels=np.array([2**63 - 1, 0, 0, 2**63 - 1]))
    return place / "e.npz"


def links_and_devices(place: Path) -> Path:
    for name in ("ant", "bee"):
        (place / name).mkdir()
        Image.new("RGB", (12, 10)).save(place / name / "0.png")
    (place / "ant" / "up").symlink_to(place)
    (place / "bee" / "round").symlink_to(place / "bee" / "round")
    os.mkfifo(place / "ant" / "pipe.png")
    (place / "bee" / "device.png").symlink_to("/dev/zero")
    return place


def images_of(root: Path) -> list[str]:
    files = data.load("folder", data_dir=root, split="all").images.files
    return [os.path.relpath(file, root) for file in files]


def load_weights(file: Path) -> Any:
    return models.load_weights(file, {})


def convert(file: Path) -> Any:
    return models.convert_weights(file, file.parent / "out.safetensors", arch="resnet18")


POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%touch code) (w) file\n"
)
SIZE = struct.pack(">4sIIBBBBB", b"IHDR", 20_000, 20_000, 8, 2, 0, 0, 0)
BOMB = b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    for chunk in (SIZE, b"IDAT" + zlib.compress(bytes(1 << 20)))
)
BEYOND = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
LABELS = "e.npz.*labels|labels.*e.npz"
BAD = [
    Bad(
        "PostScript under another name",
        put("a.png", POSTSCRIPT),
        lambda file: data.ImageFiles([file])[0],
        "",
    ),
    Bad(
        "a picture of 400 million pixels",
        put("a.png", BOMB),
        lambda file: data.ImageFiles([file])[0],
        "",
    ),
    Bad(
        "links in a circle, a pipe and a device",
        links_and_devices,
        images_of,
        read=["ant/0.png", "bee/0.png"],
    ),
    Bad("labels that are code", arrays_of_code, report.read_runs, LABELS),
    Bad("weights that are code", arrays_of_code, convert, ""),
    Bad("a tensor next to code", tensor_and_code, convert, ""),
    Bad(
        "labels near the largest number",
        large_labels,
        lambda file: report.read_runs(file)[0].data.labels.tolist(),
        read=[1, 0, 0, 1],
    ),
    Bad("an array beyond the end", safetensors(BEYOND, bytes(8)), load_weights, ""),
    Bad("a header nested without end", safetensors(b'{"a":' + DEEP.encode()), load_weights, ""),
    Bad(
        "a state of save_to_disk that is nested without end",
        lambda place: put("state.json", DEEP.encode())(place).parent,
        lambda place: data.load("folder", data_dir=place),
        "is not a readable table",
    ),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.what)
def test_bad_files_are_refused_or_read(tmp_path, bad):
    place = tmp_path / "there"
    place.mkdir()
    check_bad(bad, bad.make(place), place)
