"""Flat settings of a test as the values that `fit` and `train` take."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
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


@contextlib.contextmanager
def logged(handler: logging.Handler) -> Iterator[None]:
    """Hand what training logs for people, from INFO on, to a handler."""
    log = logging.getLogger("jdml.training")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
