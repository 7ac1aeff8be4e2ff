"""The prepared devices in a claim's status: this driver's entries in `status.devices`.

Source: resource/v1, AllocatedDeviceStatus (KEP-4817). An entry names an allocated device; the API server removes it
with the allocation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.claims import AllocatedDevice, PreparedClaim, PreparedDevice
from neuron_dra.core.wire import Obj

CONDITION: Final = "Prepared"
_KEY: Final = ("driver", "pool", "device", "shareID")


def changed(
    claim: PreparedClaim, allocated: Iterable[AllocatedDevice], present: Sequence[Obj], now: str
) -> list[Obj] | None:
    """Return the entries of a claim's status with those of its prepared devices; None if `present` has them.

    Entries of other devices stay as they are. A device that is not in `allocated`, the devices of this driver that the
    claim has now, gets none. `now`: RFC 3339, UTC, the time for a claim whose own is unknown.
    """
    belong = set()
    for device in allocated:
        belong.add((names.DRIVER, device.pool, device.device, device.share_id))
    made = [entry for entry in _entries(claim, now) if _key(entry) in belong]
    known = {_key(entry): entry for entry in present}
    if all(_is_equal(entry, known.get(_key(entry))) for entry in made):
        return None
    ours = {_key(entry) for entry in made}
    return [*(entry for entry in present if _key(entry) not in ours), *made]


def _entries(claim: PreparedClaim, now: str) -> Iterable[Obj]:
    at = (claim.prepared_at or now).replace("+00:00", "Z")
    attributes = _attributes(claim)
    seen = set()
    for device in claim.devices:
        entry = _entry(device, at, attributes.get((device.pool, device.device)))
        if _key(entry) not in seen:  # two requests may have the same device with adminAccess
            seen.add(_key(entry))
            yield entry


def _entry(device: PreparedDevice, at: str, attributes: Obj | None) -> Obj:
    files = ", ".join(f"/dev/neuron{number}" for number in device.device_ids)
    environment = dict(variable.split("=", 1) for variable in device.env)
    data: Obj = {"deviceIds": list(device.device_ids)}
    share: Obj = {"shareID": device.share_id} if device.share_id else {}
    if device.cores is not None:
        data["cores"] = {"first": device.cores.first, "number": device.cores.number}
    if environment:
        data["environment"] = environment
    if attributes:
        data["attributes"] = attributes
    prepared = {
        "type": CONDITION,
        "status": "True",
        "reason": CONDITION,
        "message": f"prepared on node {device.pool}: containers of the claim get {files}",
        "lastTransitionTime": at,
    }
    identity = {"driver": names.DRIVER, "pool": device.pool, "device": device.device, **share}
    return {**identity, "conditions": [prepared], "data": data}


def _attributes(claim: PreparedClaim) -> dict[tuple[str, str], Obj]:
    """Return the attributes that the claim's metadata files have, by pool and device; empty without these files."""
    found: dict[tuple[str, str], Obj] = {}
    for text in (claim.metadata or {}).values():
        for request in json.loads(text)["requests"]:
            for device in request["devices"]:
                found[device["pool"], device["name"]] = device["attributes"]
    return found


def _key(entry: Obj) -> tuple[Any, ...]:
    return tuple(entry.get(field) for field in _KEY)


def _is_equal(entry: Obj, present: Obj | None) -> bool:
    """Return True if an entry of the API server has what `entry` has; times are not compared."""
    return present is not None and _timeless(entry) == _timeless(present)


def _timeless(entry: Obj) -> Obj:
    conditions = [dict(each) for each in entry.get("conditions") or ()]
    for each in conditions:
        each.pop("lastTransitionTime", None)
    return {**entry, "conditions": conditions}
