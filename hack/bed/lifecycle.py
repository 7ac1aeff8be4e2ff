"""Up and down: the order in which everything starts and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from hack.bed import (
    build,
    cgroups,
    controllers,
    dns,
    driver,
    hardware,
    images,
    inotify,
    job_image,
    kueue,
    mounts,
    network,
    packages,
    state,
)
from hack.bed.errors import BedError, NotPossibleHereError
from hack.bed.layout import Layout
from hack.bed.parts import Bed
from hack.bed.processes import any_bed_but, end, inside, marked, wait_until
from hack.bed.state import NodeSpec, State

MAX_NODES = 100  # the third byte of the pods' addresses, and far more than a machine holds
PARALLEL_STARTS = 4
DNS, JOB_IMAGE, KUEUE = "dns", "job-image", "kueue"
EXTRAS = (*controllers.CONTROLLERS, DNS, JOB_IMAGE, KUEUE, state.POD_GROUPS)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of the command line; None and empty mean no change. `ipv6` is of new nodes."""

    kubernetes: str | None = None
    nodes: Sequence[tuple[str, str]] = ()
    ultraservers: Sequence[tuple[str, str]] = ()
    driver: str | None = None
    chart_values: Sequence[tuple[str, str]] = ()
    extras: Sequence[str] = ()
    ipv6: bool = False


def up(layout: Layout, wanted: Wanted) -> Bed:
    """Start the test bed, add new nodes, and restart what died."""
    build.build(layout, wanted.kubernetes or state.load(layout).kubernetes or build.DEFAULT_KUBERNETES)
    for version in sorted({spec.kubernetes for spec in _requested(wanted)} - {""}):
        build.build_kubelet(layout, version)
    with state.exclusive(layout.lock_file, "another testbed command"):
        bed = Bed(layout, wanted.kubernetes)
        _check(bed, wanted)
        if layout.in_memory and not layout.state_dir.exists():
            layout.state_dir.mkdir(parents=True)
            mounts.memory(layout.state_dir)
        with bed.state.change():
            for spec in _new_nodes(bed.state, wanted):
                bed.state.nodes[spec.name] = spec
            bed.state.chart_values |= dict(wanted.chart_values)
            bed.state.extras = sorted({*bed.state.extras, *wanted.extras})
        if layout.is_root:
            packages.require(packages.FOR_NODES, "the nodes")
            network.up(layout)
            inotify.allow(bed.state)
        kind = wanted.driver or bed.state.driver
        if bed.state.nodes:
            _make_mount_points(bed)
            archives = [images.small_images(layout), *driver.image_archives(bed, kind)]
            archives += [job_image.archive(layout)] if JOB_IMAGE in bed.state.extras else []
        bed.plane.up()
        if bed.state.nodes:
            with ThreadPoolExecutor(PARALLEL_STARTS) as pool:
                list(pool.map(lambda node: node.up(archives), bed.nodes.values()))
        bed.plane.wait_complete()
        for extra in bed.state.extras:
            if extra in controllers.CONTROLLERS:
                controllers.up(bed, extra)
        if KUEUE in bed.state.extras:
            kueue.up(bed.plane, kueue.ON_A_BED)
        if DNS in bed.state.extras:
            dns.up(bed)
        driver.apply(bed, kind)
        return bed


def _check(bed: Bed, wanted: Wanted) -> None:
    """Raise BedError for arguments that contradict the running test bed or cannot work on this machine."""
    running = bed.state.kubernetes
    if wanted.kubernetes not in (None, running):
        raise BedError(
            f"this test bed runs Kubernetes {running}; `testbed down` before `up --kubernetes {wanted.kubernetes}`"
        )
    if state.POD_GROUPS in wanted.extras and bed.state.processes and state.POD_GROUPS not in bed.state.extras:
        raise BedError(
            f"the servers run without {state.POD_GROUPS}: `testbed down` before `up --with {state.POD_GROUPS}`"
        )
    for spec in _requested(wanted):
        if (
            spec.name == ""
            or not spec.name.replace("-", "a").isalnum()
            or not spec.name.islower()
            or len(spec.name) > 40
        ):
            raise BedError(f"node name {spec.name!r}: use lower-case letters, digits and '-', at most 40")
        old = bed.state.nodes.get(spec.name)
        if old is not None and _kind(old) != _kind(spec):
            where = f" of UltraServer {old.ultraserver}" if old.ultraserver else ""
            raise BedError(
                f"node {spec.name} exists as {old.instance_type}{where}, not as {spec.instance_type}; choose another"
                " name or `testbed down` first"
            )
        hardware.check_type(spec.instance_type, spec.ultraserver)
    if not _requested(wanted) and not bed.state.nodes:
        return
    if not bed.layout.is_root:
        raise NotPossibleHereError(
            "nodes need root (namespaces, mounts, cgroups); without root, `up` starts only the control plane"
        )
    cgroups.check()


def _kind(spec: NodeSpec) -> tuple[str, str, str]:
    return spec.instance_type, spec.ultraserver, spec.kubernetes


def _requested(wanted: Wanted) -> list[NodeSpec]:
    """Return the requested nodes, without numbers."""
    plain = []
    for name, text in wanted.nodes:
        instance_type, _, kubernetes = text.partition("@")
        plain.append(NodeSpec(name, instance_type, 0, kubernetes=kubernetes))
    grouped = [
        NodeSpec(f"{name}-{position}", instance_type, 0, ultraserver=name, position=position)
        for name, instance_type in wanted.ultraservers
        for position in range(hardware.NODES_PER_ULTRASERVER)
    ]
    names = [spec.name for spec in plain + grouped]
    if len(set(names)) != len(names):
        raise BedError(f"the same node name twice: {', '.join(sorted(names))}")
    return plain + grouped


def _new_nodes(current: State, wanted: Wanted) -> list[NodeSpec]:
    """Return the nodes to add, each with a new number."""
    added = []
    numbers = iter(sorted(set(range(1, MAX_NODES + 1)) - {spec.index for spec in current.nodes.values()}))
    for spec in _requested(wanted):
        if spec.name in current.nodes:
            continue
        index = next(numbers, None)
        if index is None:
            raise BedError(f"at most {MAX_NODES} nodes")
        added.append(replace(spec, index=index, ipv6=wanted.ipv6))
    return added


def _make_mount_points(bed: Bed) -> None:
    """Create the standard folders over which nodes mount their own; `down` removes those that did not exist."""
    for name in mounts.OWN_DIRECTORIES:
        path = Path(name)
        if not path.exists():
            with bed.state.change():
                bed.state.made_directories.append(name)
            path.mkdir(parents=True)


def down(layout: Layout) -> None:
    """End exactly what `up` started, also after a crash, by the record, the mark, the cgroup and the namespace."""
    with state.exclusive(layout.lock_file, "another testbed command"):
        try:
            recorded = state.load(layout)
        except BedError as err:
            print(f"testbed: {err}", flush=True)
            recorded = State(layout.state_file)
        # No state has to survive, so processes are killed; kubelets first, so that they do not restart their pods.
        end([*recorded.processes.values(), *marked(layout.name)], signal.SIGKILL, 5)
        if layout.is_root:
            cgroups.remove(layout)
        end(inside(f"/{layout.state_dir.name}/nodes/"), signal.SIGKILL, 5)
        if layout.is_root:
            network.down(layout)
            _leave_machine_as_it_was(layout, recorded)
        _remove_state(layout)


def _leave_machine_as_it_was(layout: Layout, recorded: State) -> None:
    """Remove the folders that were created, if they are empty, and restore limits; only the last test bed does so."""
    if any_bed_but(layout.name):
        return
    inotify.restore(recorded)
    for name in reversed(recorded.made_directories):
        with contextlib.suppress(OSError):
            os.rmdir(name)


def unmount(mount_point: str, timeout_s: float = 60) -> None:
    """Unmount, and wait for processes that use the mount: after a kill, threads and namespaces end one by one.

    Raises:
        BedError: the mount stays in use; the message names the processes.
    """
    said = ""

    def done() -> bool:
        nonlocal said
        tried = subprocess.run(["umount", mount_point], capture_output=True, text=True, timeout=30, check=False)
        said = tried.stderr.strip()
        return tried.returncode == 0 or not os.path.ismount(mount_point)

    try:
        wait_until(f"unmounting {mount_point}", done, timeout_s, 0.1)
    except BedError as err:
        raise BedError(
            f"{err}: {said}; held by: {', '.join(_holders(mount_point)) or 'nothing that can be seen'}"
        ) from err


def _holders(mount_point: str) -> list[str]:
    """Return the processes that have a mount as working folder, as an open file or in their mount namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            held = [os.readlink(link) for link in (process / "cwd", process / "root", *(process / "fd").iterdir())]
            mounted = [line.split()[4] for line in (process / "mountinfo").read_text().splitlines()]
            if any(Path(path).is_relative_to(mount_point) for path in held) or (
                mount_point in mounted and os.readlink(process / "ns/mnt") != os.readlink("/proc/self/ns/mnt")
            ):
                name = (process / "comm").read_text().strip()
                found.append(f"{name} ({process.name})")
    return found


def _remove_state(layout: Layout) -> None:
    """Remove the state folder, without following mounts."""
    inside = [
        line.split()[4]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if Path(line.split()[4]).is_relative_to(layout.state_dir)
    ]
    for mount_point in sorted(inside, reverse=True):
        unmount(mount_point)
    # By `rm`, which is faster: a node's images are ten thousand files.
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", str(layout.state_dir)], capture_output=True, text=True,
                          timeout=300, check=False)  # fmt: skip
    if layout.state_dir.exists():
        raise BedError(f"{layout.state_dir} cannot be removed: {done.stderr.strip()}")
