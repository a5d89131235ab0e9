"""Flat settings of a test as the values that `fit` and `train` take."""

import dataclasses
from typing import Any

from jdml.training import Devices, Evaluation, RunConfig

KINDS = {"run": RunConfig, "evaluation": Evaluation, "devices": Devices}


def as_values(settings: dict[str, Any]) -> dict[str, Any]:
    """Gather the fields of `RunConfig`, `Evaluation` and `Devices` among settings into these."""
    settings = dict(settings)
    for name, kind in KINDS.items():
        fields = [field.name for field in dataclasses.fields(kind) if field.name in settings]
        own = {field: settings.pop(field) for field in fields}
        if own:
            settings.setdefault(name, kind(**own))
    return settings
