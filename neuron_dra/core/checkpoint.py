"""The checkpoint: all prepared claims of this boot, in a file format that survives crashes and updates.

Format, version v1: one line of JSON, and then any bytes, which a longer line has left. The line begins with a header of
checksum, length, sequence and version, in this order and without blanks. `checksum` is SHA-256 over the line from
`"length"` on, and `length` is the number of its bytes from `"sequence"` on. So a reader can check a line of a later
version. A release may add fields, but never changes or removes one. It keeps fields that it does not know, so that a
downgrade followed by an upgrade loses nothing. Numbers outside the header are integers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.members import Cores
from neuron_dra.core.ultraserver import Tag
from neuron_dra.core.withdrawals import Mark, Withdrawals
from neuron_dra.errors import CheckpointDamaged, CheckpointOfLaterRelease

VERSION = "v1"
SLOTS: Final = ("checkpoint.0", "checkpoint.1")
"""The files that have the checkpoint; the newest whole one counts."""
_TAG = "workloadTag"  # in `extra`, where a release without tags keeps it
_WITHDRAWN = "withdrawn"  # likewise
_TAG_OBJECT = "ultraserverUid"  # UID of the NeuronUltraServer that the tag comes from


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that a plugin keeps across restarts; immutable, each change returns a new one.

    - `boot_id`: the boot in which the claims were prepared; after a reboot none of them is.
    - `claims`: prepared claims by UID.
    - `extra`: the document's other fields: the tag, the withdrawals, and fields of newer releases.
    - `sequence`: grows with each write, so of two files the one with the higher number is newer.
    """

    boot_id: str
    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    sequence: int = field(default=0, compare=False)

    def with_claims(self, claims: Mapping[str, PreparedClaim]) -> Checkpoint:
        """Return a checkpoint with `claims`, by UID, added or replaced."""
        return replace(self, claims={**self.claims, **claims})

    def without(self, uids: Iterable[str]) -> Checkpoint:
        """Return a checkpoint without the claims `uids`."""
        removed_uids = set(uids)
        return replace(self, claims={uid: claim for uid, claim in self.claims.items() if uid not in removed_uids})

    def doubting(self) -> Checkpoint:
        """Return a checkpoint whose claims are all doubtful: another driver may have unprepared some of them."""
        return replace(self, claims={uid: replace(claim, doubtful=True) for uid, claim in self.claims.items()})

    def withdrawing(self, uids: Iterable[str], now: int) -> Checkpoint:
        """Return a checkpoint without the claims `uids` that records their unprepare in the second `now`."""
        uids = list(uids)
        return self.without(uids).with_withdrawals(self.withdrawals.adding(uids, now))

    def with_withdrawals(self, withdrawals: Withdrawals) -> Checkpoint:
        """Return a checkpoint with `withdrawals` in place of its own."""
        extra = {name: value for name, value in self.extra.items() if name != _WITHDRAWN}
        if withdrawals != Withdrawals():
            extra[_WITHDRAWN] = withdrawals.to_wire()
        return replace(self, extra=extra)

    @property
    def withdrawals(self) -> Withdrawals:
        """The claims that were unprepared recently."""
        return Withdrawals.from_wire(self.extra.get(_WITHDRAWN))

    @property
    def mark(self) -> Mark:
        """The mark of a prepare that starts now."""
        return Mark.from_wire(self.extra.get(_WITHDRAWN))

    def without_claims(self) -> Checkpoint:
        """Return what outlives a boot: all but the claims and their withdrawals."""
        return replace(self, claims={}).with_withdrawals(Withdrawals())

    def outlives_as(self, other: Checkpoint) -> bool:
        """Return whether both have the same boot id, tag and other fields that outlive a boot."""
        return self.boot_id == other.boot_id and _outliving(self.extra) == _outliving(other.extra)

    def with_tag(self, tag: Tag | None) -> Checkpoint:
        """Return a checkpoint with `tag`, or without a tag if that is None."""
        extra = {name: value for name, value in self.extra.items() if name != _TAG}
        if tag is not None:
            texts = tag.texts()
            if tag.object_uid:
                texts = texts | {_TAG_OBJECT: tag.object_uid}
            extra[_TAG] = texts
        return replace(self, extra=extra)

    @property
    def tag(self) -> Tag | None:
        """The workload tag on the node's devices; None if there is none or it cannot be read."""
        texts = self.extra.get(_TAG)
        tag = Tag.from_texts(texts) if isinstance(texts, dict) else None
        if tag is None or not isinstance(texts, dict):
            return None
        return replace(tag, object_uid=str(texts.get(_TAG_OBJECT) or ""))


def _outliving(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in extra.items() if name != _WITHDRAWN}


def holders(claims: Iterable[PreparedClaim]) -> dict[int, PreparedClaim]:
    """Return the claim that holds each Neuron device, by device id; claims with adminAccess hold none."""
    holder_by_device_id: dict[int, PreparedClaim] = {}
    for claim in claims:
        for device in claim.devices:
            if not device.admin_access:
                holder_by_device_id.update(dict.fromkeys(device.device_ids, claim))
    return holder_by_device_id


def device_names(claims: Iterable[PreparedClaim]) -> frozenset[str]:
    """Return the names of the published devices that `claims` hold, with adminAccess or without."""
    published_names = []
    for claim in claims:
        for device in claim.devices:
            published_names.append(device.device)
    return frozenset(published_names)


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the file contents for `checkpoint`; equal checkpoints give equal bytes."""
    body = {
        **checkpoint.extra,
        "bootId": checkpoint.boot_id,
        "claims": {uid: _claim_to_wire(checkpoint.claims[uid]) for uid in sorted(checkpoint.claims)},
    }
    try:
        text = _quick(body)
    except UnicodeEncodeError:  # a lone surrogate
        text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return _sealed(text, checkpoint.sequence, VERSION)


def decode(raw: bytes) -> Checkpoint:
    """Return the checkpoint in the file contents `raw`.

    Raises CheckpointDamaged, with the reason, for anything that `encode` of this format version cannot have written:
    another header, a wrong checksum, a missing field or one of the wrong type. Unknown fields are kept. Raises
    CheckpointOfLaterRelease for a whole file of another version.
    """
    header = _HEADER.match(raw)
    if header is None:
        raise CheckpointDamaged("it has no header of a checkpoint")
    sealed = raw[header.start("length") : header.start("sequence") + int(header["bytes"])]
    if header["checksum"].decode() != hashlib.sha256(sealed).hexdigest():
        raise CheckpointDamaged("the checksum does not match the contents")
    version = header["version"].decode(errors="replace")
    if version != VERSION:
        raise CheckpointOfLaterRelease(f"format {version!r} is unknown to this release, which reads {VERSION}")
    try:
        body = json.loads(b"{" + sealed, parse_constant=_refuse, parse_float=_refuse)
    except (ValueError, RecursionError) as err:
        raise CheckpointDamaged(f"not JSON: {err}") from err
    try:
        boot_id = _text(body, "bootId")
        claims = {}
        for uid, wire in _mapping(body, "claims").items():
            claims[uid] = _claim_from_wire(uid, wire)
    except (KeyError, TypeError, ValueError) as err:
        raise CheckpointDamaged(f"a field is missing or of the wrong type: {err}") from err
    extra = {}
    for name, value in body.items():
        if name not in ("length", "sequence", "version", "bootId", "claims"):
            extra[name] = value
    return Checkpoint(boot_id, claims, extra, int(header["number"]))


def newest(slots: Iterable[bytes | None]) -> Checkpoint | None:
    """Return the newest whole checkpoint in the contents of the slots; None if there are no slots.

    Raises CheckpointDamaged if none is whole, and CheckpointOfLaterRelease.
    """
    whole, damage = [], None
    for raw in slots:
        try:
            if raw is not None:
                whole.append(decode(raw))
        except CheckpointOfLaterRelease:
            raise
        except CheckpointDamaged as err:
            damage = err
    if damage is not None and not whole:
        raise damage
    return max(whole, key=lambda checkpoint: checkpoint.sequence, default=None)


_HEADER: Final = re.compile(
    rb'\{"checksum":"(?P<checksum>[0-9a-f]{64})",(?P<length>"length":(?P<bytes>[0-9]{1,9}),)'
    rb'(?P<sequence>"sequence":(?P<number>[0-9]{1,18}),)"version":"(?P<version>[^"\\]{1,32})",'
)


def _sealed(text: bytes, sequence: int, version: str) -> bytes:
    """Return the line that has the JSON object `text`, which is not empty, behind a header."""
    body = f'"sequence":{sequence},"version":"{version}",'.encode() + text[1:]
    body = f'"length":{len(body)},'.encode() + body
    return b'{"checksum":"' + hashlib.sha256(body).hexdigest().encode() + b'",' + body + b"\n"


def _refuse(number: str) -> None:
    """Raise ValueError for a number with a fraction, and for NaN and infinity."""
    raise ValueError(f"{number} is not a whole number")


_quick = msgspec.json.Encoder(order="sorted").encode


_CLAIM_FIELDS = (
    "namespace",
    "name",
    "preparedAt",
    "pod",
    "adopted",
    "doubtful",
    "workload",
    "ofItsPod",
    "metadata",
    "devices",
)
_DEVICE_FIELDS = (
    "request",
    "pool",
    "device",
    "deviceIds",
    "cdiIds",
    "edits",
    "adminAccess",
    "shareId",
    "firstCore",
    "cores",
)


def _claim_to_wire(claim: PreparedClaim) -> dict[str, Any]:
    """Return a claim in the form of the file; fields without a value are left out, fields of newer releases stay."""
    wire: dict[str, Any] = dict(claim.extra or {})
    wire |= {"namespace": claim.ref.namespace, "name": claim.ref.name, "preparedAt": claim.prepared_at}
    if claim.pod:
        wire["pod"] = claim.pod
    if claim.adopted:
        wire["adopted"] = True
    if claim.doubtful:
        wire["doubtful"] = True
    if claim.workload:
        wire["workload"] = claim.workload
    if claim.of_its_pod:
        wire["ofItsPod"] = True
    if claim.metadata:
        wire["metadata"] = claim.metadata
    wire["devices"] = [_device_to_wire(device) for device in claim.devices]
    return wire


def _device_to_wire(device: PreparedDevice) -> dict[str, Any]:
    """Return a device in the form of the file; fields without a value are left out."""
    wire: dict[str, Any] = {
        "request": device.request,
        "pool": device.pool,
        "device": device.device,
        "deviceIds": device.device_ids,
        "cdiIds": device.cdi_ids,
        "edits": device.edits,
    }
    if device.admin_access:
        wire["adminAccess"] = True
    if device.share_id:
        wire["shareId"] = device.share_id
    if device.cores is not None:  # a release without cores rejects other claims for the whole device
        wire |= {"firstCore": device.cores.first, "cores": device.cores.number}
    if device.extra:
        return {**device.extra, **wire}
    return wire


def _claim_from_wire(uid: str, wire: Any) -> PreparedClaim:
    """Return a claim from the form of the file. Raises KeyError, TypeError or ValueError for a malformed one."""
    return PreparedClaim(
        ref=ClaimRef(_text(wire, "namespace"), _text(wire, "name"), uid),
        devices=tuple(_device_from_wire(device) for device in wire["devices"]),
        prepared_at=_text(wire, "preparedAt"),
        pod=_optional(wire, "pod") or "",
        adopted=wire.get("adopted") is True,
        doubtful=wire.get("doubtful") is True,
        workload=_optional(wire, "workload") or "",
        of_its_pod=wire.get("ofItsPod") is True,
        metadata=_texts(wire, "metadata"),
        extra={name: value for name, value in wire.items() if name not in _CLAIM_FIELDS} or None,
    )


def _device_from_wire(wire: Any) -> PreparedDevice:
    """Return a device from the form of the file. Raises KeyError or TypeError for a malformed one."""
    device_ids = tuple(_number(device_id) for device_id in wire["deviceIds"])
    cdi_ids = tuple(_text({"cdiIds": cdi_id}, "cdiIds") for cdi_id in wire["cdiIds"])
    unknown_fields = {}
    for name, value in wire.items():
        if name not in _DEVICE_FIELDS:
            unknown_fields[name] = value
    return PreparedDevice(
        request=_text(wire, "request"),
        pool=_text(wire, "pool"),
        device=_text(wire, "device"),
        device_ids=device_ids,
        cdi_ids=cdi_ids,
        edits=dict(_mapping(wire, "edits")),
        admin_access=wire.get("adminAccess") is True,
        share_id=_optional(wire, "shareId") or None,
        extra=unknown_fields or None,
        cores=Cores(_number(wire["firstCore"]), _number(wire["cores"])) if "cores" in wire else None,
    )


def _text(wire: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a string. Raises KeyError or TypeError."""
    value = wire[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a string")
    return value


def _optional(wire: Mapping[str, Any], name: str) -> str | None:
    """Return a field that must be a string if it is present; None if it is absent. Raises TypeError."""
    if wire.get(name) is not None:
        return _text(wire, name)
    return None


def _texts(wire: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """Return a field that must be an object of strings; None if it is absent. Raises TypeError."""
    fields = _mapping(wire, name) if name in wire else {}
    return {key: _text(fields, key) for key in fields} or None


def _number(value: object) -> int:
    """Return `value` if it is a whole number of at least 0. Raises TypeError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is not a whole number of at least 0")
    return value


def _mapping(wire: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that must be an object. Raises KeyError or TypeError."""
    value = wire[name]
    if not isinstance(value, dict):
        raise TypeError(f"{name} is not an object")
    return value
