"""CUB-200-2011: birds of 200 species."""

from pathlib import Path

import numpy as np

from jdml.data.listing import (
    Listing,
    data_folder,
    find_folder,
    image_path,
    integer,
    put_once,
    read_lines,
    some,
    zero_shot,
)
from jdml.data.tfds import prepared, read_prepared

LISTS = ("images.txt", "image_class_labels.txt", "classes.txt")
LAST_TRAINING_CLASS = 100


def read_cub(data_dir: str | Path | None) -> Listing:
    """Read the lists of CUB-200-2011.

    Species 1…100 train (5,864 images), 101…200 test (5,924). A folder with fewer species or images
    is split by the same rule.

    Args:
        data_dir: the folder with ``images.txt``, ``image_class_labels.txt``, ``classes.txt`` and ``images/``,
            or the one that holds it as ``CUB_200_2011/``, or one in which TensorFlow Datasets has
            prepared ``caltech_birds2011``.

    Returns:
        The listing, with the view ``class``.

    Raises:
        FileNotFoundError: if a list is missing.
        ValueError: if a line of a list is broken; the message names file and line.

    Reference:
        Wah et al. The Caltech-UCSD Birds-200-2011 dataset. 2011.
    """
    folder = data_folder("cub", data_dir)
    if prepared(folder, "cub"):
        records, columns, known = read_prepared(folder, "cub", {"class": "label"})
        splits = zero_shot(columns["class"] < LAST_TRAINING_CLASS)
        return Listing("cub", records, {"class": columns["class"]}, splits, known)
    root = find_folder("cub", folder, ("CUB_200_2011",), LISTS)
    images_list, labels_list, classes_list = (root / name for name in LISTS)
    names: dict[int, str] = {}
    for where, (number, name) in read_lines(classes_list, ("CLASS_ID", "NAME")):
        put_once(where, names, integer(where, "CLASS_ID", number), name, "class")
    paths: dict[int, str] = {}
    for where, (number, path) in read_lines(images_list, ("IMAGE_ID", "PATH")):
        put_once(where, paths, integer(where, "IMAGE_ID", number), image_path(where, path), "image")
    some(images_list, paths)
    classes = _read_classes(labels_list, paths, names)
    ids = np.array([classes[image] for image in paths])
    files = [root / "images" / path for path in paths.values()]
    splits = zero_shot(ids <= LAST_TRAINING_CLASS)
    return Listing("cub", files, {"class": ids}, splits, {"class": names})


def _read_classes(path: Path, images: dict[int, str], names: dict[int, str]) -> dict[int, int]:
    """The class of every image."""
    classes: dict[int, int] = {}
    for where, (image, number) in read_lines(path, ("IMAGE_ID", "CLASS_ID")):
        row, label = integer(where, "IMAGE_ID", image), integer(where, "CLASS_ID", number)
        if row not in images:
            raise ValueError(f"{where}: image {row} is not in {LISTS[0]}")
        if label not in names:
            raise ValueError(f"{where}: class {label} is not in {LISTS[2]}")
        put_once(where, classes, row, label, "image")
    bare = [row for row in images if row not in classes]
    if bare:
        raise ValueError(
            f"{path}: {len(bare)} images of {LISTS[0]} have no label, the first is "
            f"{bare[0]} {images[bare[0]]}"
        )
    return classes
