"""The command line: ``jdml train``, ``jdml evaluate`` and ``jdml demo``."""

import sys
from collections.abc import Sequence

from jdml.cli.demo import Demo
from jdml.cli.evaluate import Evaluate
from jdml.cli.train import Train

__all__ = ["Demo", "Evaluate", "Train", "main"]

DESCRIPTION = """Deep metric learning: train embeddings, measure embeddings, see a demo.

Examples:
  jdml demo
  jdml train --labels parity --miner eps+semi_hard --out runs/eps
  jdml evaluate embeddings.npz --recall-at 1 10 --json metrics.json

`jdml COMMAND --help` explains a command's options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the program's name; by default the process's own.

    Returns:
        The exit code: 0, or 2 with one line on stderr where the input is wrong.

    Example:
        >>> main(["evaluate", "no_such_file.npz"])
        2
    """
    import tyro

    commands = {
        "train": (Train, "train embeddings of a data set and score them"),
        "evaluate": (Evaluate, "measure embeddings that lie in a .npz file"),
        "demo": (Demo, "see class collapse, and what undoes it, on real digits"),
    }
    command = tyro.cli(
        _subcommands(commands),
        prog="jdml",
        description=DESCRIPTION,
        args=None if argv is None else list(argv),
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.OmitSubcommandPrefixes),
    )
    try:
        command.run()
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        name = type(command).__name__.lower()
        print(f"jdml {name}: error: {error}", file=sys.stderr)
        return 2
    return 0
