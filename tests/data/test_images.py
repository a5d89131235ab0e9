"""Image files as an array: kinds of images, indexing, what is lazy, what is refused."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from jdml.data import BadImageError, Dataset, ImageFiles, conventional, images
from jdml.data.images import decode

Image = pytest.importorskip("PIL.Image")
SMALL = conventional(16)


def encoded(image, kind="png", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def colours(*values):
    """An image of 20 × 20 blocks."""
    blocks = np.array(values, np.uint8).reshape(1, len(values), -1)
    return Image.fromarray(blocks.repeat(20, 0).repeat(20, 1).squeeze())


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """Ten images; image i is filled with grey 20 i."""
    paths = [tmp_path / f"{i}.png" for i in range(10)]
    for i, path in enumerate(paths):
        Image.new("RGB", (24, 18), (20 * i,) * 3).save(path)
    return paths


def shades(images: np.ndarray) -> list[int]:
    return (images[..., 5, 5, 0] // 20).tolist()


# Kinds


RED, WHITE = (255, 0, 0), (255, 255, 255)
PALETTE = colours(RED, (0, 0, 255)).quantize(2)


def transparent_palette() -> bytes:
    image = colours(RED, (0, 0, 255)).quantize(2)
    index = image.getpixel((0, 0))
    return encoded(image, transparency=index)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (encoded(Image.new("L", (20, 20), 90)), (90, 90, 90)),
        (encoded(Image.new("1", (20, 20), 1)), WHITE),
        (encoded(Image.fromarray(np.full((20, 20), 180 * 257, np.uint16))), (180, 180, 180)),
        (encoded(PALETTE), RED),
        (transparent_palette(), WHITE),
        (encoded(Image.new("RGBA", (20, 20), (*RED, 0))), WHITE),
        (encoded(Image.new("RGBA", (20, 20), (*RED, 51))), (255, 204, 204)),
        (encoded(Image.new("LA", (20, 20), (0, 51))), (204, 204, 204)),
        (encoded(Image.new("RGB", (20, 20), RED), transparency=RED), WHITE),
        (encoded(Image.new("CMYK", (20, 20), (0, 255, 255, 0)), "jpeg", quality=95), RED),
        (encoded(Image.new("RGB", (20, 20), RED), "webp", lossless=True), RED),
        (encoded(Image.new("RGB", (20, 20), RED), "gif"), RED),
    ],
)
def test_every_kind_becomes_rgb(content, expected):
    image = decode(content)
    assert image.mode == "RGB"
    np.testing.assert_allclose(np.asarray(image)[5, 5].astype(int), expected, atol=3)


def test_a_format_that_was_added_after_the_first_image(monkeypatch):
    """As libraries for HEIF do, whenever a user asks for it."""
    decode(encoded(PALETTE))
    monkeypatch.setattr(Image, "ID", [*Image.ID, "MINE"])
    opened = lambda file, name: Image.open(io.BytesIO(encoded(PALETTE)))  # noqa: E731
    monkeypatch.setitem(Image.OPEN, "MINE", (opened, lambda start: start.startswith(b"mine")))
    assert decode(b"mine, and no other's").size == PALETTE.size


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    """The image is stored so that turning it as EXIF says gives it upright again."""
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
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(np.ascontiguousarray(stored)), exif=exif)
    np.testing.assert_array_equal(np.asarray(decode(content)), upright)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("unit", [b"inc\0", b"\0\0\0\0"])
def test_exif_that_cannot_be_rewritten_turns_the_image(kind, unit):
    """A resolution unit of text, where a number should be."""
    tags = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0) + struct.pack("<HHI", 0x0128, 2, 4) + unit
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + struct.pack("<I", 0)
    content = encoded(Image.new("RGB", (20, 40), RED), kind, exif=exif)
    assert decode(content).size == (40, 20)


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0", b"Exif\0\0nonsense" * 9])
def test_exif_that_cannot_be_read_is_left(exif):
    assert decode(encoded(Image.new("RGB", (20, 40), RED), "jpeg", exif=exif)).size == (20, 40)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientations_that_are_none(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert decode(encoded(Image.new("RGB", (20, 40), RED), "jpeg", exif=exif)).size == (20, 40)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_tiff_is_turned_once(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(colours(RED, WHITE), "tiff", exif=exif)
    image = decode(content)
    assert image.size == ((20, 40) if orientation == 6 else (40, 20))
    assert image.getpixel((0, 0)) == (WHITE if orientation == 3 else RED)


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("kind", ["png", "tiff", "jpeg2000"])
def test_fewer_bits_in_sixteen_are_not_dark(bits, kind):
    ramp = np.linspace(0, 2**bits - 1, 400).astype(np.uint16).reshape(20, 20)
    pixels = np.asarray(decode(encoded(Image.fromarray(ramp), kind)))[..., 0].astype(int)
    np.testing.assert_allclose(pixels, np.linspace(0, 255, 400).reshape(20, 20), atol=1.3)


def test_white_may_be_nothing():
    """In a grey TIFF file whose values are ink."""
    ramp = np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20)
    content = encoded(Image.fromarray(ramp), "tiff", tiffinfo={262: 0})
    pixels = np.asarray(decode(content))[..., 0].astype(int)
    np.testing.assert_allclose(pixels, np.linspace(255, 0, 400).reshape(20, 20), atol=1.3)


def test_a_file_that_tells_its_range_is_believed():
    ramp = (np.arange(16) * 64).astype(">u2")
    for most, expected in ((65535, 3), (4095, 59), (1023, 239)):
        content = b"P5 4 4 %d\n" % most + ramp.tobytes()
        assert np.asarray(decode(content)).max() == pytest.approx(expected, abs=1)


def png16(pixels: np.ndarray) -> bytes:
    """Colours of 16 bits, which Pillow does not write."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    kind = {2: 4, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_colours_of_sixteen_bits(channels):
    pixels = np.zeros((9, 9, channels), np.uint16)
    pixels[..., -1] = 65535  # opaque, or blue
    pixels[4:, :, 0] = 65535
    assert decode(png16(pixels)).getpixel((0, 8))[0] == 255
    pixels[4:, :, 0] = 16383
    if channels == 3:
        pixels[..., 2] = 0
    assert decode(png16(pixels)).getpixel((0, 8))[0] == 255
    assert decode(png16(pixels)).getpixel((0, 0)) == (0, 0, 0)
    pixels[4:, :, 0] = 4095
    with pytest.raises(ValueError, match="16 bits and end at 4095 of 65535: convert it to 8 bits"):
        decode(png16(pixels))


# As an array


def test_it_looks_like_an_array(files):
    images = ImageFiles(files, SMALL)
    assert (images.shape, images.dtype, images.ndim) == ((10, 16, 16, 3), np.uint8, 4)
    assert shades(images[2:5]) == [2, 3, 4]
    assert shades(images[[7, 1]]) == [7, 1]
    assert shades(images[np.arange(10) > 7]) == [8, 9]
    assert shades(images[-1]) == 9
    assert images[3:3].shape == (0, 16, 16, 3)
    np.testing.assert_array_equal(np.asarray(images), images[:])
    with pytest.raises(IndexError):
        images[10]


def test_select_decodes_nothing(files):
    images = ImageFiles(files, SMALL, threads=1)
    for file in files[:5]:
        file.unlink()
    part = images.select(np.arange(10) % 2 == 1)
    assert len(part) == 5
    assert part.threads == 1
    assert shades(part.select([4, 3])[:]) == [9, 7]
    with pytest.raises(BadImageError, match=r"1\.png: expected a whole image: .*No such file"):
        part[:1]


def test_threads_change_nothing(files):
    np.testing.assert_array_equal(
        ImageFiles(files, SMALL, threads=1)[:], ImageFiles(files, SMALL, threads=7)[:]
    )


def test_rows_of_a_data_set_stay_files(files):
    labels = np.arange(10) // 2
    data = Dataset("toy", ImageFiles(files, SMALL), labels, {"class": labels})
    for file in files[:8]:
        file.unlink()
    part = data.select(labels == 4).relabel("class")
    assert isinstance(part.images, ImageFiles)
    assert shades(part.images[:]) == [8, 9]
    assert data.select([]).images.shape == (0, 16, 16, 3)


def test_files_may_be_named_in_text(tmp_path):
    file = tmp_path / "1.png"
    Image.new("L", (9, 9), 40).save(file)
    for files in ([str(file)], np.array([str(file)])):
        assert shades(ImageFiles(files, SMALL)[:]) == [2]


def test_a_transform_returns_what_it_says(files):
    class Unit:
        size = 16

        def __call__(self, image, random):
            return np.asarray(image.resize((16, 16)), np.float32) / 255

    with pytest.raises(TypeError, match=r"must return uint8 \[16, 16, 3\], .* got float32 \[16, 1"):
        ImageFiles(files, Unit())[:1]


def test_whatever_reads_bytes_is_a_file(tmp_path):
    """A zip archive, not unpacked."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("1.png", encoded(Image.new("L", (9, 9), 40)))
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert shades(ImageFiles([zipfile.Path(archive, "1.png")], SMALL)[:]) == [2]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-300], lambda b: b[:30], lambda b: b"", lambda b: b"x" * 99]
)
def test_a_damaged_image_is_named(tmp_path, damage):
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    path = tmp_path / "bird.jpg"
    path.write_bytes(damage(encoded(Image.fromarray(noise), "jpeg")))
    with pytest.raises(BadImageError, match=r"bird\.jpg: expected a whole image"):
        ImageFiles([path], SMALL)[:]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_without_a_known_range_are_refused(tmp_path, kind):
    path = tmp_path / "depth.tiff"
    Image.fromarray(np.arange(64, dtype=kind).reshape(8, 8)).save(path)
    with pytest.raises(BadImageError, match="expected 8 or 16 bits"):
        ImageFiles([path], SMALL)[:]


def test_pages_that_are_not_read_are_told(caplog):
    images._say_pages.cache_clear()
    one, two = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))
    decode(encoded(one, "tiff"))
    assert not caplog.messages
    for _ in range(2):
        decoded = decode(encoded(one, "tiff", save_all=True, append_images=[two]))
        assert decoded.getpixel((0, 0)) == (255, 0, 0)
    (message,) = caplog.messages
    assert "TIFF files of several pages the first page is read" in message


def test_bad_threads(files):
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        ImageFiles(files, threads=0)


def test_real_images_and_a_grey_one(shared_data):
    folder = shared_data / "cub_fullres" / "CUB_200_2011" / "images"
    images = ImageFiles(sorted(folder.glob("*/*.jpg")), SMALL)
    assert images[:].shape == (49, 16, 16, 3)
    (grey,) = ImageFiles(folder.glob("*/Brewer_Blackbird_0028_2682.jpg"), SMALL)[:]
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])
