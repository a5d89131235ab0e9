"""Files that are damaged, hostile or odd: refused in a sentence or read rightly, in bounded memory and time."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from jdml import data, models, report
from jdml.data.folder import read_folder
from jdml.data.table import read_table

MEMORY = 400 << 20
"""Bytes that a door may take beside what the process holds."""
SECONDS = 20
DEEP = "[" * 100_000


class Bad(NamedTuple):
    """A bad input.

    Attributes:
        what: it is.
        make: it, in a folder of its own.
        door: what reads it.
        refused: what the sentence says; or
        read: what the door must give.
    """

    what: str
    make: Callable[[Path], Any]
    door: Callable[[Any], Any]
    refused: str | None = None
    read: Any = None


class Code:
    """A pickle that leaves a mark when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def mark(place: Path) -> Path:
    return place.parent / "code-was-run"


def put(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], Path]:
    """A file of some bytes."""

    def make(place: Path) -> Path:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content() if callable(content) else content)
        return file

    return make


# Images


def colour(file: Path) -> list[int]:
    """The middle of an image as training sees it."""
    return data.ImageFiles([file], data.conventional(8))[0][4, 4].tolist()


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def plain(shade: str, size: tuple[int, int] = (12, 10)) -> Any:
    return Image.new("RGB", size, shade)


def png(
    width: int, height: int, *chunks: tuple[bytes, bytes], bits: int = 8, kind: int = 0
) -> bytes:
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in (head, *chunks, (b"IEND", b""))
    )


def zeros(size: int) -> bytes:
    """So many zeros, packed without ever being there."""
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


def tiff_that_returns() -> bytes:
    """A TIFF file whose second page is its first."""
    content = bytearray(encoded(plain("red"), "tiff"))
    first = struct.unpack("<I", content[4:8])[0]
    end = first + 2 + 12 * struct.unpack("<H", content[first : first + 2])[0]
    content[end : end + 4] = struct.pack("<I", first)
    return bytes(content)


RED, BLUE = [255, 0, 0], [0, 0, 255]
FRAMES = {"save_all": True, "append_images": [plain("blue")]}
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%touch code) (w) file\nshowpage\n"
UNKNOWN, BROKEN = "its format is not known", "expected a whole image"
IMAGES = [
    Bad("one pixel", put("a.png", encoded(plain("red", (1, 1)), "png")), colour, read=RED),
    Bad(
        "a line of pixels", put("a.png", encoded(plain("red", (1, 3000)), "png")), colour, read=RED
    ),
    Bad("no pixels", put("a.png", png(0, 9)), colour, BROKEN),
    Bad(
        "30,000 × 30,000 by its header", put("a.png", png(30_000, 30_000)), colour, "exceeds limit"
    ),
    Bad(
        "30,000 × 30,000 white pixels in 110 kB",
        put("a.png", lambda: png(30_000, 30_000, (b"IDAT", zeros(112 << 20)), bits=1)),
        colour,
        "exceeds limit",
    ),
    Bad(
        "65,535 × 65,535 by a JPEG's header",
        put("a.jpg", b"\xff\xd8\xff\xc0\0\x0b\x08\xff\xff\xff\xff\1\1\x11\0\xff\xd9"),
        colour,
        BROKEN,
    ),
    Bad(
        "64 MB of text beside the pixels",
        put(
            "a.png",
            lambda: png(
                9,
                9,
                (b"zTXt", b"Comment\0\0" + zeros(64 << 20)),
                (b"IDAT", zlib.compress(bytes(90))),
            ),
        ),
        colour,
        "too large",
    ),
    Bad(
        "pixels that end early",
        put("a.png", png(90, 90, (b"IDAT", zlib.compress(bytes(90))))),
        colour,
        BROKEN,
    ),
    Bad(
        "pixels packed wrongly",
        put("a.png", png(9, 9, (b"IDAT", b"nothing packed"))),
        colour,
        BROKEN,
    ),
    Bad("a GIF that moves", put("a.gif", encoded(plain("red"), "gif", **FRAMES)), colour, read=RED),
    Bad("a PNG that moves", put("a.png", encoded(plain("red"), "png", **FRAMES)), colour, read=RED),
    Bad("a TIFF of pages in a circle", put("a.tiff", tiff_that_returns), colour, read=RED),
    Bad(
        "a TIFF that points beyond its end",
        put("a.tiff", encoded(plain("red"), "tiff")[:60]),
        colour,
        BROKEN,
    ),
    Bad("PostScript under another name", put("a.png", POSTSCRIPT), colour, UNKNOWN),
    Bad(
        "a page of the web under another name",
        put("a.jpg", b"<html><script>alert(1)</script></html>"),
        colour,
        UNKNOWN,
    ),
    Bad(
        "SVG under another name",
        put("a.png", b'<svg xmlns="http://www.w3.org/2000/svg"/>'),
        colour,
        UNKNOWN,
    ),
    Bad("an archive under another name", put("a.png", b"PK\3\4" + bytes(60)), colour, UNKNOWN),
    Bad(
        "a device without an end",
        lambda place: Path("/dev/zero"),
        colour,
        "/dev/zero is not a file",
    ),
]


# Folders and lists


def classes(place: Path, *names: str) -> Path:
    root = place / "photos"
    for shade, name in zip(("red", "blue", "green"), names, strict=False):
        (root / name).mkdir(parents=True)
        (root / name / "0.png").write_bytes(encoded(plain(shade), "png"))
    return root


def linked(place: Path) -> Path:
    root = classes(place, "ant", "bee")
    (root / "ant" / "up").symlink_to(root)
    (root / "bee" / "round").symlink_to(root / "bee" / "round")
    (root / "ant" / "other").symlink_to(root / "ant")
    return root


def with_pipes(place: Path) -> Path:
    root = classes(place, "ant", "bee")
    os.mkfifo(root / "ant" / "pipe.png")
    (root / "bee" / "device.png").symlink_to("/dev/zero")
    return root


def images_of(root: Path) -> list[str]:
    return [str(file.relative_to(root)) for file in read_folder(root).files]


BOTH = ["ant/0.png", "bee/0.png"]


def listed(text: str | bytes) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / "sub").mkdir()
        for name in ("a.png", " b.png", "sub/c.png"):
            (place / name).write_bytes(encoded(plain("red"), "png"))
        content = text.replace("HERE", str(place)).encode() if isinstance(text, str) else text
        return put("list.csv", content)(place)

    return make


def rows_of(file: Path) -> list[list[str]]:
    listing = read_table(file)
    names = listing.names["class"]
    labels = [names[n] for n in listing.views["class"].tolist()]
    return [
        [os.path.relpath(f, file.parent), label]
        for f, label in zip(listing.files, labels, strict=True)
    ]


def saved_to_disk(**files: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        for name, text in files.items():
            (place / f"{name}.json").write_text(text)
        return place

    return make


def table(**columns: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        arrow = pytest.importorskip("pyarrow", reason="reads tables: pip install 'jdml[parquet]'")
        from pyarrow import parquet

        parquet.write_table(arrow.table(columns), place / "t.parquet")
        return place / "t.parquet"

    return make


def colours_in(file: Path) -> Any:
    return data.from_parquet(file, transform=data.conventional(8)).images[:]


FOLDERS = [
    Bad("links that lead back", linked, images_of, read=BOTH),
    Bad("a pipe and a device called images", with_pipes, images_of, read=BOTH),
    Bad(
        "absolute paths and ..",
        listed("file,label\nHERE/a.png,x\nsub/../sub/c.png,y\n"),
        rows_of,
        read=[["a.png", "x"], ["sub/c.png", "y"]],
    ),
    Bad(
        "a space before a name",
        listed("file,label\n b.png,x\na.png,y\n"),
        rows_of,
        read=[[" b.png", "x"], ["a.png", "y"]],
    ),
    Bad(
        "cells that are formulas",
        listed("file,label\na.png,=1+1\nsub/c.png,@SUM(A1)\n"),
        rows_of,
        read=[["a.png", "=1+1"], ["sub/c.png", "@SUM(A1)"]],
    ),
    Bad(
        "a file by two paths",
        listed("file,label\na.png,x\nsub/../a.png,y\n"),
        rows_of,
        "there twice",
    ),
    Bad("UTF-16", listed("file,label\na.png,x\n".encode("utf-16")), rows_of, "expected UTF-8 text"),
    Bad(
        "a field of 300,000 characters",
        listed(f"file,label\n{'x' * 300_000},y\n"),
        rows_of,
        "field larger than field limit",
    ),
    Bad(
        "a quotation that does not end",
        listed('file,label\n"a.png,x\n'),
        rows_of,
        "quotation mark that does not end",
    ),
    Bad("zeros in a list", listed(b"file,label\na\0.png,x\n"), rows_of, read=None),
    Bad(
        "a table that is cut",
        lambda place: cut(table(image=[b"x"], label=[1])(place)),
        colours_in,
        "not a readable .parquet file",
    ),
    Bad(
        "a device within a table",
        table(image=[{"bytes": None, "path": "/dev/zero"}], label=[1]),
        colours_in,
        "/dev/zero is not a file",
    ),
    Bad("no image within a table", table(image=[b"nothing"], label=[1]), colours_in, UNKNOWN),
    Bad(
        "a list of splits that is none",
        saved_to_disk(dataset_dict='{"splits": 3}'),
        read_folder,
        "dataset_dict.json is not what Hugging Face's save_to_disk writes",
    ),
    Bad("a state without files", saved_to_disk(state="{}"), read_folder, "save_to_disk writes"),
    Bad(
        "a state nested without end",
        saved_to_disk(state=DEEP),
        read_folder,
        "not what Hugging Face's save_to_disk writes",
    ),
]


# Archives


def drawings(*members: tuple[str, bytes]) -> Callable[[Path], Path]:
    """Omniglot's archive with some members."""

    def make(place: Path) -> Path:
        own = encoded(Image.new("1", (105, 105), 1), "png")
        with zipfile.ZipFile(place / "images_background.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images_background/Greek/character01/0001_01.png", own)
            for name, content in members:
                archive.writestr(name, content)
        return place

    return make


def encrypted(place: Path) -> Path:
    drawings()(place)
    file = place / "images_background.zip"
    content = bytearray(file.read_bytes())
    for signature, flag in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + flag] |= 1
    file.write_bytes(content)
    return place


def link_in_a_zip() -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        drawings()(place)
        info = zipfile.ZipInfo("images_background/Greek/character01/0001_02.png")
        info.external_attr = 0o120777 << 16
        with zipfile.ZipFile(place / "images_background.zip", "a") as archive:
            archive.writestr(info, "/etc/passwd")
        return place

    return make


def letters(place: Path) -> int:
    return len(data.load("omniglot", data_dir=place, image_size=8))


def digits(place: Path) -> Any:
    return data.load("mnist", data_dir=place).images.shape


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + content


def mnist(content: bytes, zeros: int = 0) -> Callable[[Path], Path]:
    """MNIST's files, the images with so many zeros behind them."""

    def make(place: Path) -> Path:
        block = gzip.compress(bytes(1 << 24))
        images = (gzip.compress(content) if content else b"") + block * (zeros >> 24)
        (place / "train-images-idx3-ubyte.gz").write_bytes(images)
        (place / "train-labels-idx1-ubyte").write_bytes(idx((1,), bytes(1)))
        return place

    return make


LETTER = "images_background/Greek/character01/0001_02.png"
DAMAGED = "is not a whole image"
ARCHIVES = [
    Bad(
        "members that lead out",
        drawings(("../../code-was-run", b"x"), ("/tmp/code-was-run", b"x")),
        letters,
        read=1,
    ),
    Bad(
        "a member of 2 GB of zeros",
        lambda place: bombed(place),
        letters,
        "is not a whole image: it has 2,147,483,648 bytes",
    ),
    Bad("a member that is a link", link_in_a_zip(), letters, DAMAGED),
    Bad("a member that is PostScript", drawings((LETTER, POSTSCRIPT)), letters, DAMAGED),
    Bad("encrypted members", encrypted, letters, "is not a whole image: .*encrypted"),
    Bad(
        "2 GB of zeros in an archive",
        mnist(b"", 2 << 30),
        digits,
        "magic number must be 2051, got 0",
    ),
    Bad(
        "more than the header says",
        mnist(idx((1, 2, 2), bytes(4)), 2 << 30),
        digits,
        r"expected 20 bytes for an array of shape \[1, 2, 2\]",
    ),
    Bad(
        "a header of 2⁹⁶ bytes",
        mnist(idx((2**32 - 1,) * 3, b"")),
        digits,
        "expected 1,073,741,824 bytes at most",
    ),
]


def bombed(place: Path) -> Path:
    """A zip whose header says how large a member is, though it is not packed there."""
    drawings((LETTER, bytes(100)))(place)
    file = place / "images_background.zip"
    content = bytearray(file.read_bytes())
    entry = content.rindex(b"PK\1\2")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2 << 30)
    file.write_bytes(content)
    return place


def cut(file: Path, share: float = 0.6) -> Path:
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    return file


# Arrays


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
        "must be finite, row 0 is not",
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


# Weights


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

CASES = [*IMAGES, *FOLDERS, *ARCHIVES, *ARRAYS, *WEIGHTS]


def tree(place: Path) -> list[str]:
    return sorted(os.path.join(at, name) for at, _, names in os.walk(place) for name in names)


class Peak:
    """The most memory that the process has held since, where the system tells."""

    STATUS = Path("/proc/self/status")

    def __enter__(self) -> "Peak":
        if self.STATUS.exists():
            Path("/proc/self/clear_refs").write_text("5")
        self.before, self.start = self._read("VmRSS"), time.monotonic()
        return self

    def __exit__(self, *_: Any) -> None:
        self.grown, self.seconds = self._read("VmHWM") - self.before, time.monotonic() - self.start

    def _read(self, name: str) -> int:
        if not self.STATUS.exists():
            return 0
        (line,) = (line for line in self.STATUS.read_text().splitlines() if line.startswith(name))
        return 1024 * int(line.split()[1])


def judge(bad: Bad, made: Any, place: Path) -> None:
    """Refused or read, nothing run, nothing written, in bounds."""
    before = tree(place)
    with Peak() as peak:
        if bad.refused is None:
            found = bad.door(made)
        else:
            with pytest.raises((ValueError, TypeError, OSError), match=bad.refused):
                bad.door(made)
    if bad.refused is None and bad.read is not None:
        np.testing.assert_array_equal(found, bad.read)
    assert not mark(place).exists()
    assert tree(place) == before
    assert peak.grown < MEMORY, f"{peak.grown / 2**20:.0f} MiB"
    assert peak.seconds < SECONDS


@pytest.mark.parametrize("bad", CASES, ids=[bad.what for bad in CASES])
def test_bad_files(tmp_path, bad):
    place = tmp_path / "there"
    place.mkdir()
    judge(bad, bad.make(place), place)


def test_folders_within_each_other(tmp_path):
    """1,200 of them, more than Python has calls within calls."""
    root = classes(tmp_path, "ant", "bee")
    here = os.open(root / "ant", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    try:
        assert images_of(root) == BOTH
    finally:  # what removes temporary folders calls itself, too
        inner, aside = root / "ant" / "d", root / "ant" / "e"
        while (inner / "d").exists():
            (inner / "d").rename(aside)
            inner.rmdir()
            aside.rename(inner)
