"""Thirty broken situations: the first line of `why` names the true cause (17, acceptance 2)."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render import report_text
from neuron_dra.ask.render.findings import Report
from neuron_dra.ask.why import answer
from neuron_dra.ask.why import command as why_command
from neuron_dra.ask.world import placing
from neuron_dra.ask.world.world import World
from neuron_dra.core import names, vocabulary
from neuron_dra.core.wire import Obj
from neuron_dra.simulate.scheduler import Placement
from tests.support import cluster_faults as faults
from tests.support import small_clusters as small
from tests.support.reported_clusters import event
from tests.unit.test_why_pod import FAILED, LNC, PREPARE, started, ultraserver_cluster

EFA = "efa.networking.k8s.aws"
GROUP = "resource.aws.com/devicegroup4_id"
BUDGET = "pods that cannot be evicted: ml/train-0: PodDisruptionBudget train allows none"

Situation = Callable[[], list[Obj]]
"""Returns the objects of a cluster with one fault."""


def report(items: list[Obj], kind: str, name: str) -> Report:
    built = snapshot.build(copy.deepcopy(items))
    namespace = {"Node": "", "NeuronUltraServerWorkload": "ml"}.get(kind, "default")
    found = built.get(kind, name, namespace)
    assert found is not None
    return answer.report(built, kind, found)


def fault(which: faults.Fault) -> Situation:
    """The healthy cluster with a fault."""

    def made() -> list[Obj]:
        items = faults.healthy()
        which(random.Random(0), items)
        return items

    return made


def with_event(reason: str, message: str, kind: str = "Pod", name: str = "p") -> Situation:
    """The healthy cluster after the pod was placed, with an Event."""
    return lambda: [*started(), event(reason, message, name, kind)]


def container(reason: str, message: str) -> Situation:
    state = {"waiting": {"reason": reason, "message": message}}
    return lambda: started(containerStatuses=[{"name": "main", "state": state}])


def node(change: Callable[[Obj, list[Obj]], None], *, silent: bool = False) -> Situation:
    """A cluster whose node a was changed, without its slice if `silent`."""

    def made() -> list[Obj]:
        items = small.base("a", "b")
        found = faults.the(items, "Node", "a")
        assert found is not None
        change(found, items)
        gone = [item for item in faults.all_of(items, "ResourceSlice") if silent and item["spec"]["nodeName"] == "a"]
        return [item for item in items if item not in gone]

    return made


def nothing(found: Obj, items: list[Obj]) -> None:
    return


def old_kubelet(found: Obj, items: list[Obj]) -> None:
    found["status"]["nodeInfo"] = {"kubeletVersion": "v1.31.4-eks-1"}


def broken_kubelet(found: Obj, items: list[Obj]) -> None:
    found["status"]["nodeInfo"] = {"kubeletVersion": "v1.34.1"}


def no_label(found: Obj, items: list[Obj]) -> None:
    del found["metadata"]["labels"][names.INSTANCE_TYPE_LABEL]


def device_plugin(found: Obj, items: list[Obj]) -> None:
    found["status"]["allocatable"]["aws.amazon.com/neuron"] = "16"


def not_ready(found: Obj, items: list[Obj]) -> None:
    found["status"]["conditions"] = [
        {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting status"}
    ]


def driver_pod(waiting: str = "") -> Callable[[Obj, list[Obj]], None]:
    """The driver's pod on node a, which runs or does not."""

    def change(found: Obj, items: list[Obj]) -> None:
        made = small.pod("neuron-dra-x")
        made["metadata"] |= {"labels": {"app": "neuron-dra-driver"}, "ownerReferences": [{"kind": "DaemonSet"}]}
        made["spec"]["nodeName"] = "a"
        state = {"waiting": {"reason": waiting, "message": "back-off 5m0s restarting failed container"}}
        made["status"] = {"phase": "Running"}
        if waiting:
            made["status"]["containerStatuses"] = [{"name": "driver", "state": state}]
        items.append(made)

    return change


def device_gone(found: Obj, items: list[Obj]) -> None:
    for item in faults.all_of(items, "ResourceSlice"):
        del item["spec"]["devices"][5]


def efa_busy() -> list[Obj]:
    """Devices in one group with EFA interfaces, of which another pod holds those of each group."""
    items = small.base("a")
    items.append({"apiVersion": small.API, "kind": "DeviceClass", "metadata": {"name": EFA}, "spec": efa_selector()})
    spec = faults.all_of(items, "ResourceSlice")[0]["spec"]
    devices = [
        {"name": f"efa-{number}", "attributes": {GROUP: device["attributes"][GROUP]}}
        for number, device in enumerate(spec["devices"])
    ]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    made = {"driver": EFA, "nodeName": "a", "pool": pool, "devices": devices}
    items.append({"apiVersion": small.API, "kind": "ResourceSlice", "metadata": {"name": "a-efa"}, "spec": made})
    taken = small.template("efas", 13, deviceClassName=EFA)
    items += [taken, *holding(items, taken)]
    wanted = small.template("four", 4, group=GROUP)
    inner = wanted["spec"]["spec"]["devices"]
    inner["requests"].append({"name": "efas", "exactly": {"deviceClassName": EFA, "count": 4}})
    inner["constraints"][0]["requests"] = ["neurons", "efas"]
    return [*items, wanted, *small.created(small.pod("p", "four"), wanted)]


def efa_selector() -> Obj:
    return {"selectors": [{"cel": {"expression": f"device.driver == '{EFA}'"}}]}


def holding(items: list[Obj], made: Obj) -> list[Obj]:
    """A running pod `net` with the devices of a template."""
    world = World(snapshot.build(copy.deepcopy([*items, made, *small.created(small.pod("net", "efas"), made)])))
    pod = world.snapshot.get("Pod", "net", "default")
    assert pod is not None
    outcome = world.place(pod)
    assert isinstance(outcome, Placement)
    return [dict(each) for each in placing.placed_objects(world, pod, outcome)]


def limits_of_the_plugin() -> list[Obj]:
    pod = small.pod("p")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"aws.amazon.com/neuron": "1"}
    return [*small.base("a"), pod]


def workload(state: str, reason: str, message: str, degraded: str = "") -> Situation:
    """An UltraServer cluster with a workload in a state."""

    def made() -> list[Obj]:
        items = ultraserver_cluster()
        found = faults.the(items, "NeuronUltraServerWorkload", "job")
        assert found is not None
        ready = {"type": "Ready", "status": "True" if degraded else "False", "reason": reason, "message": message}
        problem = {"type": "Degraded", "status": "True", "reason": degraded, "message": message}
        found["status"] = {"state": state, "conditions": [ready, *([problem] if degraded else [])]}
        return items

    return made


def fault_of_pod(name: str, text: str, which: faults.Fault) -> tuple[str, str, str, Situation]:
    return name, "Pod/p", text, fault(which)


SITUATIONS: list[tuple[str, str, str, Situation]] = [
    ("wrong LNC", "Pod/p", LNC, with_event(PREPARE, f"{FAILED} prepare claims: {LNC}")),
    fault_of_pod("wrong LNC, before it is placed", "error applying config", faults.configuration),
    fault_of_pod("17 devices", "of one node, and the largest node has 16 that match", faults.too_many),
    fault_of_pod("group too large", "devices with the same resource.aws.com/devicegroup4_id", faults.group_too_small),
    fault_of_pod("split group", "2 nodes have too few free devices", faults.held_in_part),
    fault_of_pod("devices in use", "2 nodes have too few free devices: default/busy-", faults.held),
    ("EFA busy", "Pod/p", "node a has too few free devices: default/net holds 13", efa_busy),
    ("foreign reservation", "Pod/p", "reserved for workload ml/job", fault(faults.reserved)),
    fault_of_pod("tainted by a rule", "too few untainted devices: example.com/maintenance=x", faults.device_rule),
    fault_of_pod("unhealthy", "too few untainted devices: neuron.aws.com/unhealthy=hbm", faults.unhealthy),
    fault_of_pod("class misspelt", "names the DeviceClass neurons.aws.com, which does not exist", faults.class_renamed),
    fault_of_pod("class missing", f"names the DeviceClass {names.DRIVER}, which does not exist", faults.class_removed),
    fault_of_pod("template missing", "there is no ResourceClaimTemplate default/", faults.template_renamed),
    fault_of_pod("claim deleted", "was deleted: delete the pod", faults.claim_deleted),
    fault_of_pod("quota", "ResourceQuota default/team allows", faults.quota),
    fault_of_pod("selector matches nothing", "the selector of request neurons matches no device", faults.wrong_type),
    fault_of_pod("unguarded attribute", "fails", faults.wrong_attribute),
    fault_of_pod("invalid CEL", "is not valid", faults.invalid_selector),
    fault_of_pod("cordoned", "2 nodes that would serve it: it is cordoned", faults.cordoned),
    fault_of_pod("node taint", "the pod does not tolerate its taint node.kubernetes.io/not-ready", faults.node_taint),
    fault_of_pod("node selector", "it does not match the pod's node selector", faults.node_selector),
    fault_of_pod("no CPU", "have the devices, and too little", faults.no_room),
    fault_of_pod("no slices", "publishes", faults.no_slices),
    fault_of_pod("pool incomplete", "pool", faults.incomplete),
    fault_of_pod("scheduling gate", "scheduling gates keep it from the scheduler: kueue", faults.gate),
    fault_of_pod("no such scheduler", "its scheduler 'my-scheduler' has not handled it", faults.no_scheduler),
    fault_of_pod("time-out of 1.34", "the scheduler gave up: it searches a node for at most 10 s", faults.timeout),
    ("limits of the device plugin", "Pod/p", "for the Neuron device plugin", limits_of_the_plugin),
    (
        "plugin dead",
        "Pod/p",
        "the driver neuron.aws.com is not registered with the kubelet of node a",
        with_event(PREPARE, f"{FAILED} DRA driver neuron.aws.com is not registered"),
    ),
    (
        "runtime without CDI",
        "Pod/p",
        "the runtime of node a finds no CDI devices of its claim",
        with_event("Failed", "Error: CDI device injection failed: unresolvable CDI devices k8s.neuron/claim=x"),
    ),
    ("image", "Pod/p", "container main: ImagePullBackOff", container("ImagePullBackOff", "not found")),
    ("old kubelet", "Node/a", "kubelet v1.31.4-eks-1 is too old; use 1.33", node(old_kubelet, silent=True)),
    ("broken kubelet", "Node/a", "kubelet v1.34.1: its connection to a plugin hangs", node(broken_kubelet)),
    ("node not labelled", "Node/a", f"no label {names.INSTANCE_TYPE_LABEL}", node(no_label, silent=True)),
    ("device plugin alive", "Node/a", "a Neuron device plugin offers aws.amazon.com/neuron", node(device_plugin)),
    ("node not ready", "Node/a", "not Ready: Kubelet stopped posting status", node(not_ready)),
    (
        "driver's pod fails",
        "Node/a",
        "its pod default/neuron-dra-x: container driver: CrashLoopBackOff",
        node(driver_pod("CrashLoopBackOff"), silent=True),
    ),
    (
        "driver's pod absent",
        "Node/a",
        "publishes no devices of this trn2.48xlarge: no pod of the driver is on the node",
        node(lambda found, items: items.append(small.pod("web")), silent=True),
    ),
    ("device gone", "Node/a", "15 of the 16 devices of a trn2.48xlarge are published", node(device_gone)),
    (
        "drain blocked by a budget",
        "NeuronUltraServerWorkload/job",
        BUDGET,
        workload("Deallocating", "EvictionBlocked", BUDGET),
    ),
    (
        "link down",
        "NeuronUltraServerWorkload/job",
        "links that the group needs are down on u1",
        workload("Allocated", "Allocated", "links that the group needs are down on u1", "LinkDown"),
    ),
    (
        "no UltraServer free",
        "NeuronUltraServerWorkload/job",
        "no UltraServer is free",
        workload("Pending", "InsufficientCapacity", "no UltraServer is free"),
    ),
]


def test_there_are_thirty_situations() -> None:
    assert len({name for name, _, _, _ in SITUATIONS}) >= 30


@pytest.mark.parametrize(
    ("subject", "text", "situation"), [row[1:] for row in SITUATIONS], ids=[r[0] for r in SITUATIONS]
)
def test_first_line_names_the_cause(subject: str, text: str, situation: Situation) -> None:
    kind, _, name = subject.partition("/")
    found = report(situation(), kind, name)
    assert found.findings, found
    assert text in found.findings[0].text
    first = " ".join(line.strip() for line in report_text.lines(found)[:8])
    assert first.startswith(f"{found.subject} {found.state}: {found.findings[0].text}"[:200])


def node_events() -> list[str]:
    quiet = ("NeuronDeviceHealthy", "NeuronDeviceUnhealthy")
    return [each.name for each in vocabulary.EVENTS if each.of == "Node" and each.name not in quiet]


OF_DEVICES = ("NeuronMissingDevice", "NeuronMissingDeviceFile")


@pytest.mark.parametrize("reason", OF_DEVICES)
def test_event_about_a_device_is_over_when_the_node_publishes_all_devices_as_healthy(reason: str) -> None:
    found = report([*node(nothing)(), event(reason, f"text of {reason}", "a", "Node")], "Node", "a")
    note = f"the Event {reason} of 2026-03-01T12:00:00Z is over: the driver publishes all devices as healthy"
    assert (found.fine, found.notes) == (True, (note,))


NODE_EVENTS = [
    pytest.param(reason, silent, id=f"{'silent' if silent else 'publishes'}-{reason}")
    for silent in (False, True)
    for reason in node_events()
    if silent or reason not in OF_DEVICES
]


@pytest.mark.parametrize(("reason", "silent"), NODE_EVENTS)
def test_events_of_the_driver_are_named(reason: str, silent: bool) -> None:
    items = [*node(nothing, silent=silent)(), event(reason, f"text of {reason}", "a", "Node")]
    found = report(items, "Node", "a")
    assert any(f"text of {reason}" in each.text for each in found.findings), found
    of_the_kernel_driver = ("NeuronNoClassFolder", "NeuronNoDevices", "NeuronDriverLoading", "NeuronDriverLeaving")
    causes = ("NeuronDevicePluginAlive", "NeuronReadingHangs", *of_the_kernel_driver)
    if not silent or reason in causes:
        assert f"text of {reason}" in found.findings[0].text
        assert len(found.findings) == 1
    if not silent:
        assert "2026-03-01T12:00:00Z" in found.findings[0].text
    assert not found.fine


def test_events_that_report_good_news_are_no_cause() -> None:
    made = {**event("NeuronDeviceHealthy", "neuron-device-1 is healthy again", "a", "Node"), "type": "Normal"}
    assert report([*node(nothing)(), made], "Node", "a").fine


PLUGIN_POD = "pod default/old (aws.amazon.com/neuron) on node a has devices of a Neuron device plugin"


@pytest.mark.parametrize("phase", [None, "Succeeded", "Failed"])
def test_event_about_a_pod_that_is_gone_is_no_cause(phase: str | None) -> None:
    items = [*node(nothing)(), event("NeuronDevicePluginAlive", PLUGIN_POD, "a", "Node")]
    if phase is not None:
        items.append({**small.pod("old"), "status": {"phase": phase}})
    assert report(items, "Node", "a").fine


@pytest.mark.parametrize(
    ("text", "pods"),
    [
        (PLUGIN_POD, [{**small.pod("old"), "status": {"phase": "Running"}}]),
        (PLUGIN_POD.replace(" on node", " and 2 more on node"), []),
        (f"a Neuron device plugin is alive on node a (socket); {PLUGIN_POD}", []),
    ],
    ids=["it runs", "there are others", "the plugin too"],
)
def test_event_about_a_pod_is_a_cause_while_it_may_be_there(text: str, pods: list[Obj]) -> None:
    items = [*node(nothing)(), event("NeuronDevicePluginAlive", text, "a", "Node"), *pods]
    assert [each.code for each in report(items, "Node", "a").findings] == ["NeuronDevicePluginAlive"]


def test_event_about_a_pod_is_a_cause_if_pods_were_not_seen() -> None:
    items = [*node(nothing)(), event("NeuronDevicePluginAlive", PLUGIN_POD, "a", "Node")]
    built = dataclasses.replace(snapshot.build(items), left_out={"Pod": "forbidden"})
    machine = built.get("Node", "a")
    assert machine is not None
    assert not answer.report(built, "Node", machine).fine


def test_running_device_plugin_is_named_once() -> None:
    found = report([*node(device_plugin)(), event("NeuronDevicePluginAlive", "text", "a", "Node")], "Node", "a")
    assert [each.code for each in found.findings] == ["DevicePluginAlive"]


def test_missing_crds_are_named() -> None:
    built = snapshot.build(small.base("a"))
    left_out = {"NeuronUltraServerWorkload": snapshot.NOT_SERVED}
    text = why_command._absent(dataclasses.replace(built, left_out=left_out), "NeuronUltraServerWorkload", "job", "ml")
    assert text == (
        "NeuronUltraServerWorkload job: this cluster does not have it; install the CRDs of the UltraServer controller"
    )


def test_devices_of_other_drivers_are_not_counted() -> None:
    assert report(efa_busy(), "Node", "a").state == "publishes 16 devices, 0 held"


def test_driver_that_runs_and_publishes_nothing_is_said_so() -> None:
    first = report(node(driver_pod(), silent=True)(), "Node", "a").findings[0]
    assert first.text.endswith("its pod default/neuron-dra-x: runs on node a")
