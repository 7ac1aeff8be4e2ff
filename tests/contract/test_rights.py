"""The rights of both programs: what the manifests grant, and the requests that the programs made to a real API server.

The requests come from the audit logs of the test beds' API servers, so the second half runs last. `make test` and
`make night` keep the logs. Only all tests of a test bed together use every right: `make night` looks for unused ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from neuron_dra.core.wire import Wire
from tests.support.skipping import impossible

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = REPOSITORY / "deploy/manifests"
KEPT = REPOSITORY / "build/audit"
DRIVER = "neuron-dra-driver"  # the namespace of both programs, and of the NeuronUltraServers
PLUGIN, CONTROLLER = "neuron-dra-driver-sa", "neuron-ultraserver-controller"
WATCHER = "neuron-dra-limits-watcher"
AGENTS = {PLUGIN: "neuron-dra/", CONTROLLER: CONTROLLER, WATCHER: WATCHER}
READ = "list watch"


class Right(NamedTuple):
    """One verb on one resource; an empty `namespace` or `name` stands for all."""

    who: str
    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""


def rights(who: str, granted: dict[tuple[str, str], str], namespace: str = "", name: str = "") -> set[Right]:
    """Return a right for each verb of a table by group and resource."""
    return {
        Right(who, group, resource, verb, namespace, name)
        for (group, resource), verbs in granted.items()
        for verb in verbs.split()
    }


OF_THE_PLUGIN = rights(
    PLUGIN,
    {
        ("resource.k8s.io", "resourceclaims"): "get list",
        ("resource.k8s.io", "resourceslices"): f"get {READ} create update delete",
        ("", "nodes"): READ,
        ("", "events"): "create patch",
        ("neuron.aws.com", "neuronultraservers"): READ,
    },
)
WITH_CONNECTED_SETS = rights(PLUGIN, {("resource.k8s.io", "deviceclasses"): "get"}, name="neuron.aws.com") | rights(
    WATCHER,
    {
        ("", "pods"): READ,
        ("", "nodes"): READ,
        ("resource.k8s.io", "resourceslices"): READ,
        ("", "events"): "create patch",
    },
)
OF_THE_CONTROLLER = (
    rights(
        CONTROLLER,
        {
            ("resource.k8s.io", "resourceslices"): READ,
            ("resource.k8s.io", "resourceclaims"): f"get {READ}",
            ("resource.k8s.io", "deviceclasses"): READ,
            ("resource.k8s.io", "resourceclaimtemplates"): f"{READ} create delete",
            ("", "nodes"): f"{READ} patch",
            ("", "namespaces"): READ,
            ("scheduling.k8s.io", "priorityclasses"): "get",
            ("", "pods"): "get list",
            ("", "pods/eviction"): "create",
            ("", "services"): "get create",
            ("discovery.k8s.io", "endpointslices"): "get create update",
            ("", "events"): "create patch",
            ("neuron.aws.com", "neuronultraserverworkloads"): f"{READ} patch",
            ("neuron.aws.com", "neuronultraserverworkloads/status"): "patch",
            ("neuron.aws.com", "neuronultraserverworkloads/finalizers"): "update",
        },
    )
    | rights(
        CONTROLLER,
        {
            ("neuron.aws.com", "neuronultraservers"): f"{READ} create patch delete",
            ("neuron.aws.com", "neuronultraservers/status"): "patch",
            ("coordination.k8s.io", "leases"): "create",
        },
        DRIVER,
    )
    | rights(CONTROLLER, {("coordination.k8s.io", "leases"): "get update"}, DRIVER, CONTROLLER)
)
MAY_BE_UNUSED = {
    "an Event is renewed after ten minutes, or by a restarted program": rights(PLUGIN, {("", "events"): "patch"})
    | rights(CONTROLLER, {("", "events"): "patch"}),
    "a slice is read back if its name is taken by another node's plugin": rights(
        PLUGIN, {("resource.k8s.io", "resourceslices"): "get"}
    ),
    "claims are read again if nodes pass to another workload; pods, if their nodes reject them or half a minute after "
    "nothing could be scheduled": rights(
        CONTROLLER, {("resource.k8s.io", "resourceclaims"): "get", ("", "pods"): "get list"}
    ),
    "a workload may name a PriorityClass": rights(CONTROLLER, {("scheduling.k8s.io", "priorityclasses"): "get"}),
    "a NeuronUltraServer is deleted when all its nodes are gone": rights(
        CONTROLLER, {("neuron.aws.com", "neuronultraservers"): "delete"}, DRIVER
    ),
    "the API server checks this right itself, with the admission plugin OwnerReferencesPermissionEnforcement": rights(
        CONTROLLER, {("neuron.aws.com", "neuronultraserverworkloads/finalizers"): "update"}
    ),
}


def granted(folder: Path) -> set[Right]:
    """Return what the manifests of a folder grant to the service accounts of both programs."""
    objects = [item for path in sorted(folder.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]
    roles = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    found = set()
    for item in objects:
        if not item["kind"].endswith("Binding") or "roleRef" not in item:
            continue
        role = roles[item["roleRef"]["kind"], item["roleRef"]["name"]]
        whose = [subject["name"] for subject in item["subjects"] if subject.get("namespace") == DRIVER]
        found |= {
            Right(who, group, resource, verb, role["metadata"].get("namespace", ""), name)
            for who in whose
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames", [""])
        }
    return found


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (".", OF_THE_PLUGIN),
        ("ultraserver", OF_THE_PLUGIN | OF_THE_CONTROLLER),
        ("connected-sets", OF_THE_PLUGIN | WITH_CONNECTED_SETS),
    ],
)
def test_manifests_grant_these_rights_only(folder: str, expected: set[Right]) -> None:
    assert granted(MANIFESTS / folder) == expected


def requested(logs: Iterable[Path]) -> Iterator[Right]:
    """Yield the right that each request of our programs needs, from audit logs."""
    for log in logs:
        for line in log.read_text().splitlines():
            event = json.loads(line)
            who = event["user"]["username"].rpartition(":")[2]
            if "objectRef" in event and event.get("userAgent", "").startswith(AGENTS.get(who, "no agent of ours")):
                yield needed(who, event["verb"], event["objectRef"])


def needed(who: str, verb: str, target: Wire) -> Right:
    resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
    return Right(who, target.get("apiGroup", ""), resource, verb, target.get("namespace", ""), target.get("name", ""))


def covers(right: Right, request: Right) -> bool:
    return right[:4] == request[:4] and right.namespace in ("", request.namespace) and right.name in ("", request.name)


@pytest.fixture(scope="module")
def requests() -> set[Right]:
    logs = sorted(KEPT.glob("*.log"))
    if not logs:
        impossible(f"needs the audit logs of test beds in {KEPT}; `make test` and `make night` keep them")
    return set(requested(logs))


@pytest.mark.testbed
def test_every_request_is_granted(requests: set[Right]) -> None:
    allowed = OF_THE_PLUGIN | WITH_CONNECTED_SETS | OF_THE_CONTROLLER
    assert sorted(request for request in requests if not any(covers(right, request) for right in allowed)) == []


@pytest.mark.testbed
@pytest.mark.long
def test_every_right_is_used(requests: set[Right]) -> None:
    needed = (OF_THE_PLUGIN | OF_THE_CONTROLLER).difference(*MAY_BE_UNUSED.values())
    assert sorted(right for right in needed if not any(covers(right, request) for request in requests)) == []
