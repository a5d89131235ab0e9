"""Libraries beyond the base install: what brings each of them, said where one is missing."""

import importlib
from typing import Any

EXTRAS: dict[str, dict[str, str]] = {
    "train": {
        "PIL": "pillow",
        "filelock": "filelock",
        "flatbuffers": "flatbuffers",
        "grain": "grain",
        "jinja2": "jinja2",
        "matplotlib": "matplotlib",
        "orbax": "orbax-checkpoint",
        "platformdirs": "platformdirs",
        "rich": "rich",
        "safetensors": "safetensors",
        "sklearn": "scikit-learn",
        "tensorflow_datasets": "tensorflow-datasets",
        "tqdm": "tqdm",
        "tyro": "tyro",
    },
    "flows": {"distrax": "distrax"},
    "tfds": {
        "tensorflow": "tensorflow",
        "cv2": "opencv-python-headless",
        "importlib_resources": "importlib_resources",
    },
    "parquet": {"pyarrow": "pyarrow"},
    "duplicates": {"imagehash": "ImageHash"},
    "all": {"tensorboardX": "tensorboardX"},
}
"""Modules and their distributions, by the extra of ``jdml`` that brings them."""
ALONE = {"chex": "chex", "datasets": "datasets", "torch": "torch", "umap": "umap-learn"}
"""Modules that no extra brings, and their distributions."""


class MissingLibraryError(ModuleNotFoundError, ValueError):
    """A library that is not installed, with the words that install it; a ``ValueError`` as all that a user mends."""


def need(module: str, what: str) -> None:
    """Ask for a library by the extra that brings it, where it is missing.

    Args:
        module: what is about to be imported, such as ``"orbax.checkpoint"``.
        what: what needs it, as a sentence begins.

    Raises:
        MissingLibraryError: it cannot be imported.

    Example:
        >>> need("numpy", "everything")
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        raise MissingLibraryError(
            f"{what} needs {distribution(root)}: pip install {installing(root)}", name=root
        ) from error


def distribution(module: str) -> str:
    """Name what a module comes in.

    Example:
        >>> distribution("sklearn"), distribution("umap")
        ('scikit-learn', 'umap-learn')
    """
    known = {name: dist for extra in EXTRAS.values() for name, dist in extra.items()} | ALONE
    return known.get(module, module)


def installing(module: str) -> str:
    """Say what to type after ``pip install``.

    Example:
        >>> installing("sklearn"), installing("umap")
        ("'jdml[train]'", 'umap-learn')
    """
    for extra, modules in EXTRAS.items():
        if module in modules:
            return f"'jdml[{extra}]'"
    return distribution(module)


def progress_bar(shown: bool, **settings: Any) -> Any:
    """Make a progress bar, a notebook's own in a notebook; one that is not shown needs no library.

    Args:
        shown: whether it is.
        **settings: tqdm's.

    Returns:
        The bar.

    Raises:
        MissingLibraryError: it is to be shown, and tqdm is missing.

    Example:
        >>> with progress_bar(False, total=2) as bar:
        ...     bar.update()
    """
    if not shown:
        return _Nothing()
    need("tqdm", "a progress bar")
    from tqdm.auto import tqdm

    return tqdm(**settings)


class _Nothing:
    """A progress bar that is not shown."""

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *error: object) -> None:
        """Show nothing."""

    def _ignore(self, *args: Any, **settings: Any) -> None:
        """Show nothing."""

    clear = update = set_description = set_postfix = set_postfix_str = _ignore
