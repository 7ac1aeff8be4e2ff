"""Reading the Neuron kernel driver's sysfs.

One table lists the candidate paths of each value. Driver 2.31 moved part of the tree, so a value whose file's name says
what it is is also looked for by that name; `reset` and `dev` do not. A missing file means "unknown", never zero, and so
does malformed text; no content raises an error. `reset` is read and never written: any write resets the device.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from neuron_dra.core import kernel_driver, signals
from neuron_dra.core.facts import NO_SERIAL, DeviceFacts, NodeFacts, UltraServerFacts, Unread
from neuron_dra.core.kernel_driver import DriverState
from neuron_dra.node.hardware import helper, pci
from neuron_dra.node.hardware.helper import CLASS, States, Texts

PRODUCT_NAME: Final = ("sys/devices/virtual/dmi/id/product_name", "sys/class/dmi/id/product_name")
DRIVER_VERSION: Final = ("sys/module/neuron/version",)

DEVICE_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "core_count": ("core_count", "info/core_count", "info/architecture/core_count"),
    "connected": ("connected_devices", "info/connected_devices", "info/topology/connected_devices"),
    "dev": ("dev",),
    "reset_state": ("reset", "info/reset"),
    "serial": ("info/serial_number",),
    "sram_ecc_uncorrected": ("stats/hardware/sram_ecc_uncorrected", "stats/ecc/sram_ecc_uncorrected"),
    "mem_ecc_uncorrected": ("stats/hardware/mem_ecc_uncorrected", "stats/ecc/mem_ecc_uncorrected"),
    "mem_ecc_repairable": ("stats/hardware/mem_ecc_repairable_uncorrected", "stats/ecc/mem_ecc_repairable_uncorrected"),
    "unhealthy_components": (
        "stats/hardware/health_status/unhealthy_components",
        "stats/hardware/unhealthy_components",
        "health_status/unhealthy_components",
    ),
    "heartbeat": (
        "stats/hardware/health_status/healthcheck_heartbeat",
        "stats/hardware/healthcheck_heartbeat",
        "health_status/healthcheck_heartbeat",
    ),
}

ULTRASERVER_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "modes": ("ultraserver_mode",),
    "node_id_2": ("node_id_2",),
    "node_id_4": ("node_id_4",),
    "server_id_2": ("server_id_2",),
    "server_id_4": ("server_id_4",),
    "node_id": ("node_id",),
    "reservation_id": ("reservation_id",),
}

NAMED: Final = frozenset({*DEVICE_FILES, *ULTRASERVER_FILES} - {"dev", "reset_state"})
"""The values whose file's name says what they are. Others, such as `total` or `arch_type`, repeat for each core."""


def _layout(files: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the candidates of each file: the known paths, then the file of that name, wherever it is."""
    groups = []
    for value, paths in files.items():
        by_name = f"{helper.BY_NAME}{_file_name(paths[0])}"
        groups.append((*paths, by_name) if value in NAMED else paths)
    return tuple(groups)


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


LAYOUT: Final = (
    (PRODUCT_NAME, DRIVER_VERSION, *pci.FILES),
    _layout(ULTRASERVER_FILES),
    _layout(DEVICE_FILES),
)
"""The files of the node, of the class and of a device, as the helper process reads them."""

_ID = r"0|[1-9]\d{0,3}"  # device ids and counts; the driver writes no leading zeros
_PRODUCT_NAME = re.compile(r"[ -~]{1,64}")
_DRIVER_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~_-]{0,63}")
_SERIAL = re.compile(r"[0-9a-f]{16}")
COMPONENTS_AT_MOST: Final = 32
_COMPONENT_BYTES: Final = 63  # the longest value of a taint
_BUSY = "busy"


@dataclass(frozen=True, slots=True)
class DeviceFolder:
    """The folder with the device files.

    `is_hosts` is False for a container's own /dev: the host's files are not in it, which is no evidence about devices.
    """

    path: str
    is_hosts: bool = True


class FileReading(NamedTuple):
    """The texts of the kernel driver's files, in the order of LAYOUT.

    - `ids`: of the devices; None if the class folder is not there. Then `devices` are those with a file in /dev.
    - `devices`: for each device the kind of its file in /dev, and its own files; None if it was left out.
    - `found_paths`: of the files that were found by their names.
    - `driver_states`: the driver's INITSTATE before and after everything else was read.
    """

    of_node: Texts
    ids: list[int] | None
    of_class: Texts
    devices: dict[int, tuple[int, Texts] | None]
    found_paths: list[str]
    driver_states: States


def device_folder(root: Path, mounted: str = "/host/dev") -> DeviceFolder:
    """Return the folder with the host's device files.

    It is below `root` if that is not the file system's root, or else where the DaemonSet has `mounted` the host's /dev.
    """
    if root != Path("/"):
        return DeviceFolder(str(root / "dev"), (root / "dev").is_dir())
    if Path(mounted).is_dir():
        return DeviceFolder(mounted)
    return DeviceFolder("/dev", is_hosts=False)


def read_node(root: Path, source: helper.Source | None = None, dev: DeviceFolder | None = None) -> NodeFacts:
    """Return the facts of the host below `root`, read in this process. Never raises."""
    dev = dev or device_folder(root)
    reading = read(source or helper.Source(), str(root).rstrip("/"), dev.path)
    return facts(reading, is_hosts_dev=dev.is_hosts)


def read(
    source: helper.Source, root: str, dev: str, may_read: Callable[[str], bool] = lambda unit: True
) -> FileReading:
    """Return what all files below `root` contain, read in this process; the arguments are those of `helper.read`."""
    return FileReading(*helper.read(source, root, LAYOUT, dev, may_read))


def driver_state(reading: FileReading) -> DriverState:
    """Return what the kernel driver was doing during a reading. An empty class folder, as of a mount, is none."""
    before, after = ((_decoded(text) or "").strip() for text in reading.driver_states)
    has_class = bool(reading.ids) or any(text is not None for text in reading.of_class)
    return kernel_driver.state(before, after, has_class=has_class)


def facts(
    reading: FileReading, *, before: FileReading | None = None, hanging: Iterable[str] = (), is_hosts_dev: bool = True
) -> NodeFacts:
    """Return the facts of a reading. `hanging` are the paths that were left out because reading them hangs.

    What was left out keeps its value from `before`, except the health of devices, which becomes unknown. Unless
    `is_hosts_dev`, whether devices have files is unknown.

    A kernel driver that loads or leaves has no devices, and one that is not loaded has no device files, which is no
    fault of a device.
    """
    state = driver_state(reading)
    if state in (DriverState.LOADING, DriverState.CHANGING):
        so_far = len(reading.ids or ()) if state is DriverState.LOADING else 0
        of_class: Texts = [None] * len(reading.of_class)
        without_devices = FileReading(reading.of_node, [], of_class, {}, [], reading.driver_states)
        return replace(_facts(without_devices, before=None), driver_state=state, devices_so_far=so_far, unread=())
    is_hosts_dev = is_hosts_dev and state is DriverState.LOADED
    return replace(_facts(reading, before=before, hanging=hanging, is_hosts_dev=is_hosts_dev), driver_state=state)


def _facts(
    reading: FileReading, *, before: FileReading | None, hanging: Iterable[str] = (), is_hosts_dev: bool = True
) -> NodeFacts:
    left_out = set(hanging)
    reading = _validated(reading)
    completed = reading if before is None else with_earlier(reading, before, left_out)
    product_name, driver_version = (_decoded(text) for text in completed.of_node[:2])
    device_facts = []
    for device_id in completed.ids or ():
        read_device = reading.devices.get(device_id)
        device_facts.append(_device_or_before(device_id, read_device, before, is_hosts_dev=is_hosts_dev))
    has_vanished = reading.ids is None
    if has_vanished:
        with_file = reading.devices.keys()
        device_facts = [
            replace(device, device_file=device.device_id in with_file if is_hosts_dev else None)
            for device in device_facts
        ]
    return NodeFacts(
        product_name=_known(_formed(product_name, _PRODUCT_NAME)),
        driver_version=_known(_formed(driver_version, _DRIVER_VERSION)),
        devices=_marked(device_facts, reading.found_paths),
        ultraserver=_ultraserver(completed.of_class),
        hanging=tuple(sorted(left_out)),
        numa=pci.numa(completed.of_node[2:]),
        found=tuple(sorted(reading.found_paths)),
        unread=() if has_vanished else _unread(reading, left_out),
        vanished=has_vanished,
    )


def with_earlier(reading: FileReading, before: FileReading, hanging: Iterable[str]) -> FileReading:
    """Return a reading in which everything that was left out is as in `before`: files of node and class, devices.

    If the class folder has vanished, all devices were left out.
    """
    left_out = set(hanging)
    ids = reading.ids if reading.ids is not None else before.ids
    devices = {}
    for device_id in ids or ():
        device = reading.devices.get(device_id)
        devices[device_id] = before.devices.get(device_id) if device is None else device
    of_node = _or_before("", LAYOUT[0], reading.of_node, before.of_node, left_out)
    of_class = _or_before(f"{CLASS}/", LAYOUT[1], reading.of_class, before.of_class, left_out)
    return reading._replace(of_node=of_node, ids=ids, of_class=of_class, devices=devices)


def _validated(reading: FileReading) -> FileReading:
    """Return a reading without the files that were found by name and whose text is not of the value's form."""
    of_class, devices, kept_paths = list(reading.of_class), dict(reading.devices), []
    for path in reading.found_paths:
        number = helper.unit_of(path).removeprefix("neuron")
        device_id = int(number) if number.isdecimal() else None
        device = None if device_id is None else devices.get(device_id)
        if device_id is None or device is None:
            is_good, checked = _without_malformed(path, ULTRASERVER_FILES, of_class, _ultraserver)
            of_class = checked
        else:
            kind, texts = device
            read = functools.partial(_device, kind, device_id=device_id, is_hosts_dev=True)
            is_good, checked = _without_malformed(path, DEVICE_FILES, texts, read)
            devices[device_id] = kind, checked
        if is_good:
            kept_paths.append(path)
    return reading._replace(of_class=of_class, devices=devices, found_paths=kept_paths)


def _without_malformed(
    path: str,
    files: Mapping[str, tuple[str, ...]],
    texts: Sequence[bytes | None],
    read: Callable[[list[bytes | None]], object],
) -> tuple[bool, list[bytes | None]]:
    """Return whether the file at `path` has a text of its value's form, and the texts without it if not."""
    index = _names(files).index(_file_name(path))
    value = list(files)[index]
    checked = list(texts)
    if getattr(read(checked), value) is not Unread.UNKNOWN:
        return True, checked
    checked[index] = None
    return False, checked


def _marked(devices: Iterable[DeviceFacts], paths: Iterable[str]) -> tuple[DeviceFacts, ...]:
    """Return the devices with the names of their files that were found at `paths`."""
    names: dict[str, list[str]] = {}
    for path in paths:
        names.setdefault(helper.unit_of(path), []).append(_file_name(path))
    marked = []
    for device in devices:
        file_names = tuple(sorted(names.get(f"neuron{device.device_id}", ())))
        marked.append(replace(device, found=file_names))
    return tuple(marked)


def _unread(reading: FileReading, left_out: Collection[str]) -> tuple[str, ...]:
    """Return the names of the files that no device has, and of those that the class does not have.

    Files that were left out of the reading do not count, because they may be there.
    """
    unread: list[str] = []
    texts = [of_device for _, of_device in filter(None, reading.devices.values())]
    if texts:
        for index, name in enumerate(_names(DEVICE_FILES)):
            if all(of_device[index] is None for of_device in texts):
                unread.append(name)
    for name, text in zip(_names(ULTRASERVER_FILES), reading.of_class, strict=True):
        if text is None:
            unread.append(name)
    hanging = set(map(_file_name, left_out))
    return tuple(name for name in unread if name not in hanging)


def _names(files: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [_file_name(candidates[0]) for candidates in files.values()]


def _or_before(
    folder: str, groups: helper.Groups, read: helper.Texts, before: helper.Texts, left_out: set[str]
) -> helper.Texts:
    merged = []
    for group, text, text_before in zip(groups, read, before, strict=True):
        paths = {f"{folder}{candidate}" for candidate in group}
        was_left_out = text is None and not left_out.isdisjoint(paths)
        merged.append(text_before if was_left_out else text)
    return merged


def _device_or_before(
    device_id: int, read: tuple[int, list[bytes | None]] | None, before: FileReading | None, *, is_hosts_dev: bool
) -> DeviceFacts:
    if read is not None:
        return _device(*read, device_id, is_hosts_dev=is_hosts_dev)
    device_before = before.devices.get(device_id) if before is not None else None
    if device_before is None:
        return DeviceFacts(device_id, hangs=True)
    return replace(_device(*device_before, device_id, is_hosts_dev=False), hangs=True)


def _device(kind: int, texts: list[bytes | None], device_id: int, *, is_hosts_dev: bool) -> DeviceFacts:
    """Return one device's facts; `kind` is that of its file in /dev."""
    text = dict(zip(DEVICE_FILES, map(_decoded, texts), strict=True))
    has_file = None
    if is_hosts_dev and kind != helper.UNREADABLE:
        has_file = kind != helper.NO_FILE
    return DeviceFacts(
        device_id=device_id,
        core_count=_number(text["core_count"], least=1, digits=4),
        connected=_ids(text["connected"]),
        dev=_major_minor(text["dev"]),
        device_file=has_file,
        reset_state=_number(text["reset_state"]),
        serial=_serial(text["serial"]),
        sram_ecc_uncorrected=_number(text["sram_ecc_uncorrected"]),
        mem_ecc_uncorrected=_number(text["mem_ecc_uncorrected"]),
        mem_ecc_repairable=_number(text["mem_ecc_repairable"]),
        unhealthy_components=_components(text["unhealthy_components"]),
        heartbeat=_number(text["heartbeat"]),
    )


def _ultraserver(texts: list[bytes | None]) -> UltraServerFacts:
    text = dict(zip(ULTRASERVER_FILES, map(_decoded, texts), strict=True))
    return UltraServerFacts(
        modes=_modes(text["modes"]),
        node_id_2=_number(text["node_id_2"]),
        node_id_4=_number(text["node_id_4"]),
        server_id_2=_server(text["server_id_2"]),
        server_id_4=_server(text["server_id_4"]),
        node_id=_number(text["node_id"]),
        reservation_id=_server(text["reservation_id"]),
    )


def plain_device_files(reading: FileReading) -> bool:
    """Return whether the device files are plain files, as on simulated hardware without the right to make devices."""
    return any(kind == helper.A_PLAIN_FILE for kind, _ in filter(None, reading.devices.values()))


def _decoded(text: bytes | None) -> str | None:
    if text is None:
        return None
    return text.decode("ascii", errors="replace")


def _formed(text: str | None, form: re.Pattern[str]) -> str | Unread:
    word = (text or "").strip()
    if word == _BUSY:
        return Unread.BUSY
    if form.fullmatch(word):
        return word
    return Unread.UNKNOWN


def _serial(text: str | None) -> str | Unread:
    """Return a device's serial number; an empty line differs from a file that cannot be read."""
    if text and not text.strip():
        return NO_SERIAL
    return _formed(text, _SERIAL)


def _known(reading: str | Unread) -> str | None:
    if isinstance(reading, Unread):
        return None
    return reading


def _number(text: str | None, least: int = 0, digits: int = 18) -> int | Unread:
    word = (text or "").strip()
    if word == _BUSY:
        return Unread.BUSY
    if not (word.isascii() and word.isdigit() and len(word) <= digits) or int(word) < least:
        return Unread.UNKNOWN  # the driver writes -1 for "none"
    return int(word)


def _server(text: str | None) -> str | Unread:
    """Return the id of a server or reservation; the driver writes zeros for "none"."""
    word = _formed(text, _SERIAL)
    if not isinstance(word, Unread) and set(word) == {"0"}:
        return Unread.UNKNOWN
    return word


def _ids(text: str | None) -> tuple[int, ...] | Unread:
    """Return ids from a comma-separated list.

    An empty line means "none". Without any line the ids are unknown: the driver writes none until every device is
    initialized, and if the list is too long for its buffer.
    """
    if text is None or not text:
        return Unread.UNKNOWN
    if text.strip() == _BUSY:
        return Unread.BUSY
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(re.fullmatch(_ID, part, re.ASCII) for part in parts):
        return Unread.UNKNOWN
    return tuple(int(part) for part in parts)


def _modes(text: str | None) -> tuple[int, ...] | Unread:
    """Return the modes; an empty line means that the kernel driver knows of no UltraServer."""
    modes = _ids(text)
    if isinstance(modes, Unread) or not modes:
        return modes
    return tuple(mode for mode in modes if mode in (1, 2, 3, 4)) or Unread.UNKNOWN


def _components(text: str | None) -> tuple[str, ...] | Unread:
    """Return the unhealthy components; an empty file or an empty line means none.

    Words of another form than the kernel driver's count too, as the nearest word of its form, because a driver that
    names a component in another way has still found it unhealthy.
    """
    if text is None:
        return Unread.UNKNOWN
    if text.strip() == _BUSY:
        return Unread.BUSY
    words = re.split(r"[,;\s]+", text)[:COMPONENTS_AT_MOST]
    components = tuple(dict.fromkeys(_component(word) for word in words if word))
    if not components and text.strip():
        return (signals.OTHER,)
    return components


def _component(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_")[:_COMPONENT_BYTES].rstrip("_") or signals.OTHER


def _major_minor(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,7}):(\d{1,7})", (text or "").strip(), re.ASCII)
    if match:
        return (int(match[1]), int(match[2]))
    return None
