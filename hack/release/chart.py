"""The chart of a release: the archive that `helm package` makes, but the same bytes each time, and its OCI artifact.

Source of the media types: https://helm.sh/docs/topics/registries/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from hack.bed import oci
from hack.release.base import ReleaseError
from hack.release.image import compressed, names

NAME = "neuron-dra"
CONFIG = "application/vnd.cncf.helm.config.v1+json"
CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def with_version(text: str, version: str) -> str:
    """Return Chart.yaml with both versions replaced."""
    for name, value in (("version", version), ("appVersion", f'"{version}"')):
        text, count = re.subn(rf"^{name}: .*$", f"{name}: {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise ReleaseError(f"Chart.yaml has {count} lines {name}:, one is needed")
    return text


def chart(folder: Path, version: str, epoch: int) -> tuple[bytes, dict[str, Any]]:
    """Return the chart's archive and what its Chart.yaml says."""
    metadata = with_version((folder / "Chart.yaml").read_text(), version)
    archive = oci.Layer(mtime=epoch)
    archive.file(f"{NAME}/Chart.yaml", metadata.encode())
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise ReleaseError(f"{path} is a symbolic link, which Argo CD rejects in charts")
        if path.is_file() and path != folder / "Chart.yaml":
            archive.file(f"{NAME}/{path.relative_to(folder)}", path.read_bytes())
    return compressed(archive.close()), yaml.safe_load(metadata)


def artifact(content: bytes, metadata: dict[str, Any], annotations: dict[str, str]) -> oci.Layout:
    """Return an image layout with the chart as Helm pushes it: its metadata are the configuration."""
    layout = oci.Layout()
    config = layout.blob(oci.encode(metadata), CONFIG)
    manifest = layout.document(
        {
            "mediaType": oci.MANIFEST,
            "config": config,
            "layers": [layout.blob(content, CONTENT)],
            "annotations": annotations,
        }
    )
    layout.entries = [{**manifest, "annotations": names(f"{NAME}:{metadata['version']}")}]
    return layout
