"""Builds status.allocation from the chosen devices, as the scheduler writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuron_dra.core.wire import Wire
from neuron_dra.simulate.model import ClaimDemand, NodeTraits, Where
from neuron_dra.simulate.requests import Need
from neuron_dra.simulate.search import Pick

Allocation = dict[str, Any]


def allocation(claim: ClaimDemand, picks: Sequence[Pick], chosen: Sequence[Need], node: NodeTraits) -> Allocation:
    """Return the allocation of one claim. `chosen` is the alternative taken for each of its requests."""
    devices: dict[str, Any] = {"results": [_result(pick) for pick in picks]}
    config = _config(claim, chosen)
    if config:
        devices["config"] = config
    out: Allocation = {"devices": devices}
    selector = _node_selector(picks, node)
    if selector is not None:
        out["nodeSelector"] = selector
    return out


def _result(pick: Pick) -> dict[str, Any]:
    alternative, device = pick.need.alternative, pick.device
    out: dict[str, Any] = {
        "request": pick.need.result_name,
        "driver": device.id.driver,
        "pool": device.id.pool,
        "device": device.id.device,
    }
    if alternative.admin_access:
        out["adminAccess"] = True
    if alternative.wire_tolerations:
        out["tolerations"] = [dict(toleration) for toleration in alternative.wire_tolerations]
    return {**out, **device.binding}


def _config(claim: ClaimDemand, chosen: Sequence[Need]) -> list[dict[str, Any]]:
    """Return the entries of each class, then those of the claim. An entry that covers every request lists none."""
    names_of_class: dict[str, list[str]] = {}
    for need in chosen:
        names_of_class.setdefault(need.device_class.name, []).append(need.result_name)
    classes = {need.device_class.name: need.device_class for need in chosen}
    entries = [
        _entry("FromClass", names, config) for name, names in names_of_class.items() for config in classes[name].config
    ]
    for config in claim.config:
        names = list(config.get("requests") or ())
        if not names or any(_covers(names, need) for need in chosen):
            entries.append(_entry("FromClaim", names, config))
    for entry in entries:
        if all(_covers(entry.get("requests", ()), need) for need in chosen):
            entry.pop("requests", None)
    return entries


def _covers(names: Sequence[str], need: Need) -> bool:
    return need.request.name in names or need.result_name in names


def _entry(source: str, names: Sequence[str], config: Wire) -> dict[str, Any]:
    other_fields = {key: value for key, value in config.items() if key != "requests"}
    if names:
        return {"source": source, "requests": list(names), **other_fields}
    return {"source": source, **other_fields}


def _node_selector(picks: Sequence[Pick], node: NodeTraits) -> dict[str, Any] | None:
    if any(pick.device.where.node_name or pick.device.binds_to_node for pick in picks):
        only = {"key": "metadata.name", "operator": "In", "values": [node.name]}
        return {"nodeSelectorTerms": [{"matchFields": [only]}]}
    term: dict[str, list[Wire]] = {}
    for pick in picks:
        for kind in ("matchFields", "matchExpressions"):
            for requirement in _requirements(pick.device.where, kind):
                requirements = term.setdefault(kind, [])
                if not any(_same(requirement, other) for other in requirements):
                    requirements.append(requirement)
    if term:
        return {"nodeSelectorTerms": [term]}
    return None


def _requirements(where: Where, kind: str) -> Sequence[Wire]:
    terms: Sequence[Wire] = (where.selector or {}).get("nodeSelectorTerms") or []
    if len(terms) == 1:
        return terms[0].get(kind) or []
    return []


def _same(left: Wire, right: Wire) -> bool:
    return (left["key"], left["operator"], set(left.get("values") or ())) == (
        right["key"],
        right["operator"],
        set(right.get("values") or ()),
    )
