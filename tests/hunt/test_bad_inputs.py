"""Damaged, hostile or unusual files: refused by name, or read correctly, in bounded memory and time."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hunt.bad import DEEP, Bad, Code, X, check_bad, classes, mark, put
from safetensors.numpy import save

from jdml import data, models, report

# Images


def colour(file: Path) -> list[int]:
    """Return the middle of an image as training reads it."""
    return data.ImageFiles([file], data.conventional(8))[0][4, 4].tolist()


POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%touch code) (w) file\n"
)
IMAGES = [
    Bad("PostScript under another name", put("a.png", POSTSCRIPT), colour, ""),
]

# Folders and tables


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


BOTH = ["ant/0.png", "bee/0.png"]
FOLDERS = [
    Bad("links in a circle, a pipe and a device", with_links_and_devices, images_of, read=BOTH),
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
