"""The last lines of a hunt: how many cases of which property ran, and of how many tests one failed."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hunt.counting import CASES, RAN

CASES_RUN: Counter[str] = Counter()
FAILED: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def count_cases(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the report of a test say how many cases it tried, whichever process tried them."""
    before = len(RAN)
    yield
    request.node.user_properties.append(("cases", len(RAN) - before))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/hunt/" in report.nodeid:
        name = report.nodeid.split("::")[1].split("[")[0]
        FAILED[name] += report.failed
        if report.when == "teardown":
            CASES_RUN[name] += dict(report.user_properties).get("cases", 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not CASES:
        return
    for name in sorted(name for name in CASES_RUN if CASES_RUN[name] or FAILED[name]):
        terminalreporter.write_line(f"{name}: {CASES_RUN[name]:,} cases, {FAILED[name]} failed")
    total = CASES_RUN.total()
    terminalreporter.write_line(f"hunt: {total:,} cases, {FAILED.total()} failed")
