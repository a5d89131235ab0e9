"""What a path stands for: the same images for every command, and in Python."""

from pathlib import Path
from typing import NamedTuple

from jdml.data.folder import read_folder
from jdml.data.lists import Listing
from jdml.data.loading import read_listing, recognize
from jdml.data.table import ENDINGS, read_table
from jdml.data.walk import image_files, unread_kinds


class Found(NamedTuple):
    """Image files, and what is known of them.

    Attributes:
        files: what to read.
        listing: their classes and parts; None for an image, and for a folder of images without classes.
        notes: what was passed over, a line each.
    """

    files: list[Path]
    listing: Listing | None = None
    notes: tuple[str, ...] = ()


def read_path(path: Path) -> Found:
    """Find the images that a path stands for.

    Args:
        path: an image, a folder of images, of classes or of parts, a data set's own folder, a ``.csv`` file.

    Returns:
        The images. Those of a listing are in the order of its part ``all``.

    Raises:
        FileNotFoundError: no such path, or no image in it.
        ValueError: a folder or a list that cannot be understood.
    """
    if path.is_dir():
        kind = recognize(path)
        if kind != "folder":
            return _of(read_listing(kind, path))
        found, others = image_files(path)
        if not found:
            raise FileNotFoundError(f"{path} has no images in it")
        if all(file.parent == path for file in found):
            return Found(found, None, unread_kinds(others))
        return _of(read_folder(path))
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    return _of(read_table(path)) if path.suffix.lower() in ENDINGS else Found([path])


def _of(listing: Listing) -> Found:
    files = [listing.files[row] for row in listing.splits["all"]]
    return Found(files, listing, listing.notes)
