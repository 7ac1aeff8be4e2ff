"""A base image for trials of `make release` where no registry can be reached: Debian's packages, as an OCI archive.

The amd64 image is the test bed's: debootstrap has set up its packages. Those of the arm64 image are only unpacked, because
their scripts cannot run here: users, certificates and links that the scripts make are missing. Do not publish it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from hack.bed import oci, plugin_image
from hack.bed.layout import from_environment
from hack.release.image import compressed


def unpacked(architecture: str, scratch: Path) -> bytes:
    """Return a tar archive with the files of the base's packages for another machine type."""
    fetched, root = scratch / "fetched", scratch / "root"
    command: list[str | Path] = ["debootstrap", "--download-only", f"--arch={architecture}", "--variant=minbase",
               f"--include={plugin_image.BASE_INCLUDES}", plugin_image.SUITE, fetched, plugin_image.mirror()]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    status = []
    for name in ("bin", "sbin", "lib"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in sorted((fetched / "var/cache/apt/archives").glob("*.deb")):
        files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", root], input=files, check=True)
        fields = ["Package", "Version", "Architecture"]
        found = subprocess.run(["dpkg-deb", "--field", package, *fields], capture_output=True, text=True, check=True)
        status.append(found.stdout + "\n")
    (root / "var/lib/dpkg").mkdir(parents=True, exist_ok=True)
    (root / "var/lib/dpkg/status").write_text("".join(status))
    archive = scratch / "root.tar"
    waste = [f"--exclude=./{name}" for name in (*plugin_image.BASE_WASTE, "dev/*")]
    subprocess.run(["tar", "--numeric-owner", *waste, "-C", root, "-cf", archive, "."], check=True)
    return archive.read_bytes()


def main(path: Path) -> None:
    """Write the archive."""
    layout = oci.Layout()
    with tempfile.TemporaryDirectory(prefix="neuron-dra-base-") as scratch:
        tars = {
            "amd64": plugin_image.base_archive(from_environment()).read_bytes(),
            "arm64": unpacked("arm64", Path(scratch)),
        }
    images = []
    for architecture, tar in tars.items():
        platform = {"architecture": architecture, "os": "linux"}
        settings = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
        config = {**platform, "config": settings, "rootfs": {"type": "layers", "diff_ids": [oci.digest(tar)]}}
        layer = layout.blob(compressed(tar), oci.LAYER_GZIP)
        images.append({**layout.image(config, [layer]), "platform": platform})
    layout.entries = [layout.document({"mediaType": oci.INDEX, "manifests": images})]
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(layout.archive())
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
