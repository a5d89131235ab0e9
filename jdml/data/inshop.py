"""DeepFashion In-shop Clothes Retrieval: 7,982 pieces of clothing, with queries and a gallery."""

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
)

PARTITION = "list_eval_partition.txt"
PLACES = ("Eval", "Anno", "In-shop Clothes Retrieval Benchmark/Eval")
FIELDS = ("image_name", "item_id", "evaluation_status")
STATUSES = ("train", "query", "gallery")


def read_inshop(data_dir: str | Path | None) -> Listing:
    """Read the partition of In-shop.

    3,997 items train (25,882 images); 3,985 others test: each of 14,218 queries is searched in a
    gallery of 12,612 images. ``test`` is the queries, then the gallery; all three number the items
    alike.

    Args:
        data_dir: the folder with ``list_eval_partition.txt``, or with ``Eval/`` that holds it; images in
            ``img/``, there or in ``Img/``.

    Returns:
        The listing, with the view ``item``.

    Raises:
        FileNotFoundError: if the list is missing.
        ValueError: if a line of it is broken; the message names file and line.

    Reference:
        Liu et al. DeepFashion: powering robust clothes recognition and retrieval with rich
        annotations. CVPR 2016.
    """
    place = find_folder("inshop", data_folder("inshop", data_dir), PLACES, (PARTITION,))
    path = place / PARTITION
    root = place.parent if place.name in ("Eval", "Anno") else place
    images = root / "Img" if (root / "Img").is_dir() else root
    files, items, statuses = [], [], []
    for where, (image, item, status) in read_lines(path, FIELDS, skip=2):
        if status not in STATUSES:
            raise ValueError(f"{where}: {FIELDS[2]} must be one of {STATUSES}, got {status!r}")
        files.append(images / image_path(where, image))
        items.append(item)
        statuses.append(status)
    some(path, files)
    _check_count(path, len(files))
    parts = {part: np.flatnonzero(np.array(statuses) == part) for part in STATUSES}
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
