"""Imports by name: optional libraries, with the commands that install them, and pointers ``"module:name"``."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
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
    "parquet": {"datasets": "datasets", "pyarrow": "pyarrow"},
    "duplicates": {"imagehash": "ImageHash"},
    "onnx": {"jax2onnx": "jax2onnx", "onnxruntime": "onnxruntime"},
    "all": {"tensorboardX": "tensorboardX"},
}
"""Modules and their distributions, by the extra of ``jdml`` that installs them."""
ALONE = {"chex": "chex", "torch": "torch"}
"""Modules of no extra, and their distributions."""


class MissingLibraryError(ModuleNotFoundError, ValueError):
    """A library that is not installed; the message has the command that installs it."""


def require_package(module: str, what: str) -> None:
    """Refuse a missing library, with the command that installs it; ``what`` is the sentence's subject."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        is_there = (error.name or root).partition(".")[0] != root
        why = f", which does not load ({error})" if is_there else ""
        raise _missing(root, what, why) from error


def package_folder(package: str, what: str) -> Path:
    """Find the folder of a top-level package without importing it; refuse a missing one."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise _missing(package, what)
    return Path(spec.origin).parent


def _missing(root: str, what: str, why: str = "") -> MissingLibraryError:
    """Return the error that says how to install a library."""
    library = install = ALONE.get(root, root)
    for extra, modules in EXTRAS.items():
        if root in modules:
            library, install = modules[root], f"'jdml[{extra}]'"
    return MissingLibraryError(f"{what} needs {library}{why}: pip install {install}", name=root)


@contextmanager
def progress_bar(shown: bool, **settings: Any) -> Iterator[Any]:
    """Show a progress bar of tqdm, log lines above it; one that is not shown needs no library."""
    if not shown:
        yield _HiddenBar()
        return
    require_package("tqdm", "a progress bar")
    from tqdm.auto import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    with tqdm(leave=None, **settings) as bar, logging_redirect_tqdm():
        yield bar


class _HiddenBar:
    """A progress bar that is not shown."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **settings: None


def resolve(pointer: str) -> Any:
    """Import the attribute that a pointer ``"module:name"`` names.

    Args:
        pointer: the module and the name of an attribute in it.

    Returns:
        The attribute.

    Example:
        >>> resolve("jdml.mining:easy_positive").__name__
        'easy_positive'
    """
    module, _, name = pointer.partition(":")
    return getattr(importlib.import_module(module), name)


def import_user_object(pointer: str) -> Any:
    """Import from a user's module, or one in the working directory; errors are ValueErrors."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return call_user_object(pointer, lambda: resolve(pointer))


def call_user_object(pointer: str, function: Callable[..., Any], **settings: Any) -> Any:
    """Call a user's function; its errors are ValueErrors that name the line."""
    try:
        return function(**settings)
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        is_own = last.filename == __file__ or isinstance(error, SyntaxError | ImportError)
        where = "" if is_own else f" ({last.filename}:{last.lineno})"
        raise ValueError(f"{pointer} raised {type(error).__name__}: {error}{where}") from error


def is_pointer(text: str) -> bool:
    """Return whether a text has the form ``"module:name"``."""
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", text) is not None
