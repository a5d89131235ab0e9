"""Images that are damaged, hostile or odd."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

from hunt.bad import Bad, put
from PIL import Image

from jdml import data


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
