"""Start, find and end processes, and wait for conditions.

Every process has the test bed's name in its environment (`MARK`). This also finds a process that was started just
before a crash and never recorded, and no process that does not belong to the test bed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hack.bed.errors import BedError
from hack.bed.layout import Layout
from hack.bed.state import ProcessId, State

MARK = "NEURON_DRA_TESTBED_PART_OF"
LOG_TAIL_LINES = 15
LOADED_S = 120

T = TypeVar("T")


def start_ticks(pid: int) -> int | None:
    """Return when `pid` was started, in clock ticks since boot; None for a process that is gone or a zombie.

    Zombies are not reaped here: `waitpid` could reap the child of another thread that runs a command.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()  # the name may hold spaces and brackets
    return None if after_name[0] in "ZX" else int(after_name[19])


def is_loaded(pid: int) -> bool:
    """Return True if a process has its environment, which the kernel shows last; also if it is gone."""
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes()) or start_ticks(pid) is None
    except OSError:
        return True


def is_alive(process: ProcessId | None) -> bool:
    return process is not None and start_ticks(process.pid) == process.start_ticks


def wait_until(what: str, check: Callable[[], T], timeout_s: float, interval_s: float = 0.05) -> T:
    """Call `check` until it returns a true value, and return that value.

    Raises:
        BedError: `timeout_s` passed first.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise BedError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(interval_s)


class Processes:
    """The long-running processes of one test bed, by a name such as `etcd` or `a/kubelet`."""

    def __init__(self, layout: Layout, state: State) -> None:
        self.layout = layout
        self.state = state

    def log_file(self, name: str) -> Path:
        return self.layout.log_dir / (name.replace("/", "-") + ".log")

    def is_running(self, name: str) -> bool:
        return is_alive(self.state.processes.get(name))

    def pid(self, name: str) -> int:
        """Return the pid of a running process.

        Raises:
            BedError: it does not run.
        """
        process = self.state.processes.get(name)
        if process is None or not is_alive(process):
            raise BedError(f"{name} is not running; `testbed up` restarts what died")
        return process.pid

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Start `command` in the background unless it runs; its output is appended to its log file."""
        if self.is_running(name):
            return
        log_file = self.log_file(name)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {}), MARK: self.layout.name},
                start_new_session=True,
                cwd="/",
            )
        # Only a process whose program is loaded can be found by its mark, and ended.
        wait_until(f"{name} starts", lambda: is_loaded(child.pid), LOADED_S, 0.001)
        with self.state.change():
            ticks = start_ticks(child.pid)
            self.state.processes[name] = ProcessId(child.pid, ticks if ticks is not None else -1)

    def wait_ready(self, name: str, check: Callable[[], object], timeout_s: float, interval_s: float = 0.05) -> None:
        """Wait until `check` is true.

        Raises:
            BedError: the process ended or the time is over; the message has the end of its log.
        """

        def ready_or_dead() -> bool:
            return bool(check()) or not self.is_running(name)

        try:
            wait_until(f"{name} does not become ready", ready_or_dead, timeout_s, interval_s)
        except BedError as err:
            raise BedError(f"{err}\n{self.log_tail(name)}") from err
        if not self.is_running(name):
            raise BedError(f"{name} ended at once; {self.log_file(name)} ends with\n{self.log_tail(name)}")

    def log_tail(self, name: str) -> str:
        try:
            lines = self.log_file(name).read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join("  " + line[:400] for line in lines[-LOG_TAIL_LINES:])

    def stop(self, names: Iterable[str], sig: signal.Signals = signal.SIGTERM, grace_s: float = 5) -> None:
        """End the named processes together: by `sig`, then by SIGKILL after `grace_s` seconds."""
        found = {name: self.state.processes[name] for name in names if name in self.state.processes}
        end(found.values(), sig, grace_s)
        with self.state.change():
            for name in found:
                self.state.processes.pop(name, None)


def end(processes: Iterable[ProcessId], sig: signal.Signals, grace_s: float) -> None:
    """Signal all, wait `grace_s`, kill what is left, and return when none of them is alive."""
    left = [process for process in processes if is_alive(process)]
    for this_signal, patience_s in ((sig, grace_s), (signal.SIGKILL, 10.0)):
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, this_signal)
        deadline = time.monotonic() + patience_s
        while left and time.monotonic() < deadline:
            left = [process for process in left if is_alive(process)]
            time.sleep(0.02)
        if not left:
            return
    raise BedError(f"processes {[process.pid for process in left]} do not end, not even after SIGKILL")


def marked(name: str) -> list[ProcessId]:
    """Return every process on this machine that was started for the test bed `name`."""
    wanted = f"{MARK}={name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ticks = start_ticks(int(entry.name))
        if wanted in environment and ticks is not None:
            found.append(ProcessId(int(entry.name), ticks))
    return found


def inside(mounted: str) -> list[ProcessId]:
    """Return every process whose mount namespace has a mount of a directory whose path contains `mounted`.

    That is everything on a node: shims do not inherit the mark.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            mounts = (entry / "mountinfo").read_text()
        except OSError:
            continue
        ticks = start_ticks(int(entry.name))
        if ticks is not None and any(mounted in line.split(" ", 4)[3] for line in mounts.splitlines()):
            found.append(ProcessId(int(entry.name), ticks))
    return found


def any_bed_but(name: str) -> bool:
    """Return True if another test bed runs on this machine."""
    prefix = f"{MARK}=".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environ.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(variable.startswith(prefix) and variable != prefix + name.encode() for variable in variables):
            return True
    return False
