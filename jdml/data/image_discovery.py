"""The image files below a folder, found alike by every reader; and which paths lead to one file."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jdml._optional_imports import require_package

FORMATS = frozenset(
    "AVIF BMP DIB GIF HEIF JPEG JPEG2000 MPO PCX PNG PPM PSD QOI SGI TGA TIFF WEBP".split()
)
"""Pillow's formats of pictures."""
UNREADABLE = frozenset(
    ".ai .arw .avif .avifs .cr2 .cr3 .dng .eps .exr .hdr .heic .heif .hif .j2c .j2k .jp2 .jpc .jpf .jpx .jxl .nef .orf "
    ".pef .pfm .psd .raf .rw2 .srw .svg .svgz .webp .xcf".split()
)
"""Suffixes of images that are not read, or not everywhere."""
SYSTEM_FOLDERS = ("$recycle.bin", "@eadir", "__macosx", "lost+found", "system volume information")
"""Folders that archives and file systems add."""
FOLDER, IMAGE, BROKEN_LINK = "folder", "image", "links that lead nowhere"
"""Kinds of entries of a folder; other files are called by their suffix."""


@cache
def suffixes() -> frozenset[str]:
    """Return the suffixes of images that Pillow reads here, in lower case."""
    require_package("PIL", "a folder of images")
    from PIL import Image

    Image.init()
    readable = FORMATS & Image.OPEN.keys()
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in readable}
    return frozenset(known - {".pfm"})  # whose pixels have no known range


def image_files(place: Path) -> tuple[list[Path], Counter[str]]:
    """Return the images of a folder, at any depth and through links, and the number of other files by suffix."""
    images: list[Path] = []
    others: Counter[str] = Counter()
    folders = [place]
    while folders:
        for path, kind in _entries(folders.pop()):
            if kind == FOLDER:
                folders.append(path)
            elif kind == IMAGE:
                images.append(path)
            else:
                others[kind] += 1
    return sorted(images, key=lambda path: path.parts), others


def subfolders(place: Path) -> list[Path]:
    """Return the folders in a folder that :func:`image_files` enters, by name."""
    return sorted(path for path, kind in _entries(place) if kind == FOLDER)


def images_in(place: Path) -> int:
    """Count the images that lie in a folder itself."""
    return sum(kind == IMAGE for _, kind in _entries(place))


def _entries(place: Path) -> Iterator[tuple[Path, str]]:
    """Return what is in a folder, and its kind: links to folders and files, and only these, are looked up."""
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.lower() in SYSTEM_FOLDERS:
                continue
            path, is_link = Path(entry.path), entry.is_symlink()
            if os.path.isdir(path) if is_link else entry.is_dir():
                if not (is_link and _is_circle(path)):
                    yield path, FOLDER
            elif os.path.isfile(path) if is_link else entry.is_file():
                suffix = path.suffix.lower()
                yield path, IMAGE if suffix in suffixes() else suffix or "without a suffix"
            elif not os.path.exists(path):
                yield path, BROKEN_LINK


def _is_circle(link: Path) -> bool:
    """Return whether a link leads to a folder above it, whatever links lead there."""
    above = {Path(os.path.realpath(folder)) for folder in link.absolute().parents}
    return any(folder.is_relative_to(os.path.realpath(link)) for folder in above)


def omission_notes(others: Mapping[str, int]) -> tuple[str, ...]:
    """Return a line for each kind of files that are not read."""
    unreadable = {kind: count for kind, count in others.items() if kind in UNREADABLE}
    rest = {k: count for k, count in others.items() if k not in {*UNREADABLE, BROKEN_LINK}}
    lines = []
    if unreadable:
        lines.append(f"{count_by_suffix(unreadable)} left out: convert them to .jpg or .png")
    if others.get(BROKEN_LINK):
        lines.append(f"{pluralize(others[BROKEN_LINK], 'broken link', 'broken links')} left out")
    if rest:
        lines.append(f"{count_by_suffix(rest)} left out")
    return tuple(lines)


def count_by_suffix(others: Mapping[str, int]) -> str:
    """Return the number of files, and of the most frequent suffixes."""
    common = Counter(others).most_common(3)
    listed = ", ".join(f"{count} {kind}" for kind, count in common)
    more = ", …" if len(others) > len(common) else ""
    return f"{pluralize(sum(others.values()), 'file', 'files')} of other kinds ({listed}{more})"


def pluralize(number: int, one: str, more: str) -> str:
    """Return a number and a noun."""
    return f"{number} {one if number == 1 else more}"


def path_resolver() -> Callable[[str | Path], str]:
    """Return a function from a file, which need not exist, to its real path; it looks up each folder once."""
    real_folder = cache(os.path.realpath)

    def real_path(path: str | Path) -> str:
        folder, name = os.path.split(path)
        file = os.path.join(real_folder(folder), name)
        return os.path.realpath(file) if os.path.islink(file) else file

    return real_path


def identical_files(files: Sequence[Any]) -> list[list[int]]:
    """Return the rows of files that hold the same bytes; only files of equal size are read."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, file in enumerate(files):
        if isinstance(file, Path):
            by_size[os.path.getsize(file)].append(row)
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for rows in by_size.values():
        for row in rows if len(rows) > 1 else ():
            by_content[hashlib.sha256(files[row].read_bytes()).digest()].append(row)
    return sorted(rows for rows in by_content.values() if len(rows) > 1)
