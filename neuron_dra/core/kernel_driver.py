"""The state of the kernel driver: loaded, loading, leaving or absent, and how it is told.

The driver takes seconds to load, and its devices appear one after another. Until the last probe has ended,
/sys/module/neuron/initstate reads `coming`, and while it is unloaded `going`. Source: Linux, kernel/module, and
loads of the driver that were recorded (tests/data/kernel-driver).
"""

from __future__ import annotations

import enum
from typing import Final

COMING: Final = "coming"
GOING: Final = "going"

LONG_LOAD_S: Final = 180.0
"""A load that takes longer is a finding: 16 devices need about a minute, and each that does not answer up to ten."""

_STEPS_S: Final = (10, 20, 30, 60, 120, 180, 300, 600, 1800, 3600)


class DriverState(enum.Enum):
    """What the kernel driver was doing during a reading."""

    LOADED = "loaded"
    LOADING = "loading"  # some of its devices are there
    CHANGING = "changing"  # it leaves, or its state changed during the reading, which therefore shows no state at all
    NOT_LOADED = "not loaded"


def state(before: str, after: str, *, has_class: bool) -> DriverState:
    """Return the driver's state from `initstate` before and after the devices were read; empty where it is absent.

    `has_class` is whether the driver's class folder exists. Without the file, as in older simulated trees and in
    containers that do not see it, a driver with that folder is loaded.
    """
    if before != after or before == GOING:
        return DriverState.CHANGING
    if before == COMING:
        return DriverState.LOADING
    if not before and not has_class:
        return DriverState.NOT_LOADED
    return DriverState.LOADED


def loading(device_count: int, for_s: float | None = None) -> str:
    """Return how far a load is, and for how long it has been seen, None if it was seen once.

    The duration is coarse, because each new text is told again.
    """
    devices = "1 device" if device_count == 1 else f"{device_count} devices"
    duration = "" if for_s is None else f", for {_coarse(for_s)}"
    return f"the kernel driver is loading, {devices} so far{duration}"


NOT_LOADED: Final = "the kernel driver is not loaded"
LEAVING: Final = "the kernel driver is being unloaded"


def _coarse(seconds: float) -> str:
    passed = [step for step in _STEPS_S if step <= seconds]
    if not passed:
        return f"less than {_STEPS_S[0]} s"
    if passed[-1] < 60:
        return f"{passed[-1]} s"
    if passed[-1] < 3600:
        return f"{passed[-1] // 60} min"
    hours = int(seconds // 3600)
    return f"{hours} h" if hours < 24 else f"{hours // 24} d"
