"""How many cases a test tries: in the ordinary tests a few, the same each time; in a hunt its part of all."""

import functools
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("JDML_HUNT", "0"))
"""How many cases all tests of this folder try together; 0 for the share of the ordinary tests."""

RAN: list[str] = []
"""The tests of the cases that ran, in this process."""

SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=not CASES,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def counted(test: Callable[..., None]) -> Callable[..., None]:
    """Note each case that a test tries."""

    @functools.wraps(test)
    def noted(*args: Any, **named: Any) -> None:
        RAN.append(test.__name__)
        test(*args, **named)

    return noted


def hunted(
    case: st.SearchStrategy[Any], *, share: int, part: float
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test that takes a generated ``case``.

    Args:
        case: how it is generated.
        share: how many cases the ordinary tests try.
        part: of all cases of a hunt.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        number = max(1, round(CASES * part)) if CASES else share
        return settings(SETTINGS, max_examples=number)(given(case=case)(counted(test)))

    return decorate
