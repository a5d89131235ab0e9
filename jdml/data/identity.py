"""Whether two paths lead to one file, and whether two files hold the same."""

import os
from pathlib import Path


class RealFiles:
    """Tell the file that a path leads to: through links and ``..``, relative or absolute.

    Example:
        >>> real = RealFiles()
        >>> real("a/../b.png") == real("./b.png")
        True
    """

    def __init__(self) -> None:
        """Remember the folders: most files have few."""
        self._folders: dict[str, str] = {}

    def __call__(self, path: str | Path) -> str:
        """The real path of a file, there or not."""
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        file = os.path.join(self._folders[folder], name)
        return os.path.realpath(file) if os.path.islink(file) else file


def same_content(first: str | Path, second: str | Path) -> bool:
    """Whether two files hold the same bytes; False where one of them cannot be read."""
    try:
        if os.path.getsize(first) != os.path.getsize(second):
            return False
        return Path(first).read_bytes() == Path(second).read_bytes()
    except OSError:
        return False
