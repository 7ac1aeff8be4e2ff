"""The alerts of the chart, as Prometheus shows them to an operator.

`make manifests` writes the file from the chart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "alerts.json"


class Alert(msgspec.Struct, frozen=True):
    """An alert. In its texts the names of labels, in capitals, stand for their values."""

    name: str
    severity: str
    after: str  # how long the condition holds before the alert fires, as in the rule
    summary: str
    description: str
    runbook: str  # the heading in docs/runbooks.md, as a link has it


def all_alerts() -> list[Alert]:
    """Return the alerts in the order of the chart."""
    path = Path(__file__).parents[2] / "data" / FILE
    return msgspec.json.decode(path.read_bytes(), type=list[Alert])
