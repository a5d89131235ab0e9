"""Files of named arrays: .safetensors, .npz and PyTorch's .pth read, .safetensors written."""

import contextlib
import os
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from jdml._optional_imports import MissingLibraryError, require_package
from jdml._paths import check_local

# Under these keys training programs keep the weights of a checkpoint.
WRAPPERS = ("state_dict", "model", "model_state_dict", "teacher")


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read the floating-point arrays of a file by name, as float32.

    Implementation notes:
        No code of the file is run: pickles are read by ``torch.load(weights_only=True)``, ``.npz`` without pickles.
    """
    if path.suffix not in _READERS:
        raise ValueError(f"{path} must end in one of {', '.join(_READERS)}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    tensors = _reading(path, _READERS[path.suffix])
    return {
        name: _single(path, name, value)
        for name, value in tensors.items()
        if value.dtype.kind not in "biuSU"
    }


def _single(path: Path, name: str, value: np.ndarray) -> np.ndarray:
    """Real floating-point numbers, those that NumPy has no kind for among them, as float32."""
    kind = value.dtype.kind
    if kind != "f" and (kind != "V" or value.dtype.type is np.void):
        raise ValueError(f"{path}: {name} has type {value.dtype}, expected floating-point numbers")
    with np.errstate(over="ignore"):  # what is beyond float32 is inf, which its reader refuses
        return np.asarray(value, np.float32)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a ``.safetensors`` file; empty where there is none."""
    require_package("safetensors", "reading weights")
    from safetensors import safe_open

    def metadata(path: Path) -> dict[str, str]:
        with safe_open(path, framework="np") as file:
            return file.metadata() or {}

    return _reading(path, metadata)


@contextlib.contextmanager
def replacing(
    path: Path, before: Callable[[], object] | None = None, *, shared: bool = False
) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when it is written: a killed process leaves the old or the new one."""
    check_local("path", path)
    own = f".{uuid.uuid4().hex}" if shared else ""
    partial = path.with_name(f"{path.name}{own}.tmp")
    try:
        with naming(path), partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            before()
        os.replace(partial, path)
    except BaseException:  # a full disk: nothing half-written stays
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the system refuses names the file, also where it was open already: a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, what UTF-8 has no characters for (names of files) in words; see ``replacing``."""
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write a ``.safetensors`` file atomically; see ``replacing``."""
    require_package("safetensors", "writing weights")
    from safetensors.numpy import save

    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    with replacing(path) as file:
        file.write(save(contiguous, metadata))


def _reading(path: Path, read: Callable[[Path], Any]) -> Any:
    """What ``read`` returns; a ValueError that names the file where it fails."""
    try:
        return read(path)
    except MissingLibraryError:
        raise
    except Exception as error:  # of safetensors, zipfile, zlib, pickle or PyTorch: not such a file
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is not a readable {path.suffix} file: {reason}") from error


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16)

    require_package("safetensors", f"reading {path}")
    from safetensors.numpy import load_file

    return load_file(path)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        content = np.load(file, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it holds a single array")
        return {name: content[name] for name in content.files}


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    require_package("torch", f"reading {path}")
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # whose own words advise to run the code
        raise ValueError("it holds more than tensors, and its code is not run") from error
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, expected tensors by name")
    tensors = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    return {
        name: (value.float() if value.is_floating_point() else value).detach().numpy()
        for name, value in tensors.items()
    }


_READERS = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".pth": _read_torch,
    ".pt": _read_torch,
    ".bin": _read_torch,
}
