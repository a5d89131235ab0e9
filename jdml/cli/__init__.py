"""The command line: ``jdml demo``, ``train``, ``embed``, ``search``, ``export``, ``report`` and the others."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from jdml.cli.commands import COMMANDS, overview

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the program's name; by default the process's own.

    Returns:
        The exit code: 0, 1 where ``data check`` finds something wrong, or 2 with one line on stderr where the
        input is wrong.

    Raises:
        SystemExit: as command lines do, for ``COMMAND --help`` and for options that cannot be read.

    Example:
        >>> main(["--help"])  # doctest: +ELLIPSIS
        usage: jdml COMMAND [OPTIONS]
        ...
        0
    """
    name, rest = _command(list(sys.argv[1:] if argv is None else argv) or ["--help"])
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name in ("-V", "--version", "version"):
        from importlib.metadata import version

        print(f"jdml {version('jdml')}")
        return 0
    if set(rest[:1]) <= {"-h", "--help"} and overview(name):
        print(overview(name))
        return 0
    if name not in COMMANDS:
        from jdml.registry.constraints import nearest

        typed = " ".join([name, *rest[:1]])
        hint = nearest(typed, COMMANDS) or nearest(name, COMMANDS)
        return _fail("jdml", f"COMMAND must be one of {', '.join(COMMANDS)}, got {name!r}{hint}")
    from jdml.registry.extras import MissingLibraryError, need

    try:
        for library in ("tyro", "rich", "tqdm"):
            need(library, "the command line")
    except MissingLibraryError as error:
        return _fail("jdml", str(error))
    import tyro

    from jdml.cli import compiled_programs, messages

    prog = f"jdml {name}"
    known = COMMANDS[name]
    kind = known.kind
    if {"-h", "--help"} & set(rest):
        try:
            tyro.cli(kind, prog=prog, args=["--help"], config=(tyro.conf.PositionalRequiredArgs,))
        finally:
            print(f"example:\n  {known.example}")
    try:
        messages.check_words(kind, rest)
        command: Any = tyro.cli(
            kind, prog=prog, args=rest, config=(tyro.conf.PositionalRequiredArgs,)
        )
        messages.check_places(command)
        if known.computes:
            compiled_programs.keep_compiled_programs()
            if argv is None:  # a process of our own
                importlib.import_module("jdml.training.process").keep_freed_memory()
        return command.execute() or 0
    except (ValueError, TypeError, OSError, FloatingPointError, MemoryError) as error:
        return _fail(prog, messages.told(error) or "out of memory")
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _fail(prog, "out of memory: a smaller --batch or --image-size may fit")
    except KeyboardInterrupt:
        return _fail(prog, "interrupted; with --out, the same command goes on where it was", 130)


def _command(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one word or two, and what follows it."""
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:count]), words[count:]


def _fail(prog: str, message: str, code: int = 2) -> int:
    print(f"{prog}: error: {message}", file=sys.stderr)
    return code
