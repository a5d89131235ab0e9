"""The command line: ``jdml demo``, ``train``, ``evaluate``, ``benchmark``, ``data check``, ``weights convert``."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]

# What runs a command, imported when that command is given: `jdml --help` needs neither JAX nor tyro.
COMMANDS: dict[str, str] = {
    "demo": "jdml.cli.demo.Demo",
    "train": "jdml.cli.train.Train",
    "evaluate": "jdml.cli.evaluate.Evaluate",
    "benchmark": "jdml.cli.benchmark.Benchmark",
    "data check": "jdml.cli.data.Check",
    "weights convert": "jdml.cli.weights.Convert",
}

HELP = """usage: jdml COMMAND [OPTIONS]

Deep metric learning: train embeddings, measure embeddings, see a demo.

commands:
  demo             see class collapse, and what undoes it, on real digits (about a minute)
  train            train embeddings of a data set with any loss, and score them
  evaluate         measure embeddings from any framework: a .npz file with embeddings and labels
  benchmark        train a method by its paper's recipe on CUB, Cars196, SOP or In-shop; the paper's row beside ours
  data check       check a data set's folder: counts, missing files, damaged images
  weights convert  make pretrained weights of other libraries fit jdml's networks

examples:
  jdml demo --out runs/demo
  jdml train --labels parity --miner eps+semi_hard --out runs/eps
  jdml evaluate embeddings.npz --recall-at 1 10 --json metrics.json
  jdml data check cub DIR
  jdml weights convert resnet50.pth --arch resnet50 --out resnet50.safetensors
  jdml benchmark --method pfml --dry-run

`jdml COMMAND --help` explains the options of a command."""


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
        print(HELP)
        return 0
    if name not in COMMANDS:
        return _fail("jdml", f"COMMAND must be one of {', '.join(COMMANDS)}, got {name!r}")
    try:
        import tyro
    except ModuleNotFoundError:
        return _fail("jdml", "the command line needs its extra: pip install 'jdml[train]'")
    prog = f"jdml {name}"
    module, _, options = COMMANDS[name].rpartition(".")
    command: Any = tyro.cli(
        getattr(importlib.import_module(module), options),
        prog=prog,
        args=rest,
        config=(tyro.conf.PositionalRequiredArgs,),
    )
    try:
        return command.run() or 0
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        return _fail(prog, str(error))
    except KeyboardInterrupt:
        return _fail(prog, "interrupted; with --out, the same command goes on where it was", 130)


def _command(words: list[str]) -> tuple[str, list[str]]:
    """The command's name, of one word or two, and what follows it."""
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    return " ".join(words[:count]), words[count:]


def _fail(prog: str, message: str, code: int = 2) -> int:
    print(f"{prog}: error: {message}", file=sys.stderr)
    return code
