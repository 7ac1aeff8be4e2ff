#!/usr/bin/env python3
"""Write the names and texts of the chart's alerts to neuron_dra/data, for `neuron-dra explain`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from neuron_dra.ask.explain import alerts

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/helm/neuron-dra/files/alerts"


def rules() -> Iterator[dict[str, Any]]:
    """Yield the rules of alerts in the order of the chart's files."""
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from (rule for rule in group["rules"] if "alert" in rule)


def text() -> str:
    """Return the contents of the file."""
    return json.dumps([_row(rule) for rule in rules()], indent=1) + "\n"


def _row(rule: dict[str, Any]) -> dict[str, str]:
    annotations = rule["annotations"]
    return {
        "name": rule["alert"],
        "severity": rule["labels"]["severity"],
        "after": rule["for"],
        "summary": _without_templates(annotations["summary"]),
        "description": _without_templates(annotations["description"]),
        "runbook": annotations["runbook_url"].partition("#")[2],
    }


def _without_templates(template: str) -> str:
    """Return an annotation in which the names of labels stand for their values: `NODE` for `{{ $labels.node }}`."""
    named = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: label[1].upper(), template)
    return re.sub(r"\{\{[^}]*\$value[^}]*\}\}", "N", named)


if __name__ == "__main__":
    (ROOT / "neuron_dra/data" / alerts.FILE).write_text(text())
