"""Archives that are."""

import gzip
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hunt.bad import Bad
from hunt.bad_images import POSTSCRIPT, encoded
from PIL import Image

from jdml import data


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
