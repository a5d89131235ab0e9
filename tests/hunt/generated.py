"""The number of generated cases: a few fixed ones per test; in a hunt many, different each time."""

import functools
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("JDML_HUNT", "0"))
"""How many cases all tests of this folder try together; 0: the few of the ordinary tests."""

TRIED: list[str] = []
"""The name of the test for each case that this process has tried."""

SETTINGS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.reuse, Phase.generate, Phase.shrink),
}


def generated(
    *, few: int, share: float, **strategies: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test with generated arguments; a hunt also replays earlier failures.

    Args:
        few: number of cases in the ordinary tests.
        share: fraction of all cases of a hunt.
        **strategies: each argument's strategy.
    """
    if CASES:
        chosen = settings(max_examples=max(1, round(CASES * share)), print_blob=True, **SETTINGS)
    else:
        chosen = settings(max_examples=few, derandomize=True, **SETTINGS)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def counted(*args: Any, **named: Any) -> None:
            TRIED.append(test.__name__)
            test(*args, **named)

        return chosen(given(**strategies)(counted))

    return decorate
