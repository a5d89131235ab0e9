"""Image files as one array that is decoded when it is read."""

import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from jdml._optional_imports import MissingLibraryError, progress_bar, require_package
from jdml.data.transforms import Crops, conventional

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

CHANNELS = (1, 3, 4)
"""Of a photograph: grey, coloured, with transparency."""
DEPTHS = (8, 10, 12, 14, 16)
"""Bits of a pixel that are stored in 16."""
ORIENTATION, PHOTOMETRIC = 0x0112, 0x0106
"""Tags of EXIF and TIFF; of the second 0 says that 0 is white."""
_log = logging.getLogger(__name__)


class Readable(Protocol):
    """What holds one image: a ``pathlib.Path``, a ``zipfile.Path``; its string names it."""

    def read_bytes(self) -> bytes:
        """The whole file."""
        ...


@dataclass(frozen=True)
class Row:
    """One image of what holds many, called ``OF[NUMBER]``."""

    of: Any
    number: int

    def read_bytes(self) -> bytes:
        """The image file, where it is one."""
        content = self.of[self.number]
        if not isinstance(content, bytes):
            raise TypeError(f"{self} is an image, not a file")
        return content

    def __str__(self) -> str:
        """What it is called."""
        return f"{self.of}[{self.number}]"


class BadImageError(ValueError):
    """An image that cannot be read or is not whole; the message begins with its name."""


class ImageFiles:
    """Image files that behave like a read-only array, uint8 ``[N, H, W, 3]``, decoded when indexed.

    ``images[3]``, ``images[10:20]``, ``images[[4, 2]]`` and ``images[mask]`` give NumPy arrays: the images of
    these rows as in evaluation, decoded by a few threads. ``select`` takes rows without decoding.

    Args:
        files: what to read, a ``pathlib.Path`` or anything else with ``read_bytes()``.
        transform: ``(image, random=None) -> uint8 [H, W, 3]`` with an attribute ``size``, the height and
            width (see ``mlrc`` and ``conventional``).
        threads: decoding threads; by default one for each core.

    Implementation notes:
        Every image becomes RGB: grey and palette images, CMYK, 16-bit grey; transparency is laid
        over white; EXIF orientation is applied. 16 bits that hold fewer (8, 10, 12 or 14, by the
        largest value of the image) are scaled from these, and of several pages of a TIFF file the
        first is read; the log says so once.

    Example:
        >>> import pathlib
        >>> from PIL import Image
        >>> files = [pathlib.Path(f"{i}.png") for i in range(3)]
        >>> for file in files:
        ...     Image.new("L", (40, 30), 7).save(file)
        >>> images = ImageFiles(files, conventional(16))
        >>> images.shape, images[1:].shape, images.select([2]).files[0].name
        ((3, 16, 16, 3), (2, 16, 16, 3), '2.png')
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(
        self,
        files: Iterable[Readable],
        transform: Crops | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        """See the class."""
        self.files = _object_array(files)
        self.transform = conventional() if transform is None else transform
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.threads = threads

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``[N, H, W, 3]``."""
        return len(self), self.transform.size, self.transform.size, 3

    def __len__(self) -> int:
        """Number of images N."""
        return len(self.files)

    def __getitem__(self, key: Any) -> np.ndarray:
        """One image ``[H, W, 3]``, or those of a slice, of indices or of a mask, ``[n, H, W, 3]``.

        Raises:
            BadImageError: if one of them cannot be decoded.
            IndexError: if there is no such row.
        """
        rows = np.arange(len(self))[key]
        if rows.ndim == 0:
            return self.read(int(rows))
        return self._read_all(rows, [None] * len(rows))

    def augmented(self, rows: np.ndarray, seed: Sequence[int]) -> np.ndarray:
        """Read these images as in training, ``[n, H, W, 3]``: the same for the same row and seed.

        Args:
            rows: indices of images.
            seed: numbers that are not negative.

        Returns:
            The images, uint8.

        Raises:
            BadImageError: if one of them cannot be decoded.
            IndexError: if there is no such row.
        """
        rows = np.arange(len(self))[rows]
        return self._read_all(rows, [np.random.default_rng([*seed, row]) for row in rows])

    def _read_all(self, rows: np.ndarray, randoms: Sequence[Any]) -> np.ndarray:
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        if not len(rows):
            return images
        with ThreadPoolExecutor(min(self.threads or cores(), len(rows))) as pool:
            for place, image in enumerate(pool.map(self.read, rows, randoms)):
                images[place] = image
        return images

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All images."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def read(self, row: int, random: np.random.Generator | None = None) -> np.ndarray:
        """Read one image ``[H, W, 3]``, augmented where there is a generator.

        Raises:
            BadImageError: if it cannot be decoded.
        """
        file = self.files[row]
        with named_if_bad(file):
            image = open_image(file)
        pixels = self.transform(image, random)
        if getattr(pixels, "dtype", None) != self.dtype or pixels.shape != self.shape[1:]:
            got = getattr(pixels, "dtype", type(pixels).__name__), list(np.shape(pixels))
            raise TypeError(
                f"transform must return uint8 {list(self.shape[1:])}, as its size says, got {got[0]} {got[1]}"
            )
        return pixels

    def problems(self, *, progress: bool = False) -> dict[int, str]:
        """Find what is wrong with each image that cannot be decoded, by its row; decodes all of them.

        Args:
            progress: show a progress bar.
        """
        found = enumerate(self.each(lambda image: None, progress=progress))
        return {row: str(error) for row, error in found if error is not None}

    def each(
        self, see: Callable[["Image"], T], *, progress: bool = False
    ) -> Iterator[T | BadImageError]:
        """See every image as it was decoded, one after the other; in place of one that cannot be, the error.

        Args:
            see: what is to be known of a Pillow image.
            progress: show a progress bar.
        """

        def seen(file: Readable) -> T | BadImageError:
            try:
                with named_if_bad(file):
                    image = open_image(file)
            except BadImageError as error:
                return error
            return see(image)

        bar = progress_bar(progress, total=len(self), desc="decoding")
        with bar, ThreadPoolExecutor(self.threads or cores()) as pool:
            for found in pool.map(seen, self.files):
                bar.update()
                yield found

    def select(self, rows: np.ndarray) -> "ImageFiles":
        """Select some of the files, none of them decoded: indices or a mask."""
        return ImageFiles(
            self.files[np.arange(len(self))[rows]], self.transform, threads=self.threads
        )


@contextmanager
def named_if_bad(file: Readable) -> Iterator[None]:
    """Raise a ``BadImageError`` with a file's name where it cannot be read or decoded."""
    try:
        yield
    except MissingLibraryError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds on damaged files
        raise BadImageError(f"{file}: expected a whole image: {error}") from error


def decode(content: bytes) -> "Image":
    """An image file of any kind that Pillow reads, as an upright RGB image."""
    require_package("PIL", "decoding images")
    from PIL import Image, UnidentifiedImageError

    try:
        return as_rgb(Image.open(io.BytesIO(content), formats=_formats()))
    except UnidentifiedImageError:
        raise ValueError("its format is not known") from None


def as_rgb(image: "Image") -> "Image":
    """Turn an image upright and into RGB, transparency laid over white."""
    from PIL import Image, ImageOps

    # By place: a tile of the lowest Pillow is a mere tuple.
    sixteen = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    if image.format == "TIFF" and getattr(image, "n_frames", 1) > 1:
        _say_pages()
    image.load()
    # Of 8 bits Pillow turns it round itself.
    ink = image.mode.startswith("I;16") and getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0
    image = upright(image)
    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if image.mode in ("I", "F") and not deep:
        raise ValueError(f"its pixels are of mode {image.mode!r}, expected 8 or 16 bits")
    if deep:
        image = ImageOps.invert(_eight_bits(image)) if ink else _eight_bits(image)
    elif sixteen:
        image = _full_range(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _formats() -> tuple[str, ...]:
    """Pillow's formats but PostScript, a program that would be run; a user may have added one just now."""
    from PIL import Image

    Image.preinit()
    Image.init()
    return tuple(kind for kind in Image.ID if kind != "EPS")


def open_image(file: Readable) -> "Image":
    """Open an image file, or an image of rows, as an upright RGB image."""
    if not isinstance(file, Row):
        return decode(file.read_bytes())
    image = file.of[file.number]
    if isinstance(image, bytes):
        return decode(image)
    if isinstance(image, np.ndarray):
        from PIL import Image

        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] not in CHANNELS:
            raise TypeError(
                f"its pixels must be uint8 [H, W, C], got {image.dtype} {list(image.shape)}"
            )
        image = Image.fromarray(
            np.ascontiguousarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        )
    return as_rgb(image)


def is_grey(image: Any) -> bool:
    """Whether an image that can be decoded, or its file, has no colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
    return image.mode in ("1", "F", "I", "L", "LA", "La") or image.mode.startswith("I;")


def upright(image: "Image") -> "Image":
    """An image turned as its EXIF data say; as it is, where they cannot be read."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(int(image.getexif().get(ORIENTATION, 1)))
    except Exception:  # Pillow's readers raise many kinds on damaged data
        return image
    if turn is None:
        return image
    turned = image.transpose(turn)
    turned.format = image.format
    return turned


def _eight_bits(image: "Image") -> "Image":
    """A grey image of 16 bits in 8; of fewer in 16, as scanners and microscopes write, by the bits that it uses."""
    from PIL import Image

    grey = np.asarray(image, np.int32)
    bits = 16 if image.format == "PPM" else _bits(int(grey.max()))  # whose file tells its range
    small = np.clip(grey * 255 // (2**bits - 1), 0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    return Image.fromarray(
        small if clear is None else np.where(grey == clear, np.uint8(255), small)
    )


def _full_range(image: "Image") -> "Image":
    """A colour image of 16 bits, of which Pillow gives the upper eight, by the bits that it uses."""
    bands = len(image.getbands())
    coloured = [band for band in image.getbands() if band != "A"]
    most = max(int(image.getchannel(band).getextrema()[1]) for band in coloured)  # type: ignore[arg-type]
    bits = _bits(256 * most + 255)
    if bits < 14:
        raise ValueError(
            f"its colours have 16 bits and end at {256 * most + 255} of 65535: convert it to 8 bits, scaled"
        )
    if bits == 16:
        return image
    scaled = [min(value * 255 // 63, 255) for value in range(256)]
    return image.point(scaled * len(coloured) + list(range(256)) * (bands - len(coloured)))


def _bits(most: int) -> int:
    """The depth of an image in 16 bits, from the largest of its values."""
    bits = next(depth for depth in DEPTHS if most < 2**depth)
    if bits < 16:
        _say_depth(bits)
    return bits


@cache
def _say_depth(bits: int) -> None:
    """Say once how such images are read."""
    _log.warning("16-bit images with no value of %d or more are read as of %d bits", 2**bits, bits)


@cache
def _say_pages() -> None:
    """Say once that a file may hold several pictures."""
    _log.warning(
        "of TIFF files of several pages the first page is read: save the others as files of their own"
    )


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _object_array(files: Iterable[Readable]) -> np.ndarray:
    """One object per element, whatever its type."""
    if isinstance(files, np.ndarray) and files.dtype == object:
        return files
    listed = [Path(file) if isinstance(file, str) else file for file in files]
    array = np.empty(len(listed), object)
    array[:] = listed
    return array
