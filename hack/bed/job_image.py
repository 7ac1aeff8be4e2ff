"""An image for the examples that need PyTorch or MPI: Debian's packages on the base of the driver's image."""

from __future__ import annotations

from pathlib import Path

from hack.bed import plugin_image
from hack.bed.layout import REPOSITORY, Layout, short_hash

IMAGE = "testbed.local/job:1"
DOCKERFILE = REPOSITORY / "hack/testbed/Dockerfile.job"


def archive(layout: Layout) -> Path:
    """Return an archive of the image, built on first use."""
    key = short_hash(plugin_image.base_path(layout).name, DOCKERFILE.read_bytes())
    path = layout.cache_dir / "images" / f"job-{key}.tar"
    return plugin_image.on_base(layout, path, "an image with PyTorch, Open MPI and an SSH server", DOCKERFILE, IMAGE)
