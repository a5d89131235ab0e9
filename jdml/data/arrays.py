"""Arrays in files of NumPy's: read when they are asked for, and refused in words."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a .npz file by name; what nobody asks for is not read, whatever it is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._opened() as content:
            self._names = tuple(content.files)

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of a name; a ValueError in words where it cannot be read."""
        if name not in self._names:
            raise KeyError(name)
        with self._opened() as content:
            try:
                array: np.ndarray = content[name]
                return array
            except ValueError as error:
                if "allow_pickle" not in str(error):
                    raise
        raise ValueError(_of_objects(f"{name!r} of {self._file}", name))

    def __contains__(self, name: object) -> bool:
        """Whether there is such an array, read or not."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many arrays there are."""
        return len(self._names)

    @contextmanager
    def _opened(self) -> Iterator[np.lib.npyio.NpzFile]:
        try:
            with self._file.open("rb") as opened:
                content = np.load(opened, allow_pickle=False)
                if isinstance(content, np.ndarray):
                    raise ValueError("it holds a single array")
                yield content
        except Exception as error:  # of zipfile, zlib, pickle or NumPy: not such a file
            raise ValueError(
                f"{self._file} is not a readable .npz file (numpy.savez): {error}"
            ) from error


def read_arrays(file: Path) -> Arrays:
    """Open a .npz file."""
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist")
    if not file.is_file():
        kind = "a folder" if file.is_dir() else "no file"
        raise ValueError(f"{file} is {kind}, expected a .npz file (numpy.savez)")
    return Arrays(file)


def read_array(file: Path) -> np.memmap:
    """Open a .npy file, which stays on disk."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not a file")
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of NumPy: not such a file
        if "Python objects" in str(error):
            raise ValueError(_of_objects(f"{file}", "array")) from error
        raise ValueError(f"{file} is not a readable .npy file (numpy.save): {error}") from error


def _of_objects(what: str, name: str) -> str:
    return (
        f"{what} holds Python objects, which are not read: "
        f"save {name}.astype(str) for names, {name}.astype(float) or {name}.astype(int) for numbers"
    )
