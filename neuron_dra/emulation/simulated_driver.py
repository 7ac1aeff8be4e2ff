"""The kernel driver of a simulated node while it loads and leaves, in the order that the real one has.

    driver = SimulatedDriver(node)
    driver.unload()
    for step in driver.loading():  # each is done when it is yielded; devices may be reset after the load has ended
        print(step.what, step.device_id)

What the driver shows is kept in the folder `.unloaded` below the node's root meanwhile. Recorded loads of the real
driver are in tests/data/kernel-driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import catalogue, kernel_driver
from neuron_dra.core.catalogue import InstanceType, Platform
from neuron_dra.emulation import simulated_pci, simulated_tree
from neuron_dra.emulation.simulated_files import TRANSITIONAL, change
from neuron_dra.emulation.simulated_node import (
    CLASS,
    DEVICES,
    INITSTATE,
    MODULE,
    UNLOADED,
    SimulatedNode,
)

LIVE: Final = "live"

PROBE_ORDER: Final[Mapping[str, tuple[int, ...]]] = {
    "trn1": (0, 1, 12, 13, 4, 5, 8, 9, 6, 7, 10, 11, 2, 3, 14, 15),
    "trn2": (5, 6, 7, 4, 9, 10, 11, 8, 1, 2, 3, 0, 13, 14, 15, 12),
    "trn3": (5, 6, 7, 4, 9, 10, 11, 8, 1, 2, 3, 0, 13, 14, 15, 12),
}
"""The order of 16 devices by their PCI addresses, in which they appear; other types have the order of the ids."""

_OF_THE_DRIVER: Final = {CLASS: "class", DEVICES: "devices", MODULE: "module", f"{simulated_pci.PCI}/drivers": "pci"}


@dataclass(frozen=True, slots=True)
class LoadTiming:
    """How long the steps of a load take, in seconds, as seen on the real driver.

    - `begin_s`: for how long the class files are empty.
    - `probe_s`: from one device to the next.
    - `reset_s`: from a device's appearance until it is ready. The next devices are probed meanwhile.
    """

    begin_s: float = 0.15
    probe_s: float = 2.0
    reset_s: float = 0.7


DEFAULT_LOAD_TIMING: Final = LoadTiming()


@dataclass(frozen=True, slots=True)
class LoadStep:
    """One step of a load: what it shows, and when, in seconds since the load began."""

    at_s: float
    what: str  # coming, class, device, reset, election or live
    device_id: int | None = None


class SimulatedDriver:
    """Unloads and loads the driver of a node.

    With `keeps_folders`, the driver's folders stay, empty, where the real ones vanish: for nodes that mount them.
    """

    def __init__(self, node: SimulatedNode, *, keeps_folders: bool = False) -> None:
        self._node = node
        self._kept = node.root / UNLOADED
        self._keeps_folders = keeps_folders

    @property
    def is_loaded(self) -> bool:
        """Whether the driver is there, even in part."""
        return (self._node.root / INITSTATE).exists()

    def unload(self) -> None:
        """Unload the driver at once."""
        for _ in self.unloading():
            pass

    def unloading(self) -> Iterator[str]:
        """Unload the driver; yield after each step."""
        if not self.is_loaded:
            return
        self._set_state(kernel_driver.GOING, "-1")
        yield kernel_driver.GOING
        for device_id in reversed(_in_probe_order(self._spec, self._node.device_ids())):
            (self._node.root / CLASS / f"neuron{device_id}").unlink(missing_ok=True)
            self._keep(DEVICES, f"neuron{device_id}")
            (self._node.root / "dev" / f"neuron{device_id}").unlink(missing_ok=True)
            yield f"neuron{device_id}"
        for folder in _OF_THE_DRIVER:
            for name in [path.name for path in (self._node.root / folder).iterdir()]:
                self._keep(folder, name)
            if not self._keeps_folders:
                (self._node.root / folder).rmdir()
            yield folder

    def _keep(self, folder: str, name: str) -> None:
        place = self._kept / _OF_THE_DRIVER[folder]
        place.mkdir(parents=True, exist_ok=True)
        shutil.move(self._node.root / folder / name, place / name)

    def _show(self, folder: str, name: str) -> None:
        (self._node.root / folder).mkdir(parents=True, exist_ok=True)
        shutil.move(self._kept / _OF_THE_DRIVER[folder] / name, self._node.root / folder / name)

    @property
    def _spec(self) -> InstanceType:
        spec = catalogue.lookup(self._node.instance_type)
        assert spec is not None  # noqa: S101 - simulated nodes are of the catalogue's types
        return spec

    def load(self, missing: Collection[int] = ()) -> None:
        """Load the driver at once. The devices `missing` are not found."""
        for _ in self.loading(missing):
            pass

    def loading(
        self,
        missing: Collection[int] = (),
        silent_s: Mapping[int, float] | None = None,
        timing: LoadTiming = DEFAULT_LOAD_TIMING,
        wait_until: Callable[[float], None] = lambda at_s: None,
    ) -> Iterator[LoadStep]:
        """Load the driver, which must not be loaded; yield each step when it is done.

        The devices `missing` are not found; the next load looks for them again. A device in `silent_s` delays itself
        and the later ones for that many seconds, because its firmware does not answer. `wait_until` is called before
        each step, with its time.
        """
        kept = {int(path.name[6:]) for path in (self._kept / "devices").glob("neuron*")}
        probed_ids = _in_probe_order(self._spec, kept - set(missing))
        texts = {path.name: path.read_text() for path in (self._kept / "class").iterdir() if path.is_file()}
        for step in plan(probed_ids, timing, silent_s or {}, elects=self._elects, is_stored=_is_stored(texts)):
            wait_until(step.at_s)
            self._do(step, probed_ids, texts)
            yield step

    def _do(self, step: LoadStep, probed_ids: list[int], texts: Mapping[str, str]) -> None:
        if step.what == kernel_driver.COMING:
            self._begin(texts)
        elif step.what == "class":
            for name, text in texts.items():
                transitional = TRANSITIONAL[name] + "\n" if self._elects and name in TRANSITIONAL else text
                change(self._node.root / CLASS / name, transitional)
        elif step.what == "device" and step.device_id is not None:
            self._appear(step.device_id)
        elif step.what == "reset" and step.device_id is not None:
            self._node.set_reset_state(step.device_id, 1)
        elif step.what == LIVE:
            for device_id in probed_ids:
                links = simulated_tree.connected_devices(self._spec, device_id, len(probed_ids))
                change(self._node.folder(device_id) / "connected_devices", links)
            self._set_state(LIVE, "0")
        elif step.what == "election" and len(probed_ids) == self._spec.device_count:
            for name, text in texts.items():
                change(self._node.root / CLASS / name, text)

    @property
    def _elects(self) -> bool:
        return simulated_tree.platform_of(self._spec, self._node.driver_version) is not Platform.STANDARD

    def _begin(self, texts: Mapping[str, str]) -> None:
        for folder in (MODULE, f"{simulated_pci.PCI}/drivers"):
            for path in list((self._kept / _OF_THE_DRIVER[folder]).iterdir()):
                if path.name == "initstate":
                    change(path, f"{kernel_driver.COMING}\n")
                self._show(folder, path.name)
        self._set_state(kernel_driver.COMING, "1")
        for name in texts:
            change(self._kept / "class" / name, "")
        for path in list((self._kept / "class").iterdir()):
            self._show(CLASS, path.name)
        (self._node.root / DEVICES).mkdir(parents=True, exist_ok=True)
        for path in list((self._kept / "devices").iterdir()):
            if not path.name.startswith("neuron"):
                self._show(DEVICES, path.name)  # devices that were removed before the unload

    def _appear(self, device_id: int) -> None:
        folder = self._kept / "devices" / f"neuron{device_id}"
        change(folder / "connected_devices", "0, 0\n" if self._spec.generation == "inf1" else "\n")
        change(folder / "reset", "0\n")
        self._show(DEVICES, folder.name)
        self._node.restore_device(device_id)

    def _set_state(self, initstate: str, refcnt: str) -> None:
        change(self._node.root / INITSTATE, f"{initstate}\n")
        change(self._node.root / MODULE / "refcnt", f"{refcnt}\n")


def plan(
    device_ids: Collection[int],
    timing: LoadTiming,
    silent_s: Mapping[int, float],
    *,
    elects: bool,
    is_stored: bool,
) -> list[LoadStep]:
    """Return the steps of a load in their order. `elects`: the node's place is known after the devices are ready.

    An election whose result `is_stored` ends as soon as device 0 is ready.
    """
    steps = [LoadStep(0.0, kernel_driver.COMING), LoadStep(timing.begin_s, "class")]
    at_s = timing.begin_s
    ready_s = {}
    for device_id in device_ids:
        at_s += timing.probe_s + silent_s.get(device_id, 0.0)
        ready_s[device_id] = at_s + timing.reset_s
        steps += [LoadStep(at_s, "device", device_id), LoadStep(ready_s[device_id], "reset", device_id)]
    steps.append(LoadStep(at_s + timing.begin_s, LIVE))
    if elects and ready_s:
        elected_s = ready_s[0] if is_stored and 0 in ready_s else max(ready_s.values()) + timing.begin_s
        steps.append(LoadStep(elected_s, "election"))
    return sorted(steps, key=lambda step: step.at_s)


def _is_stored(class_texts: Mapping[str, str]) -> bool:
    """Return True if the node's place is a part of an UltraServer, as from an election before the last load."""
    return class_texts.get("ultraserver_mode", "").strip() not in ("", "4", "busy")


def _in_probe_order(spec: InstanceType, device_ids: Collection[int]) -> list[int]:
    order = PROBE_ORDER.get(spec.generation, ()) if spec.device_count == 16 else ()
    return sorted(device_ids, key=lambda device_id: order.index(device_id) if device_id in order else device_id)
