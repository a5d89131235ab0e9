"""The command line: ``jdml demo``, ``train``, ``embed``, ``search``, ``export``, ``report`` and the others."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]

# What runs a command, imported when that command is given: `jdml --help` needs neither JAX nor tyro.
COMMANDS: dict[str, str] = {
    "demo": "jdml.cli.demo.Demo",
    "train": "jdml.cli.train.Train",
    "embed": "jdml.cli.embed.Embed",
    "search": "jdml.cli.search.Search",
    "export": "jdml.cli.export.Export",
    "evaluate": "jdml.cli.evaluate.Evaluate",
    "report": "jdml.cli.report.Report",
    "compare": "jdml.cli.compare.Compare",
    "sweep": "jdml.cli.sweep.Sweep",
    "benchmark": "jdml.cli.benchmark.Benchmark",
    "data check": "jdml.cli.data.Check",
    "weights convert": "jdml.cli.weights.Convert",
}

COMPUTES = (
    "demo",
    "train",
    "embed",
    "search",
    "export",
    "evaluate",
    "report",
    "sweep",
    "benchmark",
)
"""Commands that compile programs."""

EXAMPLES: dict[str, str] = {
    "demo": "jdml demo --out runs/demo",
    "train": "jdml train --data-dir photos --out runs/photos",
    "embed": "jdml embed runs/photos photos --out photos.npz",
    "search": "jdml search runs/photos query.jpg --gallery photos.npz -k 5 --out found.png",
    "export": "jdml export runs/photos --out model.stablehlo",
    "evaluate": "jdml evaluate photos.npz --recall-at 1 10 --json metrics.json",
    "report": "jdml report runs/photos --out report.html",
    "compare": "jdml compare runs --csv compared.csv",
    "sweep": "jdml sweep --set loss=triplet,multi_similarity --labels parity --out runs/sweep",
    "benchmark": "jdml benchmark --method pfml --dry-run --out runs/dry",
    "data check": "jdml data check folder photos",
    "weights convert": "jdml weights convert resnet18.pth --arch resnet18 --out resnet18.safetensors",
}
"""What each command's help ends with."""

HELP = """usage: jdml COMMAND [OPTIONS]

Deep metric learning: train embeddings, use them, measure them, look at them, see a demo.

commands:
  demo             see class collapse, and what undoes it, on real digits (half a minute)
  train            train embeddings of a folder of photographs or a data set with any loss, and score them
  embed            embed photographs with what was trained, into a .npz, .npy or .parquet file
  search           find the nearest of a gallery to photographs
  export           write what was trained as one file, for programs without jdml too
  evaluate         measure embeddings from any framework: a .npz file with embeddings and labels
  report           one page of what runs learned: curves, neighbours, mistakes, a map, structure, side by side
  compare          runs side by side in a table, with differences paired by seed
  sweep            train every combination of settings and seeds, and compare them
  benchmark        train a method by its paper's recipe on CUB, Cars196, SOP or In-shop; the paper's row beside ours
  data check       check a data set's folder: counts, missing files, damaged images
  weights convert  make pretrained weights of other libraries fit jdml's networks

examples:
  {examples}

`jdml COMMAND --help` explains the options of a command, `jdml --version` tells the version.

Compiled programs are kept, at most 1 GiB of them, in `jdml` of the user's cache folder: set JDML_CACHE to another
folder, or to `off`."""


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
        print(HELP.format(examples="\n  ".join(EXAMPLES.values())))
        return 0
    if name in ("-V", "--version", "version"):
        from importlib.metadata import version

        print(f"jdml {version('jdml')}")
        return 0
    if name not in COMMANDS:
        from jdml.cli.messages import nearest

        typed = " ".join([name, *rest[:1]])
        hint = nearest(typed, COMMANDS) or nearest(name, COMMANDS)
        return _fail("jdml", f"COMMAND must be one of {', '.join(COMMANDS)}, got {name!r}{hint}")
    try:
        import tyro
    except ModuleNotFoundError:
        return _fail("jdml", "the command line needs its extra: pip install 'jdml[train]'")
    from jdml.cli import messages, startup

    prog = f"jdml {name}"
    module, _, options = COMMANDS[name].rpartition(".")
    kind = getattr(importlib.import_module(module), options)
    if {"-h", "--help"} & set(rest):
        try:
            tyro.cli(kind, prog=prog, args=["--help"], config=(tyro.conf.PositionalRequiredArgs,))
        finally:
            print(f"example:\n  {EXAMPLES[name]}")
    try:
        messages.check_words(kind, rest)
        command: Any = tyro.cli(
            kind, prog=prog, args=rest, config=(tyro.conf.PositionalRequiredArgs,)
        )
        if name in COMPUTES:
            startup.keep_compiled_programs()
            if argv is None:  # a process of our own
                importlib.import_module("jdml.training.memory").keep_freed_memory()
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
