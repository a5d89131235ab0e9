"""Data sets that TensorFlow Datasets prepares on first use, and their copies, read without TensorFlow."""

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from jdml._optional_imports import EXTRAS, MissingLibraryError, require_package
from jdml._paths import check_local, expand_user, lock_of
from jdml.data.images import Row
from jdml.data.listing import Listing, zero_shot
from jdml.data.rows import RowImages
from jdml.ops import checks
from jdml.registry import DATASETS


def prepared(folder: Path, name: str) -> Path | None:
    """Return the newest copy of a data set that TensorFlow Datasets prepared in a folder."""
    copies = [
        info.parent
        for info in folder.glob(f"{DATASETS[name].tfds}/*/dataset_info.json")
        if re.fullmatch(r"\d+(\.\d+)*", info.parent.name)
        and any(file.suffix not in (".json", ".txt") for file in info.parent.iterdir())
    ]
    return max(copies, key=lambda place: [int(n) for n in place.name.split(".")], default=None)


def read_prepared(folder: Path, name: str, views: Mapping[str, str]) -> Listing:
    """Read the newest prepared copy: its images, undecoded, and features as labellings, by their splits."""
    require_package("tensorflow_datasets", f"{name} as TensorFlow Datasets prepared it")
    import tensorflow_datasets as tfds

    place = prepared(folder, name)
    files: list[Row] = []
    is_train: list[bool] = []
    ids: dict[str, list[int]] = {view: [] for view in views}
    try:
        builder = tfds.builder_from_directory(str(place))
        features, skip = builder.info.features, tfds.decode.SkipDecoding()
        images = [key for key, kind in features.items() if isinstance(kind, tfds.features.Image)]
        for split in ("train", "test"):
            source = builder.as_data_source(split=split, decoders=dict.fromkeys(images, skip))
            rows = RowImages(source, "image", name=f"{builder.name} {split}")
            for file, values in zip(rows.files(), source, strict=True):
                files.append(file)
                is_train.append(split == "train")
                for view, feature in views.items():
                    ids[view].append(values[feature])
    except (MissingLibraryError, MemoryError):
        raise
    except Exception as error:  # of tfds and its readers
        if getattr(error, "errno", None) and not isinstance(error, FileNotFoundError):
            raise  # of the system: the copy may be complete
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{place} must be a complete copy of TensorFlow Datasets, as array_record: {reason}; move it away, and "
            "`jdml data get` prepares it again"
        ) from error
    names = {view: dict(enumerate(features[feature].names)) for view, feature in views.items()}
    labellings = {view: np.array(values) for view, values in ids.items()}
    return Listing(name, files, labellings, zero_shot(np.array(is_train)), names)


def get(name: str, data_dir: str | Path | None = None, *, download: bool = True) -> Path:
    """Prepare a data set with TensorFlow Datasets, if it is not prepared yet.

    Preparing needs ``pip install 'jdml[tfds]'``, with TensorFlow, which then leaves the GPU to JAX; reading a prepared
    data set does not. Downloads are stored in the folder's ``downloads``; files in its ``downloads/manual`` are not
    downloaded.

    Args:
        name: ``"mnist"``, ``"omniglot"``, ``"cub"``, ``"cars"`` or ``"sop"``.
        data_dir: the folder in which data sets are prepared, each in one of its own. None: ``$TFDS_DATA_DIR``, else
            ``~/tensorflow_datasets``, as in tfds.
        download: whether to prepare a missing data set; else it is refused.

    Returns:
        That folder, a ``data_dir`` for :func:`load`.

    Raises:
        FileNotFoundError: it is not prepared, and may not or cannot be; the message says which files to put where.
        MissingLibraryError: a library that preparing needs is not installed.
        ValueError: tfds has no data set of that name.

    Example:
        >>> get("mnist", "data", download=False)
        Traceback (most recent call last):
        ...
        FileNotFoundError: mnist is not prepared in data: `jdml data get mnist --data-dir data` does it, or data_dir \
names a folder with the four IDX files
    """
    checks.one_of("name", name, (each for each, data in DATASETS.items() if data.tfds))
    check_local("data_dir", data_dir)
    folder = Path(data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()
    if prepared(folder, name):
        return folder
    original = DATASETS[name].holds
    if not download:
        where = "" if data_dir is None else f" --data-dir {data_dir}"
        raise FileNotFoundError(
            f"{name} is not prepared in {folder}: `jdml data get {name}{where}` does it, or data_dir names a folder "
            f"with {original}"
        )
    what = f"data_dir must name a folder with {original}; without one, downloading {name}"
    for module in ("filelock", "tensorflow_datasets", *EXTRAS["tfds"]):
        require_package(module, what)
    with lock_of(folder / name):  # of several processes one prepares
        if not prepared(folder, name):
            _prepare(folder, name)
    return folder


def folder_of(name: str, data_dir: str | Path | None, download: bool = True) -> Path:
    """Return the folder of a data set: the one given, else that of tfds."""
    check_local("data_dir", data_dir)
    record = DATASETS[name]
    if data_dir is not None or not record.needs_folder:
        return expand_user(data_dir or "")
    if not record.tfds:
        raise ValueError(f"data_dir must be the folder of the {name} files, got None")
    return get(name, download=download)


def _prepare(folder: Path, name: str) -> None:
    """Prepare a data set as array_record, of which any row can be read."""
    import tensorflow as tf
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    with contextlib.suppress(RuntimeError):  # TensorFlow computes already, with the GPU's memory
        tf.config.set_visible_devices([], "GPU")
    manual = folder / "downloads" / "manual"
    builder = tfds.builder(DATASETS[name].tfds, data_dir=str(folder), file_format="array_record")
    infos = (builder.url_infos or {}).items()
    missing = {url: x for url, x in infos if not (manual / str(x.filename)).is_file()}
    size = sum(info.size for info in missing.values()) / 1e6
    print(f"{name}: {size:,.0f} MB to download, once, and to prepare in {folder}", flush=True)
    failures: Any = (OSError, tfds.download.DownloadError, NonMatchingChecksumError)
    try:
        if missing and not (getproxies() or (manual.parent / DATASETS[name].tfds).exists()):
            url = urlsplit(next(iter(missing)))  # tfds takes minutes if its host does not answer
            port = url.port or {"ftp": 21, "http": 80}.get(url.scheme, 443)
            socket.create_connection((url.hostname, port), timeout=10).close()
        builder.download_and_prepare()
    except failures as error:
        files = sorted(str(info.filename) for info in missing.values())
        raise FileNotFoundError(
            f"{name} could not be downloaded ({' '.join(str(error).split())}): put {', '.join(files)}, of "
            f"{', '.join(missing)}, into {manual}, or name as data_dir a folder with {DATASETS[name].holds}"
        ) from error
