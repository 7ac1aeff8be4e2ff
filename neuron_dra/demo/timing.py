"""The limits of `neuron-dra demo`. No flag changes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DemoTiming:
    """Of `neuron-dra demo`, which takes ten to twenty seconds."""

    whole_s: float = 240.0  # after which the demo stops: a very busy machine gets an error instead of waiting
    start_s: float = 90.0  # limit of the start: a dozen processes take some seconds on two idle cores
    step_s: float = 20.0  # limit of each step
    stop_s: float = 10.0  # after which a process that does not end is killed


DEFAULT_TIMING: Final = DemoTiming()
