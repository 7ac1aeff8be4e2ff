"""The fuzz target `limits`: what the chart's policies make of any pod (16.3)."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hack.oracle.limited import LABEL, NEURON, pod, sets
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import Denied, admit, pod_specs
from tests.fuzz.fuzz_inputs import Bytes
from tests.support.limit_rows import CORE, LEGACY, TYPE, cores, workload

MANIFEST: Final = Path(__file__).resolve().parents[2] / "deploy/manifests/connected-sets/35-limits-policies.yaml"
OLD: Final = (NEURON, LEGACY, CORE)
NAMES: Final = (
    *[NEURON] * 16,
    CORE,
    LEGACY,
    sets(1),
    sets(4),
    sets(17),
    cores(2),
    cores(9),
    "cpu",
    "memory",
    "example.com/x",
)
QUANTITIES: Final = {
    str(number): number for number in (*range(18), 32, 61, 64, 999_999_999, 2**31, 10**18 - 1, 10**18, 2**63 - 1)
} | {"1k": 1000, "5M": 5_000_000, "4Gi": 4 * 2**30, "10Ei": 0, "500m": 0, "1500m": 0, "100u": 0, "-1": 0, "-4": 0}
"""As the API server stores them, with the number of devices; 0 for those that it rejects."""
KINDS: Final = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")
TYPES: Final = (
    "trn1.32xlarge",
    "inf2.48xlarge",
    "ml.inf1.24xlarge",
    "trn2u.48xlarge",
    "inf2.xlarge",
    "p5.48xlarge",
    "",
)
CLASS: Final = re.compile(r"deviceclass\.resource\.kubernetes\.io/(connected|cores)-(\d+)\.neuron\.aws\.com")


@functools.cache
def _policies() -> tuple[Obj, ...]:
    found = yaml.safe_load_all(MANIFEST.read_text())
    return tuple(item for item in found if item and not item["kind"].endswith("Binding"))


def limits(data: bytes) -> None:
    """A pod is rejected with a reason, or each container gets its number, nothing else changes, and a second pass
    changes nothing."""
    source = Bytes(data)
    item, namespace = _item(source), _namespace(source)
    before = copy.deepcopy(item)
    try:
        stored = admit(list(_policies()), item, namespace)
    except Denied as err:
        assert 0 < len(str(err)) < 4096, err
        assert _requests_neuron(before), err
        return
    assert item == before, "the request itself was changed"
    assert admit(list(_policies()), stored, namespace) == stored, "a second pass changes it"
    labels = namespace["metadata"].get("labels", {})
    is_rewritten = (
        labels.get(LABEL) == "true" and namespace["metadata"]["name"] != "kube-system" and item["kind"] == "Pod"
    )
    if not is_rewritten or item["spec"].get("nodeName") or "annotations" in item["metadata"]:
        assert _comparable(stored) == _comparable(before)
        return
    assert _others(stored) == _others(before), "something else was changed"
    expected = _expected(before)
    for old, new in zip(_containers(before), _containers(stored), strict=True):
        _rewritten(old, new, expected[old["name"]])


def _item(source: Bytes) -> Obj:
    """Return a pod, or a workload with one, with any containers."""
    mains = [_container(source, f"m{n}") for n in range(1 + source.below(3))]
    inits = [_container(source, f"i{n}", may_stay=True) for n in range(source.below(4))]
    spec: Obj = {"initContainers": inits} if inits or source.below(2) else {}
    instance_type = source.pick(TYPES)
    match source.below(8):
        case 0 | 1:
            spec["nodeSelector"] = {TYPE: instance_type}
        case 2 | 3:
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _terms(source)}}
        case 4:
            spec["affinity"] = source.pick(({}, {"nodeAffinity": {}}, {"podAffinity": {}}))
    if source.below(2):
        spec["schedulerName"] = source.pick(("my-scheduler", "default-scheduler", "volcano"))
    if source.below(16) == 15:
        spec["nodeName"] = source.pick(("n", ""))
    item = pod(*mains, **spec)
    if source.below(16) == 15:
        item["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    return workload(source.pick(KINDS), item["spec"]) if source.below(8) == 7 else item


def _terms(source: Bytes) -> Obj:
    """Return terms of a node affinity, with and without an instance type."""

    def expression() -> Obj:
        operator = source.pick(("In", "In", "NotIn", "Exists"))
        values = [source.pick(TYPES) for _ in range(1 + source.below(2))]
        return {
            "key": source.pick((TYPE, "zone")),
            "operator": operator,
            **({"values": values} if "In" in operator else {}),
        }

    def term() -> Obj:
        fields: Obj = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
        return {"matchExpressions": [expression() for _ in range(1 + source.below(2))]} if source.below(8) else fields

    return {"nodeSelectorTerms": [term() for _ in range(1 + source.below(3))]}


def _container(source: Bytes, name: str, *, may_stay: bool = False) -> Obj:
    limited = {source.pick(NAMES): _quantity(source) for _ in range(source.pick((0, 1, 1, 1, 1, 2)))}
    resources: Obj = {"limits": limited} if source.below(8) else {}
    if source.below(8) == 7:
        resources["requests"] = {source.pick(NAMES): _quantity(source) for _ in range(source.below(3))}
    stays = {"restartPolicy": source.pick(("Always", "Always", "OnFailure"))} if may_stay and source.below(2) else {}
    return {"name": name, "image": "example.com/image", "resources": resources, **stays}


def _quantity(source: Bytes) -> str:
    return str(source.pick((*QUANTITIES,)) if not source.below(4) else source.below(9))


def _namespace(source: Bytes) -> Obj:
    """Return a namespace, mostly one that asks for the rewriting."""
    name = source.pick(("ml", "kube-system")) if source.below(16) == 15 else "ml"
    label = "true" if source.below(8) else source.pick(("false", "", None))
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/metadata.name": name, **({LABEL: label} if label is not None else {})},
        }
    }


def _containers(item: Obj) -> Iterator[Obj]:
    for spec in pod_specs(item):
        yield from (*spec.get("initContainers", ()), *spec["containers"])


def _requests_neuron(item: Obj) -> bool:
    return any(
        name in OLD or CLASS.fullmatch(name)
        for each in _containers(item)
        for name in each["resources"].get("limits", {})
    )


def _comparable(item: Obj) -> Obj:
    """Return the object with the requests that the API server adds."""
    found = copy.deepcopy(item)
    for each in _containers(found):
        limited = each["resources"].get("limits")
        if limited:
            each["resources"]["requests"] = {**limited, **each["resources"].get("requests", {})}
    return found


def _others(item: Obj) -> Any:
    """Return the object without what the policies may change."""
    found = _comparable(item)
    for spec in pod_specs(found):
        if spec.get("schedulerName") in ("my-scheduler", "default-scheduler"):
            spec["schedulerName"] = "either"
    for each in _containers(found):
        for values in each["resources"].values():
            for name in [name for name in values if name in OLD or CLASS.fullmatch(name)]:
                del values[name]
    return json.loads(json.dumps(found))


def _expected(item: Obj) -> dict[str, dict[str, int]]:
    """Return what each container gets, by container and old name: its number, or, in an init container that ends, the
    smallest one of a main container that is large enough; without main ones, the largest of all of them."""
    found: dict[str, dict[str, int]] = {}
    ends: set[str] = set()
    for each in _containers(item):
        limited, asked = (each["resources"].get(field, {}) for field in ("limits", "requests"))
        counts = {name: QUANTITIES[limited[name]] for name in OLD if name in limited}
        found[each["name"]] = {
            name: count for name, count in counts.items() if count and asked.get(name, limited[name]) == limited[name]
        }
        if each["name"].startswith("i") and each.get("restartPolicy") != "Always":
            ends.add(each["name"])
    by_kind = {
        kind: {
            name: max(count for old, count in counts.items() if _kind(old) == kind)
            for name, counts in found.items()
            if kind in map(_kind, counts)
        }
        for kind in ("connected", "cores")
    }
    mains = {name for names in by_kind.values() for name in names if name.startswith("m")}
    for name in ends:
        for old, count in found[name].items():
            beside = [n for other, n in by_kind[_kind(old)].items() if other.startswith("m")]
            alone = [n for other, n in by_kind[_kind(old)].items() if other in ends]
            found[name][old] = min(n for n in beside if n >= count) if mains else max(alone)
    return found


def _kind(old_name: str) -> str:
    return "cores" if old_name == CORE else "connected"


def _rewritten(old: Obj, new: Obj, expected: Mapping[str, int]) -> None:
    """The number of an old name is one device of a class, and the request follows; what Kubernetes rejects stays."""
    before, after = (each["resources"].get("limits", {}) for each in (old, new))
    for name in OLD:
        if name not in expected:
            assert after.get(name) == before.get(name), name
            continue
        made = f"deviceclass.resource.kubernetes.io/{_kind(name)}-{expected[name]}.neuron.aws.com"
        assert name not in after, name
        assert after[made] == new["resources"]["requests"][made] == "1", (made, after)
