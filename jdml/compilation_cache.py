"""JAX's persistent cache of compiled programs, as the command line uses it."""

import contextlib
import os
from pathlib import Path

__all__: list[str] = []

SWITCH = "JDML_CACHE"
MOST_BYTES = 1 << 30
ENTRY, TIMES, LOCK = "-cache", "-atime", ".lockfile"
"""Endings of the names of JAX's files, and its lock."""


def keep_compiled_programs() -> Path | None:
    """Turn on JAX's persistent compilation cache, unless the user has set one or switched it off.

    ``JDML_CACHE`` is a folder, or ``off``; the default is ``jdml`` in the user's cache folder. The least recently used
    programs are removed when there is more than 1 GiB. Without ``filelock`` and ``platformdirs``, of the extra
    ``train``, nothing is turned on.
    """
    import jax

    try:
        import filelock  # noqa: F401  (JAX limits the size with it)
        from platformdirs import user_cache_path
    except ModuleNotFoundError:
        return None
    setting = os.environ.get(SWITCH, "")
    if setting.lower() in ("off", "0", "no", "none") or jax.config.values.get(
        "jax_compilation_cache_dir"
    ):
        return None
    default = user_cache_path("jdml", appauthor=False) / "compiled"
    folder = Path(setting).expanduser() if setting else default
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # of a home that cannot be written
        return None
    _remove_incomplete(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    return folder


def _remove_incomplete(folder: Path) -> None:
    """Remove entries of killed processes, which have no file of times yet: JAX could neither read nor replace them."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(OSError, Timeout), FileLock(folder / LOCK, timeout=1):
        for entry in folder.glob(f"*{ENTRY}"):
            if not entry.with_name(entry.name.removesuffix(ENTRY) + TIMES).exists():
                entry.unlink()
