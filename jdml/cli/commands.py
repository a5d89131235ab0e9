"""The commands, one record each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jdml.registry import resolve


@dataclass(frozen=True)
class Command:
    """A command of ``jdml``.

    Attributes:
        name: what is typed, one word or two.
        options: pointer to the dataclass of its options, whose ``execute()`` runs it.
        help: what it does, in a line.
        example: what its help ends with.
        computes: whether it compiles programs.
    """

    name: str
    options: str
    help: str
    example: str
    computes: bool = True

    @property
    def kind(self) -> Any:
        """The dataclass of its options."""
        return resolve(self.options)

    def read(self, words: Sequence[str]) -> Any:
        """Return its options as they are typed; what cannot be read ends the process."""
        import tyro

        settings = (tyro.conf.PositionalRequiredArgs, tyro.conf.OmitArgPrefixes)
        return tyro.cli(self.kind, prog=f"jdml {self.name}", args=words, config=settings)


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command(
            "demo",
            "jdml.cli.demo:Demo",
            "see class collapse, and what undoes it, on real digits (a minute)",
            "jdml demo --out runs/demo",
        ),
        Command(
            "train",
            "jdml.cli.train:Train",
            "train embeddings of a folder of photographs or a data set with any loss, and score them",
            "jdml train --data-dir photos --out runs/photos",
        ),
        Command(
            "embed",
            "jdml.cli.embed:Embed",
            "embed photographs with what was trained, into a .npz, .npy or .parquet file",
            "jdml embed runs/photos photos --out photos.npz",
        ),
        Command(
            "search",
            "jdml.cli.search:Search",
            "find the nearest of a gallery to photographs",
            "jdml search runs/photos query.jpg --gallery photos.npz -k 5 --out found.png",
        ),
        Command(
            "export",
            "jdml.cli.export:Export",
            "write what was trained as one file, for programs without jdml too",
            "jdml export runs/photos --out model.stablehlo",
        ),
        Command(
            "evaluate",
            "jdml.cli.evaluate:Evaluate",
            "measure embeddings from any framework: a .npz file with embeddings and labels",
            "jdml evaluate photos.npz --recall-at 1 10 --json metrics.json",
        ),
        Command(
            "report",
            "jdml.cli.report:Report",
            "one page of what runs learned: curves, neighbours, mistakes, a map, structure, side by side",
            "jdml report runs/photos --out report.html",
        ),
        Command(
            "compare",
            "jdml.cli.compare:Compare",
            "runs side by side in a table, with differences paired by seed",
            "jdml compare runs --csv compared.csv",
            computes=False,
        ),
        Command(
            "sweep",
            "jdml.cli.sweep:Sweep",
            "train every combination of settings and seeds, and compare them",
            "jdml sweep --set loss=triplet,multi_similarity --labels parity --out runs/sweep",
        ),
        Command(
            "benchmark",
            "jdml.cli.benchmark:Benchmark",
            "train a method by its paper's recipe on CUB, Cars196, SOP or In-shop; the paper's row beside ours",
            "jdml benchmark --method pfml --dry-run --out runs/dry",
        ),
        Command(
            "data check",
            "jdml.cli.data:Check",
            "check a data set's folder: counts, missing files, damaged images",
            "jdml data check folder photos",
            computes=False,
        ),
        Command(
            "data get",
            "jdml.cli.data:Get",
            "download and prepare MNIST, Omniglot, CUB, Cars196 or SOP",
            "jdml data get mnist",
            computes=False,
        ),
        Command(
            "weights convert",
            "jdml.cli.weights:Convert",
            "make pretrained weights of other libraries fit jdml's networks",
            "jdml weights convert resnet18.pth --arch resnet18 --out resnet18.safetensors",
            computes=False,
        ),
    )
}
"""Every command by its name, in the order of the help."""

HELP = """usage: jdml COMMAND [OPTIONS]

Deep metric learning: train embeddings, use them, measure them, look at them, see a demo.

commands:
{commands}

examples:
{examples}

`jdml COMMAND --help` explains the options of a command, `jdml --version` tells the version.

Compiled programs are kept, at most 1 GiB of them where filelock is installed, in `jdml` of the user's cache folder:
set JDML_CACHE to another folder, or to `off`."""


GROUP_HELP = """usage: jdml {group} COMMAND [OPTIONS]

commands:
{commands}

examples:
{examples}

`jdml {group} COMMAND --help` explains the options of a command."""


def overview(group: str = "") -> str:
    """The help of ``jdml`` itself, or of the commands that begin with a word: each in a line, and its example.

    Args:
        group: such as ``"data"``.

    Returns:
        The help; nothing where no command of two words begins with that one.
    """
    shown = {n: c for n, c in COMMANDS.items() if not group or n.startswith(f"{group} ")}
    if not shown:
        return ""
    width = max(map(len, shown))
    lines = "\n".join(f"  {name:{width}}  {command.help}" for name, command in shown.items())
    examples = "\n".join(f"  {command.example}" for command in shown.values())
    return (GROUP_HELP if group else HELP).format(group=group, commands=lines, examples=examples)
