"""Data sets by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jdml.data.cars import read_cars
from jdml.data.cub import read_cub
from jdml.data.dataset import Dataset
from jdml.data.digits import load_digits
from jdml.data.folder import read_folder
from jdml.data.inshop import read_inshop
from jdml.data.lists import Listing
from jdml.data.mnist import load_mnist
from jdml.data.omniglot import load_omniglot
from jdml.data.sop import read_sop

# Data sets that fit into memory.
ARRAYS: dict[str, Callable[..., Dataset]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "omniglot": load_omniglot,
}
# Data sets that are lists of image files.
LISTS: dict[str, Callable[[str | Path | None], Listing]] = {
    "cub": read_cub,
    "cars": read_cars,
    "sop": read_sop,
    "inshop": read_inshop,
    "folder": read_folder,
}
# A file that tells an original's folder from any folder of classes.
SIGNS = {
    "cub": "images.txt",
    "cars": "cars_annos.mat",
    "sop": "Ebay_train.txt",
    "inshop": "list_eval_partition.txt",
}
IMAGE_FILES = tuple(LISTS)
"""Names of the data sets whose images are `ImageFiles`."""


def recognize(folder: str | Path) -> str:
    """Tell which data set's own folder this is.

    Args:
        folder: Any folder.

    Returns:
        `"cub"`, `"cars"`, `"sop"` or `"inshop"` where their lists lie in it or in a folder in it, else `"folder"`.

    Example:
        >>> pathlib = __import__("pathlib")
        >>> pathlib.Path("CUB").mkdir()
        >>> pathlib.Path("CUB/images.txt").touch()
        >>> recognize("CUB"), recognize(".")
        ('cub', 'cub')
    """
    place = Path(folder).expanduser()
    for name, file in SIGNS.items():
        if (place / file).is_file() or any(place.glob(f"*/{file}")):
            return name
    return "folder"


def load(
    name: str, *, data_dir: str | Path | None = None, split: str = "train", **options: Any
) -> Dataset:
    """Read a data set: small images into memory, large ones as files that are decoded when read.

    ========== =================================================== ================================
    name       what `data_dir` holds                               views (the first is the labels)
    ========== =================================================== ================================
    digits     nothing: the images are part of scikit-learn        digit, parity
    mnist      the four IDX files, or tfds' prepared copy          digit, parity
    omniglot   the two zips, or the folders in them                alphabet, letter
    cub        CUB_200_2011, or tfds' prepared copy                class
    cars       `cars_annos.mat` and `car_ims/`, or tfds' copy      class
    sop        Stanford_Online_Products, or tfds' prepared copy    class, super_class
    inshop     `list_eval_partition.txt` and `img/`                item
    folder     a folder of images for each class                   class
    ========== =================================================== ================================

    The last five are split by class: no class trains and tests. Each split numbers its classes 0, 1, …

    Args:
        name: One of these names.
        data_dir: The folder of the data set's own files. Nothing is ever downloaded.
        split: `"train"`, `"test"` or `"all"`; inshop also has `"query"` and `"gallery"`, which number
            the items as `"test"` does.
        **options: The data set's own: `image_size` (pixels, 28 by default) for omniglot; for the last
            five `transform`, how images are cut (`conventional(224)` by default), and `check_files`,
            whether missing image files are an error (they are by default).

    Returns:
        The data set, with uint8 images `[N, H, W, C]`; those of the last five are `ImageFiles`.

    Raises:
        FileNotFoundError: If files are missing; the message says which are expected where.
        TypeError: If the data set has no such option.
        ValueError: If there is no data set of that name or no such split, or a file is damaged.

    Example:
        >>> data = load("digits", split="test")
        >>> data.images.shape, data.relabel("parity").num_classes
        ((599, 8, 8, 1), 2)
    """
    if name in ARRAYS:
        return ARRAYS[name](data_dir, split, **options)
    if name in LISTS:
        return LISTS[name](data_dir).dataset(split, **options)
    raise ValueError(f"name must be one of {(*ARRAYS, *LISTS)}, got {name!r}")
