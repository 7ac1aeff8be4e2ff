"""The network namespace that everything lives in: no port is taken outside, and nothing inside reaches out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from bed.errors import BedError
from bed.layout import Layout

API_SERVER_ADDRESS = "10.96.0.1"
SERVICE_RANGE = "10.96.0.0/16"


def node_address(index: int) -> str:
    """Return the address of node number `index` (from 1)."""
    return f"10.89.0.{index}"


def pod_subnet(index: int) -> str:
    return f"10.88.{index}.0/24"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise BedError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def exists(layout: Layout) -> bool:
    return layout.is_root and layout.netns_file.exists()


def enter(layout: Layout) -> Sequence[str]:
    """Return the words before a command that run it inside.

    `ip netns exec` would not do: it mounts /sys afresh, and the kubelet then finds no cgroups.
    """
    return ("nsenter", f"--net={layout.netns_file}", "--") if layout.is_root else ()


def answers(layout: Layout, url: str) -> bool:
    """Say whether `url`, inside the namespace, answers with success."""
    ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"
    command = [*enter(layout), sys.executable, "-I", "-c", ask, url]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except subprocess.TimeoutExpired:  # a machine that is so busy may answer the next time
        return False


def up(layout: Layout) -> None:
    """Make the namespace and the API server's address. Addresses are on `lo`: not every kernel has `dummy`."""
    if not exists(layout):
        _run("ip", "netns", "add", layout.name)
    _run("ip", "-n", layout.name, "link", "set", "lo", "up")
    add_address(layout, API_SERVER_ADDRESS)
    _run(*enter(layout), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")


def add_address(layout: Layout, address: str) -> None:
    if f" {address}/32 " not in _run("ip", "-n", layout.name, "-4", "addr", "show", "dev", "lo"):
        _run("ip", "-n", layout.name, "addr", "add", f"{address}/32", "dev", "lo")


def down(layout: Layout) -> None:
    if exists(layout):
        _run("ip", "netns", "del", layout.name)
