"""Stanford Online Products: 22,634 products of 12 kinds."""

from pathlib import Path

import numpy as np

from jdml.data.listing import (
    Listing,
    data_folder,
    find_folder,
    image_path,
    integer,
    read_lines,
    some,
    zero_shot,
)
from jdml.data.tfds import prepared, read_prepared

LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
FIELDS = ("image_id", "class_id", "super_class_id", "path")


def read_sop(data_dir: str | Path | None) -> Listing:
    """Read the lists of Stanford Online Products.

    11,318 products train (59,551 images), 11,316 others test (60,502), as the lists say.

    Args:
        data_dir: the folder with ``Ebay_train.txt``, ``Ebay_test.txt`` and the folders of images
            (``bicycle_final/``, …), or the one that holds it as ``Stanford_Online_Products/``, or one in
            which TensorFlow Datasets has prepared ``stanford_online_products``.

    Returns:
        The listing, with the views ``class`` and ``super_class``, which is the kind of product.

    Raises:
        FileNotFoundError: if a list is missing.
        ValueError: if a line of a list is broken; the message names file and line.

    Reference:
        Oh Song et al. Deep metric learning via lifted structured feature embedding. CVPR 2016.
    """
    folder = data_folder("sop", data_dir)
    if prepared(folder, "sop"):
        features = {"class": "class_id", "super_class": "super_class_id"}
        records, columns, names = read_prepared(folder, "sop", features)
        views = {view: columns[view] for view in features}
        named = {"super_class": names["super_class"]}
        return Listing("sop", records, views, zero_shot(columns["split"] == "train"), named)
    root = find_folder("sop", folder, ("Stanford_Online_Products",), tuple(LISTS.values()))
    files: list[Path] = []
    train, ids, kinds = [], [], []
    for part, name in LISTS.items():
        before = len(files)
        lines = read_lines(root / name, FIELDS)
        where, header = next(lines, ("", FIELDS))
        if header[1].isdigit() and header[2].isdigit():  # it would be lost without a word
            raise ValueError(f"{where}: expected the header {' '.join(FIELDS)!r}, got an image")
        for where, values in lines:
            files.append(root / image_path(where, values[3]))
            train.append(part == "train")
            ids.append(integer(where, FIELDS[1], values[1]))
            kinds.append(integer(where, FIELDS[2], values[2]))
        some(root / name, files[before:])
    views = {"class": np.array(ids), "super_class": np.array(kinds)}
    kind_names = {
        kind: file.relative_to(root).parts[0].removesuffix("_final")
        for kind, file in zip(kinds, files, strict=True)
    }
    names = {"super_class": kind_names}
    return Listing("sop", files, views, zero_shot(np.array(train)), names)
