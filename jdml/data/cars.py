"""Cars196: cars of 196 models."""

from pathlib import Path
from typing import Any

import numpy as np

from jdml.data.listing import Listing, data_folder, find_folder, image_path, some, zero_shot
from jdml.data.tfds import prepared, read_prepared

ANNOTATIONS = "cars_annos.mat"
LAST_TRAINING_CLASS = 98


def read_cars(data_dir: str | Path | None) -> Listing:
    """Read the annotations of Cars196.

    Models 1…98 train (8,054 images), 99…196 test (8,131).

    Args:
        data_dir: the folder with ``cars_annos.mat`` and ``car_ims/``, or one in which TensorFlow
            Datasets has prepared ``cars196``.

    Returns:
        The listing, with the view ``class``.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if it is damaged, or a row of it is wrong.

    Reference:
        Krause et al. 3D object representations for fine-grained categorization. 3dRR 2013.
    """
    folder = data_folder("cars", data_dir)
    if prepared(folder, "cars"):
        records, columns, known = read_prepared(folder, "cars", {"class": "label"})
        splits = zero_shot(columns["class"] < LAST_TRAINING_CLASS)
        return Listing("cars", records, {"class": columns["class"]}, splits, known)
    root = find_folder("cars", folder, ("cars196",), (ANNOTATIONS,))
    path = root / ANNOTATIONS
    rows, class_names = _read_annotations(path)
    some(path, rows)
    files = [
        root / image_path(f"{path}: annotation {number}", str(image))
        for number, (image, _) in enumerate(rows, 1)
    ]
    ids = np.array([label for _, label in rows])
    wrong = (ids < 1) | (ids > len(class_names))
    if wrong.any():
        number = int(wrong.argmax())
        raise ValueError(
            f"{path}: annotation {number + 1}: class must be from 1 to {len(class_names)}, "
            f"got {ids[number]}"
        )
    names = {"class": dict(enumerate(class_names, 1))}
    return Listing("cars", files, {"class": ids}, zero_shot(ids <= LAST_TRAINING_CLASS), names)


def _read_annotations(path: Path) -> tuple[list[tuple[Any, int]], list[str]]:
    """Path and class of every image, and the classes' names."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True)
        rows = np.atleast_1d(content["annotations"])
        names = [str(name) for name in np.atleast_1d(content["class_names"])]
        classes = [int(label) for label in rows["class"]]
        return list(zip(rows["relative_im_path"], classes, strict=True)), names
    except Exception as error:  # loadmat raises many kinds on damaged files
        raise ValueError(
            f"{path}: expected a MATLAB file with annotations (relative_im_path, class) and "
            f"class_names: {type(error).__name__}: {error}"
        ) from error
