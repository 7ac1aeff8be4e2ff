"""Debian packages: missing ones are installed, and the output names them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hack.bed.errors import NotPossibleHereError

# Debian package -> a file or command that shows it is there.
FOR_CONTROL_PLANE = {"openssl": "openssl"}
FOR_NODES = {
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "busybox-static": "busybox",
    "bash-static": "bash-static",
    "iproute2": "ip",
    "util-linux": "nsenter",
    "mount": "mount",
}
FOR_BUILDING_RUNC = {"gcc": "gcc", "libc6-dev": "/usr/include/stdio.h", "pkg-config": "pkg-config",
                     "libseccomp-dev": "/usr/include/seccomp.h"}  # fmt: skip
FOR_PLUGIN_IMAGE = {"buildah": "buildah", "debootstrap": "debootstrap",
                    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg"}  # fmt: skip

WAIT_FOR_OTHERS = "--option=DPkg::Lock::Timeout=600"  # seconds; otherwise apt-get fails while another one installs


def missing(packages: dict[str, str]) -> list[str]:
    """Return the packages whose file or command is missing."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [
        name
        for name, proof in packages.items()
        if not (Path(proof).exists() if proof.startswith("/") else shutil.which(proof, path=path))
    ]


def require(packages: dict[str, str], purpose: str) -> None:
    """Install the missing packages.

    Raises:
        NotPossibleHereError: packages are missing and cannot be installed, for example without root.
    """
    names = missing(packages)
    if not names:
        return
    text = " ".join(names)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotPossibleHereError(f"{purpose}: missing Debian packages {text}; install them first")
    print(f"testbed: installing Debian packages for {purpose}: {text}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", WAIT_FOR_OTHERS, "install", "-y", "--no-install-recommends", *names]
    for command in (["apt-get", "update"], install):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode != 0:
            raise NotPossibleHereError(f"`{' '.join(command)}` failed:\n{(done.stderr or done.stdout)[-2000:]}")
