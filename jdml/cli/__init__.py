"""The command line: ``jdml demo``, ``train``, ``embed``, ``search``, ``export``, ``report`` and the others."""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from jdml._optional_imports import MissingLibraryError, require_package
from jdml.cli.commands import COMMANDS, Command, overview
from jdml.ops.checks import did_you_mean

__all__ = ["main"]

OPTIONS = {
    "data_dir": "--data-dir",
    "folder": "--out",
    "places": "RUN",
    "runs": "RUN",
    "k": "-k",
    "source": "SOURCE",
    "split": "--split",
    "view": "--labels",
    "metrics": "--metric",
    "recall_at": "--recall-at",
    "pattern": "--freeze",
    "mesh:": "--devices:",
    "method": "--method",
}
"""Options of the arguments that errors name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Example:
        >>> main(["--help"])  # doctest: +ELLIPSIS
        usage: jdml COMMAND [OPTIONS]
        ...
        0
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be no text
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(words, own_process=argv is None)
        finally:
            if sys.stdout is not None:  # closed by the shell
                sys.stdout.flush()
    except BrokenPipeError:  # discard the rest, also when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13


def _run(words: list[str], *, own_process: bool) -> int:
    """Run a command; see ``main``."""
    if words[0] == "help" and len(words) > 1:
        words = [*words[1:], "--help"]
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = " ".join(words[:count]), words[count:]
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name in ("-V", "--version", "version"):
        print(f"jdml {sys.modules['jdml'].__version__}")
        return 0
    if set(rest[:1]) <= {"-h", "--help"} and overview(name):
        print(overview(name))
        return 0
    if name not in COMMANDS:
        typed = " ".join([name, *rest[:1]]) if overview(name) else name
        hint = did_you_mean(typed, COMMANDS) or did_you_mean(name, COMMANDS)
        return _fail("jdml", f"COMMAND must be one of {', '.join(COMMANDS)}, got {typed!r}{hint}")
    try:
        for library in ("tyro", "rich", "tqdm"):
            require_package(library, "the command line")
    except MissingLibraryError as error:
        return _fail("jdml", str(error))
    prog = f"jdml {name}"
    known = COMMANDS[name]
    if {"-h", "--help"} & set(rest):
        try:
            known.read(["--help"])
        finally:
            print(f"example:\n  {known.example}")
    try:
        command = known.read(rest)
        if known.computes:
            compiled_programs = importlib.import_module("jdml.compilation_cache")
            compiled_programs.keep_compiled_programs()
            if own_process:
                importlib.import_module("jdml.distributed").disable_malloc_trim()
        return command.execute() or 0
    except BrokenPipeError:
        raise
    except (ValueError, TypeError, OSError, FloatingPointError, MemoryError) as error:
        return _fail(prog, _error_line(error, known) or "out of memory")
    except RuntimeError as error:
        from jdml.distributed import PeerExitedError

        if isinstance(error, PeerExitedError):
            return _fail(prog, str(error))
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _fail(prog, "out of memory: try a smaller --batch-size or --image-size")
    except KeyboardInterrupt as error:
        line = "interrupted; with --out, the same command resumes from its last checkpoint"
        return _fail(prog, str(error) or line, 130)


def _error_line(error: BaseException, command: Command) -> str:
    """Return an error as one line, with the names of options."""
    if isinstance(error, OSError) and error.errno is not None:
        file = error.filename2 or error.filename or ""
        reason = os.strerror(error.errno)
        return f"{file}: {reason}" if file else reason
    options = {**command.recipe_options(), **OPTIONS}
    text = str(error)
    if hasattr(error, "with_names"):  # a RecipeError
        text = error.with_names(lambda name: options.get(name, name.rpartition(".")[2]))
    line = " ".join(" ".join([text, *getattr(error, "__notes__", ())]).split())
    first, space, rest = line.partition(" ")
    return f"{options.get(first.partition('[')[0], first)}{space}{rest}"


def _fail(prog: str, message: str, code: int = 2) -> int:
    print(f"{prog}: error: {message}", file=sys.stderr)
    return code
