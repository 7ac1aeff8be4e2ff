"""`make night` runs these tests. The Go programs are built in fixtures, whose time does not count as a test's."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for test in items:
        if HERE in test.path.parents:
            test.add_marker("long")
            test.add_marker(pytest.mark.timeout(TIMEOUT_S, func_only=True))
