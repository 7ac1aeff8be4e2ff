"""A cluster as plain objects: plans are applied as by an API server, and nodes set their tags."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from neuron_dra.core.names import DRIVER
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    Plan,
    SetFinalizers,
    SetUltraServerFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import API_VERSION, FINALIZER, FleetSnapshot, Turn
from neuron_dra.planner.plan.planning import DEFAULT_LIMITS, Limits, plan
from neuron_dra.planner.rehearsal import tagged_slice

START = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)


class World:
    """Objects by kind, namespace and name."""

    def __init__(self, objects: Iterable[Obj] = ()) -> None:
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.now = START
        self.version = 0
        self.silent: set[str] = set()  # nodes whose plugin sets no tag
        self.budget: dict[str, str] = {}  # pods that may not be evicted, by UID, and why
        self.turns: Mapping[tuple[str, str], Turn] = {}
        self.log: list[Action] = []
        for item in objects:
            self.put(item)

    # Objects

    def put(self, item: Obj) -> Obj:
        item = copy.deepcopy(item)
        meta = item["metadata"]
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        meta.setdefault("uid", f"uid-{self.version}")
        meta.setdefault("generation", 1)
        meta.setdefault("creationTimestamp", self.now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.objects[item["kind"], meta.get("namespace", ""), meta["name"]] = item
        return item

    def get(self, kind: str, name: str, namespace: str = "") -> Obj:
        return self.objects[kind, namespace, name]

    def all(self, kind: str) -> list[Obj]:
        return [item for (each, _, _), item in sorted(self.objects.items()) if each == kind]

    def remove(self, kind: str, name: str, namespace: str = "") -> None:
        del self.objects[kind, namespace, name]

    def submit(self, name: str, *, size: int = 4, count: int = 1, namespace: str = "ml", **spec: Any) -> Obj:
        return self.put(
            {
                "apiVersion": API_VERSION,
                "kind": "NeuronUltraServerWorkload",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"instanceType": "trn3.48xlarge", "topologySize": size, "serverCount": count, **spec},
            }
        )

    def workload(self, name: str) -> Obj:
        return self.get("NeuronUltraServerWorkload", name, "ml")

    def delete_workload(self, name: str) -> None:
        item = self.workload(name)
        item["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
        self.put(item)

    def claim(
        self, name: str, nodes: Iterable[str], *, workload_uid: str = "", pod: str = "", device_class: str = DRIVER
    ) -> Obj:
        """Put an allocated claim on whole nodes."""
        results = [{"request": "r", "driver": DRIVER, "pool": node, "device": "neuron-node-0"} for node in nodes]
        owners = [each for each in self.all("NeuronUltraServerWorkload") if each["metadata"]["uid"] == workload_uid]
        name_of_it = owners[0]["metadata"]["name"] if owners else "of-old"
        parameters = {"kind": "UltraServerConfig", "workloadId": name_of_it, "workloadUid": workload_uid}
        config = [{"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}] if workload_uid else []
        return self.put(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "ml"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}},
                "status": {
                    "allocation": {"devices": {"results": results, "config": config}},
                    "reservedFor": [{"resource": "pods", "name": pod or name, "uid": f"pod-{name}"}],
                },
            }
        )

    def state(self, name: str) -> tuple[str, str]:
        """Return state and reason of a workload."""
        status = self.workload(name).get("status") or {}
        reasons = [c["reason"] for c in status.get("conditions", []) if c["type"] == "Ready"]
        return status.get("state", ""), reasons[0] if reasons else ""

    def message(self, name: str) -> str:
        conditions = self.workload(name)["status"]["conditions"]
        return next(str(c["message"]) for c in conditions if c["type"] == "Ready")

    def reserved(self, name: str) -> dict[int, tuple[str, ...]]:
        """Return the nodes of a workload by ultraserverIndex."""
        return {
            entry["ultraserverIndex"]: tuple(entry["allocatedNodes"])
            for item in self.all("NeuronUltraServer")
            for entry in item.get("status", {}).get("allocations", [])
            # Not what a node's tag alone says.
            if entry["workloadRef"] == f"ml/{name}" and not str(entry.get("workloadUid")).startswith("shown.")
        }

    # Time

    def snapshot(self) -> FleetSnapshot:
        return replace(decode.snapshot(self.objects.values()), blocked_evictions=self.budget, turns=self.turns)

    def plan(self, limits: Limits = DEFAULT_LIMITS) -> Plan:
        return plan(self.snapshot(), self.now, limits)

    def step(self, limits: Limits = DEFAULT_LIMITS, *, writes: int | None = None) -> Plan:
        """Plan, write, and update the nodes' tags. `writes` is the number after which the controller dies.

        Reservations wait until a finalizer is stored or a template is gone. A plan that only brings that is followed by
        another one in the same step.
        """
        made = self.plan(limits)
        self.turns = made.turns
        first = [action for action in made.actions if self._comes_first(action)]
        if first and writes is None:
            for action in first:
                self.write(action)
            made = self.plan(limits)
            self.turns = made.turns
            made = replace(made, actions=(*first, *made.actions))
        for action in made.actions[len(first) if writes is None else 0 : writes]:
            self.write(action)
        self.tag_nodes()
        return made

    def _comes_first(self, action: Action) -> bool:
        """Return True if reservations wait for this write."""
        if isinstance(action, DeleteTemplate):
            return any((item.get("status") or {}).get("allocations") for item in self.all("NeuronUltraServer"))
        return isinstance(action, SetFinalizers) and FINALIZER in action.finalizers

    def settle(self, limits: Limits = DEFAULT_LIMITS) -> None:
        """Step until a plan has no writes."""
        for _ in range(25):
            if not self.step(limits).actions and not self.plan(limits).actions:
                return
        raise AssertionError(f"no end of plans: {self.plan(limits)}")

    def later(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)

    def tag_nodes(self) -> None:
        """Tag slices according to their NeuronUltraServer, as plugins do."""
        busy = {r["pool"] for c in self.all("ResourceClaim") for r in c["status"]["allocation"]["devices"]["results"]}
        members = {
            name: item
            for item in self.all("NeuronUltraServer")
            for name in [e["nodeName"] for e in item["spec"]["topology"]]
        }
        for item in self.all("ResourceSlice"):
            node = item["spec"]["nodeName"]
            if node not in self.silent:
                new = tagged_slice(item, members.get(node), occupied=node in busy)
                if new["spec"] != item["spec"]:
                    self.put(dict(new))

    def write(self, action: Action) -> None:
        """Apply an action as the API server does; reject a stale resourceVersion."""
        self.log.append(action)
        match action:
            case CreateUltraServer(body=body) | CreateTemplate(body=body):
                key = body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]
                assert key not in self.objects
                self.put(dict(body))
            case UpdateTopology(name=name, version=version, topology=topology):
                item = self._guarded("NeuronUltraServer", name, NAMESPACE, version)
                item["spec"]["topology"] = [dict(entry) for entry in topology]
                item["metadata"]["generation"] += 1
                self.put(item)
            case DeleteUltraServer(name=name, uid=uid, version=version):
                assert self._guarded("NeuronUltraServer", name, NAMESPACE, version)["metadata"]["uid"] == uid
                self.remove("NeuronUltraServer", name, NAMESPACE)
            case WriteUltraServerStatus(name=name, version=version, before=before, status=status):
                item = self._guarded("NeuronUltraServer", name, NAMESPACE, version)
                # The results of tests are of another writer, and a merge patch leaves them.
                stored = item.get("status", {})
                results = {key: value for key, value in stored.items() if key == "qualifications"}
                assert {**before, **results} == stored
                if action.finalizers is not None:
                    self._finalize(item, action.finalizers)
                self.put({**item, "status": {**status, **results}})
                reserved = "neuron.aws.com/ultraserver-reserved" in item["metadata"].get("finalizers", ())
                assert reserved or not status["allocations"] or "deletionTimestamp" in item["metadata"]
            case SetUltraServerFinalizers(name=name, version=version, finalizers=finalizers):
                item = self._guarded("NeuronUltraServer", name, NAMESPACE, version)
                self._finalize(item, finalizers)
                if finalizers or "deletionTimestamp" not in item["metadata"]:
                    self.put(item)
                else:
                    self.remove("NeuronUltraServer", name, NAMESPACE)
            case WriteWorkloadStatus(namespace=namespace, name=name, version=version, before=before, status=status):
                item = self._guarded("NeuronUltraServerWorkload", name, namespace, version)
                assert before == item.get("status", {})
                self.put({**item, "status": dict(status)})
            case SetFinalizers(namespace=namespace, name=name, version=version, finalizers=finalizers):
                item = self._guarded("NeuronUltraServerWorkload", name, namespace, version)
                item["metadata"]["finalizers"] = list(finalizers)
                self.put(item)
                if not finalizers and "deletionTimestamp" in item["metadata"]:
                    self.remove("NeuronUltraServerWorkload", name, namespace)
            case DeleteTemplate(namespace=namespace, name=name, uid=uid):
                assert self.get("ResourceClaimTemplate", name, namespace)["metadata"]["uid"] == uid
                self.remove("ResourceClaimTemplate", name, namespace)
            case LabelNode(name=name, uid=uid, labels=labels):
                item = self.get("Node", name)
                assert item["metadata"]["uid"] == uid
                merged = {**item["metadata"]["labels"], **labels}
                item["metadata"]["labels"] = {k: v for k, v in merged.items() if v is not None}
                self.put(item)
            case Evict(uid=uid) if uid in self.budget:
                pass
            case Evict(namespace=namespace, uid=uid):
                gone = [c for c in self.all("ResourceClaim") if c["status"]["reservedFor"][0]["uid"] == uid]
                for item in gone:
                    self.remove("ResourceClaim", item["metadata"]["name"], namespace)
            case _:
                raise AssertionError(f"unknown action {action}")

    @staticmethod
    def _finalize(item: Obj, finalizers: tuple[str, ...]) -> None:
        """Set finalizers within the API server's rules for objects that are being deleted."""
        meta = item["metadata"]
        assert "deletionTimestamp" not in meta or {*finalizers} <= {*meta.get("finalizers", ())}
        meta["finalizers"] = list(finalizers)

    def _guarded(self, kind: str, name: str, namespace: str, version: str) -> Obj:
        item = self.get(kind, name, namespace)
        assert item["metadata"]["resourceVersion"] == version, f"stale write of {kind} {name}"
        return copy.deepcopy(item)
