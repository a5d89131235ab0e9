"""The commands, one record each."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jdml.registry import resolve


@dataclass(frozen=True)
class Command:
    """A command of ``jdml``."""

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
        """Return its options as they are typed; unreadable words end the process."""
        from jdml.cli.options import read

        return read(self.kind, words, f"jdml {self.name}")


COMMANDS: dict[str, Command] = {
    name: Command(name, **values)
    for name, values in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
"""Every command by its name, in the order of the help."""

HELP = """usage: jdml {group}COMMAND [OPTIONS]

{summary}commands:
{commands}

examples:
{examples}

`jdml {group}COMMAND --help` explains the options of a command{more}."""
SUMMARY = (
    "Deep metric learning: train embeddings, use them, measure them, look at them, see a demo.\n\n"
)
MORE = """, `jdml --version` prints the version.

Compiled programs are cached, at most 1 GiB, in `jdml` of the user's cache folder: set JDML_CACHE to another folder or
to `off`"""


def overview(group: str = "") -> str:
    """Return the help of ``jdml``, or of the commands that begin with a word; empty if none does."""
    start = f"{group} " if group else ""
    commands = {name: command for name, command in COMMANDS.items() if name.startswith(start)}
    if not commands:
        return ""
    width = max(map(len, commands))
    return HELP.format(
        group=start,
        summary="" if group else SUMMARY,
        commands="\n".join(f"  {n:{width}}  {command.help}" for n, command in commands.items()),
        examples="\n".join(f"  {command.example}" for command in commands.values()),
        more="" if group else MORE,
    )
