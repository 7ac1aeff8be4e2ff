"""The kernel's limit of inotify instances per user: the usual 128 is too low for more than a dozen nodes.

A kubelet without one does not start ("inotify_init: too many open files"). The limit is raised while a test bed runs.
"""

from __future__ import annotations

from pathlib import Path

from hack.bed.state import State

LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
PER_NODE = 24  # a kubelet, a containerd and a plugin have about ten
OTHERS = 128  # for other programs on the machine


def allow(state: State) -> None:
    """Raise the limit for the nodes of this test bed, and record the former one."""
    wanted = OTHERS + PER_NODE * len(state.nodes)
    before = int(LIMIT.read_text())
    if before >= wanted:
        return
    with state.change():
        state.inotify_before = state.inotify_before or before
    try:
        LIMIT.write_text(f"{wanted}\n")
    except OSError as err:
        text = f"{LIMIT} is {before} and cannot be raised ({err}): more than a dozen nodes may not start"
        print(f"testbed: {text}", flush=True)


def restore(recorded: State) -> None:
    """Restore the limit from before the test bed."""
    if recorded.inotify_before:
        try:
            LIMIT.write_text(f"{recorded.inotify_before}\n")
        except OSError as err:
            print(f"testbed: {LIMIT} cannot be restored to {recorded.inotify_before} ({err})", flush=True)
