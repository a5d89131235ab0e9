"""Files of named arrays: .safetensors and PyTorch's .pth read, .safetensors written; all writes are atomic."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from jdml._optional_imports import MissingLibraryError, require_package
from jdml._paths import atomic_write

ENDINGS = (".safetensors", ".pth", ".pt", ".bin")

Arrays = dict[str, np.ndarray]


def read_tensors(path: Path) -> Arrays:
    """Read the floating-point arrays of a file by name, as float32; no code of a pickle is run."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"{path} must end in one of {', '.join(ENDINGS)}")
    path.stat()  # a missing file is refused before a missing library
    if path.suffix != ENDINGS[0]:
        return _read_torch(path)
    tensors = read_safetensors(path)
    return {n: np.asarray(x, np.float32) for n, x in tensors.items() if x.dtype.kind not in "biu"}


def read_safetensors(path: Path) -> Arrays:
    """Read the arrays of a ``.safetensors`` file by name."""
    import ml_dtypes  # noqa: F401  (adds bfloat16 to NumPy)

    require_package("safetensors", f"reading {path}")
    from safetensors.numpy import load_file

    with wrap_format_errors(path):
        return load_file(path)


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a ``.safetensors`` file; empty where there is none."""
    require_package("safetensors", "reading weights")
    from safetensors import safe_open

    with wrap_format_errors(path), safe_open(path, framework="np") as file:
        return file.metadata() or {}


@contextlib.contextmanager
def wrap_format_errors(what: object) -> Iterator[None]:
    """Raise a ValueError that names the file for errors of NumPy, safetensors, zipfile, zlib, pickle or PyTorch."""
    try:
        yield
    except (FileNotFoundError, PermissionError, MissingLibraryError):
        raise
    except Exception as error:  # also an OSError: PyTorch's of a file that is cut off
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise ValueError(f"{what} cannot be read: {reason}") from error


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write a ``.safetensors`` file atomically."""
    require_package("safetensors", "writing weights")
    from safetensors.numpy import save

    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    with atomic_write(path) as file:
        file.write(save(contiguous, metadata))


def _read_torch(path: Path) -> Arrays:
    require_package("torch", f"reading {path}")
    import torch

    with wrap_format_errors(path):
        content = torch.load(path, map_location="cpu", weights_only=True)
        for key in ("state_dict", "model", "model_state_dict", "teacher"):  # of checkpoints
            if isinstance(content, dict) and isinstance(content.get(key), dict):
                content = content[key]
        return {
            name: value.float().detach().numpy()
            for name, value in content.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
