"""EFA interfaces on a real Kubernetes: the driver of the interfaces beside that of the Neuron devices (4.10).

The interfaces are simulated. The kernel has no driver for their device numbers, so that a container that opens the file
of an interface sees ENXIO if it may use it, and EPERM if it may not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from hack.bed.deployed import DATA, neurons, prepared
from hack.bed.errors import BedError
from hack.bed.real_cluster import IMAGE, REPOSITORY, BedNode, Namespace, TestBed, eventually
from neuron_dra.core import catalogue, cdi, checkpoint, efa, groups, names
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.simulated_efa import EfaTree
from tests.bed.deployed import rows, settled, slices, stays_pending
from tests.unit.test_efa import captured

EXAMPLES = REPOSITORY / "deploy/examples"
TRN1, TRN2 = "trn1.32xlarge", "trn2.48xlarge"
SHARED = "shared"
FOREVER = "trap 'exit 0' TERM; sleep 9999 & wait"
NOT_ALLOWED, NO_DRIVER = "Operation not permitted", "No such device or address"
SEEN_S = 60


@pytest.fixture(scope="module")
def running_efa(running_driver: TestBed) -> Iterator[TestBed]:
    """The shared test bed, whose driver serves EFA interfaces while these tests run."""
    running_driver.command("up", "--driver", "daemonset", "--set", "efa.enabled=true", timeout_s=1200)
    yield running_driver
    running_driver.command("up", "--driver", "daemonset", "--set", "efa.enabled=false", timeout_s=1200)


def with_interfaces(node: BedNode, count: int) -> BedNode:
    settled(node)
    eventually(f"the interfaces of {node.name}", lambda: len(interfaces(node)) == count, SEEN_S)
    eventually(f"no claims for interfaces of {node.name}", lambda: efa_claims(node) == efa_specs(node) == set(), SEEN_S)
    return node


@pytest.fixture
def node_a(running_efa: TestBed, trn2: BedNode) -> BedNode:
    """A trn2.48xlarge that publishes its sixteen interfaces, none of which is in use."""
    return with_interfaces(trn2, 16)


@pytest.fixture
def trn1(running_efa: TestBed, driver: TestBed, node: Callable[[str], BedNode]) -> BedNode:
    """A trn1.32xlarge that publishes its eight interfaces."""
    return with_interfaces(node(TRN1), 8)


INTERFACES = {
    TRN1: 8,
    "trn1n.32xlarge": 16,
    TRN2: 16,
    "trn2u.48xlarge": 16,
    "trn3.48xlarge": 16,
}
"""How many interfaces the types have. A node of each is made when its test runs: -k trn2u chooses one."""


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in (TRN1, TRN2) else pytest.mark.long) for name in INTERFACES]
)
def node_of_type(
    request: pytest.FixtureRequest, running_efa: TestBed, driver: TestBed, node: Callable[[str], BedNode]
) -> BedNode:
    """A node of each type, which publishes its interfaces."""
    instance_type: str = request.param
    return with_interfaces(node(instance_type), INTERFACES[instance_type])


# What a node has of its interfaces


def interfaces(node: BedNode) -> list[Obj]:
    """Return the published EFA interfaces of a node."""
    return [device for item in slices(node.bed, node.name, EFA.name) for device in item["spec"].get("devices") or []]


def tree(node: BedNode) -> EfaTree:
    return EfaTree(node.bed.parts.node(node.name).hardware_dir)


def uverbs(node: BedNode) -> dict[str, str]:
    """Return the name of each interface's device file as it is now, by the interface's name."""
    on_node = tree(node)
    return {efa.Interface(function).name: f"uverbs{on_node.number_of(function)}" for function in on_node.functions}


def efa_claims(node: BedNode) -> set[str]:
    """Return the UIDs of the claims in the checkpoint of the EFA driver."""
    texts = (node.run("cat", f"{DATA}/efa/{name}").encode() for name in checkpoint.SLOTS)
    newest = checkpoint.newest(texts)
    assert newest is not None
    return set(newest.claims)


def efa_specs(node: BedNode) -> set[str]:
    """Return the UIDs of the claims that have a CDI file of the EFA driver."""
    return {uid for name in node.run("ls", "/var/run/cdi").split() if (uid := cdi.claim_uid_of(name, EFA))}


# Claims and pods


def example(name: str, kind: str) -> Obj:
    """Return the first object of a kind in an example."""
    for document in yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()):
        if document and document["kind"] == kind:
            return dict(document)
    raise AssertionError(f"{name} has no {kind}")


def request(name: str, device_class: str, count: int | None) -> Obj:
    mode: Obj = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    return {"name": name, "exactly": {"deviceClassName": device_class, **mode}}


def claim_spec(efas: int | None, neuron_count: int = 0, group: int = 0) -> Obj:
    """Return the devices of a claim for EFA interfaces (None: all), and Neuron devices of the same group."""
    requests = [request("efas", efa.CLASS, efas)]
    if neuron_count:
        requests.append(request("neurons", names.DRIVER, neuron_count))
    devices: Obj = {"requests": requests}
    if group:
        attribute = f"{names.GROUP_DOMAIN}/devicegroup{group}_id"
        devices["constraints"] = [{"requests": ["efas", "neurons"], "matchAttribute": attribute}]
    return {"devices": devices}


def claim(name: str, efas: int | None, neuron_count: int = 0, group: int = 0) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": claim_spec(efas, neuron_count, group),
    }


def pod(name: str, node: BedNode, claim_name: str = SHARED, *, template: str = "", **spec: Any) -> Obj:
    """Return a pod whose container `main` names a claim, and whose container `other` does not."""
    main: Obj = {"name": "main", "image": IMAGE, "command": ["bash", "-c", FOREVER]}
    main["resources"] = {"claims": [{"name": "claim"}]}
    other = {"name": "other", "image": IMAGE, "command": ["bash", "-c", FOREVER]}
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim_name}
    content = {
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "containers": [main, other],
        "resourceClaims": [{"name": "claim", **source}],
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": content}


def started(place: Namespace, *objects: Obj) -> None:
    """Create objects, and wait for the pods among them."""
    for item in objects:
        place.apply(item)
    for item in objects:
        if item["kind"] == "Pod":
            place.wait_ready(item["metadata"]["name"])


def inside(place: Namespace, name: str, script: str, container: str = "main") -> str:
    """Return what a script prints in a pod's container, errors included."""
    return place.kubectl("exec", name, "--container", container, "--", "sh", "-c", f"({script}) 2>&1; true")


def files(place: Namespace, name: str, container: str = "main") -> list[str]:
    """Return the names in a container's /dev/infiniband; none if it has no such folder."""
    return sorted(inside(place, name, "[ -d /dev/infiniband ] && ls /dev/infiniband", container).split())


def allocated(place: Namespace, name: str = SHARED) -> list[str]:
    """Return the names of the EFA interfaces of a claim."""
    results = place.get("resourceclaim", name)["status"]["allocation"]["devices"]["results"]
    return [result["device"] for result in results if result["driver"] == EFA.name]


def claim_of(place: Namespace, pod_name: str) -> str:
    """Return the name of the claim that was made for a pod from a template."""
    [status] = place.get("pod", pod_name)["status"]["resourceClaimStatuses"]
    return str(status["resourceClaimName"])


def expected_files(place: Namespace, node: BedNode, claim_name: str = SHARED) -> list[str]:
    """Return the files that a container with this claim has: those of its interfaces at this moment, and rdma_cm."""
    numbers = uverbs(node)
    return sorted([*(numbers[name] for name in allocated(place, claim_name)), "rdma_cm"])


# What is published.


def test_trn1_publishes_the_interfaces_of_the_capture(trn1: BedNode) -> None:
    published = interfaces(trn1)
    for device in published:
        assert device["attributes"].pop(names.NUMA_NODE) == device["attributes"]["dra.net/numaNode"]
    assert published == captured()


def test_each_interface_is_published_from_the_tree_of_the_type(node_of_type: BedNode) -> None:
    spec = catalogue.lookup(node_of_type.instance_type)
    assert spec is not None
    assert spec.efa is not None
    published = {device["name"]: device["attributes"] for device in interfaces(node_of_type)}
    assert set(published) == {efa.Interface(function).name for function in spec.efa}
    for number, ids in groups.group_ids(spec).items():
        attributes = published[efa.Interface(spec.efa[number]).name]
        assert {size: attributes[f"{names.GROUP_DOMAIN}/devicegroup{size}_id"]["string"] for size in ids} == ids


def test_aligned_claim_gets_the_nearest_interfaces(node_of_type: BedNode, namespace: Namespace) -> None:
    """Four Neuron devices, and the interfaces of their group; on UltraServer types, the node and all interfaces."""
    spec = catalogue.lookup(node_of_type.instance_type)
    assert spec is not None
    assert spec.efa is not None
    if spec.whole_node:
        aligned = claim(SHARED, None, neuron_count=1)
    else:
        aligned = claim(SHARED, 2 if spec.name == TRN1 else 4, neuron_count=4, group=4)
    started(namespace, aligned, pod("aligned", node_of_type))
    nearest = {efa.Interface(spec.efa[number]).name for number in neurons(namespace, "aligned")}
    assert set(allocated(namespace)) == nearest
    assert files(namespace, "aligned") == expected_files(namespace, node_of_type)


def test_interfaces_behind_switches_have_the_root_of_their_path(node_a: BedNode) -> None:
    roots = {device["attributes"]["resource.kubernetes.io/pcieRoot"]["string"] for device in interfaces(node_a)}
    assert len(roots) == 8


# Claims.


def test_documented_template_gets_the_nearest_interfaces(node_a: BedNode, namespace: Namespace) -> None:
    template = example("aligned-efa-neuron", "ResourceClaimTemplate")
    started(namespace, template, pod("worker", node_a, template=template["metadata"]["name"]))
    held = neurons(namespace, "worker")
    spec = catalogue.lookup(TRN2)
    assert spec is not None
    assert spec.efa is not None
    assert (len(held), len(rows(held))) == (4, 1)
    claim_name = claim_of(namespace, "worker")
    nearest = {efa.Interface(spec.efa[number]).name for number in held}
    assert set(allocated(namespace, claim_name)) == nearest
    assert files(namespace, "worker") == expected_files(namespace, node_a, claim_name)
    uid = namespace.get("resourceclaim", claim_name)["metadata"]["uid"]
    assert prepared(node_a) == efa_claims(node_a) == efa_specs(node_a) == {uid}
    namespace.delete("pod", "worker")
    eventually("nothing is left", lambda: prepared(node_a) | efa_claims(node_a) | efa_specs(node_a) == set(), SEEN_S)


def test_pod_waits_if_groups_do_not_match(node_a: BedNode, namespace: Namespace) -> None:
    misaligned = example("aligned-efa-neuron", "ResourceClaimTemplate")
    of_neuron, of_efa = misaligned["spec"]["spec"]["devices"]["requests"]
    first_row = "device.attributes['neuron.aws.com'].topology_x == 0"
    other_rows = "device.attributes['resource.aws.com'].devicegroup4_id != '13713e551cd37c19'"
    of_neuron["exactly"]["selectors"] = [{"cel": {"expression": first_row}}]
    of_efa["exactly"]["selectors"] = [{"cel": {"expression": other_rows}}]
    namespace.apply(misaligned)
    namespace.apply(pod("misaligned", node_a, template=misaligned["metadata"]["name"]))
    stays_pending(namespace, "misaligned")


def test_trn1_has_two_interfaces_for_four_devices(trn1: BedNode, namespace: Namespace) -> None:
    fitting = example("aligned-efa-neuron-trn1", "ResourceClaimTemplate")
    documented = example("aligned-efa-neuron", "ResourceClaimTemplate")
    started(namespace, documented, fitting, pod("fits", trn1, template=fitting["metadata"]["name"]))
    claim_name = claim_of(namespace, "fits")
    assert (len(neurons(namespace, "fits")), len(allocated(namespace, claim_name))) == (4, 2)
    assert files(namespace, "fits") == expected_files(namespace, trn1, claim_name)
    namespace.apply(pod("documented", trn1, template=documented["metadata"]["name"]))
    stays_pending(namespace, "documented")


def test_claim_for_all_gets_every_interface(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, None), pod("all", node_a))
    assert files(namespace, "all") == sorted([*uverbs(node_a).values(), "rdma_cm"])


def test_eight_devices_get_their_eight_interfaces(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 8, neuron_count=8, group=8), pod("half", node_a))
    spec = catalogue.lookup(TRN2)
    assert spec is not None
    assert spec.efa is not None
    held = neurons(namespace, "half")
    assert len(held) == 8
    assert {efa.Interface(spec.efa[number]).name for number in held} == set(allocated(namespace))
    assert files(namespace, "half") == expected_files(namespace, node_a)


def test_later_pods_of_a_claim_get_its_interfaces(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 2), pod("first", node_a))
    shared = expected_files(namespace, node_a)
    assert files(namespace, "first") == shared
    started(namespace, pod("second", node_a))
    assert files(namespace, "second") == shared
    namespace.delete("pod", "first")
    assert files(namespace, "second") == shared
    started(namespace, pod("third", node_a))
    assert files(namespace, "third") == shared
    namespace.delete("pod", "second", "third")
    eventually("the claim is unprepared", lambda: efa_claims(node_a) == efa_specs(node_a) == set(), SEEN_S)


def test_pod_of_the_hosts_network_gets_interfaces(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 2), pod("host", node_a, hostNetwork=True))
    assert files(namespace, "host") == expected_files(namespace, node_a)


def test_only_the_container_that_names_the_claim_may_use_it(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 1), pod("two", node_a))
    [name] = allocated(namespace)
    own = uverbs(node_a)[name]
    opened = inside(namespace, "two", f"stat -c %t:%T /dev/infiniband/{own}; : < /dev/infiniband/{own}")
    minor = 192 + int(own.removeprefix("uverbs"))
    assert opened.split("\n")[0] == f"{231:x}:{minor:x}"
    assert NO_DRIVER in opened
    assert files(namespace, "two", "other") == []
    forged = inside(namespace, "two", f"mknod /dev/forged c 231 {minor} && : < /dev/forged", "other")
    assert NOT_ALLOWED in forged
    other_minor = 192 + (minor - 192 + 1) % 16
    forged = inside(namespace, "two", f"mknod /dev/forged c 231 {other_minor} && : < /dev/forged")
    assert NOT_ALLOWED in forged


def test_interface_of_a_claim_is_given_to_no_other(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 15), claim("other", 1), pod("many", node_a), pod("one", node_a, "other"))
    assert not set(allocated(namespace)) & set(allocated(namespace, "other"))
    namespace.apply(claim("excess", 1))
    namespace.apply(pod("excess", node_a, "excess"))
    stays_pending(namespace, "excess")


# When things break.


def test_plugin_killed_before_the_container_starts(node_a: BedNode, namespace: Namespace) -> None:
    node_a.break_("cdi")
    namespace.apply(claim(SHARED, 2, neuron_count=2))
    namespace.apply(pod("waits", node_a))
    eventually("both drivers prepared it", lambda: len(prepared(node_a)) == len(efa_claims(node_a)) == 1, SEEN_S)
    node_a.break_("plugin")
    node_a.repair("cdi")
    namespace.wait_ready("waits")
    assert files(namespace, "waits") == expected_files(namespace, node_a)
    assert len(neurons(namespace, "waits")) == 2
    node_a.repair("plugin")


def test_container_restarts_with_the_new_numbers(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 2), pod("first", node_a))
    before = expected_files(namespace, node_a)
    assert files(namespace, "first") == before
    node_a.break_("uverbs", "5")
    after = expected_files(namespace, node_a)
    assert after != before
    [uid] = efa_specs(node_a)
    spec_path = f"/var/run/cdi/{cdi.file_name(uid, EFA)}"

    def specified() -> list[str]:
        devices = json.loads(node_a.run("cat", spec_path))["devices"]
        paths = [node["path"] for device in devices for node in device["containerEdits"]["deviceNodes"]]
        return sorted(path.removeprefix("/dev/infiniband/") for path in paths)

    eventually("the CDI file has the new numbers", lambda: specified() == after, SEEN_S)
    restarted(namespace, "first")
    assert files(namespace, "first") == after
    started(namespace, pod("second", node_a))
    assert files(namespace, "second") == after


def end_container(place: Namespace, name: str) -> None:
    """End the main container of a pod."""
    with contextlib.suppress(BedError):  # the command may end with its container
        inside(place, name, "kill 1")


def restarted(place: Namespace, name: str) -> None:
    """End the main container of a pod, and wait until it runs again."""
    end_container(place, name)
    eventually(f"pod {name} is restarted", lambda: place.restarts(name) > 0, SEEN_S)
    place.wait_ready(name)


def test_rebooted_node_prepares_interfaces_again(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 4, neuron_count=4, group=4), pod("survivor", node_a))
    names_before = allocated(namespace)
    node_a.break_("uverbs", "3")
    node_a.break_("reboot")
    eventually("the pod starts again", lambda: namespace.restarts("survivor") > 0, 180)
    namespace.wait_ready("survivor")
    assert allocated(namespace) == names_before
    assert files(namespace, "survivor") == expected_files(namespace, node_a)
    assert len(neurons(namespace, "survivor")) == 4


def unhealthy(node: BedNode) -> dict[str, str]:
    """Return the reason of each published interface that is unhealthy."""
    return {
        device["name"]: device["attributes"][efa.UNHEALTHY]["string"]
        for device in interfaces(node)
        if efa.UNHEALTHY in device["attributes"]
    }


def test_lost_interface_starts_no_container_until_it_returns(node_a: BedNode, namespace: Namespace) -> None:
    started(namespace, claim(SHARED, 1), pod("holder", node_a))
    [lost] = allocated(namespace)
    functions = tree(node_a).functions
    number = next(str(index) for index, function in enumerate(functions) if efa.Interface(function).name == lost)
    node_a.break_("interface", number)
    eventually("it is published as lost", lambda: unhealthy(node_a) == {lost: "missing"}, SEEN_S)

    end_container(namespace, "holder")
    refused = "is-unusable"
    eventually("no container starts with it", lambda: refused in " ".join(namespace.events("holder")), SEEN_S)
    started(namespace, claim("rest", 15), pod("rest", node_a, "rest"))
    assert lost not in allocated(namespace, "rest")

    node_a.repair("interface", number)
    eventually("it is healthy", lambda: unhealthy(node_a) == {}, SEEN_S)
    namespace.wait_ready("holder")
    assert files(namespace, "holder") == expected_files(namespace, node_a)


def test_interfaces_are_free_after_a_forced_deletion(node_a: BedNode, namespace: Namespace) -> None:
    stubborn = pod("stubborn", node_a, template="all")
    template = {**claim("all", None), "kind": "ResourceClaimTemplate", "spec": {"spec": claim_spec(None)}}
    started(namespace, template, stubborn)
    namespace.kubectl("delete", "pod", "stubborn", "--force", "--grace-period=0")
    eventually("its claim is unprepared", lambda: efa_claims(node_a) == efa_specs(node_a) == set(), SEEN_S)
    started(namespace, pod("next", node_a, template="all"))
    assert len(files(namespace, "next")) == 17
