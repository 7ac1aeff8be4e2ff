"""`neuron-dra doctor` as a command: on a cluster and on a file (17.7)."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import msgspec
import pytest

from neuron_dra.ask.doctor import gather
from neuron_dra.ask.doctor.seen import BINDINGS, CRDS, LEASES, POLICIES
from neuron_dra.ask.doctor.timing import DEFAULT_TIMING, DoctorTiming
from neuron_dra.ask.read import snapshot
from neuron_dra.emulation.embedded_api.faults import STRANGE, Do, InjectedFault
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.kube.config import KubeConfig
from tests.contract.test_inspect_cluster import answer, fill, run
from tests.support import installations

HALF = b'"\\ud800"'
PLURALS = {
    CRDS: ("apiextensions.k8s.io", "customresourcedefinitions"),
    POLICIES: ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    BINDINGS: ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
}


def serve(api: EmbeddedApi) -> None:
    """Serve an installation in which nothing is wrong."""
    for kind, (group, plural) in PLURALS.items():
        api.register(group, ("v1",), kind, plural, namespaced=False)
    api.register_neuron_kinds()
    for name in ("neuron-dra-driver", "default"):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    fill(api, installations.healthy())
    # 50 s ahead of now, so that it is not old for a command that starts slowly on a busy machine.
    api.apply(installations.lease(-50, now=datetime.datetime.now(datetime.UTC)))


async def test_live_cluster(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        done = await answer("doctor", "--kubeconfig", str(api.write_kubeconfig(tmp_path / "config")))
        assert "secrets" not in {request.resource for request in api.log}
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing is wrong"), done
    assert "ok       Kubernetes  the API server is v1.37.0+embedded" in done.stdout


async def test_what_a_cluster_does_not_answer_is_unknown(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        config = str(api.write_kubeconfig(tmp_path / "config"))
        api.faults.add(InjectedFault(verb="list", resource="validatingadmissionpolicies", status=403, times=None))
        api.faults.add(InjectedFault(verb="get", resource="leases", status=503, times=None))
        api.delete(CRDS, "neuronultraservers.neuron.aws.com")
        done = await answer("doctor", "--kubeconfig", config, "-o", "json")
    found = {(each["area"], each["state"]): each["text"] for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert found["policy", "unknown"] == "ValidatingAdmissionPolicy: forbidden"
    assert "503" in found["lease", "unknown"]
    assert found["CRD", "wrong"].startswith("neuronultraservers.neuron.aws.com does not exist")


async def test_what_never_answers_is_unknown() -> None:
    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        api.faults.add(InjectedFault(verb="list", resource="validatingadmissionpolicies", do=Do.HANG, times=None))
        found = await gather._rest(KubeConfig(api.url), snapshot.build([]), DoctorTiming(kind_s=0.2))
    assert found.unread[POLICIES] == "no answer within 0.2 s"


def about_objects(output: str) -> list[str]:
    """Return the lines of a report that say what cannot be read."""
    return [each["text"] for each in json.loads(output)["checks"] if each["area"] == "objects"]


async def test_jobs_and_qualifications_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Of a cluster those that cannot be decoded, and those with a field of another type."""
    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        api.register("jobset.x-k8s.io", ("v1alpha2",), "JobSet", "jobsets")
        asked = "NeuronUltraServerQualification"
        about = {"apiVersion": "neuron.aws.com/v1beta1", "kind": asked, "metadata": {"name": "nightly"}}
        spec = {"instanceTypes": ["trn3.48xlarge"], "image": "i"}
        api.apply({**about, "spec": spec, "status": {"conditions": [{"type": "x", "message": msgspec.Raw(HALF)}]}})
        meta = {"name": "train", "namespace": "default"}
        for name, value in (("train", "x"), ("sound", 4)):
            parts = [{"name": "w", "replicas": value}]
            body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {**meta, "name": name}}
            api.apply({**body, "spec": {"replicatedJobs": parts}})
        done = await answer("doctor", "--kubeconfig", str(api.write_kubeconfig(tmp_path / "config")), "-o", "json")
    assert done.returncode == 1
    [line] = about_objects(done.stdout)
    assert f"{asked} nightly (" in line
    assert "JobSet default/train (spec.replicatedJobs[0].replicas is 'x': it must be a whole number)" in line
    assert "sound" not in line


async def test_jobs_that_may_not_be_listed_are_unknown(tmp_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        api.faults.add(InjectedFault(verb="list", resource="neuronultraserverqualifications", status=403, times=None))
        done = await answer("doctor", "--kubeconfig", str(api.write_kubeconfig(tmp_path / "config")), "-o", "json")
    assert about_objects(done.stdout) == ["whether each NeuronUltraServerQualification can be read: forbidden"]


def test_jobs_of_a_file_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    meta = {"name": "train", "namespace": "ml"}
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"parallelism": "x"}},
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}, "spec": {"suspend": 7}},
    ]
    file.write_text(json.dumps({"kind": "List", "items": [*installations.healthy(), *jobs]}))
    done = run("doctor", "--snapshot", str(file), "-o", "json")
    [line] = about_objects(done.stdout)
    assert line.endswith("left out: Job ml/train (spec.parallelism is 'x': it must be a whole number)")


@pytest.mark.parametrize("name", STRANGE)
async def test_strange_answer_is_unknown(name: str) -> None:
    """A proxy, or a server of another release, may answer with anything: its objects are unknown, not missing."""
    async with EmbeddedApi(controllers=False) as api:
        serve(api)
        for verb, resource in (("get", "leases"), ("list", "validatingadmissionpolicies")):
            api.faults.add(STRANGE[name].fault(verb=verb, resource=resource, times=None))
        found = await gather._rest(KubeConfig(api.url), snapshot.build([]), DEFAULT_TIMING)
    assert found.unread.keys() == {LEASES, POLICIES}


def test_file_shows_what_it_has(tmp_path: Path) -> None:
    """A file has no version and no clock: these are unknown, and the rest is checked."""
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": installations.healthy()}))
    done = run("doctor", "--snapshot", str(file), "-o", "json", "--bundle", str(tmp_path / "doctor.tar.gz"))
    assert (tmp_path / "doctor.tar.gz").read_bytes()[:2] == b"\x1f\x8b"
    states = {(each["area"], each["state"]) for each in json.loads(done.stdout)["checks"]}
    assert {area for area, state in states if state != "ok"} == {"Kubernetes", "lease"}
    assert {("CRD", "ok"), ("policy", "ok"), ("Kubernetes", "unknown")} <= states


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("node/c",), "there is no Node c"),
        (("pod/a",), "pod/a: write node/NAME"),
        (("--context", "x"), "--context and --snapshot: give one of them"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "items": installations.healthy()}))
    done = run("doctor", *words, "--snapshot", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert error in done.stderr


def test_malformed_object_of_a_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    broken = {"kind": CRDS, "metadata": {"name": "x"}, "spec": {"versions": "v1"}}
    file.write_text(json.dumps({"kind": "List", "items": [*installations.healthy(), broken]}))
    done = run("doctor", "--snapshot", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "CustomResourceDefinition x: spec.versions is 'v1': it must be a list" in done.stderr
