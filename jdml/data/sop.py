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
    """Read the lists of Stanford Online Products."""
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
