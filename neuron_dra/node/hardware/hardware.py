"""The node's hardware as last read, and the topology and health derived from it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from neuron_dra.core import cdi, devices, health, kernel_driver, names, signals, topology
from neuron_dra.core import members as partitions
from neuron_dra.core.facts import NodeFacts, NodeLabels, Unread
from neuron_dra.core.kernel_driver import DriverState
from neuron_dra.core.members import Cores
from neuron_dra.core.topology import Node
from neuron_dra.node.hardware import helper, sysfs
from neuron_dra.node.hardware.reader import Overdue, Reader
from neuron_dra.node.signal import Signal
from neuron_dra.node.timing import DEFAULT_TIMING, HardwareTiming

log = logging.getLogger(__name__)

SIMULATED: Final = ".fake-node"
"""A file in the root of simulated hardware: the container runtime uses device files of that folder, not of /dev."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Away:
    """A kernel driver that is not loaded completely. Times are of the loop's clock.

    `since` is when `state` began. `partial_since` is when the driver began to load or leave without being loaded in
    between, as a driver does that fails and is loaded again and again. `progress` describes the state; `finding` is
    None while there is nothing to report.
    """

    state: DriverState
    since: float
    partial_since: float
    progress: str
    finding: topology.HardwareFinding | None = None


class Hardware:
    """Polls sysfs, which sends no change events, in a helper process, because a read may never end.

    `changed` is notified after a reading that differs. An unhealthy device stays unhealthy until its readings have been
    good for `hold_s` seconds. Until a reading has ended that found the kernel driver loaded, `known` is not set and
    `node` has no devices. While the driver loads or leaves, facts, devices and faults stay as they were.
    """

    def __init__(
        self,
        host_root: str,
        hold_s: float = 0.0,
        timing: HardwareTiming = DEFAULT_TIMING.hardware,
        host_dev: str = "/host/dev",
        reader: Reader | None = None,
    ) -> None:
        self._timing = timing
        self._root = Path(host_root or "/")
        self._dev = sysfs.device_folder(self._root, host_dev)
        self._reader = reader or Reader(self._root, dev=self._dev.path)
        self._hold_s = hold_s
        self._labels = NodeLabels.from_labels({})
        self.changed = Signal()
        self.known = asyncio.Event()
        self.read_at = 0.0  # when everything that does not hang was last read, in seconds since the epoch
        self.facts = NodeFacts(None, None, ())
        self.node = Node(None, None, None, (), self.facts.ultraserver, self._labels, ())
        self._reading: sysfs.FileReading | None = None
        self._hanging: dict[str, str] = {}  # units that are left out, and the path that hangs
        self._unread = ""  # why the facts are older than the last reading; empty if they are not
        self._away: _Away | None = None
        self._look_now = asyncio.Event()
        self._busy_since: float | None = None  # by the loop's clock; None if `ultraserver_mode` does not read busy
        self._probing: asyncio.Task[None] | None = None
        self._judged: dict[str, health.DeviceHealth] = {}  # computed from `node` and `_watch`
        self._watch: health.Watch = {}
        self.device_files = cdi.DeviceFiles()

    def label(self, labels: Mapping[str, str]) -> None:
        """Use the Node object's labels: network layers, capacity block, and the instance type if DMI lacks it.

        A known capacity block is kept, because a recreated Node gets its label only some time later and would seem to
        be in another UltraServer until then.
        """
        new_labels = NodeLabels.from_labels(labels)
        if new_labels.capacity_block_id is None:
            new_labels = dataclasses.replace(new_labels, capacity_block_id=self._labels.capacity_block_id)
        if new_labels != self._labels:
            self._labels = new_labels
            if self.known.is_set():
                self.learn(self.facts)

    async def wait(self) -> None:
        """Return when the hardware has been read, or when it takes longer than a reading may.

        If the kernel driver has begun to load or to leave since then, `is_away` is set.
        """
        self._notice_driver()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.deadline_s):
                while not (self.known.is_set() or self.is_away):
                    await self.changed.after(self.changed.count)

    def _notice_driver(self) -> None:
        """Read now if the kernel driver loads or leaves, so that no claim gets devices of a driver that is gone."""
        if self._reading is None or self._away is not None:
            return
        try:
            state = (self._root / helper.INITSTATE).read_bytes().strip()  # of the kernel itself: it never blocks
        except OSError:
            state = b""
        was_seen = self._reading.driver_states[1] is not None  # INITSTATE at the end of that reading
        if state in helper.PARTIAL or (not state and was_seen):
            now = asyncio.get_running_loop().time()
            self._away = _Away(DriverState.CHANGING, now, now, kernel_driver.LEAVING)
            self._look_now.set()

    async def poll(self) -> None:
        """Read now, and again after each period, until cancelled."""
        try:
            while True:
                if not await self._look():
                    period_s = self._timing.period_s
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(period_s, self._timing.driver_s) if self.is_away else period_s):
                            await self._look_now.wait()
                    self._look_now.clear()
        finally:
            if self._probing is not None:
                self._probing.cancel()
                await asyncio.gather(self._probing, return_exceptions=True)
            await self._reader.abandon()

    async def _look(self) -> bool:
        """Read once; return True if a file that hangs was found and left out, so that the rest can be read now.

        Each file has a deadline of its own. A reading that is slow, but answers, is not overdue until it has taken so
        long that its first files may have changed.
        """
        has_left_out = False
        too_old = asyncio.get_running_loop().call_later(self._timing.slow_s, self._overdue)
        try:
            reading = await self._reader.search(self._timing.deadline_s, self._hanging)
        except Overdue as err:
            if err.path:
                log.error("a read hangs", extra={"path": err.path})
                unit = helper.unit_of(err.path)
                has_left_out = unit != helper.CLASS
                if has_left_out:
                    self._hanging[unit] = err.path
            self._overdue(err.path or helper.CLASS)
        except OSError as err:
            log.error("cannot read the hardware", extra={"error": str(err)})
            self._overdue()
        else:
            self.take(reading)
        finally:
            too_old.cancel()
        if self._hanging and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._probe(), name="probe hanging files")
        return has_left_out

    async def _probe(self) -> None:
        """Try to read what hangs; include it again if that succeeds."""
        await asyncio.sleep(self._timing.probe_s)
        for unit, path in list(self._hanging.items()):
            with contextlib.suppress(Overdue, OSError):  # it stays left out
                await self._reader.probe(unit, self._timing.deadline_s)
                log.info("a read no longer hangs", extra={"path": path})
                self._hanging.pop(unit, None)

    def take(self, reading: sysfs.FileReading) -> None:
        """Replace facts, node and device files with those of a new reading."""
        left_out = self._hanging.values()
        self._away = self._look_for_driver(reading)
        if self._away is not None:
            self._busy_since = None  # a load begins another election
            self._without_driver(self._away)
            return
        if reading.ids is None and self._reading is None:
            self._unread = ""
            self._take(self.facts, dataclasses.replace(self.node, findings=(topology.ELSEWHERE,)), {})
            return
        facts = sysfs.facts(reading, before=self._reading, hanging=left_out, is_hosts_dev=self._dev.is_hosts)
        if self._reading is not None:  # what was left out keeps its last reading, however often it is left out
            reading = sysfs.with_earlier(reading, self._reading, left_out)
        self._reading = reading
        self.device_files = self._look_for_device_files(sysfs.plain_device_files(reading))
        self.read_at, self._unread = time.time(), ""
        self.learn(facts)

    def _look_for_driver(self, reading: sysfs.FileReading) -> _Away | None:
        """Return what the kernel driver does while it is not loaded; None if it is, so that the reading counts."""
        state, before = sysfs.driver_state(reading), self._away
        if state is DriverState.LOADED:
            return None
        now = asyncio.get_running_loop().time()
        since = before.since if before is not None and before.state is state else now
        if state is DriverState.NOT_LOADED:
            return _Away(state, since, now, kernel_driver.NOT_LOADED, topology.NOT_LOADED)
        partial_since = now
        if before is not None and before.state is not DriverState.NOT_LOADED:
            partial_since = before.partial_since
        if state is DriverState.LOADING:
            progress = kernel_driver.loading(len(reading.ids or ()), now - partial_since)
            is_slow = now - partial_since >= kernel_driver.LONG_LOAD_S
            return _Away(state, since, partial_since, progress, topology.slow_load(progress) if is_slow else None)
        is_stuck = now - since >= self._timing.deadline_s
        return _Away(state, since, partial_since, kernel_driver.LEAVING, topology.leaving() if is_stuck else None)

    def _without_driver(self, away: _Away) -> None:
        """Report that the kernel driver is not loaded, and keep the devices that it showed before.

        An unload that has only just begun is not reported, because the next reading is a second away.
        """
        if away.state is DriverState.CHANGING and away.finding is None:
            return
        self._unread = away.progress
        node = self._built(self.facts) if self.known.is_set() else self.node
        findings = () if away.finding is None else (away.finding,)
        count_before = self.changed.count
        self._take(self.facts, dataclasses.replace(node, findings=findings), health.unread(self._watch, away.progress))
        if not self.known.is_set() and self.changed.count == count_before:
            self.changed.notify()  # a claim may wait for the first reading, and must be told that the driver loads

    def _built(self, facts: NodeFacts) -> Node:
        """Return the node that `facts` describe. Unless the kernel driver is loaded, that is the only finding."""
        node = topology.build(facts, self._labels, self._busy_for_s(facts))
        if self._away is not None:
            return dataclasses.replace(node, findings=() if self._away.finding is None else (self._away.finding,))
        return node

    def _busy_for_s(self, facts: NodeFacts) -> float:
        if facts.ultraserver.modes is not Unread.BUSY:
            self._busy_since = None
            return 0.0
        now = asyncio.get_running_loop().time()
        self._busy_since = now if self._busy_since is None else self._busy_since
        return now - self._busy_since

    def learn(self, facts: NodeFacts) -> None:
        """Replace the facts, and rebuild node and health from them."""
        is_first = not self.known.is_set()
        node = self._built(facts)
        self.known.set()
        self._take(facts, node, self._watched(self._watch, facts, node, is_first=is_first), is_first=is_first)

    def _overdue(self, path: str = helper.CLASS) -> None:
        """Mark all devices as unread, and keep everything else."""
        self._unread = health.HANGS
        self._away = None  # not known either; a claim looks for itself, and would wait for a driver that hangs
        paths = {*self._hanging.values(), path}
        facts = dataclasses.replace(self.facts, hanging=tuple(sorted(paths)))
        if self.known.is_set():
            self._take(facts, self._built(facts), health.unread(self._watch, self._unread))
        else:
            self._take(facts, dataclasses.replace(self.node, findings=tuple(topology.hangs(facts.hanging))), {})

    def _take(self, facts: NodeFacts, node: Node, watch: health.Watch, *, is_first: bool = False) -> None:
        # The first reading is a change even without a difference, because claims wait for it.
        is_changed = is_first or node != self.node or facts != self.facts or watch != self._watch
        new_findings = set(node.findings) - set(self.node.findings)
        self.facts, self.node, self._watch, self._judged = facts, node, watch, {}
        for finding in sorted(new_findings):
            log.warning("hardware finding", extra={"kind": finding.kind, "text": finding.message})
        if is_changed:
            self.changed.notify()

    def _watched(self, before: health.Watch, facts: NodeFacts, node: Node, *, is_first: bool = False) -> health.Watch:
        if self._unread:
            return health.unread(before, self._unread)
        now = 0.0 if is_first else asyncio.get_running_loop().time()
        expected = range(node.spec.device_count) if node.spec else ()
        return health.observe(before, facts.devices, expected, now, self._hold_s)

    def recall(self, device_name: str, reasons: Iterable[str]) -> None:
        """Restore the faults of a device that the previous process published.

        A missing file is not restored where the host's /dev is no longer visible: no reading would ever end it.
        """
        visible = [reason for reason in reasons if self._dev.is_hosts or reason != signals.DEVICE_FILE_MISSING]
        watch = health.recall(self._watch, self.device_ids(device_name), visible)
        self._watch, self._judged = self._watched(watch, self.facts, self.node), {}

    def health_of(self, device_name: str) -> health.DeviceHealth:
        """Return the health of a published device. Safe in threads: results are cached per reading."""
        health_by_name = self._judged  # before `_watch` is read: `_take` replaces it after `_watch`
        device_health = health_by_name.get(device_name)
        if device_health is None:
            device_health = health.judged(device_name, self.device_ids(device_name), self._watch)
            health_by_name[device_name] = device_health
        return device_health

    def faults_of(self, device_name: str) -> list[tuple[int, str]]:
        """Return the faults behind a published device, as (Neuron device id, reason), sorted."""
        watched_devices = ((device_id, self._watch.get(device_id)) for device_id in self.device_ids(device_name))
        faults = set()
        for device_id, watched_device in watched_devices:
            if watched_device is not None:
                for fault in watched_device.faults:
                    faults.add((device_id, fault.problem.reason))
        return sorted(faults)

    def device_names(self, ultraserver_devices: str) -> list[str]:
        """Return the names that this node would publish if all devices were present and healthy."""
        if self.node.spec is not None and self.node.spec.whole_node and ultraserver_devices == "node":
            return [names.NODE_DEVICE]
        has_both = self.node.spec is not None and self.node.spec.whole_node and ultraserver_devices == "both"
        return [*([names.NODE_DEVICE] if has_both else []), *(f"{names.DEVICE_PREFIX}{i}" for i in sorted(self._watch))]

    def device_ids(self, device_name: str) -> tuple[int, ...]:
        """Return the ids of the Neuron devices behind a published name, present or not."""
        if device_name == names.NODE_DEVICE:
            count = self.node.spec.device_count if self.node.spec else 0
            return tuple(sorted({device.device_id for device in self.node.devices} | set(range(count))))
        if members := partitions.of(device_name, self.node.spec):
            return members.ids
        for prefix in (names.DEVICE_PREFIX, names.OLD_DEVICE_PREFIX):
            suffix = device_name.removeprefix(prefix)
            if suffix.isdecimal():
                return (int(suffix),)
        return ()

    def cores(self, device_name: str) -> Cores | None:
        """Return the cores behind the published name of a core partition; None for other names."""
        members = partitions.of(device_name, self.node.spec)
        if members:
            return members.cores
        return None

    def maybe_held(self, device_name: str) -> tuple[int, ...]:
        """Return the Neuron devices behind a name that may be another driver's; all of the node if it is unknown."""
        return self.device_ids(device_name) or self.device_ids(names.NODE_DEVICE)

    @property
    def ultraserver_id(self) -> str | None:
        """The id of this node's UltraServer, as published; None while unknown."""
        return devices.ultraserver_id(self.node)

    @property
    def maybe_ultraserver(self) -> bool:
        """Whether the node may be in an UltraServer; False only if its instance type rules it out."""
        return self.node.spec is None or self.node.spec.whole_node

    @property
    def hanging(self) -> tuple[str, ...]:
        """The units that are left out of readings: devices such as `neuron3`, and paths of files."""
        return tuple(self._hanging)

    @property
    def is_away(self) -> bool:
        """Whether the kernel driver loads or leaves, or is not loaded."""
        return self._away is not None

    @property
    def why_unknown(self) -> str:
        """Why the hardware is unknown; empty if it was read and the kernel driver is still loaded."""
        if self._away is not None:
            return self._away.finding.message if self._away.finding is not None else self._away.progress
        if self.known.is_set():
            return ""
        if not self.node.findings:
            return "the node's hardware is being read"
        return "; ".join(finding.message for finding in self.node.findings)

    def _look_for_device_files(self, plain: bool) -> cdi.DeviceFiles:
        """Return where the container runtime finds device files: /dev, except on simulated hardware."""
        folder = self._root / "dev"
        if folder == Path("/dev") or not (self._root / SIMULATED).exists():
            return cdi.DeviceFiles()
        return cdi.DeviceFiles(str(folder), mounted=plain)
