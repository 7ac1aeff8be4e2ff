"""Another program that writes this node's slices: each undoes what the other wrote, for as long as both run.

The first times, the plugin writes again immediately, because a driver that was replaced may write for the last time.
Then the pauses grow.
"""

from __future__ import annotations

from typing import Final

from neuron_dra.core import names
from neuron_dra.node.publish.slice_publisher import Published
from neuron_dra.node.publish.wanted import Wanted
from neuron_dra.node.timing import PublishTiming

AT_ONCE: Final = 3  # publishes within `rival_window_s` that undo another program's writes without a pause


class Rivals:
    """Decides how long to pause after a publish. `why` names the other program's slices, while there is a rival."""

    def __init__(self, node_name: str, timing: PublishTiming) -> None:
        self._node_name = node_name
        self._timing = timing
        self._desired: Wanted | None = None
        self._undone_at: list[float] = []
        self.why = ""
        self._pause_s = 0.0

    def took(self, now: float, desired: Wanted, published: Published) -> None:
        """Take a publish into account. It was against a rival if what we want to publish has not changed."""
        is_same, self._desired = desired == self._desired, desired
        self._undone_at = [at for at in self._undone_at if now - at <= self._timing.rival_window_s]
        if is_same and published.undone:
            self._undone_at.append(now)
        first_s, longest_s = self._timing.rival_s
        excess = len(self._undone_at) - AT_ONCE
        if excess <= 0:
            self.why, self._pause_s = "", 0.0
        elif is_same and published.undone:
            self._pause_s = min(first_s * 2.0 ** min(excess - 1, 30), longest_s)
            self.why = (
                f"another program writes the ResourceSlices of {names.DRIVER} for node {self._node_name}: "
                f"{', '.join(published.undone)}; only one driver may run on a node, so remove the other one"
            )
        else:
            self._pause_s = 0.0

    def take_pause(self) -> float:
        """Return the seconds to pause after the last publish; 0 when asked again."""
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s
