"""The data of ``jdml train``: training rows, held-out rows, test parts."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jdml import data
from jdml.cli.option_groups import DataOptions
from jdml.data.integrity import singleton_classes
from jdml.data.listing import first_few, pluralize
from jdml.data.load import read_listing
from jdml.data.splits import hold_out, read_names
from jdml.ops.checks import one_of

QueryGallery = tuple[data.Dataset, data.Dataset | None]


class TrainingData(NamedTuple):
    """The data of a run: training rows, held-out rows, queries and gallery of each test part."""

    train: data.Dataset
    labels: str  # the labelling that is trained on
    validation: data.Dataset | None
    tests: dict[str, QueryGallery]
    notes: tuple[str, ...]
    files_checksum: int | None  # of the names and classes of the image files of all parts


def read_training_data(options: DataOptions, seed: int) -> TrainingData:
    """Read the data of resolved options; the seed draws splits and wrong labels."""
    notes: tuple[str, ...] = ()
    checksum, tests = None, dict[str, QueryGallery]()
    if options.of_files:
        parts, notes, checksum = read_files(options, seed)
    else:
        size: Any = {} if options.image_size is None else {"image_size": options.image_size}
        place = str(options.data), options.data_dir
        parts = {split: data.load(*place, split, **size) for split in ("train", "test")}
    train, validation = parts["train"], parts.get("val")
    if "query" in parts:
        tests = {"test": (parts["query"], parts["gallery"])}
    elif "test" in parts:
        tests = {"test": (parts["test"], None)}
    elif validation is not None:
        tests = {"validation": (validation, None)}
    labels = options.labels or next(iter(train.views))
    one_of("--labels", labels, train.views)
    if options.validation:
        if validation is not None:
            raise ValueError("--validation is not for data with a val part of its own")
        rows = hold_out(train, options.validation, seed)
        train, validation = train.select(~rows), train.select(rows)
        if options.on_bad_image == "skip":
            validation = data.without_bad_images(validation)
        own = validation.views[labels]
        if len(own) == 0 or np.unique(own, return_counts=True)[1].max() < 2:
            few = f"{pluralize(len(own), 'image', 'images')}, no two of a class: hold out more"
            raise ValueError(f"--validation {options.validation} holds out {few}")
    train = train.relabel(labels)
    _check_classes(train, tests, options)
    notes = (*notes, *(f"training: {line}" for line in singleton_classes(train.labels)))
    if options.label_noise:
        noisy = data.corrupt_labels(train.labels, options.label_noise, seed)
        train = replace(train, labels=noisy)
    return TrainingData(train, labels, validation, tests, notes, checksum)


def read_files(
    options: DataOptions, seed: int
) -> tuple[dict[str, data.Dataset], tuple[str, ...], int]:
    """Return the splits of image files, notes, and a checksum of the files."""
    listing = read_listing(str(options.data), options.data_dir, groups=options.group)
    option = "--split" if options.split else "--classes-file"
    if listing.own_split and (options.split or options.classes_file) and options.split != "none":
        raise ValueError(
            f"{option} is not for {options.data_dir}, which has parts of its own ({', '.join(listing.splits)})"
        )
    if options.split is not None:
        listing = data.resplit(listing, options.split, seed=seed, share=options.test_share)
    elif options.classes_file is not None:
        listing = data.split_by_class_names(listing, read_names(options.classes_file))
    crops = data.mlrc if options.augmentation == "mlrc" else data.conventional
    transform = crops(options.image_size) if options.image_size else crops()
    scored = ("query", "gallery") if "query" in listing.splits else ("test",)
    parts, damaged = dict[str, data.Dataset](), list[str]()
    for split in ("train", "val", *scored):
        if split != "train" and split not in listing.splits:
            continue
        if not len(listing.splits.get(split, ())):
            raise ValueError(
                f"{options.data_dir}: the {split} part has no images; add classes, or write --split images"
            )
        part = listing.dataset(split, transform=transform)
        if options.data == "folder":
            damaged += part.images.problems(quick=True).values()
        is_left_out = split != "train" and options.on_bad_image == "skip"
        parts[split] = data.without_bad_images(part) if is_left_out else part
    notes = (*listing.split_notes, *listing.notes)
    if damaged:
        images = pluralize(len(damaged), "image is", "images are")
        if options.on_bad_image != "skip":
            raise ValueError(
                f"{options.data_dir}: {images} damaged: {first_few(damaged)}; write --on-bad-image skip to leave out "
                f"what is damaged, and see jdml data check folder {options.data_dir}"
            )
        notes = (*notes, f"left out: {images} damaged: {first_few(damaged)}")
    return parts, notes, listing.checksum


def _check_classes(
    train: data.Dataset, tests: dict[str, QueryGallery], options: DataOptions
) -> None:
    """Refuse parts of fewer than two classes."""
    count = len(np.unique(train.labels))
    if count < 2:
        other = ", or write --split images to train on all" if options.data == "folder" else ""
        raise ValueError(f"the training part has {count} class: give at least two{other}")
    if options.data != "folder" and options.split is None and options.classes_file is None:
        return  # split as it was published
    for name, (queries, gallery) in tests.items():
        known, counts = np.unique(queries.labels, return_counts=True)
        lone = counts.max() < 2 if gallery is None else not np.isin(known, gallery.labels).any()
        if lone or len(known) < 2:
            why = "no two images of one class" if lone else "a single class, so R@1 is trivially 1"
            other = "a larger --test-share" if options.split == "images" else "--split images"
            raise ValueError(
                f"the {name} part has {why}: write {other}, or --split none to train on all"
            )
