"""The summary of a hunt: how many cases each test ran, and how many tests failed."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hunt.generated import CASES, TRIED

TRIED_BY_ALL: Counter[str] = Counter()
FAILED: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def count_cases(request: pytest.FixtureRequest) -> Iterator[None]:
    """Report how many cases a test tried, from any worker process."""
    before = len(TRIED)
    yield
    request.node.user_properties.append(("cases", len(TRIED) - before))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/hunt/" in report.nodeid:
        name = report.nodeid.split("::")[-1].split("[")[0]
        FAILED[name] += report.failed
        if report.when == "teardown":
            TRIED_BY_ALL[name] += dict(report.user_properties).get("cases", 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not CASES:
        return
    for name in sorted(name for name in TRIED_BY_ALL if TRIED_BY_ALL[name] or FAILED[name]):
        terminalreporter.write_line(f"{name}: {TRIED_BY_ALL[name]:,} cases, {FAILED[name]} failed")
    total = TRIED_BY_ALL.total()
    terminalreporter.write_line(f"hunt: {total:,} cases, {FAILED.total()} failed")
