#!/usr/bin/env python3
"""Write the fields of deploy/crds to neuron_dra/data, for `neuron-dra doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from neuron_dra.ask.doctor import crd_fields

ROOT = Path(__file__).resolve().parents[2]


def text() -> str:
    """Return the contents of the file."""
    found = {}
    for path in sorted((ROOT / "deploy/crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        found[crd["metadata"]["name"]] = list(crd_fields.fields(crd_fields.schemas(crd)["v1beta1"]))
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    (ROOT / "neuron_dra/data" / crd_fields.FILE).write_text(text())
