"""The chart's notes, which `helm template` leaves out, by way of a ConfigMap in a copy of the chart."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hack.generate import render
from tests.support import fast_yaml
from tests.support.built_tools import HELM

_OBJECT = 'kind: ConfigMap\napiVersion: v1\nmetadata: {name: notes}\ndata: {text: {{ include "notes" . | toJson }}}\n'


def notes(folder: Path, *arguments: str) -> str:
    """Return the notes with these arguments of helm; `folder` is empty."""
    assert HELM is not None
    chart = folder / "chart"
    shutil.copytree(render.CHART, chart)
    text = (chart / "templates/NOTES.txt").read_text()
    (chart / "templates/_notes.tpl").write_text(f'{{{{ define "notes" }}}}{text}{{{{ end }}}}')
    (chart / "templates/notes.yaml").write_text(_OBJECT)
    command = [HELM, "template", "x", str(chart), "--show-only", "templates/notes.yaml"]
    values = ["--set", "draDriver.image.repository=r", *arguments]
    made = subprocess.run([*command, *values], check=True, capture_output=True, text=True)
    return str(fast_yaml.load(made.stdout)["data"]["text"])
