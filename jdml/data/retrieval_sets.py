"""The four benchmarks of retrieval from their authors' lists: CUB-200-2011, Cars196, SOP and In-shop."""

from pathlib import Path
from typing import Any

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


def read_cub(data_dir: str | Path | None) -> Listing:
    """Read the lists of CUB-200-2011."""
    folder = data_folder("cub", data_dir)
    if prepared(folder, "cub"):
        records, columns, known = read_prepared(folder, "cub", {"class": "label"})
        splits = zero_shot(columns["class"] < CUB_TRAINING_CLASSES)
        return Listing("cub", records, {"class": columns["class"]}, splits, known)
    root = find_folder("cub", folder, ("CUB_200_2011",), CUB_LISTS)
    images_list, labels_list, classes_list = (root / name for name in CUB_LISTS)
    names: dict[int, str] = {}
    for where, (number, name) in read_lines(classes_list, ("CLASS_ID", "NAME")):
        put_once(where, names, integer(where, "CLASS_ID", number), name, "class")
    paths: dict[int, str] = {}
    for where, (number, path) in read_lines(images_list, ("IMAGE_ID", "PATH")):
        put_once(where, paths, integer(where, "IMAGE_ID", number), image_path(where, path), "image")
    some(images_list, paths)
    classes = _read_cub_classes(labels_list, paths, names)
    ids = np.array([classes[image] for image in paths])
    files = [root / "images" / path for path in paths.values()]
    splits = zero_shot(ids <= CUB_TRAINING_CLASSES)
    return Listing("cub", files, {"class": ids}, splits, {"class": names})


def _read_cub_classes(path: Path, images: dict[int, str], names: dict[int, str]) -> dict[int, int]:
    """The class of every image."""
    classes: dict[int, int] = {}
    for where, (image, number) in read_lines(path, ("IMAGE_ID", "CLASS_ID")):
        row, label = integer(where, "IMAGE_ID", image), integer(where, "CLASS_ID", number)
        if row not in images:
            raise ValueError(f"{where}: image {row} is not in {CUB_LISTS[0]}")
        if label not in names:
            raise ValueError(f"{where}: class {label} is not in {CUB_LISTS[2]}")
        put_once(where, classes, row, label, "image")
    bare = [row for row in images if row not in classes]
    if bare:
        raise ValueError(
            f"{path}: {len(bare)} images of {CUB_LISTS[0]} have no label, the first is "
            f"{bare[0]} {images[bare[0]]}"
        )
    return classes


def read_cars(data_dir: str | Path | None) -> Listing:
    """Read the annotations of Cars196."""
    folder = data_folder("cars", data_dir)
    if prepared(folder, "cars"):
        records, columns, known = read_prepared(folder, "cars", {"class": "label"})
        splits = zero_shot(columns["class"] < CARS_TRAINING_CLASSES)
        return Listing("cars", records, {"class": columns["class"]}, splits, known)
    root = find_folder("cars", folder, ("cars196",), (CARS_ANNOTATIONS,))
    path = root / CARS_ANNOTATIONS
    rows, class_names = _read_car_annotations(path)
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
    return Listing("cars", files, {"class": ids}, zero_shot(ids <= CARS_TRAINING_CLASSES), names)


def _read_car_annotations(path: Path) -> tuple[list[tuple[Any, int]], list[str]]:
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


def read_sop(data_dir: str | Path | None) -> Listing:
    """Read the lists of Stanford Online Products."""
    folder = data_folder("sop", data_dir)
    if prepared(folder, "sop"):
        features = {"class": "class_id", "super_class": "super_class_id"}
        records, columns, names = read_prepared(folder, "sop", features)
        views = {view: columns[view] for view in features}
        named = {"super_class": names["super_class"]}
        return Listing("sop", records, views, zero_shot(columns["split"] == "train"), named)
    root = find_folder("sop", folder, ("Stanford_Online_Products",), tuple(SOP_LISTS.values()))
    files: list[Path] = []
    train, ids, kinds = [], [], []
    for part, name in SOP_LISTS.items():
        before = len(files)
        lines = read_lines(root / name, SOP_FIELDS)
        where, header = next(lines, ("", SOP_FIELDS))
        if header[1].isdigit() and header[2].isdigit():  # it would be lost without a word
            raise ValueError(f"{where}: expected the header {' '.join(SOP_FIELDS)!r}, got an image")
        for where, values in lines:
            files.append(root / image_path(where, values[3]))
            train.append(part == "train")
            ids.append(integer(where, SOP_FIELDS[1], values[1]))
            kinds.append(integer(where, SOP_FIELDS[2], values[2]))
        some(root / name, files[before:])
    views = {"class": np.array(ids), "super_class": np.array(kinds)}
    kind_names = {
        kind: file.relative_to(root).parts[0].removesuffix("_final")
        for kind, file in zip(kinds, files, strict=True)
    }
    names = {"super_class": kind_names}
    return Listing("sop", files, views, zero_shot(np.array(train)), names)


def read_inshop(data_dir: str | Path | None) -> Listing:
    """Read the partition of In-shop."""
    place = find_folder(
        "inshop", data_folder("inshop", data_dir), INSHOP_FOLDERS, (INSHOP_PARTITION,)
    )
    path = place / INSHOP_PARTITION
    root = place.parent if place.name in ("Eval", "Anno") else place
    images = root / "Img" if (root / "Img").is_dir() else root
    files, items, statuses = [], [], []
    for where, (image, item, status) in read_lines(path, INSHOP_FIELDS, skip=2):
        if status not in INSHOP_PARTS:
            raise ValueError(
                f"{where}: {INSHOP_FIELDS[2]} must be one of {INSHOP_PARTS}, got {status!r}"
            )
        files.append(images / image_path(where, image))
        items.append(item)
        statuses.append(status)
    some(path, files)
    _check_count(path, len(files))
    parts = {part: np.flatnonzero(np.array(statuses) == part) for part in INSHOP_PARTS}
    test = np.concatenate([parts["query"], parts["gallery"]])
    splits = {
        "train": parts["train"],
        "test": test,
        "all": np.concatenate([parts["train"], test]),
        "query": parts["query"],
        "gallery": parts["gallery"],
    }
    names = {"item": {item: item for item in items}}
    return Listing("inshop", files, {"item": np.array(items)}, splits, names)


def _check_count(path: Path, count: int) -> None:
    """The first line says how many there are."""
    where, (line,) = next(read_lines(path, ("COUNT",)))
    said = integer(where, "COUNT", line)
    if said != count:
        raise ValueError(f"{where}: expected {said} images, as this line says, got {count}")
