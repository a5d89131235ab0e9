"""What the command line says of mistakes: one line, options as they are typed, the nearest name."""

import dataclasses
import errno
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jdml.registry.constraints import nearest
from jdml.registry.places import check_local

SYNONYMS = {
    other: option
    for option, others in {
        "augmentation": "augment",
        "batch": "batch-size",
        "data": "dataset name",
        "data-dir": "data-path dataset-dir root",
        "dim": "embedding-dim embedding-size",
        "image-size": "input-size",
        "loss-setting": "margin",
        "lr": "learning-rate",
        "miner": "mine mining",
        "model": "arch backbone network",
        "optimizer": "optim",
        "out": "out-dir output output-dir resume save-dir",
        "seed": "random-seed",
        "steps": "epochs iterations max-steps num-steps",
        "weight-decay": "wd",
        "weights": "pretrained",
        "workers": "num-workers",
    }.items()
    for other in others.split()
}
"""What other programs call our options."""
NAMED = {
    "data_dir": "--data-dir",
    "miner": "--miner",
    "folder": "--out",
    "out_dir": "--out",
    "source": "SOURCE",
    "split": "--split",
    "view": "--labels",
}
"""What functions call what is typed."""

TEXTS = ("coordinator", "set", "title")
"""Options that name no file."""


class UsageError(ValueError):
    """An option or a choice that does not exist."""


def check_words(options: Any, words: Sequence[str]) -> None:
    """Refuse options and choices that a command does not have.

    Args:
        options: the command's dataclass.
        words: what was typed after the command.

    Raises:
        UsageError: naming the option, the choices in the order of the alphabet, and the nearest.
    """
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(options)}
    hints = get_type_hints(options)
    short = {alias for hint in SHORT.values() for alias in hint}
    required = [f for f in fields.values() if f.default is f.default_factory is dataclasses.MISSING]
    named = {name: field for name, field in fields.items() if field not in required}
    for place, word in enumerate(words):
        if not word.startswith("--") or word in ("--", "--help"):
            continue
        typed, _, value = word[2:].partition("=")
        name = typed.replace("_", "-")
        name = name if name in fields else name.removeprefix("no-")
        if name in fields and name not in named:
            raise UsageError(f"{name.upper()} is written without --{typed}")
        if name not in named:
            other = SYNONYMS.get(name)
            hint = f"; did you mean --{other}?" if other in named else ""
            hint = hint or nearest(f"--{name}", [f"--{known}" for known in named])
            raise UsageError(f"there is no option --{typed}{hint or '; see --help'}")
        if "=" not in word and place + 1 < len(words):
            value = words[place + 1]
        if value == "" and ("=" in word or place + 1 < len(words)) and name not in TEXTS:
            raise UsageError(f"--{name} is empty")
        known = choices(hints[fields[name].name])
        if known and value and not value.startswith("--") and value not in short:
            check_choice(f"--{name}", value, known)
    for field, word in zip(required, words, strict=False):
        if word == "":
            raise UsageError(f"{field.name.upper()} is empty")
        if word.startswith("-"):
            break
        known = choices(hints[field.name])
        if "folder" in known and word not in known and Path(word).exists():
            raise UsageError(f"{field.name.upper()} is missing before {word}: write folder {word}")
        if known:
            check_choice(field.name.upper(), word, known)


def check_places(options: Any) -> None:
    """Refuse addresses where a command reads and writes files, before any work.

    Args:
        options: the command's dataclass, as it was read.

    Raises:
        ValueError: naming the option.
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        required = field.default is field.default_factory is dataclasses.MISSING
        name = field.name.upper() if required else f"--{field.name.replace('_', '-')}"
        for place in value if isinstance(value, tuple | list) else (value,):
            if field.name not in TEXTS:
                check_local(name, place)


def check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse what is no choice.

    Raises:
        UsageError: with all choices, sorted, and the nearest.
    """
    known = sorted(known)
    if value not in known:
        raise UsageError(
            f"{name} must be one of {', '.join(known)}, got {value!r}{nearest(value, known)}"
        )


SHORT: dict[str, tuple[str, ...]] = {"k": ("-k",)}
"""Options of one letter."""


def choices(hint: Any) -> tuple[str, ...]:
    """The words that a type allows; none where it allows any."""
    if get_origin(hint) is Literal:
        return tuple(choice for choice in get_args(hint) if isinstance(choice, str))
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        of_parts = [choices(part) for part in parts]
        return tuple(choice for part in of_parts for choice in part) if all(of_parts) else ()
    return ()


def told(error: BaseException) -> str:
    """An error as one line, with the names that a user typed."""
    if isinstance(error, OSError) and error.errno is not None:
        return _of_system(error)
    line = " ".join(str(error).split())
    first, space, rest = line.partition(" ")
    return f"{NAMED.get(first, first)}{space}{rest}"


def _of_system(error: OSError) -> str:
    """What the operating system refused."""
    file = error.filename2 or error.filename or ""
    reasons = {
        errno.ENOSPC: "no space left on the device",
        errno.EDQUOT: "no space left: the quota is used up",
        errno.EACCES: "no permission",
        errno.EPERM: "no permission",
        errno.EROFS: "the file system is read-only",
        errno.EEXIST: "it is a file, expected a folder",
        errno.ENOTDIR: "a part of the path is a file, expected a folder",
        errno.EISDIR: "it is a folder, expected a file",
        errno.ENOENT: "does not exist",
    }
    reason = reasons.get(error.errno or 0, error.strerror or type(error).__name__)
    return f"{file}: {reason}" if file else reason
