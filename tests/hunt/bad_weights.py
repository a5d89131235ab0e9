"""Files of weights that are."""

import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hunt.bad import DEEP, Bad, Code, mark, put
from hunt.bad_arrays import X, arrays, objects, pickled
from safetensors.numpy import save

from jdml import models


def header(told: Any, content: bytes = b"", length: int | None = None) -> Callable[[Path], Path]:
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    size = len(text) if length is None else length
    return put("w.safetensors", struct.pack("<Q", size) + text + content)


def of(dtype: str, shape: list[int], *offsets: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def weights(file: Path) -> Any:
    return models.load_weights(file, {})


def converted(file: Path) -> Any:
    return models.convert_weights(file, file.parent / "out.safetensors", arch="resnet18")


def where_torch_is(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """A file that torch has to read to refuse it; its import is not what is measured."""

    def made(place: Path) -> Path:
        pytest.importorskip("torch")
        return make(place)

    return made


def torch_file(make: Callable[[Any, Path], Any]) -> Callable[[Path], Path]:
    def made(place: Path) -> Path:
        torch = pytest.importorskip("torch", reason="reads files of PyTorch: pip install torch")
        torch.save(make(torch, place), place / "w.pth")
        return place / "w.pth"

    return made


def tarred(place: Path) -> Path:
    """A tar archive, as PyTorch once wrote, with a link and a member that lead out."""
    with tarfile.open(place / "w.pth", "w") as archive:
        link = tarfile.TarInfo("storages")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("../../code-was-run"))
    return place / "w.pth"


UNREAD = "not a readable .safetensors file"
WEIGHTS = [
    Bad("no byte", put("w.safetensors", b""), weights, UNREAD),
    Bad("a header longer than the file", header({}, length=10**6), weights, UNREAD),
    Bad("a header of 2⁶³ bytes", header({}, length=2**63), weights, UNREAD),
    Bad("a header that is no JSON", header(b"\xff{"), weights, UNREAD),
    Bad("a header nested without end", header(b'{"a":' + DEEP.encode()), weights, UNREAD),
    Bad(
        "arrays on each other",
        header({"a": of("F32", [2], 0, 8), "b": of("F32", [2], 4, 12)}, bytes(12)),
        weights,
        UNREAD,
    ),
    Bad("an array beyond the end", header({"a": of("F32", [4], 0, 16)}, bytes(8)), weights, UNREAD),
    Bad("a hole between arrays", header({"a": of("F32", [1], 4, 8)}, bytes(8)), weights, UNREAD),
    Bad("a shape of other bytes", header({"a": of("F32", [3], 0, 8)}, bytes(8)), weights, UNREAD),
    Bad(
        "a shape of 2¹²⁶ numbers",
        header({"a": of("F32", [2**63, 2**63], 0, 8)}, bytes(8)),
        weights,
        UNREAD,
    ),
    Bad("a type that is none", header({"a": of("PICKLE", [2], 0, 8)}, bytes(8)), weights, UNREAD),
    Bad(
        "another program's file",
        put("w.safetensors", b"\x89HDF\r\n\x1a\n" + bytes(99)),
        weights,
        UNREAD,
    ),
    Bad(
        "weights of nothing that is known",
        put("w.safetensors", lambda: save({"a": X})),
        weights,
        "does not name its architecture",
    ),
    Bad(
        "settings that are no object",
        put("w.safetensors", lambda: save({"a": X}, {"settings": DEEP})),
        models.weights_settings,
        "w.safetensors is not valid JSON",
    ),
    Bad(
        "a pickle of code",
        where_torch_is(pickled("w.pth")),
        converted,
        "w.pth is not a readable .pth file",
    ),
    Bad(
        "weights that are code",
        torch_file(lambda torch, place: {"state_dict": Code(mark(place))}),
        converted,
        "its code is not run",
    ),
    Bad(
        "a tensor beside code",
        torch_file(lambda torch, place: {"a": torch.ones(2), "b": Code(mark(place))}),
        converted,
        "its code is not run",
    ),
    Bad(
        "a tar archive that leads out",
        where_torch_is(tarred),
        converted,
        "w.pth is not a readable .pth file",
    ),
    Bad("arrays that are code", arrays(a=objects), converted, "e.npz is not a readable .npz file"),
]
