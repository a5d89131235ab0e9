"""Data sets that come by themselves: TensorFlow Datasets downloads and prepares them on first use."""

import contextlib
import os
import socket
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from jdml._optional_imports import EXTRAS, MissingLibraryError, require_package
from jdml._paths import check_local
from jdml.data.tfds import prepared
from jdml.registry import DATASETS, tfds_sets

PORTS = {"ftp": 21, "http": 80, "https": 443}


def get(name: str, data_dir: str | Path | None = None, *, download: bool = True) -> Path:
    """Prepare a data set with TensorFlow Datasets, where it is not prepared yet.

    Preparing needs what ``pip install 'jdml[tfds]'`` brings, TensorFlow among it, which then leaves the GPU to JAX;
    reading what is prepared does not. Downloads are kept in the folder's ``downloads``; files that lie in its
    ``downloads/manual`` are not downloaded.

    Args:
        name: ``"mnist"``, ``"omniglot"``, ``"cub"``, ``"cars"`` or ``"sop"``.
        data_dir: where data sets are prepared, each in a folder of its own. None: ``$TFDS_DATA_DIR``, else
            ``~/tensorflow_datasets``, as tfds has it.
        download: prepare what is not there; else refuse.

    Returns:
        That folder, a ``data_dir`` for :func:`load`.

    Raises:
        FileNotFoundError: it is not prepared, and may not or cannot be; the message says which files to put where.
        MissingLibraryError: what preparing needs is not installed.
        ValueError: tfds has no data set of that name.

    Example:
        >>> get("mnist", "data", download=False)
        Traceback (most recent call last):
        ...
        FileNotFoundError: mnist is not prepared in data: `jdml data get mnist --data-dir data` does it, or data_dir \
names a folder with the four IDX files
    """
    if name not in tfds_sets():
        raise ValueError(f"name must be one of {tfds_sets()}, got {name!r}")
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
    what = f"{name}, without a folder of {original} (data_dir), is prepared by TensorFlow Datasets, which"
    for module in ("filelock", "tensorflow_datasets", *EXTRAS["tfds"]):
        require_package(module, what)
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{name}.lock"):  # of several processes one prepares
        if not prepared(folder, name):
            _prepare(folder, name)
    return folder


def folder_of(name: str, data_dir: str | Path | None, download: bool = True) -> str | Path | None:
    """The folder to read a data set from: the one given, else where tfds prepares it, else one with a part of it."""
    if data_dir is not None or not DATASETS[name].tfds:
        return data_dir
    try:
        return get(name, download=download)
    except (FileNotFoundError, MissingLibraryError) as error:
        beside = Path(DATASETS[name].beside)
        if not beside.is_file():
            raise
        warnings.warn(f"{beside} is read, a part of {name}, for {error}", stacklevel=3)
        return beside.parent


def _prepare(folder: Path, name: str) -> None:
    """Write array_record, of which any row can be read."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError

    _leave_gpu()
    tfds_name, downloads = DATASETS[name].tfds, folder / "downloads"
    builder = tfds.builder(tfds_name, data_dir=str(folder), file_format="array_record")
    sizes: dict[str, int] = {}
    hosts: dict[str, int] = {}
    for url, info in (builder.url_infos or {}).items():
        if not (downloads / "manual" / str(info.filename)).is_file():
            sizes[str(info.filename)] = info.size
            place = urlsplit(url)
            hosts[str(place.hostname)] = place.port or PORTS[place.scheme]
    size = sum(sizes.values()) / 1e6
    print(f"{name}: {size:,.0f} MB to download, once, and to prepare in {folder}", flush=True)
    failures: Any = (OSError, tfds.download.DownloadError, NonMatchingChecksumError)
    try:
        if not (downloads / tfds_name).exists():
            _check_network(hosts)
        builder.download_and_prepare()
    except failures as error:
        raise FileNotFoundError(
            f"{name} could not be downloaded ({' '.join(str(error).split())}): put {', '.join(sorted(sizes))} into "
            f"{downloads / 'manual'}, or name as data_dir a folder with {DATASETS[name].holds}"
        ) from error


def _leave_gpu() -> None:
    """Keep TensorFlow from taking the GPU's memory from JAX; where it has begun to compute it has it already."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


def _check_network(hosts: Mapping[str, int]) -> None:
    """Tell at once what tfds tells after minutes: that no host answers.

    Args:
        hosts: their ports.

    Raises:
        OSError: none answers, and no proxy stands between.
    """
    errors = []
    for host, port in hosts.items():
        try:
            socket.create_connection((host, port), timeout=10).close()
        except OSError as error:
            errors.append(f"{host}: {error}")
    if errors and len(errors) == len(hosts) and not getproxies():
        raise OSError("; ".join(errors))
