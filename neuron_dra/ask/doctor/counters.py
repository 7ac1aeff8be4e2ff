"""Checks releases of Kubernetes for faults with shared counters, where nodes publish connected sets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.doctor.seen import Seen
from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.node_views import SliceView
from neuron_dra.ask.render import words
from neuron_dra.core import members, names, releases

AREA: Final = "sets"
_SETTING: Final = "CONNECTED_SETS_OLDEST_RELEASE"
"""The variable of the driver's pods that permits an earlier release, whose vendor has ported the mends back."""


def lines(seen: Seen) -> Iterator[Line]:
    """Yield the lines; none where no node publishes counters."""
    slices = [SliceView.of(raw_slice).spec for raw_slice in seen.snapshot.all("ResourceSlice")]
    counted = [spec for spec in slices if spec.has_counters]
    own_pools = {spec.pool.name for spec in counted if spec.is_ours}
    if not own_pools:
        return
    release = releases.parse(seen.version)
    if release is None:
        text = "nodes publish connected sets, and whether the API server's release has faults with them is unknown"
        yield unknown(AREA, text)
        return
    why = releases.why_no_sets(seen.version)
    permitted = _permitted(seen, release) if why else ""
    if permitted:
        yield ok(AREA, f"scheduler.oldestRelease={permitted} permits connected sets on {seen.version}")
    elif why:
        todo = (
            f"upgrade the control plane, or drain the nodes of these claims; if your vendor has ported the mends back, "
            f"scheduler.oldestRelease={releases.text(release)}"
        )
        yield wrong(AREA, "KubernetesKnownBad", f"{why}. {_holders(seen)}", todo)
    sharing_drivers = sorted({spec.driver for spec in counted if not spec.is_ours and spec.pool.name in own_pools})
    faults = [bad for bad in releases.with_counters(release) if not bad.forbids]
    for bad in faults if sharing_drivers else ():
        drivers = words.listed(sharing_drivers)
        text = f"{drivers} and {names.DRIVER} have counters in pools of the same name: {bad.text}"
        yield wrong(AREA, "PoolNameShared", text, f"upgrade the control plane to {bad.fixed_text} or later")
    if not why and not (sharing_drivers and faults):
        yield ok(AREA, f"nothing is known against connected sets on {seen.version}")


def _permitted(seen: Seen, release: releases.Release) -> str:
    """Return the value of the driver's setting if that permits connected sets on this release; empty if not."""
    for pod in seen.snapshot.all("Pod"):
        for container in (pod.get("spec") or {}).get("containers") or ():
            setting = _value(container.get("env"))
            oldest = releases.parse(setting)
            if setting == releases.ANY or (oldest is not None and release >= oldest):
                return setting
    return ""


def _value(variables: Any) -> str:
    """Return the setting's value in a container's variables, which nothing has checked; empty if it is not there."""
    for variable in variables if isinstance(variables, list) else ():
        if isinstance(variable, dict) and variable.get("name") == _SETTING:
            return str(variable.get("value") or "")
    return ""


def _holders(seen: Seen) -> str:
    """Return which claims keep counters published."""
    claims = [ClaimView.of(claim) for claim in seen.snapshot.all("ResourceClaim")]
    holders = sorted(f"{claim.metadata.namespace}/{claim.metadata.name}" for claim in claims if _holds_a_part(claim))
    if not holders:
        return "No claim has a set: the driver takes them all back"
    count = words.count(len(holders), "claim")
    text = "Sets and cores stay published, with their counters, until these claims end"
    return f"{text}: {count}, {words.listed(holders)}"


def _holds_a_part(claim: ClaimView) -> bool:
    return any(result.driver == names.DRIVER and members.is_partition(result.device) for result in claim.results)
