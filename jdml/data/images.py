"""Image files as one array that is decoded when it is read."""

import inspect
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from jdml._optional_imports import MissingLibraryError, progress_bar, require_package
from jdml.data.transforms import Crops, conventional

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

CHANNELS = (1, 3, 4)
"""Channels of a photograph: grey, RGB, RGB with transparency."""
DEPTHS = (8, 10, 12, 14, 16)
"""Bits that a pixel of 16 bits may hold."""
ENDS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND", "GIF": b";"}
"""How whole files end, by Pillow's names of formats."""
TAIL = 64
"""Bytes in which the end of a file is looked for."""
_log = logging.getLogger(__name__)


class Readable(Protocol):
    """A file of one image, such as ``pathlib.Path`` or ``zipfile.Path``; its string names it."""

    def read_bytes(self) -> bytes:
        """Return the whole file."""


@dataclass(frozen=True)
class Row:
    """One image of a source of many, called ``SOURCE[NUMBER]``."""

    source: Any
    number: int

    def read_bytes(self) -> bytes:
        """Return the image file, of a source of image files."""
        content: bytes = self.source[self.number]
        return content

    def __str__(self) -> str:
        """Return its name."""
        return f"{self.source}[{self.number}]"


class BadImageError(ValueError):
    """An image that cannot be read or is damaged; the message begins with its name."""


class ImageFiles:
    """Image files that behave like a read-only array, uint8 ``[N, H, W, 3]``, decoded when indexed.

    ``images[3]``, ``images[10:20]``, ``images[[4, 2]]`` and ``images[mask]`` are NumPy arrays: the images of these
    rows as in evaluation, decoded by a thread on each core. ``select`` takes rows without decoding.

    Args:
        files: paths, or other objects with ``read_bytes()``.
        transform: ``(image, random=None) -> uint8 [H, W, 3]`` with an attribute ``size``, the height and
            width (see ``mlrc`` and ``conventional``). It draws from the ``np.random.Generator`` that it is called
            with, a new one for each image; None in evaluation.

    Raises:
        ValueError: the transform holds a random generator of its own, which worker processes would repeat.

    Implementation notes:
        Every image becomes RGB: grey and palette images, CMYK, 16-bit grey; transparency is laid over white; EXIF
        orientation is applied. 16-bit grey that holds fewer bits (8, 10, 12 or 14, by the largest value of the image)
        is scaled from these; the log says so once. Of several pages of a TIFF file the first is read.

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

    def __init__(self, files: Iterable[Readable], transform: Crops | None = None) -> None:
        """See the class."""
        listed = (Path(file) if isinstance(file, str) else file for file in files)
        self.files = np.fromiter(listed, object)
        self.transform = conventional() if transform is None else transform
        function: Any = self.transform
        values = dict(getattr(function, "__dict__", {}))
        if inspect.isroutine(function):
            names = inspect.getclosurevars(function)
            values |= {**names.globals, **names.nonlocals}
        for name, value in values.items():
            if isinstance(value, np.random.Generator | np.random.RandomState | Random):
                raise ValueError(
                    f"transform must draw from the generator that it is called with, got one with its own {name}"
                )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``[N, H, W, 3]``."""
        return len(self), self.transform.size, self.transform.size, 3

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.files)

    def __repr__(self) -> str:
        """Return shape and transform."""
        return f"ImageFiles({list(self.shape)}, {self.transform})"

    def __getitem__(self, key: Any) -> np.ndarray:
        """Return one image ``[H, W, 3]``, or those of a slice, of indices or of a mask, ``[n, H, W, 3]``.

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
        with ThreadPoolExecutor(len(usable_cores())) as pool:
            for place, image in enumerate(pool.map(self.read, rows, randoms)):
                images[place] = image
        return images

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all images."""
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

    def problems(self, *, quick: bool = False) -> dict[int, str]:
        """Return the error of each image that cannot be decoded, by its row.

        Args:
            quick: read only the beginning and the end of JPEG, PNG and GIF files, which finds files that are no images
                or are cut off; rows of tables are not read. Else all images are decoded.
        """
        read = check_ends if quick else open_image
        errors = enumerate(self._map(read, lambda image: None))
        return {row: str(error) for row, error in errors if error is not None}

    def each(
        self, function: Callable[["Image"], T], *, progress: bool = False
    ) -> Iterator[T | BadImageError]:
        """Return a function's value of every image, or the error of an image that cannot be decoded, in order.

        Args:
            function: called with each image of Pillow.
            progress: show a progress bar.
        """
        return self._map(open_image, function, progress)

    def _map(
        self, read: Callable[[Readable], Any], function: Callable[[Any], T], progress: bool = False
    ) -> Iterator[T | BadImageError]:
        def call(file: Readable) -> T | BadImageError:
            try:
                with named_if_bad(file):
                    image = read(file)
            except BadImageError as error:
                return error
            return function(image)

        with (
            progress_bar(progress, total=len(self), desc="decoding") as bar,
            ThreadPoolExecutor(len(usable_cores())) as pool,
        ):
            for result in pool.map(call, self.files):
                bar.update()
                yield result

    def select(self, rows: np.ndarray) -> "ImageFiles":
        """Select some of the files, none of them decoded: indices or a mask."""
        return ImageFiles(self.files[np.arange(len(self))[rows]], self.transform)


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
    """Decode an image file of any kind that Pillow reads, as an upright RGB image."""
    return as_rgb(_open(io.BytesIO(content)))


def _open(file: Any) -> "Image":
    require_package("PIL", "decoding images")
    from PIL import Image, UnidentifiedImageError

    Image.preinit()
    Image.init()  # a user may have added a format just now
    try:  # PostScript is a program that would be run
        return Image.open(file, formats=[kind for kind in Image.ID if kind != "EPS"])
    except UnidentifiedImageError:
        raise ValueError("its format is not known") from None


def as_rgb(image: "Image") -> "Image":
    """Turn an image upright and into RGB, transparency laid over white."""
    from PIL import Image

    image.load()
    kind, image = image.format, _upright(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PNG", "PPM")):
        image = _eight_bits(image, kind)
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of mode {image.mode!r}, expected 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def open_image(file: Readable) -> "Image":
    """Open an image file, or an image of rows, as an upright RGB image."""
    if not isinstance(file, Row):
        return decode(file.read_bytes())
    image = file.source[file.number]
    if isinstance(image, bytes):
        return decode(image)
    if isinstance(image, np.ndarray):
        from PIL import Image

        image = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    return as_rgb(image)


def check_ends(file: Readable) -> None:
    """Refuse an image file that is no image or is cut off, by its beginning and its end; decode it only in doubt."""
    if not isinstance(file, Path):
        return
    is_whole = False
    if file.is_file():
        with file.open("rb") as opened:
            end = ENDS.get(_open(opened).format or "")
            opened.seek(max(opened.seek(0, os.SEEK_END) - TAIL, 0))
            is_whole = end is not None and end in opened.read()
    if not is_whole:
        open_image(file)


def is_grey(image: Any) -> bool:
    """Return whether an image that can be decoded, or its file, has no colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
    return image.mode in ("1", "F", "I", "L", "LA", "La") or image.mode.startswith("I;")


def _upright(image: "Image") -> "Image":
    """Turn an image as its EXIF data say; leave it as it is if they cannot be read."""
    from PIL.ExifTags import Base
    from PIL.Image import Transpose

    turns = {  # ImageOps.exif_transpose fails if other data of EXIF are malformed
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(int(image.getexif().get(Base.Orientation, 1)))
    except Exception:  # Pillow's readers raise many kinds on damaged data
        return image
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: "Image", kind: str | None) -> "Image":
    """Scale a grey image of 16 bits to 8; by the bits that it uses, as scanners and microscopes write fewer."""
    from PIL import Image

    grey, bits = np.asarray(image, np.int32), 16
    if kind != "PPM":  # which Pillow scales by its range
        bits = next(depth for depth in DEPTHS if grey.max() < 2**depth)
    if bits < 16:
        _warn_depth(bits)
    small = np.clip(grey * 255 // (2**bits - 1), 0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    return Image.fromarray(
        small if clear is None else np.where(grey == clear, np.uint8(255), small)
    )


@cache
def _warn_depth(bits: int) -> None:
    _log.warning("16-bit images with no value of %d or more are read as of %d bits", 2**bits, bits)


def usable_cores() -> set[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
