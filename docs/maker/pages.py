"""The library's public names, and the page that documents each: from docstrings, registries and records."""

import ast
import contextlib
import html
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import jdml
from jdml.cli.commands import COMMANDS
from jdml.registry import MINERS, REGULARIZERS, pair_losses, proxy_losses
from maker import records
from maker.scene import Subject
from maker.subjects import RULES, levels

REPOSITORY = Path(__file__).parents[2]
ROOMS = tuple(room for room in jdml._ROOMS if room != "cli")
PAIRS = [f"{name}_loss" for name in pair_losses()]
PROXIES = [f"{name}_loss" for name in proxy_losses()]
FAMILIES = {
    "Pair losses": (
        PAIRS,
        "They compare the samples of a batch with each other, or with `references`.",
    ),
    "Proxy losses": (
        PROXIES,
        "They compare samples with learned proxies of the classes, shown as stars.",
    ),
    "Regularizers": (REGULARIZERS, "They are added to a proxy loss."),
    "Miners": (RULES, "They choose the pairs of a pair loss; here the triplet loss."),
}
TAKES = {
    "pair": """Embeddings `[B, D]` and labels `[B]`; or `positive=`, your own mask `[B, R]`. `references=` replaces the batch
by other vectors: a [memory](../guides/memory.md), another [tower](../guides/two_towers.md).
`mine=` takes any [miner](index.md#miners).""",
    "proxy": """Embeddings `[B, D]`, labels `[B]` and proxies, which are among your parameters and have their
[own learning rate](../guides/raw_jax.md).""",
}
SHARED = {
    "pair": """`where=` masks rows and `weights=` weights them ([masks](../guides/masks.md)). Rows may be sharded over a mesh, or over
`axis_name=` inside `jax.shard_map`. `anchor_block="auto"` processes large batches in
[blocks](../guides/large_batches.md).""",
    "proxy": """`where=` masks rows and `weights=` weights them ([masks](../guides/masks.md)). Rows or classes may be sharded over a mesh, or
rows over `axis_name=` inside `jax.shard_map`. `class_block="auto"` processes very many classes in
[blocks](../guides/large_batches.md).""",
}
ALT = "Left: sixty points of three classes, one of them with two modes. Middle: the force on a point of that class. Right: the end."


def public_names(room: str) -> list[str]:
    """List what a room exports: its ``__all__``, or what is written in it."""
    module = importlib.import_module(f"jdml.{room}")
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(name for name, value in vars(module).items() if is_own(name, value, module))


def is_own(name: str, value: Any, module: ModuleType) -> bool:
    """Tell whether a name is public and its value written in the module."""
    return name[0] != "_" and getattr(value, "__module__", None) == module.__name__


def linked_names() -> set[str]:
    """Give the names of public symbols that pages may link to: full and flat."""
    full = set(symbols())
    rooms = ("losses", "metrics", "mining", "ops")
    return full | {f"jdml.{n}" for n in jdml.__all__ if any(f"jdml.{r}.{n}" in full for r in rooms)}


def symbols() -> list[str]:
    """List every public symbol by its dotted name, as its page declares it."""
    return [f"jdml.{room}.{name}" for room in ROOMS for name in public_names(room)]


def directive(symbol: str) -> str:
    """Choose autodoc's directive for a symbol."""
    value = lookup(symbol)
    if inspect.isclass(value):
        return "autoclass"
    if callable(value) and isinstance(inspect.unwrap(value), FunctionType):
        return "autofunction"
    return "autodata"


def lookup(symbol: str) -> Any:
    """Find the object of a dotted name ``jdml.room.name``."""
    module, _, name = symbol.rpartition(".")
    return getattr(importlib.import_module(module), name)


def summary(symbol: str) -> str:
    """Read the first line of a symbol's docstring."""
    return (inspect.getdoc(lookup(symbol)) or "").partition("\n\n")[0].replace("\n", " ")


def picture(name: str) -> str:
    """Embed a computed picture."""
    return f'<img class="picture" src="../_static/pictures/{name}.svg" alt="{ALT}">\n'


def autodoc(symbol: str) -> str:
    """Ask autodoc for a symbol."""
    kind = directive(symbol)
    lines = [f".. {kind}:: {symbol}"]
    if kind == "autoclass":
        lines.append("   :members:")
        if fields := field_names(lookup(symbol)):  # its docstring tells them
            lines.append(f"   :exclude-members: {', '.join(fields)}")
    if kind == "autodata":
        module, _, name = symbol.rpartition(".")
        lines = [f".. py:data:: {name}", f"   :module: {module}", "", f"   {words_about(symbol)}"]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def field_names(value: type) -> list[str]:
    """List the fields of a dataclass or a named tuple."""
    return [*getattr(value, "__dataclass_fields__", ()), *getattr(value, "_fields", ())]


def words_about(symbol: str) -> str:
    """Find the string below the line that assigns a public value, in whichever file of its room."""
    room, name = symbol.split(".")[1:]
    folder = REPOSITORY / "jdml" / room
    for file in sorted(folder.glob("*.py")) or [folder.with_suffix(".py")]:
        body = ast.parse(file.read_text()).body
        for line, after in zip(body, body[1:], strict=False):
            targets = (
                [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [])
            )
            assigned = [target.id for target in targets if isinstance(target, ast.Name)]
            if name in assigned and isinstance(after, ast.Expr):
                return str(ast.literal_eval(after.value)).replace("\n", " ")
    raise ValueError(f"{symbol} has no words below the line that assigns it")


@cache
def tried() -> Any:
    """Import the tests' registry of losses: which property is checked of which, and with what."""
    added = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "losses")]
    sys.path[:0] = added
    try:
        return importlib.import_module("registry")
    finally:
        del sys.path[: len(added)]


def loss_page(subject: Subject) -> str:
    """Make a loss's page."""
    name = subject.name
    kind = "pair" if name in PAIRS else "proxy" if name in PROXIES else ""
    parts = [f"# {name}\n", summary(f"jdml.losses.{name}") + "\n", picture(name), HOW_TO_READ]
    parts.append(NOTES.get(name, ""))
    parts.append(f"\n## Reference\n\n{autodoc(f'jdml.losses.{name}')}")
    if kind:
        parts.append(f"\n## What it takes\n\n{TAKES[kind]}\n\n{SHARED[kind]}\n")
        parts.append(command_line(name, kind))
    parts.append(evidence(name))
    cost = COSTS[name]() if name in COSTS else records.cost(name)
    parts.append(f"\n## Cost\n\n{cost}\nMore on [the page about speed](../speed.md).\n")
    if rows := records.rows_of(name):
        parts.append(f"\n## Results on record\n\n{rows}\nAll methods: [results](../results.md).\n")
    return "\n".join(parts)


STUCK = "Does the loss stay at its margin? [See why, and what to do](../troubleshooting.md#stuck-at-the-margin).\n"
NOTES = {name: STUCK for name in ("triplet_loss", "margin_loss", "hard_negative", "hard_positive")}
NOTES["potential_field_loss"] = (
    "How to start its proxies and choose their learning rate: [the guide](../guides/five_methods.md#pfml-potential-fields).\n"
)
NOTES["info_nce_loss"] = NOTES["sigmoid_contrastive_loss"] = (
    "Trainings of two towers: [on text](../guides/two_towers.md), [from a CSV](../guides/two_towers_csv.md).\n"
)
COSTS: Mapping[str, Callable[[], str]] = {
    "nir_loss": records.flow_cost,
    "center_regularizer": lambda: (
        "It is included in the measurements of [`multi_proxy_anchor_loss`](multi_proxy_anchor_loss.md).\n"
    ),
}
"""The cost of those that are no loss of embeddings and labels alone."""
HOW_TO_READ = """
Sixty points on the sphere move under this loss alone. The blue class has two modes, ● and ▲. The map preserves areas; its rim
is the point opposite to its centre. [How the pictures are made](index.md#how-the-pictures-are-made).
"""


def command_line(name: str, kind: str) -> str:
    """Name a loss on the command line."""
    word = name.removesuffix("_loss")
    return f"On the command line: `jdml train --loss {word}`.\n"


def evidence(name: str) -> str:
    """List how a loss is tested."""
    lines = ["\n## Tests\n"]
    spec = tried().REGISTRY.get(name)
    if spec is not None:
        skipped = [check for check in jdml.testing.LOSS_CHECKS if check in spec.skip]
        lines.append(
            "Values are compared with a NumPy oracle that is written from the paper (`tests/oracles`); differences from the paper are "
            "under *Implementation notes* and *Paper settings*. The checks of [`jdml.testing`](../api/testing.md) hold"
            + (f", except {' and '.join(skipped)}: see the notes." if skipped else ".")
        )
    if name in tried().PEERS:
        lines.append(
            "Values and gradients equal pytorch-metric-learning 2.9.0's in float64 "
            "(`tests/losses/test_pml_parity.py`)."
        )
    return "\n".join(lines) + "\n" if len(lines) > 1 else ""


def miner_page(subject: Subject) -> str:
    """Make a miner's page."""
    name = subject.name
    words = [word for word, miner in MINERS.items() if miner.builder == name]
    said = " or ".join(f"`--miner {word}`" for word in words)
    parts = [
        f"# {name}\n",
        summary(f"jdml.mining.{name}") + "\n",
        picture(name),
        "\nHere it mines for the [triplet loss](triplet_loss.md) with margin 1. The left picture shows the pairs of one blue and one "
        "orange anchor that it keeps: positives solid, negatives dotted.\n",
        NOTES.get(name, ""),
        f"\n## Reference\n\n{autodoc(f'jdml.mining.{name}')}",
        f"\nOn the command line: {said}.\n",
    ]
    if rows := records.rows_of(name):
        parts.append(f"\n## Results on record\n\n{rows}\n")
    return "\n".join(parts)


def sheet(subjects: dict[str, Subject]) -> str:
    """Make the overview of all pictures."""
    parts = ["# All losses and miners\n", SHEET_INTRODUCTION]
    for family, (names, said) in FAMILIES.items():
        tiles = [tile(name) for name in sorted(names)]
        parts += [f"\n## {family}\n", f"{said}\n", '<div class="sheet">', *tiles, "</div>\n"]
    rows = [
        [f"[{name}]({name}.md)", *(f"{v:.3g}" for v in pair)] for name, pair in levels().items()
    ]
    parts += [LEVELS, records.table(["loss", "collapsed", "classes apart"], rows), HOW_MADE]
    for names, _ in FAMILIES.values():
        listed = "\n".join(sorted(names))
        parts.append(f"```{{toctree}}\n:hidden:\n\n{listed}\n```\n")
    return "\n".join(parts)


def tile(name: str) -> str:
    """Make one picture of the overview, a link."""
    room = "mining" if name in RULES else "losses"
    title = html.escape(summary(f"jdml.{room}.{name}"), quote=True)
    broken = name.removesuffix("_loss").replace("_", "_<wbr>")
    return (
        f'<a href="{name}.html" title="{title}"><img src="../_static/pictures/{name}-end.svg" '
        f'alt="{name}: where its points end"><code>{broken}</code></a>'
    )


SHEET_INTRODUCTION = """
Each picture shows where the same sixty points end under one loss or miner. The blue class starts as two groups, ● on the left and ▲ on
the right. One blue spot in the middle means class collapse; two spots mean that the class kept its modes. [Choose a loss](../choose.md).
"""
LEVELS = """
## What a value means

Each loss at its defaults, of four classes with four samples each: where all embeddings and proxies are one point, and where each class is one
corner of a simplex, as far apart as four classes can be. A training that stays near the first number has [collapsed](../troubleshooting.md).
"""
HOW_MADE = """
## How the pictures are made

The build computes them. Sixty points of three classes lie on the unit sphere in three dimensions; the first class has two modes of ten points.
All follow the negative gradient on the sphere for 1,000 steps, with a rate that moves a typical point by 0.03 in the first step and none by more
than 0.06. Proxies move at their own rate. Settings are the defaults, except a margin of 1 for the triplet loss and miners, and a flow that only
shifts and scales for NIR. Arrows show the force on a blue point, if it were moved to where they are; they are a quarter shorter for each factor of ten, and a dot is no force.

The map is Lambert's: it preserves areas, its centre is the upper pole and its rim the lower one. The pictures show *gradients* of points, not
networks; how networks learn is [measured](../results.md).
"""


def room_page(room: str) -> str:
    """Make the reference of a room."""
    module = importlib.import_module(f"jdml.{room}")
    parts = [
        f"# jdml.{room}\n",
        f"```{{eval-rst}}\n.. automodule:: jdml.{room}\n   :no-members:\n```\n",
    ]
    elsewhere = {"losses": [*PAIRS, *PROXIES, *REGULARIZERS], "mining": RULES}.get(room, [])
    if elsewhere:
        parts.append("Each of these has its own page:\n")
        rows = [
            [f"[{name}](../losses/{name}.md)", summary(f"jdml.{room}.{name}")]
            for name in sorted(elsewhere)
        ]
        parts.append(records.table(["name", "what it does"], rows))
    flat = [name for name in public_names(room) if name in jdml.__all__]
    if flat:
        said = ", ".join(f"`jdml.{name}`" for name in flat)
        parts.append(f"Also at top level: {said}.\n")
    parts += [
        f"## {name}\n\n{autodoc(f'jdml.{room}.{name}')}"
        for name in public_names(room)
        if name not in elsewhere
    ]
    assert module is not None
    return "\n".join(parts)


def api_index() -> str:
    """Make the reference's first page."""
    rows = []
    for room in ROOMS:
        line = (inspect.getdoc(importlib.import_module(f"jdml.{room}")) or "").partition("\n\n")[0]
        rows.append([f"[jdml.{room}]({room}.md)", line.replace("\n", " ")])
    rows.append(["[command line](command_line.md)", "All commands and options."])
    listed = "\n".join([*ROOMS, "command_line"])
    return f"# Reference\n\n{records.table(['package', 'content'], rows)}\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def command_line_page() -> str:
    """Make the reference of the command line from each command's help."""
    parts = ["# Command line\n", f"```text\n{help_text()}\n```\n"]
    for command in COMMANDS:
        parts.append(f"## jdml {command}\n\n```text\n{help_text(*command.split())}\n```\n")
    return "\n".join(parts)


def help_text(*command: str) -> str:
    """Catch what ``jdml … --help`` prints."""
    with printed() as shown, contextlib.suppress(SystemExit):
        jdml.cli.main([*command, "--help"])
    return shown.getvalue().strip()


@contextlib.contextmanager
def printed() -> Iterator[io.StringIO]:
    """Collect what is printed, as on a terminal of a hundred columns without colours."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            yield shown
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def study_pages() -> Iterator[tuple[str, str]]:
    """Give the studies' pages and records."""
    for page in sorted((REPOSITORY / "experiments").glob("**/R*.md")):
        text = page.read_text().replace(" ± ", "\u00a0±\u00a0")
        if page.name == "README.md" and page.with_name("RECORD.md").is_file():
            text += "\n```{toctree}\n:hidden:\n\nRECORD\n```\n"
        yield str(page.relative_to(REPOSITORY)), text
