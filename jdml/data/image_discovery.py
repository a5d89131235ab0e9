"""The image files below a folder: what one reader of folders sees, all see; and which paths lead to one file."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jdml._optional_imports import require_package

PICTURES = {
    "AVIF": "avif",
    "BMP": "",
    "DIB": "",
    "GIF": "",
    "HEIF": "",
    "JPEG": "",
    "JPEG2000": "jpg_2000",
    "MPO": "",
    "PCX": "",
    "PNG": "",
    "PPM": "",
    "PSD": "",
    "QOI": "",
    "SGI": "",
    "TGA": "",
    "TIFF": "",
    "WEBP": "webp",
}
"""Pillow's formats of pictures, and the part of Pillow that an installation may lack."""
UNREAD = frozenset(
    ".ai .arw .avif .avifs .cr2 .cr3 .dng .eps .exr .hdr .heic .heif .hif .j2c .j2k .jp2 .jpc .jpf .jpx .jxl .nef .orf "
    ".pef .pfm .psd .raf .rw2 .srw .svg .svgz .webp .xcf".split()
)
"""Images of kinds that are not read, or not everywhere."""
ASIDE = ("$recycle.bin", "@eadir", "__macosx", "lost+found", "system volume information")
"""Folders that archives and file systems put beside a user's own."""
NOWHERE = "links that lead nowhere"


@cache
def suffixes() -> frozenset[str]:
    """The suffixes of images that Pillow reads here, in lower case."""
    require_package("PIL", "a folder of images")
    from PIL import Image, features

    Image.init()
    there = {
        kind
        for kind, part in PICTURES.items()
        if kind in Image.OPEN and (not part or features.check(part))
    }
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in there}
    return frozenset(known - {".pfm"})  # whose pixels have no known range


def image_files(place: Path) -> tuple[list[Path], Counter[str]]:
    """The images of a folder, at any depth and through links, and the kinds of all other files, counted."""
    images: list[Path] = []
    others: Counter[str] = Counter()
    folders: list[tuple[str, tuple[str, ...]]] = [(str(place), (os.path.realpath(place),))]
    while folders:
        folders += _look_into(*folders.pop(), images, others)
    return sorted(images, key=lambda path: path.parts), others


def subfolders(place: Path) -> list[Path]:
    """The folders in a folder that :func:`image_files` enters, in the order of their names."""
    above = (os.path.realpath(place),)
    with os.scandir(place) as entries:
        return sorted(Path(entry.path) for entry in entries if _enters(entry, above) is not None)


def images_in(place: Path) -> int:
    """How many images lie in a folder itself."""
    with os.scandir(place) as entries:
        return sum(_is_image(entry.name) and _is(entry, os.path.isfile) for entry in entries)


def unread_kinds(others: Mapping[str, int]) -> tuple[str, ...]:
    """What is to be said of files that are no images by their suffix."""
    images = {kind: count for kind, count in others.items() if kind in UNREAD}
    rest = {kind: count for kind, count in others.items() if kind not in {*UNREAD, NOWHERE}}
    lines = []
    if images:
        lines.append(f"{kinds(images)} left out: convert them to .jpg or .png")
    if others.get(NOWHERE):
        links = pluralize(others[NOWHERE], "link that leads", "links that lead")
        lines.append(f"{links} nowhere left out")
    if rest:
        lines.append(f"{kinds(rest)} left out")
    return tuple(lines)


def unread(others: Mapping[str, int]) -> int:
    """How many of these files are images, or ought to be."""
    return sum(count for kind, count in others.items() if kind in {*UNREAD, NOWHERE})


def kinds(others: Mapping[str, int]) -> str:
    """Numbers by suffix, as words."""
    total = sum(others.values())
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
    return f"{pluralize(total, 'file', 'files')} of other kinds ({listed})"


def pluralize(number: int, one: str, more: str) -> str:
    """A number and what it counts."""
    return f"{number} {one if number == 1 else more}"


def _look_into(
    folder: str, above: tuple[str, ...], images: list[Path], others: Counter[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """Put aside the files of a folder; give the folders in it, each with those above."""
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _passed_over(entry.name):
                continue
            if not _is(entry, os.path.isfile):
                inside = _enters(entry, above)
                if inside is not None:
                    inner.append((entry.path, (*above, inside)))
                elif not os.path.exists(entry.path):
                    others[NOWHERE] += 1
            elif _is_image(entry.name):
                images.append(Path(entry.path))
            else:
                others[os.path.splitext(entry.name)[1].lower() or "without a suffix"] += 1
    return inner


def _is(entry: os.DirEntry[str], kind: Callable[[str], bool]) -> bool:
    """Whether it is a file or a folder, or a link to one; what is no link is known without asking the disk."""
    if entry.is_symlink():
        return kind(entry.path)
    return entry.is_file() if kind is os.path.isfile else entry.is_dir()


def _enters(entry: os.DirEntry[str], above: tuple[str, ...]) -> str | None:
    """Where a folder really lies; None for what is no folder, is passed over, or leads back."""
    if _passed_over(entry.name) or not _is(entry, os.path.isdir):
        return None
    if not entry.is_symlink():
        return os.path.join(above[-1], entry.name)
    real = os.path.realpath(entry.path)
    back = any(os.path.commonpath((real, place)) == real for place in above)
    return None if back else real


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name.lower() in ASIDE


def _is_image(name: str) -> bool:
    """Whether it is an image by its name."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes()


class RealFiles:
    """Tell the file that a path leads to: through links and ``..``, relative or absolute."""

    def __init__(self) -> None:
        """Remember the folders: most files have few."""
        self._folders: dict[str, str] = {}

    def __call__(self, path: str | Path) -> str:
        """The real path of a file, there or not."""
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        file = os.path.join(self._folders[folder], name)
        return os.path.realpath(file) if os.path.islink(file) else file


def same_content(first: str | Path, second: str | Path) -> bool:
    """Whether two files hold the same bytes; False where one of them cannot be read."""
    try:
        if os.path.getsize(first) != os.path.getsize(second):
            return False
        return Path(first).read_bytes() == Path(second).read_bytes()
    except OSError:
        return False


def copies(files: Sequence[Any]) -> list[list[int]]:
    """Find files that hold the same bytes; of those of one size all are read."""
    of_size: dict[int, list[int]] = defaultdict(list)
    for row, file in enumerate(files):
        if isinstance(file, Path):
            of_size[os.path.getsize(file)].append(row)
    of_content: dict[bytes, list[int]] = defaultdict(list)
    for rows in of_size.values():
        for row in rows if len(rows) > 1 else ():
            of_content[hashlib.sha256(files[row].read_bytes()).digest()].append(row)
    return sorted(rows for rows in of_content.values() if len(rows) > 1)
