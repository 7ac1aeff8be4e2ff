"""The network namespace of the test bed: it uses no port of the host, and nothing inside reaches outside."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from hack.bed.errors import BedError
from hack.bed.layout import Layout

CLONE_NEWNET = 0x40000000
ANSWER_TIMEOUT_S = 2.0
TOO_MANY_REQUESTS_TRIES, TOO_MANY_REQUESTS_PAUSE_S = 10, 1.0
API_SERVER_ADDRESS = "10.96.0.1"
SERVICE_RANGE = "10.96.0.0/16"
DNS_ADDRESS, DNS_DOMAIN = "10.96.0.10", "cluster.local"
"""In the resolv.conf of every pod; nothing is there unless `up --with dns` started it."""


def node_address(index: int) -> str:
    """Return the address of node number `index` (from 1)."""
    return f"10.89.0.{index}"


def pod_subnet(index: int) -> str:
    return f"10.88.{index}.0/24"


def node_address_ipv6(index: int) -> str:
    """Return the IPv6 address of node number `index`, if it has one."""
    return f"fd00:89::{index:x}"


def pod_subnet_ipv6(index: int) -> str:
    return f"fd00:88:0:{index:x}::/64"


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise BedError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def exists(layout: Layout) -> bool:
    return layout.is_root and layout.netns_file.exists()


def enter(layout: Layout) -> Sequence[str]:
    """Return the command prefix that runs a command inside the namespace.

    `ip netns exec` does not work: it mounts a new /sys, in which the kubelet finds no cgroups.
    """
    return ("nsenter", f"--net={layout.netns_file}", "--") if layout.is_root else ()


@contextlib.contextmanager
def inside(layout: Layout) -> Iterator[None]:
    """Move this thread, and the threads that it starts, into the namespace; their sockets stay there."""
    if not layout.is_root:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before, layout.netns_file.open() as there:
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(before.fileno(), CLONE_NEWNET)


def get(
    layout: Layout, url: str, headers: Mapping[str, str] | None = None, ca: Path | None = None, timeout_s: float = 20
) -> tuple[int, bytes]:
    """Send a request to a server inside the namespace; return the status and the body of its response.

    To start a program such as kubectl instead takes a tenth of a second of a core. As kubectl does, this sends a request
    again that was answered 429: an API server does so while it starts the storage of a new CustomResourceDefinition.

    Raises:
        OSError: it cannot be reached, or does not answer in time.
        http.client.HTTPException: its response is not HTTP.
    """
    for _ in range(TOO_MANY_REQUESTS_TRIES - 1):
        status, body = _get_once(layout, url, headers, ca, timeout_s)
        if status != http.client.TOO_MANY_REQUESTS:
            return status, body
        time.sleep(TOO_MANY_REQUESTS_PAUSE_S)
    return _get_once(layout, url, headers, ca, timeout_s)


def _get_once(
    layout: Layout, url: str, headers: Mapping[str, str] | None, ca: Path | None, timeout_s: float
) -> tuple[int, bytes]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    if ca is not None:
        trust = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=trust)
    with contextlib.closing(connection):
        with inside(layout):
            connection.connect()
        connection.request("GET", parts._replace(scheme="", netloc="").geturl(), headers=dict(headers or {}))
        with connection.getresponse() as answer:
            return answer.status, answer.read()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, outside the namespace."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answers(layout: Layout, url: str) -> bool:
    """Return True if `url`, inside the namespace, responds with success."""
    try:
        return get(layout, url, timeout_s=ANSWER_TIMEOUT_S)[0] == http.client.OK
    except (OSError, http.client.HTTPException):  # the caller tries again; the machine may be busy
        return False


def up(layout: Layout) -> None:
    """Create the namespace and the API server's address; addresses are on `lo`, because not every kernel has `dummy`."""
    if not exists(layout):
        _run("ip", "netns", "add", layout.name)
    _run("ip", "-n", layout.name, "link", "set", "lo", "up")
    add_address(layout, API_SERVER_ADDRESS)
    _run(*enter(layout), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")


def forward_ipv6(layout: Layout) -> None:
    """Pass on IPv6 packets between pods, whose new addresses are used at once, without a search for duplicates.

    Raises:
        BedError: the kernel has no IPv6.
    """
    folder = "/proc/sys/net/ipv6/conf"
    switches = f"echo 1 >{folder}/all/forwarding && echo 0 >{folder}/default/accept_dad"
    _run(*enter(layout), "sh", "-c", switches)


def add_address(layout: Layout, address: str) -> None:
    bits = 128 if ":" in address else 32
    if f" {address}/{bits} " not in _run("ip", "-n", layout.name, "addr", "show", "dev", "lo"):
        _run("ip", "-n", layout.name, "addr", "add", f"{address}/{bits}", "dev", "lo")


def forget_pods(layout: Layout, subnets: Sequence[str]) -> None:
    """Remove the routes to the pods that a node with these subnets had before it was stopped.

    The kernel does so some seconds after a pod is killed; until then a new pod with the same address gets no route.
    """
    for subnet in subnets:
        family = "-6" if ":" in subnet else "-4"
        _run("ip", "-n", layout.name, family, "route", "flush", "root", subnet)


def down(layout: Layout) -> None:
    if exists(layout):
        _run("ip", "netns", "del", layout.name)
