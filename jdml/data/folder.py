"""Any folder of classes: a folder for each class, with its images, or parts (``train/``, ``test/``) of such.

And what stands in its place: a list, tables, or what a user's own module has.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from jdml._import_path import call_user_object, import_user_object, is_pointer
from jdml._paths import expand_user
from jdml.data.columns import Images, read_columns, row_named, tables_in
from jdml.data.csv_list import ENDINGS, read_table
from jdml.data.image_discovery import counted, image_files, images_in, kinds, subfolders, suffixes
from jdml.data.images import Readable
from jdml.data.labelled import PARTS, Labelled, as_listing, in_one_form
from jdml.data.listing import Listing, data_folder, first
from jdml.data.rows import images_of

FILLERS = ("box", "bounding", "data", "folder", "image", "images", "img", "imgs", "seg", "set")
"""Words beside a part's name: ``training_set``, ``test2017``."""
AROUND = ("data", "dataset", "image", "images", "img", "imgs", "jpegimages", "jpg")
"""Names of a folder around the classes' folders."""
UNLABELED = ("unlabeled", "unlabelled", "unsup", "unsupervised")
"""Names of a folder whose images have no class."""


def read_folder(data_dir: str | Path | None) -> Listing:
    """Read a folder of classes, in the order of the classes' names, numbers in them as numbers.

    The first half of the classes trains (the larger one, if their number is odd), the others test. Where one half has
    less than a quarter of the images, every second class by its number of images tests instead, and a note says so.

    A folder that holds parts, ``train/`` and ``val/`` or ``test/`` (or ``query/`` and ``gallery/``), is read as what
    it says: each of them holds classes. ``unlabeled/`` beside them is left out; any other folder of images is refused.
    A folder around the classes, such as ``images/``, or ``train/`` in ``train/``, is looked into.

    Args:
        data_dir: the folder. Each folder in it is a class; images lie in it at any depth, and through links; where all
            of a class lie in several folders in it, a note says so. Hidden files and folders, ``__MACOSX``, and files
            that are no images by their suffix are passed over, the latter counted. Or a ``.csv`` file, see
            ``read_table``; a Parquet file, a folder of such without images, or what Hugging Face's ``save_to_disk``
            wrote, see ``tables_in``; or ``module:name``, see ``read_pointer``.

    Returns:
        The listing, with the view ``class``.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if there is no class in it, or a class without images, or it cannot be told what is a part and what
            is a class, or one file lies in two of them; the message names it.
    """
    root = data_folder("folder", data_dir)
    if root.suffix.lower() in ENDINGS and not root.is_dir():
        return read_table(root)
    if is_pointer(str(root)) and not root.exists():
        return read_pointer(str(root))
    tables = tables_of(root)
    if tables:
        parts = dict.fromkeys(part for part, _ in tables)
        found = {part: [file for of, file in tables if of == part] for part in parts}
        return _of_images((part, read_columns(files)) for part, files in found.items())
    if not root.is_dir():
        raise FileNotFoundError(f"{root.absolute()} is not a folder of classes")
    others: Counter[str] = Counter()
    beside = [file.name for _, file in tables_in(root)]
    notes = [f"tables are passed over, for the images beside them: {first(beside)}"] * bool(beside)
    rows: list[Labelled] = []
    merged: list[str] = []
    for part, holder in _holders(root, notes, others):
        classes = _classes(holder)
        for place in classes:
            images, unread = image_files(place)
            if _is_unlabeled(place) and len(classes) > 1:
                notes.append(_left_out(place, images))
                continue
            others += unread
            if not images:
                raise ValueError(_without_images(place, unread))
            merged += _merged(place, images)
            label = in_one_form(place.name)
            rows += [Labelled(file, label, part, str(file), file.name) for file in images]
        loose = images_in(holder)
        if loose:
            lie = counted(loose, "image lies", "images lie")
            notes.append(f"{lie} beside the classes' folders, in none of them")
    if merged:
        hold = counted(len(merged), "class has its", "classes have their")
        notes.append(
            f"{hold} images in several folders, which are not told apart ({merged[0]}): if each of these is a "
            "class, put them side by side, or give a .csv file of file,label"
        )
    return as_listing(rows, repeats=True, others=others, notes=notes)


def tables_of(root: Path) -> list[tuple[str, Path]]:
    """The tables that a path stands for; none where a folder holds images, too, and is a folder of these."""
    tables = tables_in(root)
    return [] if tables and root.is_dir() and image_files(root)[0] else tables


@cache
def read_pointer(pointer: str) -> Listing:
    """Read what a name of a user's module stands for; modules are looked for in the working directory, too.

    Args:
        pointer: ``"module:name"``, a :class:`jdml.data.Dataset` or what ``from_huggingface``, ``from_torch`` or
            ``from_rows`` take; a dictionary of such by part (``train``, ``val``, ``test``); or a function that returns
            it.

    Returns:
        The listing, with the view ``class``.

    Raises:
        TypeError: anything else.
        ValueError: no such module, or no such name in it; a part of another name; what the module raises.
    """
    made = import_user_object(pointer)
    made = call_user_object(pointer, made) if callable(made) else made
    if not isinstance(made, Mapping):
        return _of_images([("", images_of(made, pointer))])
    if not made:
        raise ValueError(f"{pointer} must have parts of {', '.join(PARTS)}, got none")
    unknown = next((part for part in made if part not in PARTS), None)
    if unknown is not None:
        raise ValueError(f"{pointer} must have parts of {', '.join(PARTS)}, got {unknown!r}")
    return _of_images(
        (PARTS[part], images_of(of, f"{pointer} {part}")) for part, of in made.items()
    )


@cache
def _rows_of(pointer: str) -> dict[str, Readable]:
    return {str(file): file for file in read_pointer(pointer).files}


def image_named(name: str) -> Readable:
    """The image that a name stands for: a row of a table, ``FILE[ROW]``, one of ``module:name``, or a file.

    Raises:
        ValueError: a module that cannot be imported, or has no such row.
    """
    row = row_named(name)
    if row is not None:
        return row
    pointer = re.split(r"[ \[]", name, maxsplit=1)[0]
    if not name.endswith("]") or not is_pointer(pointer):
        return Path(name)
    found = _rows_of(pointer).get(name)
    if found is None:
        raise ValueError(f"{name}: {pointer} has no such row")
    return found


def _of_images(parts: Iterable[tuple[str, Images]]) -> Listing:
    """Images that are no files of their own; classes are called by their names, or their numbers."""
    rows = []
    for part, images in parts:
        labels = images.labels.tolist()
        if images.labels.dtype.kind == "i" and images.labels.min() < 0:
            row = int(images.labels.argmin())
            raise ValueError(f"{images.files[row]}: label must be at least 0, got {labels[row]}")
        names = labels if images.names is None else [images.names[label] for label in labels]
        rows += [
            Labelled(file, in_one_form(str(name)), part, str(file), str(file))
            for file, name in zip(images.files, names, strict=True)
        ]
    return as_listing(rows, repeats=False)


def _holders(root: Path, notes: list[str], others: Counter[str]) -> Iterator[tuple[str, Path]]:
    """The folders that hold classes, each with the part that it is, or ``""``."""
    places = subfolders(root)
    parts = {place: _part(place.name) for place in places if _part(place.name)}
    if len(set(parts.values())) > 1:
        for part, several in _several(parts).items():
            notes.append(f"{_named(several)} are read as one part, {part}")
        _tell_the_rest(
            root, parts, [place for place in places if place not in parts], notes, others
        )
        for place, part in parts.items():
            yield part, _inner(place, part)
        return
    around = next((place for place in places if _is_around(place)), None)
    if around is None:
        _check_classes_above(places)
        notes += [
            f"{place.name}/ is read as a class: no other part is beside it" for place in parts
        ]
        yield "", root
        return
    beside = [place for place in places if place != around and image_files(place)[0]]
    if beside:
        raise ValueError(
            f"{root} holds {around.name}/, which holds folders of images itself, beside {_named(beside)}: is each a "
            f"class? Give {around}, or a .csv file of file,label"
        )
    if around in parts:
        inner = _inner(around, parts[around])
        raise ValueError(
            f"{root} holds {around.name}/ and no other part: give {inner}, whose classes are then split, or put a part "
            "to score, such as test/, beside it"
        )
    yield from _holders(around, notes, others)


def check_apart(name: str, folder: Path, root: Path) -> None:
    """Refuse a folder among classes, as one of which it would be read the next time.

    Args:
        name: what the folder is called in the message.
        folder: the folder.
        root: that of the images; what lies beside its parts is no class.

    Raises:
        ValueError: a folder that lies among the classes, or is that of the images.
    """
    inside, around = (expand_user(place).absolute().resolve() for place in (folder, root))
    if not around.is_dir() or not inside.is_relative_to(around):
        return
    parts = {place.name: _part(place.name) for place in subfolders(around) if _part(place.name)}
    first = next(iter(inside.relative_to(around).parts), None)
    if len(set(parts.values())) < 2 or first in {None, *parts}:
        raise ValueError(
            f"{name} must not lie among the images in {root}, where it would be read as a class, got {folder}"
        )


def _check_classes_above(places: Sequence[Path]) -> None:
    """Refuse parts below classes, which would be read as one.

    Raises:
        ValueError: naming a class and its parts.
    """
    for place in places:
        inside = subfolders(place)
        parts = {_part(folder.name) for folder in inside} - {""}
        if len(parts) > 1 and not images_in(place):
            raise ValueError(
                f"{place} holds the parts {_named(inside)}: give that folder if it is a data set; if it is a class, "
                f"put parts above classes, as in {inside[0].name}/{place.name}, or give a .csv file of file,label,split"
            )


def _tell_the_rest(
    root: Path, parts: dict[Path, str], rest: Sequence[Path], notes: list[str], others: Counter[str]
) -> None:
    """What lies beside parts: nothing that could be a class.

    Raises:
        ValueError: a folder of images.
    """
    unknown = []
    for place in rest:
        images, unread = image_files(place)
        if images and _is_unlabeled(place):
            notes.append(_left_out(place, images))
        elif images:
            unknown.append(place)
        else:
            others += unread
    if unknown:
        raise ValueError(
            f"{root} holds the parts {_named(list(parts))} and {_named(unknown)}, which is none: a folder holds parts "
            "or classes; move one of them, or say which is which in a .csv file of file,label,split"
        )


def _part(name: str) -> str:
    """The part that a folder is by its name, or nothing."""
    words = re.findall("[^\\W\\d_]+", name.lower())
    own = {PARTS[word] for word in words if word in PARTS}
    other = [word for word in words if word not in PARTS and word not in FILLERS]
    return own.pop() if len(own) == 1 and not other else ""


def _several(parts: Mapping[Path, str]) -> dict[str, list[Path]]:
    """The parts that several folders are."""
    found = {part: [place for place in parts if parts[place] == part] for part in parts.values()}
    return {part: places for part, places in found.items() if len(places) > 1}


def _is_around(place: Path) -> bool:
    """Whether it is called like what holds classes, and holds folders and no image."""
    called = bool(_part(place.name)) or place.name.lower() in AROUND
    return called and bool(subfolders(place)) and not images_in(place)


def _without_images(place: Path, unread: Counter[str]) -> str:
    also = f" (but {kinds(unread)})" if unread else ""
    return f"{place}: expected images ({', '.join(sorted(suffixes()))}), found none{also}"


def _merged(place: Path, images: Sequence[Path]) -> list[str]:
    """A class whose images all lie in folders in it, two at least, with an example of these."""
    inner = sorted({image.relative_to(place).parts[0] for image in images})
    if len(inner) < 2 or any(image.parent == place for image in images):
        return []
    return [f"{place.name}/{inner[0]}/, {place.name}/{inner[1]}/"]


def _is_unlabeled(place: Path) -> bool:
    return place.name.lower() in UNLABELED


def _left_out(place: Path, images: Sequence[Path]) -> str:
    left = counted(len(images), "image has no class, and is", "images have no class, and are")
    return f"{place.name}/: {left} left out"


def _inner(place: Path, part: str) -> Path:
    """Where the classes of a part lie: in it, or in a folder of the same name or ``images/`` in it.

    Raises:
        ValueError: folders of classes beside folders around classes.
    """
    inside = subfolders(place)
    around = next((inner for inner in inside if _is_around(inner)), None)
    if around is None:
        return place
    beside = [inner for inner in inside if inner != around and image_files(inner)[0]]
    if beside or _part(around.name) not in ("", part):
        also = f", beside {_named(beside)}" if beside else ""
        raise ValueError(
            f"{place} holds {around.name}/, which holds folders of images itself{also}: expected a folder of images "
            "for each class"
        )
    return _inner(around, part)


def _classes(root: Path) -> list[Path]:
    """The folders of classes."""
    classes = subfolders(root)
    if not classes:
        loose = images_in(root)
        there = counted(loose, "image", "images")
        also = f", and {there}: their labels may come from a .csv file" if loose else ""
        raise ValueError(f"{root}: expected a folder for each class, found none{also}")
    return classes


def _named(places: Sequence[Path]) -> str:
    return ", ".join(f"{place.name}/" for place in places)
