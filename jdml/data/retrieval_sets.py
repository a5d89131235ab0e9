"""The four benchmarks of retrieval from their authors' lists: CUB-200-2011, Cars196, SOP and In-shop."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jdml.data.listing import Listing, read_text, zero_shot
from jdml.data.tfds import prepared, read_prepared

CUB_LISTS = ("images.txt", "image_class_labels.txt", "classes.txt")
CUB_TRAINING_CLASSES = 100
CARS_ANNOTATIONS = "cars_annos.mat"
CARS_TRAINING_CLASSES = 98
SOP_LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
SOP_FIELDS = ("image_id", "class_id", "super_class_id", "path")
INSHOP_PARTITION = "list_eval_partition.txt"
INSHOP_FOLDERS = ("Eval", "Anno", "In-shop Clothes Retrieval Benchmark/Eval")
INSHOP_FIELDS = ("image_name", "item_id", "evaluation_status")
INSHOP_PARTS = ("train", "query", "gallery")


def read_cub(folder: Path) -> Listing:
    """Read the lists of CUB-200-2011."""
    if prepared(folder, "cub"):
        return _read_copy(folder, "cub", CUB_TRAINING_CLASSES)
    root = _find_folder("cub", folder, ("CUB_200_2011",), CUB_LISTS)
    images_list, labels_list, classes_list = (root / name for name in CUB_LISTS)
    names = _read_by_number(classes_list, ("CLASS_ID", "NAME"))
    paths = _read_by_number(images_list, ("IMAGE_ID", "PATH"))
    classes = {
        _integer(where, "IMAGE_ID", image): _integer(where, "CLASS_ID", number)
        for where, (image, number) in _read_lines(labels_list, ("IMAGE_ID", "CLASS_ID"))
    }
    bare = [row for row in paths if classes.get(row) not in names]
    if bare:
        raise ValueError(
            f"{labels_list}: {len(bare)} images of {images_list.name} have no class of {classes_list.name}, the first "
            f"is {bare[0]} {paths[bare[0]]}"
        )
    ids = np.array([classes[image] for image in paths])
    files = [root / "images" / path for path in paths.values()]
    splits = zero_shot(ids <= CUB_TRAINING_CLASSES)
    return Listing("cub", files, {"class": ids}, splits, {"class": names})


def _read_copy(folder: Path, name: str, training_classes: int) -> Listing:
    """Read a copy prepared by tfds, whose classes are numbered from 0; the first are for training."""
    copy = read_prepared(folder, name, {"class": "label"})
    return replace(copy, splits=zero_shot(copy.views["class"] < training_classes))


def _read_by_number(path: Path, fields: Sequence[str]) -> dict[int, str]:
    """Read a list of numbers and texts."""
    lines = _read_lines(path, fields)
    return {_integer(where, fields[0], number): text for where, (number, text) in lines}


def read_cars(folder: Path) -> Listing:
    """Read the annotations of Cars196."""
    if prepared(folder, "cars"):
        return _read_copy(folder, "cars", CARS_TRAINING_CLASSES)
    root = _find_folder("cars", folder, ("cars196",), (CARS_ANNOTATIONS,))
    rows, class_names = _read_car_annotations(root / CARS_ANNOTATIONS)
    files = [root / str(image) for image, _ in rows]
    ids = np.array([label for _, label in rows])
    names = {"class": dict(enumerate(class_names, 1))}
    return Listing("cars", files, {"class": ids}, zero_shot(ids <= CARS_TRAINING_CLASSES), names)


def _read_car_annotations(path: Path) -> tuple[list[tuple[Any, int]], list[str]]:
    """Return path and class of every image, and the classes' names."""
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


def read_sop(folder: Path) -> Listing:
    """Read the lists of Stanford Online Products."""
    if prepared(folder, "sop"):
        features = {"class": "class_id", "super_class": "super_class_id"}
        copy = read_prepared(folder, "sop", features)
        return replace(copy, names={"super_class": copy.names["super_class"]})
    root = _find_folder("sop", folder, ("Stanford_Online_Products",), tuple(SOP_LISTS.values()))
    files: list[Path] = []
    train, ids, kinds = [], [], []
    for part, name in SOP_LISTS.items():
        for where, values in _read_lines(root / name, SOP_FIELDS, skip=1):
            files.append(root / values[3])
            train.append(part == "train")
            ids.append(_integer(where, SOP_FIELDS[1], values[1]))
            kinds.append(_integer(where, SOP_FIELDS[2], values[2]))
    views = {"class": np.array(ids), "super_class": np.array(kinds)}
    kind_names = {
        kind: file.relative_to(root).parts[0].removesuffix("_final")
        for kind, file in zip(kinds, files, strict=True)
    }
    names = {"super_class": kind_names}
    return Listing("sop", files, views, zero_shot(np.array(train)), names)


def read_inshop(folder: Path) -> Listing:
    """Read the partition of In-shop."""
    place = _find_folder("inshop", folder, INSHOP_FOLDERS, (INSHOP_PARTITION,))
    path = place / INSHOP_PARTITION
    root = place.parent if place.name in ("Eval", "Anno") else place
    images = root / "Img" if (root / "Img").is_dir() else root
    files, items, statuses = [], [], []
    for where, (image, item, status) in _read_lines(path, INSHOP_FIELDS, skip=2):
        if status not in INSHOP_PARTS:
            raise ValueError(f"{where}: status must be one of {INSHOP_PARTS}, got {status!r}")
        files.append(images / image)
        items.append(item)
        statuses.append(status)
    where, (count,) = next(_read_lines(path, ("COUNT",)))
    if _integer(where, "COUNT", count) != len(files):
        raise ValueError(f"{where}: expected {count} images, as this line says, got {len(files)}")
    parts = {part: np.flatnonzero(np.array(statuses) == part) for part in INSHOP_PARTS}
    splits = {
        **parts,
        "test": np.concatenate([parts["query"], parts["gallery"]]),
        "all": np.concatenate([*parts.values()]),
    }
    names = {"item": {item: item for item in items}}
    return Listing("inshop", files, {"item": np.array(items)}, splits, names)


def _find_folder(name: str, folder: Path, inside: Sequence[str], files: Sequence[str]) -> Path:
    """Return the folder that holds the lists: the one given, or one of the original's names in it."""
    places = [folder, *(folder / part for part in inside)]
    place = next((p for p in places if any((p / file).is_file() for file in files)), folder)
    gone = [file for file in files if not (place / file).is_file()]
    if gone:
        raise FileNotFoundError(f"{name} needs {', '.join(gone)} in {place.absolute()}")
    return place


def _read_lines(
    path: Path, fields: Sequence[str], *, skip: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """Return where each line of a list stands (``file:line``), and its fields."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if number <= skip or not line.strip():
            continue
        values = line.strip().split(maxsplit=len(fields) - 1)
        if len(values) != len(fields):
            raise ValueError(f"{path}:{number}: expected {' '.join(fields)!r}, got {line!r}")
        yield f"{path}:{number}", values


def _integer(where: str, name: str, text: str) -> int:
    """Return a number ≥ 0 of a list."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{where}: {name} must be an integer ≥ 0, got {text!r}")
    return int(text)
