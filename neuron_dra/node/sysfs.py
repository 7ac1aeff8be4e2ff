"""Reading the Neuron kernel driver's sysfs.

Every path stands in one table by its meaning, with the places where it may be: driver 2.31 moved part of the tree, and
an absent file means "unknown", never zero. Nothing here raises on what a file says, and text that is not of a file's
form is unknown too. `reset` is read, never written: any write resets the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from neuron_dra.core.facts import DeviceFacts, NodeFacts, UltraServerFacts, Unread

CLASS: Final = "sys/class/neuron_device"
PRODUCT_NAME: Final = ("sys/devices/virtual/dmi/id/product_name", "sys/class/dmi/id/product_name")
DRIVER_VERSION: Final = ("sys/module/neuron/version",)

DEVICE_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "core_count": ("core_count", "info/core_count", "info/architecture/core_count"),
    "connected": ("connected_devices", "info/connected_devices", "info/topology/connected_devices"),
    "dev": ("dev",),
    "reset_state": ("reset", "info/reset"),
    "serial": ("info/serial_number",),
    "arch_type": ("info/architecture/arch_type",),
    "sram_ecc_uncorrected": ("stats/hardware/sram_ecc_uncorrected", "stats/ecc/sram_ecc_uncorrected"),
    "mem_ecc_uncorrected": ("stats/hardware/mem_ecc_uncorrected", "stats/ecc/mem_ecc_uncorrected"),
    "mem_ecc_repairable": ("stats/hardware/mem_ecc_repairable_uncorrected", "stats/ecc/mem_ecc_repairable_uncorrected"),
    "unhealthy_components": (
        "stats/hardware/health_status/unhealthy_components",
        "stats/hardware/unhealthy_components",
        "health_status/unhealthy_components",
    ),
}

ULTRASERVER_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "modes": ("ultraserver_mode",),
    "node_id_2": ("node_id_2",),
    "node_id_4": ("node_id_4",),
    "server_id_2": ("server_id_2",),
    "server_id_4": ("server_id_4",),
    "node_id": ("node_id",),
    "node_cnt": ("node_cnt",),
    "reservation_id": ("reservation_id",),
}

MAX_BYTES: Final = 4096  # a sysfs attribute has one page
_ID = r"0|[1-9]\d{0,3}"  # device ids and counts; a leading zero is not the driver's way
_DEVICE_LINK = re.compile(rf"neuron({_ID})", re.ASCII)
_PRODUCT_NAME = re.compile(r"[ -~]{1,64}")
_DRIVER_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~_-]{0,63}")
_SERIAL = re.compile(r"[0-9a-f]{16}")
_ARCH_TYPE = re.compile(r"[0-9A-Za-z]{1,16}")
_COMPONENT = re.compile(r"[a-z0-9_]{1,64}")
_BUSY = "busy"


def read_node(root: Path) -> NodeFacts:
    """Return what the host below `root` says of itself. Never raises."""
    folder = root / CLASS
    ids = device_ids(folder)
    files = {i for i in ids if _exists(root / "dev" / f"neuron{i}")}
    return NodeFacts(
        product_name=_known(_formed(_text(root, PRODUCT_NAME), _PRODUCT_NAME)),
        driver_version=_known(_formed(_text(root, DRIVER_VERSION), _DRIVER_VERSION)),
        devices=tuple(_device(folder / f"neuron{i}", i in files if files else None, i) for i in ids),
        ultraserver=_ultraserver(folder),
    )


def device_ids(folder: Path) -> list[int]:
    """Return the ids of the devices in the class folder, ascending; the order of discovery is arbitrary."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    return sorted(int(match[1]) for entry in entries if (match := _DEVICE_LINK.fullmatch(entry.name)))


def _device(folder: Path, has_file: bool | None, device_id: int) -> DeviceFacts:
    """Read one device. `has_file` is None where /dev shows no Neuron device at all: an unprivileged pod sees the
    host's sysfs but has a /dev of its own. There the number in sysfs, from which the kernel makes the file, decides.
    """
    text = {meaning: _text(folder, candidates) for meaning, candidates in DEVICE_FILES.items()}
    return DeviceFacts(
        device_id=device_id,
        core_count=_number(text["core_count"], least=1, digits=4),
        connected=_ids(text["connected"]),
        dev=_major_minor(text["dev"]),
        node_present=has_file if has_file is not None else _major_minor(text["dev"]) is not None,
        reset_state=_number(text["reset_state"]),
        serial=_formed(text["serial"], _SERIAL),
        arch_type=_formed(text["arch_type"], _ARCH_TYPE),
        sram_ecc_uncorrected=_number(text["sram_ecc_uncorrected"]),
        mem_ecc_uncorrected=_number(text["mem_ecc_uncorrected"]),
        mem_ecc_repairable=_number(text["mem_ecc_repairable"]),
        unhealthy_components=_components(text["unhealthy_components"]),
    )


def _ultraserver(folder: Path) -> UltraServerFacts:
    text = {meaning: _text(folder, candidates) for meaning, candidates in ULTRASERVER_FILES.items()}
    return UltraServerFacts(
        modes=_modes(text["modes"]),
        node_id_2=_number(text["node_id_2"]),
        node_id_4=_number(text["node_id_4"]),
        server_id_2=_server(text["server_id_2"]),
        server_id_4=_server(text["server_id_4"]),
        node_id=_number(text["node_id"]),
        node_cnt=_number(text["node_cnt"]),
        reservation_id=_server(text["reservation_id"]),
    )


def _text(folder: Path, candidates: tuple[str, ...]) -> str | None:
    """Return what the first candidate that can be read says, as it is; None if none can be."""
    for candidate in candidates:
        try:  # some 200 files every few seconds: pathlib and buffers cost three times as much
            with open(f"{folder}/{candidate}", "rb", buffering=0) as file:
                return file.read(MAX_BYTES).decode("ascii", errors="replace")
        except OSError:
            continue
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _formed(text: str | None, form: re.Pattern[str]) -> str | Unread:
    word = (text or "").strip()
    if word == _BUSY:
        return Unread.BUSY
    return word if form.fullmatch(word) else Unread.UNKNOWN


def _known(reading: str | Unread) -> str | None:
    return None if isinstance(reading, Unread) else reading


def _number(text: str | None, least: int = 0, digits: int = 18) -> int | Unread:
    word = (text or "").strip()
    if word == _BUSY:
        return Unread.BUSY
    if not (word.isascii() and word.isdigit() and len(word) <= digits) or int(word) < least:
        return Unread.UNKNOWN  # -1 is how the driver says "none"
    return int(word)


def _server(text: str | None) -> str | Unread:
    """Read the id of a server or reservation; all zeros are how the driver says "none"."""
    word = _formed(text, _SERIAL)
    return Unread.UNKNOWN if not isinstance(word, Unread) and set(word) == {"0"} else word


def _ids(text: str | None) -> tuple[int, ...] | Unread:
    """Read ids with commas between them.

    A line without any is "none". No line at all is what the driver shows until every device is initialised, and
    in place of a list that is too long for its buffer.
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
    modes = _ids(text)
    if isinstance(modes, Unread):
        return modes
    return tuple(mode for mode in modes if mode in (1, 2, 3, 4)) or Unread.UNKNOWN


def _components(text: str | None) -> tuple[str, ...] | Unread:
    """Read the sick components; an empty file, with or without a line, says that all are well."""
    if text is None:
        return Unread.UNKNOWN
    if text.strip() == _BUSY:
        return Unread.BUSY
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    return tuple(words) if all(_COMPONENT.fullmatch(word) for word in words) else Unread.UNKNOWN


def _major_minor(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,7}):(\d{1,7})", (text or "").strip(), re.ASCII)
    return (int(match[1]), int(match[2])) if match else None
