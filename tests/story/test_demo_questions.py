"""The questions of docs/demo.md, and faults that a newcomer makes, on the cluster of `demo --keep` (4.09)."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.built_tools import KUBECTL, needs

ROOT = Path(__file__).resolve().parents[2]
START_S = 600.0
ANSWER_S = 240.0
COMMAND_S = 120.0

FACTS = {
    "neuron-dra status": r"default/seventeen: request neurons wants 17 devices",
    "neuron-dra doctor": r"nothing is wrong",
    "neuron-dra why pod/seventeen": r"count: 16",
    "kubectl describe pod seventeen": r"Warning +FailedScheduling.* 0/11 nodes are available: 11 cannot allocate",
    "neuron-dra why node/trn2-a": r"node trn2-a publishes 16 devices, 0 held",
    "neuron-dra topology trn2-a": r"4 x 4 torus, 16 of 16 devices free",
    "neuron-dra topology us-6b8c2d3e4f5a7180": r"us2-0 \(node 0\)",
    "neuron-dra topology --fleet": r"trn2-b +·",
    "neuron-dra top": r"11 of 11 nodes read: 96 devices held",
    "kubectl get nus -A": r"us-6b8c2d3e4f5a7180 +Ready +FullyAllocated +trn2u.48xlarge +4 +0 ",
    "kubectl get nusw": r"my-training-job +Allocated +2 +3 +6 ",
    "kubectl get events --field-selector involvedObject.name=my-training-job": r"NodeGone .*us1-2",
    "neuron-dra explain NodeGone": r"the Node was deleted",
    "kubectl explain nusw.spec": r"serverCount\s+<integer>",
    "kubectl get resourceclaims": r"neuron-claim-\w+ +allocated,reserved",
    "kubectl get resourceslices": r"trn2-b +neuron.aws.com",
    "kubectl get deviceclasses": r"connected-4.neuron.aws.com",
    "kubectl -n neuron-dra-driver get pods -o wide": r"neuron-dra-driver-kubelet-plugin-\w+ +1/1 +Running .* trn2-a ",
    "neuron-dra uninstall-check": r"neuron-node-0 +pod my-training-workload-\d+",
    "neuron-dra simulate deploy/examples/1x4-connected-devices.yaml": r"default/pod0 +trn2-\w +devices ",
}
"""What the answer to each question of docs/demo.md has in it."""


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell beside the demo, with what the demo says."""

    exports: str
    folder: Path

    def __call__(self, command: str, given: str = "") -> str:
        """Return what a command prints, whatever its exit code."""
        path = shlex.quote(str(Path(str(KUBECTL)).parent))
        done = subprocess.run(
            ["bash", "-c", f"{self.exports}\nPATH={path}:$PATH\n{command}"],
            input=given, capture_output=True, text=True, timeout=COMMAND_S, cwd=ROOT, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def until(self, command: str, pattern: str) -> str:
        """Repeat a command until what it prints matches."""
        end = time.monotonic() + ANSWER_S
        while not re.search(pattern, " ".join((text := self(command)).split())):
            if time.monotonic() > end:
                raise TimeoutError(f"{command} does not say {pattern!r}: {text}")
        return text


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with tempfile.TemporaryFile("w+") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "neuron_dra.cli", "demo", "--keep"], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            end, text = time.monotonic() + START_S, ""
            while "or open" not in text:
                assert demo.poll() is None, text[-2000:]
                assert time.monotonic() < end, text[-2000:]
                time.sleep(0.2)
                out.seek(0)
                text = out.read()
            exports = next(line.strip() for line in text.splitlines() if "export KUBECONFIG=" in line)
            folder = Path(shlex.split(exports)[1].partition("=")[2]).parent
            yield Shell(exports, folder)
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(START_S)
    assert not folder.exists(), "the demo leaves files behind"


def questions() -> list[str]:
    """Return the commands of the table in docs/demo.md."""
    rows = re.findall(r"^\| [^|]+\? \| `([^`]+)` \|$", (ROOT / "docs/demo.md").read_text(), re.MULTILINE)
    assert len(rows) == 20
    return rows


@needs("kubectl")
@pytest.mark.timeout(1200)
def test_each_question_has_a_command_that_answers_it(shell: Shell) -> None:
    assert set(questions()) == set(FACTS)
    for command in questions():
        shell.until(command, FACTS[command])


@needs("kubectl")
@pytest.mark.timeout(600)
def test_broken_device_is_seen_and_recovers(shell: Shell) -> None:
    root = shell.folder / "trn2-a/host"
    assert "broke device:3" in shell(f"neuron-dra fake-node --root {root} --break device:3")
    shell.until("neuron-dra why node/trn2-a", r"15 of the 16 devices.* neuron-device-3 is unhealthy")
    shell(f"neuron-dra fake-node --root {root} --repair device:3")
    shell.until("neuron-dra why node/trn2-a", r"publishes 16 devices, 0 held")


@needs("kubectl")
@pytest.mark.timeout(600)
def test_job_of_a_plain_program_completes(shell: Shell) -> None:
    job = "kubectl create job quick --image=none --dry-run=client -o yaml -- sh -c 'sleep 1; echo done'"
    shell(f"{job} | kubectl apply -f -")
    assert "condition met" in shell("kubectl wait --for=condition=Complete job/quick --timeout=100s")
    shell("kubectl delete job quick")


POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  {spec}
  containers: [{{name: main, image: none, resources: {{{resources}}}}}]
"""


def pod(name: str, resources: str, *spec: str) -> Callable[[Shell], None]:
    """Return what applies a pod."""
    text = POD.format(name=name, resources=resources, spec="\n  ".join(spec) or "restartPolicy: Always")
    return lambda shell: print(shell("kubectl apply -f -", text))


def commands(*texts: str) -> Callable[[Shell], None]:
    """Return what runs commands."""
    return lambda shell: print(*map(shell, texts))


CLAIM = "resourceClaims: [{name: d, resourceClaimTemplateName: one}]"
USES_CLAIM = "claims: [{name: d}]"
ON = "nodeSelector: {kubernetes.io/hostname: %s}"
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: %s}}]}}}
"""
RULE = """
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: out}
spec: {deviceSelector: {pool: trn2-a}, taint: {key: example.com/repair, effect: NoSchedule}}
"""


def template(device_class: str) -> Callable[[Shell], None]:
    return lambda shell: print(shell("kubectl apply -f -", TEMPLATE % device_class))


@dataclass(frozen=True, slots=True)
class Fault:
    """What a newcomer does, the object that they ask about, and what the answer must say."""

    steps: Sequence[Callable[[Shell], None]]
    about: str
    says: str
    undo: str = "kubectl delete pod x; kubectl delete resourceclaimtemplate one"


FAULTS = {
    "cordoned node": Fault(
        [commands("kubectl cordon trn2-a"), template("neuron.aws.com"), pod("x", USES_CLAIM, CLAIM, ON % "trn2-a")],
        "pod/x", r"cordon", "kubectl delete pod x; kubectl uncordon trn2-a; kubectl delete resourceclaimtemplate one",
    ),
    "tainted node": Fault(
        [commands("kubectl taint node trn2-a team=a:NoSchedule"), template("neuron.aws.com"),
         pod("x", USES_CLAIM, CLAIM, ON % "trn2-a")],
        "pod/x", r"taint.*team",
        "kubectl delete pod x; kubectl taint node trn2-a team-; kubectl delete resourceclaimtemplate one",
    ),
    "tainted devices": Fault(
        [lambda shell: print(shell("kubectl apply -f -", RULE)), template("neuron.aws.com"),
         pod("x", USES_CLAIM, CLAIM, ON % "trn2-a")],
        "pod/x", r"example.com/repair",
        "kubectl delete pod x; kubectl delete devicetaintrule out; kubectl delete resourceclaimtemplate one",
    ),
    "missing template": Fault([pod("x", USES_CLAIM, CLAIM)], "pod/x", r"no ResourceClaimTemplate default/one"),
    "misspelled class": Fault(
        [template("neurom.aws.com"), pod("x", USES_CLAIM, CLAIM)], "pod/x", r"neurom.aws.com"
    ),
    "number of devices that no node has": Fault(
        [pod("x", "limits: {aws.amazon.com/neuron: 5}")], "pod/x", r"connected-5.neuron.aws.com"
    ),
    "instance type that is not there": Fault(
        [template("neuron.aws.com"),
         pod("x", USES_CLAIM, CLAIM, "nodeSelector: {node.kubernetes.io/instance-type: inf2.48xlarge}")],
        "pod/x", r"does not match the pod's node selector",
    ),
    "more CPUs than a node has": Fault(
        [template("neuron.aws.com"), pod("x", f"{USES_CLAIM}, requests: {{cpu: 500}}", CLAIM)], "pod/x", r"cpu|CPU"
    ),
    "core size that the type does not have": Fault(
        [commands("kubectl apply -f deploy/examples/neuron-lnc-1.yaml")],
        "pod/neuron-lnc-1", r"LNC value is not configurable",
        "kubectl delete -f deploy/examples/neuron-lnc-1.yaml --now",
    ),
}  # fmt: skip


@needs("kubectl")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_a_newcomer_is_explained(shell: Shell, name: str) -> None:
    fault = FAULTS[name]
    for step in fault.steps:
        step(shell)
    try:
        shell.until(f"neuron-dra why {fault.about}", fault.says)
    finally:
        shell(fault.undo)
