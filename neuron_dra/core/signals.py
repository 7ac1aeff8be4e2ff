"""What one reading of a device shows of its health: problems by signal.

Sources: aws-neuron-driver, neuron_sysfs_metrics.c and neuron_reset.c; Neuron SDK, sysfs user guide.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from neuron_dra.core.facts import ALL_ONES, NO_SERIAL, DeviceFacts, Unread

RESET_READY: Final = 1
RESET_INVALID: Final = 2

MISSING: Final = "missing"
DEVICE_FILE_MISSING: Final = "DeviceFileMissing"
INVALID: Final = "invalid"
FIRMWARE: Final = "FirmwareNotResponding"
SRAM_ECC: Final = "sram_ecc"
HBM_ECC: Final = "hbm_ecc"
HBM_REPAIR: Final = "hbm_repair"
LINK_INTERSERVER: Final = "link_interserver"
OTHER: Final = "other"

COMPONENT = re.compile(r"[a-z0-9]([a-z0-9_]{0,61}[a-z0-9])?")


class FaultSignal(enum.Enum):
    """The reading that shows a fault."""

    PRESENCE = "presence"
    FILE = "file"
    RESET = "reset"
    FIRMWARE = "firmware"
    SRAM = "sram"
    HBM = "hbm"
    REPAIR = "repair"
    COMPONENTS = "components"


SIGNALS: Final = {
    MISSING: FaultSignal.PRESENCE,
    DEVICE_FILE_MISSING: FaultSignal.FILE,
    INVALID: FaultSignal.RESET,
    FIRMWARE: FaultSignal.FIRMWARE,
    SRAM_ECC: FaultSignal.SRAM,
    HBM_ECC: FaultSignal.HBM,
    HBM_REPAIR: FaultSignal.REPAIR,
}
"""The signal of each reason; every other reason is a component."""


@dataclass(frozen=True, slots=True)
class DeviceProblem:
    """A fault of a device as one reading shows it; `reason` is a valid label value, `message` a phrase."""

    signal: FaultSignal
    reason: str
    message: str


def readings(facts: DeviceFacts | None) -> dict[FaultSignal, tuple[DeviceProblem, ...]]:
    """Return the problems of each signal, an empty tuple if it is good; a signal that cannot be read is absent."""
    if facts is None:
        return {
            FaultSignal.PRESENCE: (DeviceProblem(FaultSignal.PRESENCE, MISSING, "the device is gone from the node"),)
        }
    problems_by_signal: dict[FaultSignal, tuple[DeviceProblem, ...]] = {FaultSignal.PRESENCE: ()}
    if facts.device_file is not None:
        file = f"/dev/neuron{facts.device_id} is missing on the host"
        missing = DeviceProblem(FaultSignal.FILE, DEVICE_FILE_MISSING, file)
        problems_by_signal[FaultSignal.FILE] = () if facts.device_file else (missing,)
    if facts.reset_state in (RESET_READY, RESET_INVALID):
        bad = facts.reset_state == RESET_INVALID
        invalid = DeviceProblem(FaultSignal.RESET, INVALID, "the kernel driver reports the device as invalid")
        problems_by_signal[FaultSignal.RESET] = (invalid,) if bad else ()
    if has_serial(facts):
        problems_by_signal[FaultSignal.FIRMWARE] = ()
    for signal, reason, count, kind in (
        (FaultSignal.SRAM, SRAM_ECC, facts.sram_ecc_uncorrected, "uncorrectable SRAM error"),
        (FaultSignal.HBM, HBM_ECC, facts.mem_ecc_uncorrected, "uncorrectable HBM error"),
        (FaultSignal.REPAIR, HBM_REPAIR, facts.mem_ecc_repairable, "repairable HBM error"),
    ):
        if not isinstance(count, Unread):
            text = f"{count} {kind}{'s' if count > 1 else ''}"
            problems_by_signal[signal] = (DeviceProblem(signal, reason, text),) if count else ()
    if not isinstance(facts.unhealthy_components, Unread):
        problems_by_signal[FaultSignal.COMPONENTS] = tuple(
            DeviceProblem(FaultSignal.COMPONENTS, _reason(component), f"component {component} is unhealthy")
            for component in dict.fromkeys(facts.unhealthy_components)
        )
    return problems_by_signal


MADE_UP: Final = (
    FaultSignal.RESET,
    FaultSignal.SRAM,
    FaultSignal.HBM,
    FaultSignal.REPAIR,
    FaultSignal.COMPONENTS,
)
"""The signals whose values mean nothing while the device's firmware does not answer the kernel driver."""

NO_ANSWER: Final = DeviceProblem(
    FaultSignal.FIRMWARE, FIRMWARE, "the device's firmware does not answer the kernel driver"
)


def has_serial(facts: DeviceFacts) -> bool:
    """Return True if the device's firmware has given its serial number."""
    return not isinstance(facts.serial, Unread) and facts.serial not in (NO_SERIAL, ALL_ONES)


def lacks_serial(facts: DeviceFacts) -> bool:
    """Return True if the kernel driver shows the device as ready, and has no serial number of it."""
    return facts.serial in (NO_SERIAL, ALL_ONES) and facts.reset_state == RESET_READY


def _reason(component: str) -> str:
    """Return a component's name if it is a valid taint value, or else `other`."""
    if COMPONENT.fullmatch(component):
        return component
    return OTHER


_FILES: Final = {
    "sram_ecc_uncorrected": FaultSignal.SRAM,
    "mem_ecc_uncorrected": FaultSignal.HBM,
    "unhealthy_components": FaultSignal.COMPONENTS,
}


def by_name(facts: DeviceFacts | None) -> frozenset[FaultSignal]:
    """Return the signals whose files were found by name: a good reading of these is no evidence of health."""
    signals = []
    for file_name in facts.found if facts else ():
        if file_name in _FILES:
            signals.append(_FILES[file_name])
    return frozenset(signals)
