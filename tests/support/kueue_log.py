"""What the real Kueue did with Workloads: each of its transitions, with what it saw, from a record of the test bed.

To make the record, run `tests/bed/test_queues.py`; then `python -m tests.support.kueue_log`. A unit test repeats the
transitions with the simulated Kueue of the virtual fleet (tests/unit/test_fake_kueue.py).
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from neuron_dra.core.wire import Obj, Wire

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDS: Final = ROOT / "build" / "kueue-record"
FIXTURE: Final = ROOT / "tests" / "data" / "kueue" / "transitions.json"
WORKLOADS: Final = "workloads.kueue.x-k8s.io"
CLUSTER_QUEUES: Final = "clusterqueues.kueue.x-k8s.io"
KINDS: Final = (WORKLOADS, CLUSTER_QUEUES, "nus")
OWNER: Final = "neuron.aws.com/workload-uid"


@dataclass(frozen=True, slots=True)
class Transition:
    """One write of Kueue: the Workload `name` among `before`, and its shape after that; quotas by queue."""

    queues: Mapping[str, int]
    before: Sequence[Obj]
    name: str
    after: Obj

    @property
    def key(self) -> str:
        """The shapes before and after."""
        return f"{sorted(self._old.items())} {sorted(self.after['conditions'].items())}"

    @property
    def title(self) -> str:
        """What happened, in a few words."""
        old, new = self._old, self.after["conditions"]
        changed = [f"{kind}={new[kind]}" for kind in sorted(new) if old.get(kind) != new[kind]]
        return f"{len(self.before)} of {sum(self.queues.values())}: {' '.join(changed)}"

    @property
    def _old(self) -> Mapping[str, str]:
        [item] = [each for each in self.before if each["metadata"]["name"] == self.name]
        conditions: Mapping[str, str] = shape(item)["conditions"]
        return conditions


def shape(item: Wire) -> Obj:
    """Return what counts of a Workload: status and reason of its conditions, and whether it has an admission."""
    status = item.get("status") or {}
    conditions = {each["type"]: f"{each['status']}/{each['reason']}" for each in status.get("conditions") or ()}
    return {"conditions": conditions, "admission": bool(status.get("admission"))}


def versions(folder: Path) -> list[tuple[str, Obj]]:
    """Return the events of a record in the order of the changes, as the type of the event and the object.

    Resource versions of all kinds count the changes of one etcd.
    """
    found = []
    for kind in KINDS:
        for event in _documents((folder / f"{kind}.json").read_text()):
            found.append((str(event["type"]), event["object"]))
    return sorted(found, key=lambda each: int(each[1]["metadata"]["resourceVersion"]))


def _documents(text: str) -> Iterator[Obj]:
    """Yield the documents; the last one may be cut off."""
    decoder, position = json.JSONDecoder(), 0
    with contextlib.suppress(ValueError):
        while position < len(text):
            item, position = decoder.raw_decode(text, position)
            yield item
            position += len(text[position:]) - len(text[position:].lstrip())


def transitions(history: Sequence[tuple[str, Obj]]) -> Iterator[Transition]:
    """Yield Kueue's writes that change the shape of a reservation's Workload."""
    items: dict[str, Obj] = {}
    queues: dict[str, int] = {}
    for kind, item in history:
        name = item["metadata"]["name"]
        if item["kind"] == "ClusterQueue":
            queues[name] = _quota(item)
        if item["kind"] != "Workload" or OWNER not in (item["metadata"].get("labels") or {}):
            continue
        old = items.get(name)
        if kind == "MODIFIED" and old is not None and _by_kueue(old, item) and shape(old) != shape(item):
            mine = {_short(each): quota for each, quota in queues.items() if _is_of(each, item)}
            there = [each for each in items.values() if _namespace(each) == _namespace(item)]
            before = [_reduced(each) for each in there]
            yield Transition(mine, before, _reduced(item)["metadata"]["name"], shape(item))
        if kind == "DELETED":
            items.pop(name, None)
        else:
            items[name] = item


def _namespace(item: Wire) -> str:
    return str(item["metadata"]["namespace"])


def _is_of(cluster_queue: str, item: Wire) -> bool:
    return cluster_queue.startswith(f"{_namespace(item)}-")


def _short(cluster_queue: str) -> str:
    """Return the LocalQueue of a ClusterQueue, which test-NUMBER-NAME is called after."""
    return cluster_queue.split("-", 2)[2]


def _quota(item: Wire) -> int:
    [group] = item["spec"]["resourceGroups"]
    return sum(int(each["nominalQuota"]) for flavor in group["flavors"] for each in flavor["resources"])


def _by_kueue(old: Wire, new: Wire) -> bool:
    """Return True if Kueue wrote the newer version, by the fields' managers.

    Who writes has a new time, or more fields in the same second. Others may lose fields to it.
    """
    before = {_manager(each): each for each in old["metadata"].get("managedFields") or ()}
    writers = set()
    for each in new["metadata"].get("managedFields") or ():
        known = before.get(_manager(each))
        if known is None or known.get("time") != each.get("time") or _size(each) > _size(known):
            writers.add(str(each["manager"]))
    return bool(writers) and all(name.startswith("kueue") for name in writers)


def _manager(entry: Wire) -> tuple[str, str, str]:
    return str(entry["manager"]), str(entry.get("operation")), str(entry.get("subresource"))


def _size(entry: Wire) -> int:
    return len(json.dumps(entry.get("fieldsV1")))


def _reduced(item: Wire) -> Obj:
    """Return what a simulated Kueue reads of a Workload, without names of the test bed."""
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    [pods] = spec["podSets"]
    kept: Obj = {key: spec[key] for key in ("queueName", "priority", "active") if key in spec}
    name = meta["name"].removeprefix("ultraservers-").rpartition("-")[0]
    reduced: Obj = {
        "metadata": {"name": name, "creationTimestamp": meta["creationTimestamp"]},
        "spec": {**kept, "podSets": [{"name": pods["name"], "count": pods["count"]}]},
        "status": {"conditions": [_condition(each) for each in status.get("conditions") or ()]},
    }
    if "admission" in status:
        reduced["status"]["admission"] = {"clusterQueue": _short(status["admission"]["clusterQueue"])}
    if status.get("reclaimablePods"):
        reduced["status"]["reclaimablePods"] = status["reclaimablePods"]
    return reduced


def _condition(each: Wire) -> Obj:
    return {key: each[key] for key in ("type", "status", "reason", "lastTransitionTime")} | {"message": ""}


def load() -> list[Transition]:
    """Return the transitions of the fixture."""
    return [Transition(**each) for each in json.loads(FIXTURE.read_text())["transitions"]]


def main() -> int:
    """Write the fixture from the records: each transition once, with as few Workloads as there were."""
    seen: list[Transition] = []
    for folder in sorted(each for each in RECORDS.iterdir() if each.is_dir()):
        seen += [each for each in transitions(versions(folder)) if each.queues]  # a record may begin after them
    found: dict[str, Transition] = {}
    for each in sorted(seen, key=lambda each: (len(each.before), each.title)):
        found.setdefault(f"{len(each.queues)} {each.key}", each)
    listed = []
    for one in found.values():
        listed.append({"queues": one.queues, "before": one.before, "name": one.name, "after": one.after})
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_text(json.dumps({"kueue": "0.19.0", "transitions": listed}, indent=1) + "\n")
    print(f"{len(listed)} transitions in {FIXTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
