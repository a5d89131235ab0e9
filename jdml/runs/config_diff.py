"""What two runs must agree in for one to go on with the other's checkpoints, and how it is told where they do not."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import jax

UNCOMPARED = ("started", "versions")
"""What a run's folder tells, and need not agree with to go on."""
GROWING = ("fit.steps", "recipe.batch.steps")
"""Numbers that may be larger when a run goes on."""
SCHEDULE = {"fingerprint.optimizer", "recipe.optimizer.lr_warmup_steps"}
"""What a schedule that ends at its steps makes another where these grow."""
LONGER = ". The steps grew: RunConfig(allow_more_steps=True) lets the run go on to more of them"
"""What is told where a run of more steps is another in nothing else, and may go on."""
SCHEDULED = (
    ". The steps grew, and a learning rate's schedule ends at its steps: a run with one cannot be made longer; begin "
    "another, or train longer from its parameters at a constant rate, in another folder"
)
"""What is told where a run of more steps has another optimizer."""
WITHOUT_IDS = (
    "has a cross-batch memory without the samples' ids, as it was before older copies of a sample were left out: it "
    "cannot go on; begin another run in another folder"
)
"""What is told of a checkpoint of that time."""


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Say which fields of two JSON trees differ, by their dotted names.

    Example:
        >>> differences({"lr": 0.1, "fit": {"steps": 10}}, {"lr": 0.1, "fit": {"steps": 20}})
        ['fit.steps: 10 there, 20 now']
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        same = old == new or (old != old and new != new)  # NaN is the setting that it is
        return [] if same else [f"{prefix}: {json.dumps(old)} there, {json.dumps(new)} now"]
    lines = []
    for name in sorted(old.keys() | new.keys()):
        path = f"{prefix}.{name}" if prefix else name
        if name not in old:
            lines.append(f"{path}: absent there, {json.dumps(new[name])} now")
        elif name not in new:
            lines.append(f"{path}: {json.dumps(old[name])} there, absent now")
        else:
            lines += differences(old[name], new[name], path)
    return lines


def compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two runs must agree in."""
    return {name: value for name, value in config.items() if name not in UNCOMPARED}


def grown(line: str, there: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a difference is a number that may be larger, and is."""
    name = line.partition(":")[0]
    if name not in GROWING:
        return False
    old, new = (_value_at(config, name) for config in (there, now))
    return isinstance(old, int) and isinstance(new, int) and old < new


def _value_at(config: Any, path: str) -> Any:
    """Return the value at a dotted path; None where there is none."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def told(line: str) -> str:
    """A difference, in words where it is one of fingerprints."""
    name = line.partition(":")[0]
    part = name.removeprefix("fingerprint.")
    return line if part == name else f"the {part} is another"


def hint(
    changed: list[str],
    differing: list[str],
    there: Mapping[str, Any],
    now: Mapping[str, Any],
    growing: bool | None,
    checkpoints: Iterable[Mapping[str, str]],
) -> str:
    """What is to be said where a memory had no ids, or the same run has more steps, another optimizer at most.

    Checkpoints are their arrays, by path, which are read where they are asked for.
    """
    others = {line.partition(":")[0] for line in changed}.difference(GROWING)
    if "fingerprint.objective" in others and any(map(_lacks_ids, checkpoints)):
        return f". Its checkpoint {WITHOUT_IDS}"
    if not any(grown(line, there, now) for line in differing):
        return ""
    if "fingerprint.optimizer" in others and others <= SCHEDULE:
        return SCHEDULED
    return "" if others or growing is None else LONGER


def told_apart(there: Mapping[str, str], now: Mapping[str, str], differing: list[str]) -> str:
    """Say why arrays are others: a setting of JAX that changes them, a memory of old, or another model."""
    if _lacks_ids(there) and not _lacks_ids(now):
        return WITHOUT_IDS
    keys = [
        (there.get(name, ""), now.get(name, ""))
        for name in now
        if name.endswith((".key", "['key']"))
    ]
    if there.keys() == now.keys():
        if any(old != new and old.startswith("uint32") for old, new in keys):
            lengths = {"uint32[2]": "threefry2x32", "uint32[4]": "rbg"}
            was, is_ = (lengths.get(kind, kind) for kind in keys[0])
            return (
                f"has random keys of another kind, {was} there, {is_} now: set "
                f'jax.config.update("jax_default_prng_impl", {was!r}) before the run goes on'
            )
        wide = ("float64", "int64", "uint64", "complex128")
        double = [any(kind.startswith(wide) for kind in kinds.values()) for kinds in (there, now)]
        # Where it is set already, what was double is so no more in this version.
        is_set = double[0] and jax.config.read("jax_enable_x64")
        if double[0] != double[1] and not is_set:
            return (
                f'has {"double" if double[0] else "single"} precision: set jax.config.update("jax_enable_x64", '
                f"{double[0]}) before the run goes on"
            )
    shown = "; ".join(differing[:3])
    more = len(differing) - 3
    return f"is of another model: {shown}{f'; and {more} more' if more > 0 else ''}"


def _lacks_ids(arrays: Mapping[str, str]) -> bool:
    """Whether among arrays, by their paths, there is a cross-batch memory that does not know its samples."""
    memories = (name.removesuffix("next_slot") for name in arrays if name.endswith(".next_slot"))
    return any(f"{memory}ids" not in arrays for memory in memories)
