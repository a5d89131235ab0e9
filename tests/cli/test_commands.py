"""Every command: its help, and the help's example run from end to end on photographs.

The printed text is on file in ``snapshots``; ``pytest tests/cli --snapshot-update`` rewrites it.
"""

import dataclasses
import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli.photos import draw_photos

import jdml
from jdml import training
from jdml.cli.commands import COMMANDS, Command
from jdml.distributed import PeerExitedError

REPOSITORY = Path(__file__).parents[2]

# Help


@pytest.mark.parametrize("words", ["", "data", "weights", *COMMANDS], ids=lambda w: w or "jdml")
def test_help(words, jdml_command, printed):
    done = jdml_command(*words.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert lines(done.out) == printed
    for name, command in COMMANDS.items():
        if name.startswith(words):
            assert command.example in done.out
            assert command.example.startswith(f"jdml {name} ")
            command.read(shlex.split(command.example)[1 + len(name.split()) :])


@pytest.mark.parametrize("words", ["data", "help data", "data -h", "help data check"])
def test_help_can_be_requested_in_several_ways(words, jdml_command):
    asked = jdml_command(*words.removeprefix("help ").removesuffix("-h").split(), "--help")
    assert vars(jdml_command(*words.split())) == vars(asked)


@pytest.mark.parametrize("words", ["--help", "data check --help", "data --help", "paint"])
def test_closed_pipe_exits_141(words):
    """In `jdml --help | head -1` the reader may exit before anything is written."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "jdml", *words.split()],
            stdout=closed, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    wrong = words == "paint"
    assert ended.returncode == (2 if wrong else 141)
    assert ended.stderr.count("\n") == wrong


def test_version(jdml_command):
    """Also for the module, and with a closed output, as in `jdml --version >&-`."""
    done = jdml_command("--version")
    assert (done.code, done.out) == (0, f"jdml {jdml.__version__}\n")
    for ending, expected in (("", done.out), (" >&-", "")):
        command = f"{shlex.quote(sys.executable)} -m jdml --version{ending}"
        ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, expected, "")


# Errors, raised by a command that is registered here

ERRORS = {
    "permission": (PermissionError(errno.EACCES, "x", "/runs"), 2, "/runs: Permission denied"),
    "an argument": (ValueError("data_dir must be\n  a folder"), 2, "--data-dir must be a folder$"),
    "numbers": (FloatingPointError("the loss is nan at step 3"), 2, "step 3"),
    "memory": (MemoryError(), 2, "out of memory"),
    "memory of a device": (RuntimeError("RESOURCE_EXHAUSTED: 9 GiB"), 2, "--batch-size"),
    "a worker": (PeerExitedError("a worker was ended"), 2, "a worker was ended"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "--out"),
}


@dataclasses.dataclass(frozen=True)
class Failing:
    """Fail.

    Attributes:
        how: one of ``ERRORS``.
    """

    how: str

    def execute(self) -> None:
        raise ERRORS[self.how][0]


@pytest.mark.parametrize("how", ERRORS)
def test_errors_print_one_line_and_set_the_exit_code(how, jdml_command, monkeypatch):
    record = Command("fail", f"{__name__}:Failing", "fail", "jdml fail", computes=False)
    monkeypatch.setitem(COMMANDS, "fail", record)  # registered, as a command of the library is
    _, code, line = ERRORS[how]
    done = jdml_command("fail", how)
    assert (done.code, done.err.count("\n")) == (code, 1)
    assert re.match(f"jdml fail: error: .*{line}", done.err), done.err


# The examples, run in a folder with `photos`, in any order

SMALL = {
    "demo": "--steps 3 --seeds 1",
    "train": "--image-size 16 --dim 4 --classes-per-batch 3 --samples-per-class 4 --steps 4 --workers 1 --quiet",
    "embed": "--quiet",
    "search": "--quiet",
    "sweep": "--steps 2 --dim 4 --quiet",
    "benchmark": "--image-size 16 --dim 4 --steps 1 --workers 1 --quiet",
    "data check": "--quiet",
    "data get": "--data-dir sets",
}
"""Options that make an example small and change nothing else."""


@pytest.fixture(scope="module")
def place(tmp_path_factory, jdml_command) -> SimpleNamespace:
    """Make a folder with photographs, a run on them, their embeddings, a query, a prepared data set."""
    folder = tmp_path_factory.mktemp("examples")
    draw_photos(folder / "photos")
    shutil.copy(folder / "photos" / "kind0" / "1.png", folder / "query.jpg")
    prepared = folder / "sets" / "mnist" / "3.0.1"
    prepared.mkdir(parents=True)
    (prepared / "dataset_info.json").write_text('{"fileFormat": "array_record"}')
    (prepared / "mnist-train.array_record-00000-of-00001").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        printed = {name: jdml_command(*example(name)) for name in ("train", "embed")}
    return SimpleNamespace(folder=folder, printed=printed)


def example(command: str) -> list[str]:
    """Return the words of a command's example, with smaller settings."""
    return shlex.split(f"{COMMANDS[command].example} {SMALL.get(command, '')}")[1:]


def without_numbers(text: str) -> str:
    """Return the text with zeros for scores, times, sizes and found files, which differ by machine."""
    text = re.sub(r"[\d.]+ [KMG]i?B\b", "0 MB", text)
    text = re.sub(r"[-+]?\d+\.\d+", "0.0", text)
    return lines(re.sub(r"kind\d(/\d)?", "kind0", text))


def lines(text: str) -> str:
    """Return the text without white space at the end of its lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.usefixtures("small_backbone")
@pytest.mark.parametrize(
    "command",
    [
        # The first train four methods, or several runs.
        pytest.param(n, marks=[pytest.mark.slow] * (n in ("demo", "sweep", "benchmark")))
        for n in COMMANDS
        if n != "weights convert"  # tests/models converts weights with the command
    ],
)
def test_example(command, place, jdml_command, monkeypatch, tmp_path, printed):
    monkeypatch.chdir(shutil.copytree(place.folder, tmp_path / "examples"))
    words = example(command)
    done = place.printed.get(command) or jdml_command(*words)
    assert done.code == 0, done.err
    assert (done.err == "") == (command != "demo")  # demo has a progress bar
    assert without_numbers(done.out.replace(f"{place.folder}/", "")) == printed
    if "--out" in words:
        out = Path(words[words.index("--out") + 1])
        assert out.exists()
        if command in ("train", "benchmark"):
            assert training.load(out).embed(Path("photos/kind0")).shape == (6, 4)
