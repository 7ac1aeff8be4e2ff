"""The record of a test bed's parts, on disk before each part exists, so that `down` finds it after any crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from hack.bed.errors import BedError
from hack.bed.layout import Layout


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, identified by pid and start time, because pids are reused."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat: clock ticks since the machine started


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A requested node, and the number from which its addresses are made.

    `ipv6`: the node and its pods have addresses of both families, and the main one is IPv6.
    """

    name: str
    instance_type: str
    index: int
    ultraserver: str = ""
    position: int = -1  # in its UltraServer, as the driver numbers it: 0..3
    ipv6: bool = False
    kubernetes: str = ""  # of its kubelet; empty: the control plane's


POD_GROUPS: Final = "podgroups"
"""The extra that turns on PodGroups and claims for them, which Kubernetes 1.37 has off by default."""
POD_GROUP_GATES: Final = ("GenericWorkload", "DRAWorkloadResourceClaims")


@dataclass(slots=True)
class State:
    """Everything that `up` did; saved after each change, which may come from several threads while nodes start."""

    path: Path
    kubernetes: str = ""
    driver: str = "none"
    chart_values: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    processes: dict[str, ProcessId] = field(default_factory=dict)
    extras: list[str] = field(default_factory=list)
    inotify_before: int = 0  # the limit that we raised; 0: we did not
    made_directories: list[str] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def gates(self) -> Sequence[str]:
        """The feature gates that are on besides the usual ones."""
        return POD_GROUP_GATES if POD_GROUPS in self.extras else ()

    @contextlib.contextmanager
    def change(self) -> Iterator[State]:
        """Hold the state for one change and write it to disk at the end."""
        with self._lock:
            yield self
            self._save()

    def _save(self) -> None:
        content = {
            "kubernetes": self.kubernetes,
            "driver": self.driver,
            "chart_values": self.chart_values,
            "ports": self.ports,
            "nodes": {name: asdict(node) for name, node in self.nodes.items()},
            "processes": {name: asdict(process) for name, process in self.processes.items()},
            "extras": self.extras,
            "inotify_before": self.inotify_before,
            "made_directories": self.made_directories,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self.path)


def load(layout: Layout) -> State:
    """Return the state on disk, or an empty one.

    Raises:
        BedError: the file exists and cannot be read.
    """
    path = layout.state_file
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return State(path)
    except (OSError, ValueError) as err:
        raise BedError(f"{path} cannot be read ({err}); run `testbed down`, which does not need it") from err
    return State(
        path=path,
        kubernetes=content["kubernetes"],
        driver=content["driver"],
        chart_values=content.get("chart_values", {}),
        ports=content["ports"],
        nodes={name: NodeSpec(**node) for name, node in content["nodes"].items()},
        processes={name: ProcessId(**process) for name, process in content["processes"].items()},
        extras=content.get("extras", []),
        inotify_before=content.get("inotify_before", 0),
        made_directories=content["made_directories"],
    )


@contextlib.contextmanager
def exclusive(lock_file: Path, waiting_for: str) -> Iterator[None]:
    """Hold `lock_file`; print a line while another process has it. The lock ends with the process in any case."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"testbed: waiting for {waiting_for} ({lock_file})", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
