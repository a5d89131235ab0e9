"""Any folder of classes: a folder for each class, with its images."""

from pathlib import Path

import numpy as np

from jdml.data.lists import Listing, data_folder, zero_shot

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


def read_folder(data_dir: str | Path | None) -> Listing:
    """Reads a folder of classes, in the order of the classes' names.

    The first half of the classes trains (the larger one, if their number is odd), the others test.
    For splits of your own, read each of their folders as `split="all"`.

    Args:
        data_dir: The folder. Each folder in it is a class; images lie in it at any depth. Hidden files
            and files that are no images by their suffix are passed over.

    Returns:
        The listing, with the view `class`.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If there is no class in it, or a class without images; the message names it.
    """
    root = data_folder("folder", data_dir)
    if not root.is_dir():
        raise FileNotFoundError(f"folder needs a folder of classes: {root.absolute()} is none")
    classes = sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    if not classes:
        raise ValueError(f"{root}: expected a folder for each class, found none")
    files: list[Path] = []
    labels: list[int] = []
    for label, place in enumerate(classes):
        found = sorted(path for path in place.rglob("*") if _is_image(path))
        if not found:
            raise ValueError(f"{place}: expected images ({', '.join(SUFFIXES)}), found none")
        files += found
        labels += [label] * len(found)
    ids = np.array(labels)
    names = {"class": {label: place.name for label, place in enumerate(classes)}}
    return Listing("folder", files, {"class": ids}, zero_shot(2 * ids < len(classes)), names)


def _is_image(path: Path) -> bool:
    """Whether it is an image by its name."""
    return path.suffix.lower() in SUFFIXES and path.name[0] != "."
