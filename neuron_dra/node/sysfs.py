"""Reading the Neuron kernel driver's sysfs.

Every path stands in one table by its meaning, with the places where it may be: driver 2.31 moved part of the tree, and
an absent file means "unknown", never zero. Nothing here raises on what a file says. `reset` is read, never written:
any write resets the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from neuron_dra.core.facts import DeviceFacts, NodeFacts, UltraServerFacts, Unread

CLASS: Final = ("sys/class/neuron_device",)
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
    "unhealthy_components": (
        "stats/hardware/health_status/unhealthy_components",
        "stats/hardware/unhealthy_components",
        "health_status/unhealthy_components",
    ),
}

MAX_BYTES: Final = 4096  # a sysfs attribute has one page
_DEVICE_LINK = re.compile(r"neuron(\d{1,4})")
_SERVER_ID = re.compile(r"[0-9a-f]{16}")


def read_node(root: Path) -> NodeFacts:
    """Return what the host below `root` says of itself. Never raises."""
    folder = root / CLASS[0]
    ids = device_ids(folder)
    files = {i for i in ids if _exists(root / "dev" / f"neuron{i}")}
    return NodeFacts(
        product_name=_text(root, PRODUCT_NAME) or None,
        driver_version=_text(root, DRIVER_VERSION) or None,
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
        core_count=_number(text["core_count"], least=1),
        connected=_ids(text["connected"]),
        dev=_major_minor(text["dev"]),
        node_present=has_file if has_file is not None else _major_minor(text["dev"]) is not None,
        reset_state=_number(text["reset_state"]),
        serial=text["serial"] or Unread.UNKNOWN,
        arch_type=text["arch_type"] or Unread.UNKNOWN,
        sram_ecc_uncorrected=_number(text["sram_ecc_uncorrected"]),
        mem_ecc_uncorrected=_number(text["mem_ecc_uncorrected"]),
        unhealthy_components=_words(text["unhealthy_components"]),
    )


def _ultraserver(folder: Path) -> UltraServerFacts:
    def number(name: str) -> int | Unread:
        return _number(_text(folder, (name,)))

    def server(name: str) -> str | Unread:
        text = _text(folder, (name,))
        if text == "busy":
            return Unread.BUSY
        if text is None or not _SERVER_ID.fullmatch(text) or set(text) == {"0"}:
            return Unread.UNKNOWN
        return text

    modes = _text(folder, ("ultraserver_mode",))
    return UltraServerFacts(
        modes=_modes(modes),
        node_id_2=number("node_id_2"),
        node_id_4=number("node_id_4"),
        server_id_2=server("server_id_2"),
        server_id_4=server("server_id_4"),
        node_id=number("node_id"),
        node_cnt=number("node_cnt"),
        reservation_id=server("reservation_id"),
    )


def _text(folder: Path, candidates: tuple[str, ...]) -> str | None:
    """Return the first candidate that can be read, trimmed; None if none can."""
    for candidate in candidates:
        try:
            with (folder / candidate).open("rb") as file:
                return file.read(MAX_BYTES).decode("utf-8", errors="replace").strip().strip("\x00")
        except OSError:
            continue
    return None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _number(text: str | None, least: int = 0) -> int | Unread:
    if text == "busy":
        return Unread.BUSY
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        return Unread.UNKNOWN  # -1 is how the driver says "none"
    return int(text)


def _ids(text: str | None) -> tuple[int, ...] | Unread:
    if text == "busy":
        return Unread.BUSY
    if text is None:
        return Unread.UNKNOWN
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and len(part) <= 4 for part in parts):
        return Unread.UNKNOWN
    return tuple(int(part) for part in parts)


def _modes(text: str | None) -> tuple[int, ...] | Unread:
    modes = _ids(text)
    if isinstance(modes, Unread):
        return modes
    return tuple(mode for mode in modes if mode in (1, 2, 3, 4)) or Unread.UNKNOWN


def _words(text: str | None) -> tuple[str, ...] | Unread:
    if text is None:
        return Unread.UNKNOWN
    if text == "busy":
        return Unread.BUSY
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch(r"[a-z0-9_]{1,64}", word) for word in words):
        return Unread.UNKNOWN
    return tuple(words)


def _major_minor(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,7}):(\d{1,7})", text or "", re.ASCII)
    return (int(match[1]), int(match[2])) if match else None
