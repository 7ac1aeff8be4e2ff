"""Checks releases of Kubernetes for faults with shared counters, where nodes publish connected sets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.doctor.seen import Seen
from neuron_dra.ask.render import words
from neuron_dra.core import members, names, releases
from neuron_dra.core.wire import Wire

AREA: Final = "sets"


def lines(seen: Seen) -> Iterator[Line]:
    """Yield the lines; none where no node publishes counters."""
    slices = seen.snapshot.all("ResourceSlice")
    ours = {_pool(item) for item in slices if _driver(item) == names.DRIVER and _has_counters(item)}
    if not ours:
        return
    release = releases.parse(seen.version)
    if release is None:
        text = "nodes publish connected sets, and whether the API server's release has faults with them is unknown"
        yield unknown(AREA, text)
        return
    if why := releases.why_no_sets(seen.version):
        todo = (
            f"upgrade the control plane, or drain the nodes of these claims; if your vendor has ported the mends back, "
            f"scheduler.oldestRelease={releases.text(release)}"
        )
        yield wrong(AREA, "KubernetesKnownBad", f"{why}. {_holders(seen)}", todo)
    shared = sorted({_driver(item) for item in slices if _shares_a_pool(item, ours)})
    faults = [bad for bad in releases.known_bad(release) if not bad.forbids]
    for bad in faults if shared else ():
        text = f"{words.listed(shared)} and {names.DRIVER} have counters in pools of the same name: {bad.text}"
        yield wrong(
            AREA, "PoolNameShared", text, f"upgrade the control plane to {releases.text(bad.fixed_in)} or later"
        )
    if not why and not (shared and faults):
        yield ok(AREA, f"nothing is known against connected sets on {seen.version}")


def _holders(seen: Seen) -> str:
    """Return which claims keep counters published."""
    held = sorted(
        f"{claim['metadata'].get('namespace')}/{claim['metadata']['name']}"
        for claim in seen.snapshot.all("ResourceClaim")
        if _holds_a_part(claim)
    )
    if not held:
        return "No claim has a set: the driver takes them all back"
    count = words.count(len(held), "claim")
    return f"Sets and cores stay published, with their counters, until these claims end: {count}, {words.listed(held)}"


def _holds_a_part(claim: Wire) -> bool:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return any(each["driver"] == names.DRIVER and members.is_partition(each["device"]) for each in results)


def _shares_a_pool(item: Wire, pools: set[str]) -> bool:
    return _driver(item) != names.DRIVER and _has_counters(item) and _pool(item) in pools


def _driver(item: Wire) -> str:
    return str((item.get("spec") or {}).get("driver") or "")


def _pool(item: Wire) -> str:
    return str(((item.get("spec") or {}).get("pool") or {}).get("name") or "")


def _has_counters(item: Wire) -> bool:
    spec = item.get("spec") or {}
    return bool(spec.get("sharedCounters")) or any(each.get("consumesCounters") for each in spec.get("devices") or ())
