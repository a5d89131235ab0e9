"""The four benchmarks of retrieval from their authors' lists: CUB-200-2011, Cars196, SOP and In-shop."""

from collections.abc import Iterator, Mapping, Sequence
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
SOP_FIELDS = {"image_id": int, "class_id": int, "super_class_id": int, "path": str}
INSHOP_PARTITION = "list_eval_partition.txt"
INSHOP_FOLDERS = ("Eval", "Anno", "In-shop Clothes Retrieval Benchmark/Eval")
INSHOP_FIELDS = {"image_name": str, "item_id": str, "evaluation_status": str}
INSHOP_PARTS = ("train", "query", "gallery")


def read_cub(folder: Path) -> Listing:
    """Read the lists of CUB-200-2011."""
    if prepared(folder, "cub"):
        return _read_copy(folder, "cub", CUB_TRAINING_CLASSES)
    root = _find_folder("cub", folder, ("CUB_200_2011",), CUB_LISTS)
    images_list, labels_list, classes_list = (root / name for name in CUB_LISTS)
    names, paths, classes = (
        dict(values for _, values in _read_lines(path, fields))
        for path, fields in (
            (classes_list, {"CLASS_ID": int, "NAME": str}),
            (images_list, {"IMAGE_ID": int, "PATH": str}),
            (labels_list, {"IMAGE_ID": int, "CLASS_ID": int}),
        )
    )
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


def read_cars(folder: Path) -> Listing:
    """Read the annotations of Cars196."""
    from scipy.io import loadmat

    if prepared(folder, "cars"):
        return _read_copy(folder, "cars", CARS_TRAINING_CLASSES)
    root = _find_folder("cars", folder, ("cars196",), (CARS_ANNOTATIONS,))
    path = root / CARS_ANNOTATIONS
    try:
        content = loadmat(path, squeeze_me=True)
        rows = np.atleast_1d(content["annotations"])
        files = [root / str(image) for image in rows["relative_im_path"]]
        ids = np.array([int(label) for label in rows["class"]])
        names = dict(enumerate(map(str, np.atleast_1d(content["class_names"])), 1))
    except Exception as error:  # loadmat raises many kinds on damaged files
        raise ValueError(
            f"{path}: expected a MATLAB file with annotations (relative_im_path, class) and "
            f"class_names: {type(error).__name__}: {error}"
        ) from error
    splits = zero_shot(ids <= CARS_TRAINING_CLASSES)
    return Listing("cars", files, {"class": ids}, splits, {"class": names})


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
        for _, (_, number, kind, path) in _read_lines(root / name, SOP_FIELDS, skip=1):
            files.append(root / path)
            train.append(part == "train")
            ids.append(number)
            kinds.append(kind)
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
    where, (count,) = next(_read_lines(path, {"COUNT": int}))
    if count != len(files):
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
    path: Path, fields: Mapping[str, type], *, skip: int = 0
) -> Iterator[tuple[str, list[Any]]]:
    """Return where each line of a list stands (``file:line``), and its fields: texts and numbers ≥ 0."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if number <= skip or not line.strip():
            continue
        values = line.strip().split(maxsplit=len(fields) - 1)
        if len(values) != len(fields):
            raise ValueError(f"{path}:{number}: expected {' '.join(fields)!r}, got {line!r}")
        for (name, kind), text in zip(fields.items(), values, strict=True):
            if kind is int and not (text.isascii() and text.isdigit()):
                raise ValueError(f"{path}:{number}: {name} must be an integer ≥ 0, got {text!r}")
        yield f"{path}:{number}", [kind(v) for kind, v in zip(fields.values(), values, strict=True)]
