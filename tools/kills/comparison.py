"""Compare runs, files and printed text."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path


def digests(run: Path) -> dict[str, str]:
    """Return digests, by name, of all that must be the same in a run's folder, or of one file."""
    if run.is_file():
        return {run.name: digest(run.read_bytes())}
    held: dict[str, str] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run)
        # How often two processes decoded is told by each life of theirs.
        untold = path.name == "resources.json" or path.name.startswith("decoded")
        if path.is_dir() or "checkpoints" in name.parts or untold:
            continue
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            lines = [json.loads(line) for line in content.decode().splitlines()]
            for line in lines:
                for varying in ("seconds", "input_wait"):
                    line.pop(varying, None)
            content = json.dumps(lines).encode()
        if path.name == "config.json":
            config = json.loads(content)
            config.pop("started", None)
            content = json.dumps(config).encode()
        held[str(name)] = digest(content)
    for folder in sorted(run.rglob("checkpoints")):
        entries = sorted(folder.glob("*"))
        held[str(folder.relative_to(run))] = " ".join(path.name for path in entries)
        for checkpoint in entries:
            name = checkpoint.relative_to(run)
            held |= {f"{name} {array}": of for array, of in of_checkpoint(checkpoint).items()}
    return held


def of_checkpoint(path: Path) -> dict[str, str]:
    """The arrays of a checkpoint, and its progress."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        there = ocp.PyTreeCheckpointHandler().metadata(path / "state").tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), there)
        tree = checkpointer.restore(path / "state", restore_args=as_numpy)
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    progress = json.loads((path / "progress" / "metadata").read_text())
    for record in progress["history"]:
        record.pop("input_wait", None)
    parts_of_run = {"progress": digest(json.dumps(progress, sort_keys=True).encode())}
    for place, leaf in leaves:
        array = np.asarray(leaf)
        content = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        parts_of_run[jax.tree_util.keystr(place)] = digest(content)
    return parts_of_run


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def differing(name: str, whole: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """List the differences from the run that was not killed."""
    names = sorted(whole.keys() | there.keys())
    return [f"{name}{n}" for n in names if whole.get(n) != there.get(n)]


def files(folder: Path) -> dict[str, str]:
    """The files of a folder; a page is the same whatever minute it was written in."""
    return {
        path.name: digest(re.sub(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC", b"", path.read_bytes()))
        for path in sorted(folder.iterdir())
    }


def last(printed: Path) -> str:
    lines = printed.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-2:])


def sentence(printed: Path, typed: bool = True) -> list[str]:
    """List the faults of how a run ended that could not write: a command must print one line that says so."""
    text = printed.read_text(errors="replace")
    if typed and "Traceback" in text:
        return [f"a traceback: {last(printed)}"]
    reasons = ("no space left", "no permission", "File too large", "[Errno ", "too large")
    said = last(printed).lower()
    return [] if any(reason.lower() in said for reason in reasons) else [f"not told: {said}"]
