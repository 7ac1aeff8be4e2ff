"""Skips of tests that need the test bed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def impossible(reason: str) -> NoReturn:
    """Skip the test with the reason, or fail it where skips are not allowed."""
    if os.environ.get("NEURON_DRA_REQUIRE_TESTBED"):
        pytest.fail(f"{reason}, and NEURON_DRA_REQUIRE_TESTBED does not allow skips", pytrace=False)
    pytest.skip(reason)
