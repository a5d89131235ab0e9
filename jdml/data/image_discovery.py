"""The image files below a folder, found alike by every reader; and which paths lead to one file."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
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
BROKEN_LINK = "links that lead nowhere"


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
    folders = [str(place)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if _is_ignored(entry.name):
                    continue
                if _is(entry, os.path.isdir):
                    if not _is_circle(entry):
                        folders.append(entry.path)
                elif not _is(entry, os.path.isfile):
                    others[BROKEN_LINK] += not os.path.exists(entry.path)
                elif _is_image(entry.name):
                    images.append(Path(entry.path))
                else:
                    others[os.path.splitext(entry.name)[1].lower() or "without a suffix"] += 1
    return sorted(images, key=lambda path: path.parts), +others


def subfolders(place: Path) -> list[Path]:
    """Return the folders in a folder that :func:`image_files` enters, by name."""
    with os.scandir(place) as entries:
        return sorted(
            Path(entry.path)
            for entry in entries
            if not _is_ignored(entry.name) and _is(entry, os.path.isdir) and not _is_circle(entry)
        )


def images_in(place: Path) -> int:
    """Count the images that lie in a folder itself."""
    with os.scandir(place) as entries:
        return sum(_is_image(entry.name) and _is(entry, os.path.isfile) for entry in entries)


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


def num_unreadable(others: Mapping[str, int]) -> int:
    """Count the files that are images of other kinds, or links that lead nowhere."""
    return sum(count for kind, count in others.items() if kind in {*UNREADABLE, BROKEN_LINK})


def count_by_suffix(others: Mapping[str, int]) -> str:
    """Return the number of files, and of the most frequent suffixes."""
    common = Counter(others).most_common(3)
    listed = ", ".join(f"{count} {kind}" for kind, count in common)
    more = ", …" if len(others) > len(common) else ""
    return f"{pluralize(sum(others.values()), 'file', 'files')} of other kinds ({listed}{more})"


def pluralize(number: int, one: str, more: str) -> str:
    """Return a number and a noun."""
    return f"{number} {one if number == 1 else more}"


def _is(entry: os.DirEntry[str], kind: Callable[[str], bool]) -> bool:
    """Return whether it is a file or a folder, or a link to one; only links are looked up on the disk."""
    if entry.is_symlink():
        return kind(entry.path)
    return entry.is_file() if kind is os.path.isfile else entry.is_dir()


def _is_circle(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a link to a folder above it, whatever links lead there."""
    if not entry.is_symlink():
        return False
    above = {Path(os.path.realpath(folder)) for folder in Path(entry.path).absolute().parents}
    return any(folder.is_relative_to(os.path.realpath(entry.path)) for folder in above)


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_FOLDERS


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes()


class RealFiles:
    """Return the real path of a file, which need not exist; real paths of folders are cached."""

    def __init__(self) -> None:
        """Begin with an empty cache."""
        self._folders: dict[str, str] = {}

    def __call__(self, path: str | Path) -> str:
        """Return the real path."""
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        file = os.path.join(self._folders[folder], name)
        return os.path.realpath(file) if os.path.islink(file) else file


def same_content(first: str | Path, second: str | Path) -> bool:
    """Return whether two files hold the same bytes; False if one of them cannot be read."""
    try:
        if os.path.getsize(first) != os.path.getsize(second):
            return False
        return Path(first).read_bytes() == Path(second).read_bytes()
    except OSError:
        return False


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
