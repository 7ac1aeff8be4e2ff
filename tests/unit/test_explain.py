"""`explain`, and its tables: every condition, reason and Event that the code writes has a meaning (17.3)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.qualify.model import NEVER_STARTS
from hack.generate import alerts as alerts_program
from neuron_dra import cli
from neuron_dra.ask.explain import alerts
from neuron_dra.ask.explain import meanings as explain
from neuron_dra.ask.why import jobs
from neuron_dra.ask.world import tested
from neuron_dra.core import advice, busy, causes, health, shown_states, signals, vocabulary
from neuron_dra.core.ultraserver import Phase
from neuron_dra.core.vocabulary import CONDITIONS, EVENTS, REASONS, UNHEALTHY
from neuron_dra.planner.decisions.states import State

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER = ("observe", "apply", "limits", "jobs", "qualify", "queue")
OTHERS = {
    *(
        "All",
        "Available",
        "FullyAllocated",
        "ExactCount",
        "In",
        "Normal",
        "Warning",
        "True",
        "False",
        "Eviction",
        "Lease",
        "PodGroup",
    ),
    *("Pending", "Allocating", "PartiallyAllocated", "Deallocating", "Failed", "Bound"),  # states and phases
    *("MigrateAffected", "ReplaceAffected", "RestartAll", "NoOp", "Migrate", "Report"),  # strategies
    *("NoSchedule", "NoExecute", "ToBeDeletedByClusterAutoscaler"),  # taints
    *("PodScheduled", "PodReadyToStartContainers", "Unschedulable"),  # Kubernetes' own conditions
    *("DeviceClass", "Namespace", "Node", "Pod", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"),
    *("Service", "EndpointSlice", "None", "Failed", "Succeeded", "InternalIP"),
    *("NeuronUltraServer", "NeuronUltraServerWorkload", "NeuronConfig", "UltraServerConfig"),
    *("Job", "JobSet", "LeaderWorkerSet", "StatefulSet", "PodGroup", "Complete", "Completed"),
    *("Deny", "Fail"),  # of an admission policy
    *("Passed", "NeuronUltraServerQualification", "Exists", "RuntimeDefault", "Error"),  # of tests
    # Of containers, from kubelets and container runtimes.
    *(*NEVER_STARTS, "OOMKilled", "StartError", "ContainerCannotRun", "ContainerStatusUnknown"),
    *("TemplateCreated",),  # of the condition that wakes a pod
    *("Workload", "PriorityClass", "Never"),
    # Conditions and reasons of Kueue's Workload, and ours of them.
    *("QuotaReserved", "Admitted", "Evicted", "Requeued", "PodsReady", "Finished", "Preempted", "NodeFailures"),
    *("NoReservation", "WaitForStart", "WaitForRecovery", "Started", "DelayEnded", "NeuronNodesUnavailable"),
    *("Limits", "Trial", "IndexT", "Attributes"),  # names of types
}
"""Words of the controller that are no condition, reason or Event."""


def constants(*places: Path) -> Iterator[str]:
    """The texts in files and folders of code that look like a reason."""
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
                if re.fullmatch(r"([A-Z][a-z]+)+[A-Za-z]*", text):
                    yield text


def findings() -> Iterator[str]:
    """The Events of the differences between hardware and catalogue."""
    for node in ast.walk(ast.parse((ROOT / "neuron_dra/core/topology.py").read_text())):
        match node:
            case ast.Call(func=ast.Name(id="HardwareFinding"), args=[ast.Constant(value=kind), *_]):
                yield event_of(str(kind))
    yield from map(event_of, (busy.BUSY_KIND, busy.EMPTY_KIND))


def event_of(finding_kind: str) -> str:
    return "Neuron" + "".join(part.title() for part in finding_kind.split("-"))


NAMES = {each.name for each in (*CONDITIONS, *REASONS, *EVENTS)}


@pytest.fixture(scope="module")
def words_of_controller() -> set[str]:
    words = set(constants(ROOT / "neuron_dra/planner", *(ROOT / "controller" / folder for folder in CONTROLLER)))
    assert len(words) > 200, "the words are not found any more"
    return words


@pytest.fixture(scope="module")
def words_of_plugin() -> set[str]:
    words = constants(ROOT / "neuron_dra/node", ROOT / "neuron_dra/core/releases.py")
    return {word for word in words if re.match(r"Neuron[A-Z]|Kube", word)}


def test_every_word_of_the_controller_has_a_meaning(words_of_controller: set[str]) -> None:
    assert sorted(words_of_controller - NAMES - OTHERS) == []


def test_every_event_of_the_plugin_has_a_meaning(words_of_plugin: set[str]) -> None:
    fatal = {"KubernetesTooOld", "KubeletTooOld"}  # the last line of the plugin's log, no Event
    written = {*words_of_plugin, *findings()} - fatal
    assert len(written) > 15
    assert sorted(written - {each.name for each in EVENTS}) == []


def test_no_meaning_is_left_of_a_word_that_is_gone(words_of_controller: set[str], words_of_plugin: set[str]) -> None:
    assert sorted(NAMES - words_of_controller - words_of_plugin - set(findings())) == []


def test_every_reason_of_an_unhealthy_device_has_a_meaning() -> None:
    assert set(UNHEALTHY) == {*health._WORST_FIRST, signals.OTHER}


def test_reasons_belong_to_conditions_of_their_kind() -> None:
    for each in REASONS:
        kinds = {one.name for one in CONDITIONS if one.of == each.of}
        assert set(each.condition.split(", ")) <= kinds, each
    assert len({(each.name, each.of, each.condition) for each in REASONS}) == len(REASONS)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("deviceid", ["deviceId"]),
        ("devicegroup4_id", ["resource.aws.com/devicegroup4_id"]),
        ("NeuronConfig", ["NeuronConfig.logicalNeuronCore"]),
        ("workloadUid", ["workloadUid", "UltraServerConfig.workloadUid"]),
        ("NodeNotReady", ["NodeNotReady", "NodeNotReady", "NodeNotReady"]),
        ("nothing", []),
    ],
)
def test_names_are_found_in_any_case(name: str, found: list[str]) -> None:
    assert [each.name for each in explain.find(name)] == found


def test_topics_have_all_their_names() -> None:
    for topic in explain.TOPICS:
        names = {each.name for each in explain.find(topic)}
        assert names >= {each.name for each in explain.entries() if each.topic == topic}
        assert names
    assert {each.topic for each in explain.find("unhealthy")} == {"attributes", "unhealthy", "states"}


def test_meaning_is_printed_with_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "UltraServerConfig.ultraserverMode"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "UltraServerConfig.ultraserverMode",
        "  field of UltraServerConfig, in a claim's opaque config",
        "  meaning     number of nodes of an UltraServer that work together as a group",
        "  values      1 or 2 or 4; required",
        "  apiVersion  neuron.aws.com/v1",
    ]


def test_json_has_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == len(explain.entries())
    assert cli.main(["explain"]) == 0
    out = capsys.readouterr().out
    shown = " ".join(out.split())
    assert all(each.name in shown for each in explain.entries())
    assert max(map(len, out.splitlines())) <= 80


def test_unknown_name_has_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "NodeGon"]) == 2
    assert (
        capsys.readouterr().err
        == "neuron-dra: NodeGon: neither the driver nor the controller uses this name; did you mean NodeGone?\n"
    )
    assert cli.main(["explain", "xyz"]) == 2
    assert "; topics: attributes, " in capsys.readouterr().err


def test_vocabulary_is_one_sentence_for_each_word() -> None:
    for each in (*vocabulary.CONDITIONS, *REASONS, *EVENTS):
        assert each.text
        assert not each.text.endswith(".")


def test_every_reason_says_what_to_do() -> None:
    """With no advice for a reason that does not exist."""
    assert {each.name for each in (*REASONS, *EVENTS)} == advice.TO_DO.keys()
    assert {text for text in advice.TO_DO.values() if not text or text.endswith(".")} == set()


ASK = ROOT / "neuron_dra/ask"
NO_CODES = {
    *("Always", "Equal", "CronJob", "StatefulSet", "PreferNoSchedule", "OnFailure"),
    *("AlwaysAllow", "ContainerCreating", "DisruptionTarget", "FailedCreatePodSandBox", "FailedStart", "FromClaim"),
    *("FromClass", "FailedResourceClaimCreation", "FailedPrepareDynamicResources", "PodInitializing", "QuotaReserved"),
    *("ReplicaSet", "RollingUpdate", "UltraServer", "PodDisruptionBudget", "ResourceQuota", "DeviceTaintRule"),
    *("PartiallyAllocated", "NeuronDeviceU", "Failed", "Succeeded", "Pending", "Running", "Workload", "Admitted"),
    *(
        "Normal",
        "True",
        "False",
        "None",
        "Event",
        "All",
        "Exists",
        "Allocated",
        "Checker",
        "ManifestProblem",
        "Neuron",
        "FailedCreate",
        "FailureTarget",
        "ReplicaFailure",
        "SuccessCriteriaMet",
        "PodOutcome",
        "Problem",
        "WhyReport",
        "Allocating",
        "Degraded",
        "Ready",
    ),
}
"""Words of Kubernetes in the modules of causes."""


def test_every_code_of_a_cause_has_a_meaning() -> None:
    codes = {name for meanings in causes.OF.values() for name in meanings}
    places = (ASK / "why", ASK / "validate", ASK / "simulate", ASK / "world" / "container_sight.py")
    written = set(constants(*places)) - set(jobs.KINDS.values())
    assert sorted(written - codes - NO_CODES - NAMES - OTHERS) == []
    assert sorted(codes - written - {"KubeletBroken", "KubeletTooOld"}) == []


def codes_of_doctor() -> Iterator[str]:
    """The codes of the lines of `doctor`, but for those that are causes."""
    for path in sorted((ASK / "doctor").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if isinstance(node, ast.Call) and name in ("ok", "wrong", "Line"):
                for argument in node.args:
                    for each in ast.walk(argument):
                        if isinstance(each, ast.Constant) and re.fullmatch(r"([A-Z][a-z]+)+", str(each.value)):
                            yield str(each.value)


def test_every_code_of_doctor_has_a_meaning() -> None:
    written = set(codes_of_doctor()) - {"Pod", "Node", "ResourceSlice"}
    assert len(written) > 40
    known = {name for meanings in causes.OF.values() for name in meanings}
    assert sorted(written - known) == sorted(shown_states.CHECKS)


def shown_of_nodes() -> Iterator[str]:
    """The states that `status` and `topology` print of nodes, without names and numbers."""
    for path in (ASK / "world/states.py", ASK / "topology/text.py", ASK / "status/text.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_state_has_a_meaning() -> None:
    assert set(shown_states.WORKLOADS) == set(State)
    assert set(shown_states.PHASES) == {each.value for each in Phase}
    texts = " ".join([*shown_of_nodes(), tested.IN_A_TEST])
    assert [each for each in shown_states.NODES if each not in texts] == []
    problems = {"not Ready", "cordoned", "silent", "publishes nothing", "unknown", "spare", "free"}
    assert problems <= set(shown_states.NODES)
    for word in (*State, "bound", "not ready", "In a test", "SILENT", "ForeignSlice"):
        assert explain.find(word), word


def test_alerts_are_those_of_the_chart() -> None:
    assert (ROOT / "neuron_dra/data" / alerts.FILE).read_text() == alerts_program.text()


def test_alert_is_explained_by_its_name() -> None:
    (meaning,) = explain.find("NeuronClaimsFail")
    assert meaning == explain.Meaning(
        "alerts",
        "NeuronClaimsFail",
        "alert of the chart",
        "NODE cannot prepare claims: REASON. The node or the API server causes this, not the claims.",
        (("severity", "critical"), ("fires", "at once"), ("to do", "docs/runbooks.md#neuronclaimsfail")),
    )
