"""JAX's persistent cache of compiled programs, as the command line uses it."""

import contextlib
import os
from pathlib import Path

__all__ = ["keep_compiled_programs"]

SWITCH = "JDML_CACHE"
MOST_BYTES = 1 << 30


def keep_compiled_programs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep what JAX compiles on disk, so that the next process reads it instead of compiling it again.

    Call it once, before the first computation. The command line does it by itself.

    Args:
        folder: where programs are kept. None: the folder ``JDML_CACHE`` of the environment, or ``jdml/compiled`` in the
            user's cache folder; nothing where ``JDML_CACHE`` is ``off`` or JAX's own cache is set already.

    Returns:
        The folder, or None where nothing is kept: no ``filelock`` or ``platformdirs`` (of the extra ``train``), or a
        folder that cannot be written.

    Implementation notes:
        It is JAX's persistent compilation cache, at most 1 GiB: the least recently used programs go first. Programs
        that compile in less than half a second are not kept.

    Example:
        >>> import jdml
        >>> folder = jdml.keep_compiled_programs()
    """
    import jax

    try:
        from filelock import FileLock, Timeout  # JAX limits the size with it, too
        from platformdirs import user_cache_path
    except ModuleNotFoundError:
        return None
    setting = os.environ.get(SWITCH, "") if folder is None else os.fspath(folder)
    is_set = jax.config.values.get("jax_compilation_cache_dir")
    if folder is None and (is_set or setting.lower() in ("off", "0", "no", "none")):
        return None
    default = user_cache_path("jdml", appauthor=False) / "compiled"
    folder = Path(setting).expanduser() if setting else default
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # of a home that cannot be written
        return None
    # Entries of killed processes have no file of times yet: JAX could neither read nor replace them.
    with contextlib.suppress(OSError, Timeout), FileLock(folder / ".lockfile", timeout=1):
        for entry in folder.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").exists():
                entry.unlink()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    return folder
