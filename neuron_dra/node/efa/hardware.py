"""The EFA interfaces as last read, and their health."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from neuron_dra.core import cdi, efa
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.efa import EfaReading
from neuron_dra.core.wire import Wire
from neuron_dra.node.efa.interfaces import InterfaceReader
from neuron_dra.node.hardware import sysfs
from neuron_dra.node.hardware.hardware import SIMULATED
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.timing import HardwareTiming
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)


def interface_reader(settings: PluginSettings) -> InterfaceReader:
    """Return a reader of the host's interfaces."""
    root = Path(settings.host_root or "/")
    dev = sysfs.device_folder(root, settings.host_dev)
    return InterfaceReader(root, dev, may_be_plain=_is_simulated(root))


def _is_simulated(root: Path) -> bool:
    return root != Path("/") and (root / SIMULATED).exists()


class EfaHardware:
    """Reads the interfaces periodically, in a thread of its own, so that a read that never ends stops nothing else.

    `instance_type` returns the node's type, None while it is unknown. `known` is set after the first reading.
    """

    def __init__(
        self, settings: PluginSettings, instance_type: Callable[[], InstanceType | None], timing: HardwareTiming
    ) -> None:
        self._timing = timing
        self._instance_type = instance_type
        self._hold_s = settings.unhealthy_device_hold_seconds
        root = Path(settings.host_root or "/")
        is_simulated = _is_simulated(root)
        dev = sysfs.device_folder(root, settings.host_dev)
        self._reader = interface_reader(settings)
        self._worker = Worker("efa")
        self._error = ""  # of the last reading
        self._running: asyncio.Future[EfaReading] | None = None
        self._infiniband = Path(dev.path) / "infiniband"
        self._host_dev = str(root / "dev") if is_simulated else "/dev"
        self.known = asyncio.Event()
        self.reading = EfaReading()
        self.watch: efa.Watch = {}
        self.read_at = 0.0  # in seconds since the epoch
        self.device_files = cdi.DeviceFiles(self._host_dev)

    def read_now(self, device_names: Collection[str]) -> EfaReading:
        """Read the device files of these interfaces. Blocks. Raises OSError."""
        return self._taken(self._reader.read_files(device_names))

    def _read(self) -> EfaReading:
        """Read all about the interfaces. Blocks. Raises OSError."""
        return self._taken(self._reader.read())

    def _taken(self, reading: EfaReading) -> EfaReading:
        if reading.interfaces:
            self.device_files = cdi.DeviceFiles(self._host_dev, mounted=self._has_plain_files(reading))
        return reading

    def _has_plain_files(self, reading: EfaReading) -> bool:
        """Return whether the device files are plain ones, as of simulated hardware that was written without root."""
        if self._host_dev == "/dev":
            return False
        return any((self._infiniband / f"uverbs{i.uverbs}").is_file() for i in reading.interfaces.values())

    def renewed(self, claim: PreparedClaim) -> PreparedClaim:
        """Return a prepared claim with the device files that it should have now. Blocks. Raises OSError."""
        reading = self.read_now({device.device for device in claim.devices})
        return efa.renewed(claim, reading, self.device_files)

    def recall(self, devices: Iterable[Wire]) -> None:
        """Take the interfaces of a slice of this boot into account: one that is gone now is unhealthy."""
        self.watch = self._observed({**self.watch, **efa.recalled(devices)}, self.reading)

    def _observed(self, before: efa.Watch, reading: EfaReading) -> efa.Watch:
        now = asyncio.get_running_loop().time()
        return efa.observe(before, reading, self._instance_type(), now, self._hold_s)

    async def look(self) -> bool:
        """Read once; return whether anything changed. Nothing changes while a reading does not end."""
        if self._running is None or self._running.done():
            self._running = self._worker.do(self._read)
        try:
            async with asyncio.timeout(self._timing.deadline_s):
                reading = await asyncio.shield(self._running)
        except TimeoutError:
            if not self._error:
                log.error("reading the EFA interfaces does not end")
            self._error = "it does not end"
            return False
        except OSError as err:
            if str(err) != self._error:
                log.error("cannot read the EFA interfaces", extra={"error": str(err)})
            self._error = str(err)
            return False
        self._error = ""
        watch = self._observed(self.watch, reading)
        is_changed = not self.known.is_set() or watch != self.watch or reading != self.reading
        for name, interface in sorted(reading.interfaces.items()):
            if interface.problem and interface != self.reading.interfaces.get(name):
                log.warning("an EFA interface cannot be used", extra={"device": name, "reason": interface.problem})
        self.watch, self.reading, self.read_at = watch, reading, time.time()
        self.known.set()
        return is_changed
