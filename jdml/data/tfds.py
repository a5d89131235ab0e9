"""Data sets that TensorFlow Datasets prepares on first use, and their copies, read without TensorFlow."""

import contextlib
import os
import re
import socket
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from jdml._optional_imports import EXTRAS, MissingLibraryError, require_package
from jdml._paths import check_local
from jdml.data.images import Row
from jdml.registry import DATASETS, tfds_sets

PORTS = {"ftp": 21, "http": 80, "https": 443}
VERSION = re.compile(r"\d+(\.\d+)*")
"""What a whole copy's folder is called."""


@dataclass(frozen=True)
class Undecoded:
    """The images of a split as they were stored."""

    source: Any
    name: str

    def __getitem__(self, row: int) -> bytes:
        content: bytes = self.source[row]["image"]
        return content

    def __str__(self) -> str:
        """``NAME SPLIT``."""
        return self.name


def prepared(folder: Path, name: str) -> Path | None:
    """Find the newest copy of a data set that TensorFlow Datasets prepared in a folder."""
    copies = [info.parent for info in folder.glob(f"{DATASETS[name].tfds}/*/dataset_info.json")]
    copies = [place for place in copies if VERSION.fullmatch(place.name) and _has_rows(place)]
    return max(copies, key=lambda place: [int(n) for n in place.name.split(".")], default=None)


def _has_rows(place: Path) -> bool:
    """Whether there is more than descriptions."""
    return any(file.suffix not in (".json", ".txt") for file in place.iterdir())


def open_prepared(folder: Path, name: str) -> Any:
    """Open the newest prepared copy."""
    require_package("tensorflow_datasets", f"{name} as TensorFlow Datasets prepared it")
    import tensorflow_datasets as tfds

    place = prepared(folder, name)
    with whole(place):
        builder = tfds.builder_from_directory(str(place))
    formats = {kind.value for kind in builder.info.available_file_formats()}
    if not formats & {"array_record", "parquet"}:
        raise ValueError(
            f"{place} must be prepared as array_record, got {', '.join(sorted(formats))}: write `tfds convert_format "
            f"--dataset_dir={place} --out_file_format=array_record`, or move it away and write `jdml data get {name}`"
        )
    with whole(place):
        for split in builder.info.splits.values():
            for file in map(Path, split.filepaths):
                if not file.is_file() or not file.stat().st_size:
                    raise ValueError(f"{file.name} is {'empty' if file.is_file() else 'missing'}")
    return builder


@contextlib.contextmanager
def whole(place: Any) -> Iterator[None]:
    """Say of a damaged copy where it lies, whatever its readers raise."""
    try:
        yield
    except (MissingLibraryError, MemoryError):
        raise
    except Exception as error:  # whatever tfds and its readers raise
        if getattr(error, "errno", None) and not isinstance(error, FileNotFoundError):
            raise  # of the system: the copy may be whole
        told = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{place} must be a whole copy as TensorFlow Datasets prepares it: {told}; move it away, and `jdml data "
            "get` prepares it anew"
        ) from error


def rows_of(builder: Any, split: str, decoders: Any = None) -> Any:
    """The rows of a split, read when they are asked for, without TensorFlow."""
    with whole(builder.data_dir):
        return builder.as_data_source(split=split, decoders=decoders)


def read_prepared(
    folder: Path, name: str, views: Mapping[str, str]
) -> tuple[list[Row], dict[str, np.ndarray], dict[str, dict[int, str]]]:
    """All images of the splits ``train`` and ``test``, undecoded, and their labels."""
    builder = open_prepared(folder, name)
    import tensorflow_datasets as tfds

    skip = tfds.decode.SkipDecoding()
    features = builder.info.features
    skipped = {key: skip for key, kind in features.items() if isinstance(kind, tfds.features.Image)}
    records: list[Row] = []
    columns: dict[str, list[Any]] = {view: [] for view in (*views, "split")}
    for split in ("train", "test"):
        source = rows_of(builder, split, skipped)
        images = Undecoded(source, f"{builder.name} {split}")
        with whole(builder.data_dir):
            for row, values in enumerate(source):
                records.append(Row(images, row))
                columns["split"].append(split)
                for view, feature in views.items():
                    columns[view].append(values[feature])
    names = {view: dict(enumerate(features[feature].names)) for view, feature in views.items()}
    return records, {view: np.array(values) for view, values in columns.items()}, names


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
    """Tell at once what tfds tells after minutes: that no host answers."""
    errors = []
    for host, port in hosts.items():
        try:
            socket.create_connection((host, port), timeout=10).close()
        except OSError as error:
            errors.append(f"{host}: {error}")
    if errors and len(errors) == len(hosts) and not getproxies():
        raise OSError("; ".join(errors))
