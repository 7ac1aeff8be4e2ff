"""An image for the examples that need PyTorch or MPI: Debian's packages on the base of the driver's image."""

from __future__ import annotations

import time
from pathlib import Path

from bed import images, plugin_image
from bed.layout import REPOSITORY, Layout, short_hash
from bed.state import exclusive

IMAGE = "testbed.local/job:1"
DOCKERFILE = REPOSITORY / "hack/testbed/Dockerfile.job"


def archive(layout: Layout) -> Path:
    """Return an archive of the image, built on first use."""
    base = plugin_image.base_archive(layout)
    path = layout.cache_dir / "images" / f"job-{short_hash(base.name, DOCKERFILE.read_bytes())}.tar"
    with exclusive(layout.cache_dir / "images.lock", "another image build"):
        if not path.exists():
            started = time.monotonic()
            print("testbed: building an image with PyTorch, Open MPI and an SSH server ...", flush=True)
            plugin_image.build_on_base(layout, base, DOCKERFILE, IMAGE, path)
            print(f"testbed: image built in {time.monotonic() - started:.0f} s", flush=True)
    images.forget_old(path, "job-*.tar")
    return path
