"""Compare the configurations of two runs: where they differ, one does not resume the other's checkpoints."""

import json
from collections.abc import Mapping
from typing import Any

UNCOMPARED = ("started", "versions")
"""What a run's folder records, and need not agree with to resume."""
GROWING = ("fit.steps", "recipe.batch.steps")
"""Numbers that may be larger when a run is resumed."""


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


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Say in what two runs differ, of what they must agree in."""
    one, other = (
        {name: value for name, value in config.items() if name not in UNCOMPARED}
        for config in (old, new)
    )
    return differences(one, other)


def is_extension(line: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether a difference is a number of steps that grew."""
    name = line.partition(":")[0]
    if name not in GROWING:
        return False
    before, after = (_value_at(config, name) for config in (old, new))
    return isinstance(before, int) and isinstance(after, int) and before < after


def explain_mismatch(
    changed: list[str], old: Mapping[str, Any], new: Mapping[str, Any], *, may_grow: bool
) -> str:
    """Say in what two runs differ, and what to write where the steps alone grew."""
    parts = [line.partition(":")[0].removeprefix("fingerprint.") for line in changed]
    shown = [
        f"the {part} is another" if line.startswith("fingerprint.") else line
        for part, line in zip(parts, changed, strict=True)
    ]
    only_steps = all(is_extension(line, old, new) for line in changed)
    hint = ". To train it for more steps: RunConfig(allow_more_steps=True)"
    return "; ".join(shown) + (hint if only_steps and may_grow else "")


def _value_at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
