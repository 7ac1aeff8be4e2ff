"""Whether the API server is new enough for connected sets, from its answers over time.

While a control plane is upgraded or taken back, a load balancer gives each connection to a server of either release. So
the gate opens after several good answers in a row, each over a connection of its own. It closes after a single bad one,
for a while. It does not see the scheduler's version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from neuron_dra.core import releases
from neuron_dra.core.releases import Release

ANSWERS: Final = 3
"""Good answers in a row that open the gate."""


@dataclass(frozen=True, slots=True)
class GateTiming:
    """Of the questions for the API server's version."""

    # Between answers, on a node that publishes; one that publishes nothing yet asks three times at once.
    ask_s: float = 300.0
    retry_s: float = 60.0  # until the next question after one without an answer
    closed_s: float = 600.0  # after an answer of a release that is too old, no connected sets are turned on


DEFAULT_GATE_TIMING: Final = GateTiming()


@dataclass(frozen=True, slots=True)
class Gate:
    """The state: `good` answers in a row, why the last bad one was bad, and the loop's times of what comes next."""

    is_open: bool = False
    good: int = 0
    why: str = ""
    closed_until: float = 0.0
    ask_at: float = 0.0

    @property
    def reason(self) -> str:
        """Why it is closed; empty if it is open."""
        if self.is_open:
            return ""
        return self.why or (
            f"the API server has not answered {ANSWERS} times in a row with a version that is new enough; while the "
            "control plane is upgraded, servers of two releases may answer"
        )


def answered(
    gate: Gate,
    now: float,
    version: str | None,
    oldest: Release,
    *,
    is_plain: bool,
    timing: GateTiming = DEFAULT_GATE_TIMING,
) -> Gate:
    """Return the gate after an answer at time `now`; a version of None means that there was none.

    `is_plain` means that the node publishes slices without counters, so that nothing is urgent.
    """
    if version is None or releases.parse(version) is None:
        return replace(gate, ask_at=now + timing.retry_s)
    why = releases.why_no_sets(version, oldest)
    if why:
        return Gate(why=why, closed_until=now + timing.closed_s, ask_at=now + timing.ask_s)
    good = min(gate.good + 1, ANSWERS)
    is_open = gate.is_open or (good == ANSWERS and now >= gate.closed_until)
    is_urgent = good < ANSWERS and not (is_plain or gate.why)
    return Gate(
        is_open=is_open,
        good=good,
        why="" if is_open else gate.why,
        closed_until=gate.closed_until,
        ask_at=now if is_urgent else now + timing.ask_s,
    )
