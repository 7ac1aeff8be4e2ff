"""The mount namespace of a node's containerd and kubelet, in which this machine looks like a Neuron host.

This runs as a separate program, already inside the new namespaces: it makes the mounts, reports, and becomes `sleep`.
The namespace exists as long as that process; when its last process ends, all its mounts are gone. Files that faults
change later are in a bind-mounted folder or a tmpfs, because the layers of an overlay must not change while mounted.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

# Host paths that every node has for itself -> the directory below the node's own that is bound there.
OWN_DIRECTORIES = {
    "/var/lib/kubelet": "kubelet",
    "/var/lib/containerd": "containerd",
    "/var/lib/cni": "cni-state",
    "/var/log": "log",
}
# sysfs directories that show the simulated hardware besides the real one -> the overlay's upper layer.
OVERLAYS = {
    "/sys/class": "class",
    "/sys/devices": "devices",  # before its part: a mount covers what was mounted below it
    "/sys/devices/virtual": "devices-virtual",
    "/sys/module": "module",
    "/sys/bus": "bus",
}
OF_THE_DRIVER = ("neuron_device", "neuron")
"""Folders in these with the files of the kernel driver: its class and devices, and its module."""
OF_EFA = "pci/drivers/efa"
"""The folder of the kernel module efa in /sys/bus; the folders of its devices are below /sys/devices."""

BOOT_ID = "proc/sys/kernel/random/boot_id"
READY = "namespace-ready"


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, timeout=30)


def _own_dev(node: Path) -> None:
    """Mount a separate /dev for the node: a tmpfs with the same devices, in which Neuron devices come and go."""
    staging = node / "dev"
    staging.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=0755,nosuid", "dev", staging)
    _copy_devices(Path("/dev"), staging, os.stat("/dev").st_dev)
    for name in ("pts", "shm", "mqueue"):
        if (Path("/dev") / name).is_dir():
            (staging / name).mkdir(exist_ok=True)
            _mount("--rbind", Path("/dev") / name, staging / name)
    _mount("--rbind", staging, "/dev")


def _copy_devices(source: Path, target: Path, filesystem: int) -> None:
    """Recreate the device nodes, links and folders of `source` in `target`, except other file systems."""
    for entry in os.scandir(source):
        made = target / entry.name
        info = entry.stat(follow_symlinks=False)
        if entry.name.startswith("neuron") or info.st_dev != filesystem:
            continue
        if entry.is_symlink():
            made.symlink_to(os.readlink(entry.path))
        elif entry.is_dir():
            made.mkdir()
            _copy_devices(Path(entry.path), made, filesystem)
        elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
            os.mknod(made, info.st_mode, info.st_rdev)
        else:
            continue
        if not entry.is_symlink():
            os.chown(made, info.st_uid, info.st_gid)
            os.chmod(made, stat.S_IMODE(info.st_mode))


def sync_devices(hardware: Path, dev: Path) -> None:
    """Make the device nodes in `dev` of Neuron devices and EFA interfaces exactly those of the simulated hardware."""
    _sync(hardware / "dev", dev, "neuron*")
    if (hardware / "dev/infiniband").is_dir():
        (dev / "infiniband").mkdir(exist_ok=True)
        _sync(hardware / "dev/infiniband", dev / "infiniband", "*")


def _sync(source: Path, target: Path, pattern: str) -> None:
    numbers = {path.name: path.stat().st_rdev for path in source.glob(pattern)}
    for path in target.glob(pattern):
        if path.name not in numbers:
            path.unlink()
    for name, number in numbers.items():
        if not (target / name).exists():
            os.mknod(target / name, stat.S_IFCHR | 0o666, number)
            os.chmod(target / name, 0o666)


def memory(directory: Path) -> None:
    """Mount a tmpfs on `directory`: writing ten thousand files of a node's images takes a disk seconds."""
    _mount("-t", "tmpfs", "-o", "mode=0755", "testbed", directory)


def _own_run(node: Path) -> None:
    """Mount an empty /run for the node, as after a boot; its sockets and CDI files end with the node."""
    staging = node / "run"
    staging.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=0755", "run", staging)
    for name in ("lock", "netns", "cdi"):
        (staging / name).mkdir()
    _mount("--rbind", staging, "/run")


def _hardware(node: Path, hardware: Path) -> None:
    """Show the simulated devices in sysfs, the product name in DMI and the boot id in /proc."""
    layers = node / "layers"
    for target, name in OVERLAYS.items():
        source = hardware / ("sys/" + target.removeprefix("/sys/"))
        layer = layers / name
        shutil.rmtree(layer, ignore_errors=True)
        layer.mkdir(parents=True)
        bound = _changing(target, source)
        for entry in source.iterdir() if source.is_dir() else ():
            if entry.name in bound:
                (layer / entry.name).mkdir()
            elif entry.is_dir() and str(Path(target) / entry.name) not in OVERLAYS:
                shutil.copytree(entry, layer / entry.name, symlinks=True)
        _mount("-t", "overlay", "-o", f"lowerdir={layer}:{target}", "overlay", target)
        for folder in bound:
            _mount("--bind", "-o", "ro", source / folder, Path(target) / folder)
    _mount("--bind", hardware / BOOT_ID, f"/{BOOT_ID}")
    sync_devices(hardware, Path("/dev"))


def _changing(target: str, source: Path) -> list[str]:
    """Return the folders of `source` that are bound into an overlay, because kernel modules change what they show."""
    if target == "/sys/devices":
        return sorted(path.name for path in source.glob("pci*"))
    return [folder for folder in (*OF_THE_DRIVER, OF_EFA) if (source / folder).is_dir()]


def _whole(node: Path) -> None:
    """Mount proc and sysfs once more, with nothing over them.

    The kernel lets a user namespace mount only what is fully visible somewhere: without this, no pod with
    `hostUsers: false` starts.
    """
    for kind in ("proc", "sysfs"):
        place = node / f"whole-{kind}"
        place.mkdir(exist_ok=True)
        _mount("-t", kind, kind, place)


def main(node: Path, hardware: Path) -> None:
    """Make all mounts of `node`, write the file `READY`, and become `sleep`."""
    (node / READY).unlink(missing_ok=True)
    for target, name in OWN_DIRECTORIES.items():
        (node / name).mkdir(exist_ok=True)
        _mount("--bind", node / name, target)
    _own_dev(node)
    _own_run(node)
    # systemd shares all mounts of a host; the driver's pod sees later mounts in these directories (HostToContainer).
    for directory in ("/var/lib/kubelet", "/run"):
        _mount("--make-rshared", directory)
    _hardware(node, hardware)
    _whole(node)
    (node / READY).write_text(f"{os.getpid()}\n")
    os.execvp("sleep", ["sleep", "infinity"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
