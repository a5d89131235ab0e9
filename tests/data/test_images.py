"""Image files as an array: formats, indexing, lazy reading, refusals."""

import os
import random
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from data.pictures import encoded

from jdml.data import BadImageError, Dataset, ImageFiles, conventional
from jdml.data.images import Row, usable_cores

Image = pytest.importorskip("PIL.Image")
SMALL = conventional(16)


def decode(content: bytes):
    """Return the image in a file; raise the error of a damaged one."""
    (image,) = ImageFiles([Row([content], 0)]).each(lambda image: image)
    return image


def colours(*values):
    """Return an image of blocks of 20 × 20 pixels."""
    blocks = np.array(values, np.uint8).reshape(1, len(values), -1)
    return Image.fromarray(blocks.repeat(20, 0).repeat(20, 1).squeeze())


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """Write ten images; image i is filled with grey 20 i."""
    paths = [tmp_path / f"{i}.png" for i in range(10)]
    for i, path in enumerate(paths):
        Image.new("RGB", (24, 18), (20 * i,) * 3).save(path)
    return paths


def shades(images: np.ndarray) -> list[int]:
    return (images[..., 5, 5, 0] // 20).tolist()


# Kinds


RED, WHITE = (255, 0, 0), (255, 255, 255)
PALETTE = colours(RED, (0, 0, 255)).quantize(2)
BLUE = Image.new("RGB", (20, 20), "blue")  # a second page, which is not read


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encoded(Image.new("L", (20, 20), 90)), (90, 90, 90)),
        (encoded(Image.new("1", (20, 20), 1)), WHITE),
        (encoded(Image.fromarray(np.full((20, 20), 180 * 257, np.uint16))), (180, 180, 180)),
        (encoded(PALETTE), RED),
        (encoded(PALETTE, transparency=PALETTE.getpixel((0, 0))), WHITE),
        (encoded(Image.new("RGBA", (20, 20), (*RED, 0))), WHITE),
        (encoded(Image.new("RGBA", (20, 20), (*RED, 51))), (255, 204, 204)),
        (encoded(Image.new("LA", (20, 20), (0, 51))), (204, 204, 204)),
        (encoded(Image.new("RGB", (20, 20), RED), transparency=RED), WHITE),
        (encoded(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "jpeg", quality=95), RED),
        (encoded(Image.new("RGB", (20, 20), RED), "webp", lossless=True), RED),
        (encoded(Image.new("RGB", (20, 20), RED), "gif"), RED),
        (encoded(PALETTE.convert("RGB"), "tiff", save_all=True, append_images=[BLUE]), RED),
    ],
)
def test_every_mode_becomes_rgb(content, expected):
    image = decode(content)
    assert image.mode == "RGB"
    np.testing.assert_allclose(np.asarray(image)[5, 5].astype(int), expected, atol=3)


def orientation_tag(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    """The image is stored such that its EXIF orientation turns it upright."""
    upright = np.zeros((20, 40, 3), np.uint8)
    upright[:10, :10] = 255  # the upper left corner is white
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: upright.swapaxes(0, 1)[::-1],
        7: upright.swapaxes(0, 1)[::-1, ::-1],
        8: upright.swapaxes(0, 1)[:, ::-1],
    }[orientation]
    image = Image.fromarray(np.ascontiguousarray(stored))
    content = encoded(image, exif=orientation_tag(orientation))
    np.testing.assert_array_equal(np.asarray(decode(content)), upright)


def test_unusual_exif_is_read_as_far_as_it_goes():
    """A resolution unit that is text, where a number should be, still turns the image; the others do not."""
    tags = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + struct.pack("<HHI", 0x0128, 2, 4) + b"inc\0"
    malformed = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + struct.pack("<I", 0)
    without = [b"Exif\0\0", b"Exif\0\0nonsense" * 9, orientation_tag(0), orientation_tag(65535)]
    for exif, size in ((malformed, (40, 20)), *((exif, (20, 40)) for exif in without)):
        assert decode(encoded(Image.new("RGB", (20, 40), RED), "jpeg", exif=exif)).size == size


@pytest.mark.parametrize("orientation", [3, 6])
def test_tiff_is_turned_once(orientation):
    image = decode(encoded(colours(RED, WHITE), "tiff", exif=orientation_tag(orientation)))
    assert image.size == ((20, 40) if orientation == 6 else (40, 20))
    assert image.getpixel((0, 0)) == (WHITE if orientation == 3 else RED)


@pytest.mark.parametrize("kind", ["png", "tiff", "jpeg2000"])
def test_16_bit_images_of_fewer_bits_are_not_dark(kind):
    """A value range in a file is used."""
    for bits in (8, 10, 12, 14, 16):
        ramp = np.linspace(0, 2**bits - 1, 400).astype(np.uint16).reshape(20, 20)
        pixels = np.asarray(decode(encoded(Image.fromarray(ramp), kind)))[..., 0].astype(int)
        np.testing.assert_allclose(pixels, np.linspace(0, 255, 400).reshape(20, 20), atol=1.3)
    ramp = (np.arange(16) * 64).astype(">u2")
    for most, expected in ((65535, 3), (4095, 59), (1023, 239)):
        content = b"P5 4 4 %d\n" % most + ramp.tobytes()
        assert np.asarray(decode(content)).max() == pytest.approx(expected, abs=1)


# As an array


def test_shape_dtype_and_indexing(files):
    images = ImageFiles(files, SMALL)
    assert (images.shape, images.dtype, images.ndim) == ((10, 16, 16, 3), np.uint8, 4)
    assert shades(images[2:5]) == [2, 3, 4]
    assert shades(images[[7, 1]]) == [7, 1]
    assert shades(images[np.arange(10) > 7]) == [8, 9]
    assert shades(images[-1]) == 9
    assert images[3:3].shape == (0, 16, 16, 3)
    np.testing.assert_array_equal(np.asarray(images), images[:])
    assert shades(ImageFiles(np.array(list(map(str, files))), SMALL)[:2]) == [0, 1]
    with pytest.raises(IndexError):
        images[10]


def test_select_decodes_nothing(files):
    labels = np.arange(10) // 2
    data = Dataset("toy", ImageFiles(files, SMALL), labels, {"class": labels})
    for file in files[:8]:
        file.unlink()
    part = data.images.select(np.arange(10) % 2 == 1)
    assert len(part) == 5
    assert shades(part.select([4])[:]) == [9]
    with pytest.raises(BadImageError, match=r"/1\.png:"):
        part[:1]
    last = data.select(labels == 4).relabel("class")
    assert isinstance(last.images, ImageFiles)
    assert shades(last.images[:]) == [8, 9]
    assert data.select([]).images.shape == (0, 16, 16, 3)


def test_wrong_transforms_are_refused(files):
    """One that returns shares of 1, and one with a generator of its own."""

    class Unit:
        size = 16

        def __call__(self, image, random):
            return np.asarray(image.resize((16, 16)), np.float32) / 255

    with pytest.raises(TypeError, match="float32"):
        ImageFiles(files, Unit())[:1]
    rng = random.Random(0)
    held = SimpleNamespace(size=16, rng=np.random.RandomState(0))
    for transform in (held, lambda image, _: image.rotate(rng.random())):
        with pytest.raises(ValueError, match=r"^transform\b.*\brng\b"):
            ImageFiles(files, transform)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8))
RAMP = np.arange(64).reshape(8, 8)


@pytest.mark.parametrize(
    "content",
    [
        encoded(NOISE, "jpeg")[:-300],
        encoded(NOISE, "jpeg")[:30],
        b"",
        encoded(Image.fromarray(RAMP.astype(np.int32)), "tiff"),  # numbers without a known range
        encoded(Image.fromarray(RAMP.astype(np.float32)), "tiff"),
    ],
)
def test_damaged_images_are_named(tmp_path, content):
    path = tmp_path / "bird.jpg"
    path.write_bytes(content)
    with pytest.raises(BadImageError, match=rf"^{path}:"):
        ImageFiles([path], SMALL)[:]


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "webp", "bmp"])
def test_quick_search_finds_files_that_are_cut_off_or_no_images(tmp_path, kind):
    """Without decoding, but for formats without a mark at the end."""
    whole = encoded(NOISE, kind)
    contents = [whole, whole[: len(whole) // 2], b"no image", b""]
    files = [tmp_path / f"{row}.{kind}" for row in range(5)]
    for file, content in zip(files, contents, strict=False):
        file.write_bytes(content)
    assert list(ImageFiles(files).problems(quick=True)) == [1, 2, 3, 4]


def test_all_cores_are_used_where_the_system_gives_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    assert usable_cores() == set(range(os.cpu_count()))
