"""The data sets, one record each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jdml._optional_imports import resolve


class Count(NamedTuple):
    """Classes and images of a split; for omniglot the classes are letters."""

    classes: int
    images: int


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        name: the data set's name.
        kind: "arrays" in memory, or "files": images that are decoded when read.
        read: pointer to the function that reads it: from folder and split to a ``Dataset``, or, of files, from the
            folder to a ``Listing`` of all splits.
        holds: the content of its folder as the original comes, in words.
        labellings: the names of its labels, the default first.
        counted: the labelling whose number of classes is published; "" for the first.
        published: classes and images of each split, if they are published.
        sign: a file by which its folder is recognized; "" for none.
        recall_at: the ranks k at which papers give R@k.
        ndcg_at: the ranks k at which papers give nDCG@k.
        sized: whether its reader takes ``image_size=``.
        needs_folder: whether its images are in a folder.
        tfds: its name in TensorFlow Datasets, which prepares it on first use; "" for none.
    """

    name: str
    kind: Literal["arrays", "files"]
    read: str
    holds: str
    labellings: tuple[str, ...]
    counted: str = ""
    published: Mapping[str, Count] = field(default_factory=dict)
    sign: str = ""
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    ndcg_at: tuple[int, ...] = (2, 4, 8)
    sized: bool = False
    needs_folder: bool = True
    tfds: str = ""

    @property
    def reader(self) -> Any:
        """The function that reads the data set."""
        return resolve(self.read)


_DATASETS = (
    DataSet(
        "digits",
        "arrays",
        "jdml.data.small_images:load_digits",
        "nothing: the images are part of scikit-learn",
        ("digit", "parity"),
        published={"train": Count(10, 1198), "test": Count(10, 599)},
        needs_folder=False,
    ),
    DataSet(
        "mnist",
        "arrays",
        "jdml.data.small_images:load_mnist",
        "the four IDX files",
        ("digit", "parity"),
        published={"train": Count(10, 60000), "test": Count(10, 10000)},
        tfds="mnist",
    ),
    DataSet(
        "omniglot",
        "arrays",
        "jdml.data.small_images:load_omniglot",
        "the two zips, or the folders in them",
        ("alphabet", "letter"),
        counted="letter",
        published={"train": Count(964, 19280), "test": Count(659, 13180)},
        sized=True,
        tfds="omniglot",
    ),
    DataSet(
        "cub",
        "files",
        "jdml.data.retrieval_sets:read_cub",
        "CUB_200_2011",
        ("class",),
        published={"train": Count(100, 5864), "test": Count(100, 5924)},
        sign="images.txt",
        tfds="caltech_birds2011",
    ),
    DataSet(
        "cars",
        "files",
        "jdml.data.retrieval_sets:read_cars",
        "`cars_annos.mat` and `car_ims/`",
        ("class",),
        published={"train": Count(98, 8054), "test": Count(98, 8131)},
        sign="cars_annos.mat",
        tfds="cars196",
    ),
    DataSet(
        "sop",
        "files",
        "jdml.data.retrieval_sets:read_sop",
        "Stanford_Online_Products",
        ("class", "super_class"),
        published={"train": Count(11318, 59551), "test": Count(11316, 60502)},
        sign="Ebay_train.txt",
        recall_at=(1, 10, 100, 1000),
        ndcg_at=(10, 100),
        tfds="stanford_online_products",
    ),
    DataSet(
        "inshop",
        "files",
        "jdml.data.retrieval_sets:read_inshop",
        "`list_eval_partition.txt` and `img/`",
        ("item",),
        published={
            "train": Count(3997, 25882),
            "query": Count(3985, 14218),
            "gallery": Count(3985, 12612),
        },
        sign="list_eval_partition.txt",
        recall_at=(1, 10, 20, 30),
    ),
    DataSet(
        "folder",
        "files",
        "jdml.data.folder:read_folder",
        "a folder of images for each class",
        ("class",),
    ),
)
DATASETS: dict[str, DataSet] = {dataset.name: dataset for dataset in _DATASETS}
"""Every data set by its name, those that fit into memory first."""


def describe() -> str:
    """Return the data sets as a list of reStructuredText: name, views, content of the folder."""
    return "\n".join(
        f"- ``{name}``, by {', '.join(each.labellings)}: {each.holds}{', or a copy of tfds' * bool(each.tfds)}"
        for name, each in DATASETS.items()
    )
