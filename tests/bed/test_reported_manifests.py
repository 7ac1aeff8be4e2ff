"""Kinds of manifests that people reported: `migrate` and the policies of a real API server agree on each (32.8).

A policy sees pods only: for a kind that the server does not have, a pod with each of the manifest's limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.bed.deployed import IMAGE
from hack.bed.real_cluster import BedError, Namespace
from neuron_dra import cli
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import pod_specs
from tests.bed.limited import CORE, NEURON, WAITING, ended, in_container, is_arc

SETS = "deviceclass.resource.kubernetes.io/connected-{}.neuron.aws.com"
CORES = "deviceclass.resource.kubernetes.io/cores-{}.neuron.aws.com"
BUILT_IN = ("Pod", "Deployment", "Job")


@dataclass(frozen=True, slots=True)
class Case:
    """A manifest, and the resource of each of its limits afterwards; or why there is none."""

    name: str
    text: str
    gets: tuple[str, ...] = ()
    refused: str = ""


def on(instance_type: str) -> str:
    return f"nodeSelector: {{node.kubernetes.io/instance-type: {instance_type}}}"


def deployment(instance_type: str, resource: str, number: int) -> str:
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: serve}}
spec:
  selector: {{matchLabels: {{app: serve}}}}
  template:
    metadata: {{labels: {{app: serve}}}}
    spec:
      {on(instance_type)}
      containers:
      - {{name: main, image: example.com/serve, resources: {{limits: {{{resource}: {number}}}}}}}
"""


def batch_job(instance_type: str, number: int) -> str:
    return f"""\
apiVersion: batch/v1
kind: Job
metadata: {{name: train}}
spec:
  template:
    spec:
      restartPolicy: Never
      {on(instance_type)}
      containers:
      - {{name: main, image: example.com/train, resources: {{limits: {{{NEURON}: {number}}}}}}}
"""


HALVES = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: halves}}
spec:
  {on("inf1.xlarge")}
  containers:
  - {{name: first, image: example.com/first, resources: {{limits: {{{CORE}: 2}}}}}}
  - {{name: second, image: example.com/second, resources: {{limits: {{{CORE}: 2}}}}}}
"""
MERGED = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: merged}}
spec:
  nodeSelector: {{kubernetes.io/hostname: ring}}
  terminationGracePeriodSeconds: 1
  containers:
  - &first
    name: first
    image: {IMAGE}
    command: {json.dumps(WAITING)}
    resources: &four
      limits: {{{NEURON}: 4}}
  - <<: *first
    name: second
  - name: third
    image: {IMAGE}
    command: {json.dumps(WAITING)}
    resources: *four
"""
INIT = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: init}}
spec:
  nodeSelector: {{kubernetes.io/hostname: ring}}
  terminationGracePeriodSeconds: 1
  initContainers:
  - {{name: before, image: {IMAGE}, command: [ls, /dev], resources: {{limits: {{{NEURON}: 12}}}}}}
  containers:
  - {{name: main, image: {IMAGE}, command: {json.dumps(WAITING)}, resources: {{limits: {{{NEURON}: 12}}}}}}
"""
TRAIN_JOB = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: tune}}
spec:
  runtimeRef: {{name: torch}}
  trainer:
    numNodes: 2
    resourcesPerNode:
      limits: {{{NEURON}: 16}}
      requests: {{{NEURON}: 16}}
"""
WORKFLOW = f"""\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {{generateName: train-}}
spec:
  templates:
  - name: train
    container: {{image: example.com/train, resources: {{limits: {{{NEURON}: 16}}}}}}
  - name: prepare
    script: {{image: example.com/prepare, resources: {{limits: {{{NEURON}: 1}}}}}}
  - name: both
    containerSet:
      containers:
      - {{name: main, image: example.com/both, resources: {{limits: {{{NEURON}: 4}}}}}}
"""
SCALED_JOB = f"""\
apiVersion: keda.sh/v1alpha1
kind: ScaledJob
metadata: {{name: embed}}
spec:
  jobTargetRef:
    template:
      spec:
        containers:
        - name: main
          image: example.com/embed
          resources:
            limits: {{{CORE}: "1", memory: 1Gi}}
            requests: {{{CORE}: "1", memory: 1Gi}}
"""
KUSTOMIZATION = "resources: [base.yaml]\npatches: [{path: patch.yaml}]\n"
SOURCE = """\
apiVersion: v1
kind: Pod
metadata: {name: claiming}
spec:
  resourceClaims:
  - {name: neurons, source: {resourceClaimTemplateName: one}}
  containers:
  - {name: main, image: example.com/main, resources: {claims: [{name: neurons}]}}
"""
SEVEN = "Instance type ml.trn1.32xlarge does not support requests for device: 7. Please request a different number of"
CASES = [
    Case("cores that Trn1 does not serve", deployment("trn1.32xlarge", CORE, 24),
         refused="Instance type trn1.32xlarge does not support requests for core: 24. Please request a different"),
    Case("five devices of Inf1", deployment("inf1.24xlarge", NEURON, 5), (SETS.format(5),)),
    Case("a type of SageMaker", batch_job("ml.trn1.32xlarge", 16), (SETS.format(16),)),
    Case("a number that a type of SageMaker does not serve", batch_job("ml.trn1.32xlarge", 7), refused=SEVEN),
    Case("two halves of a device", HALVES, (CORES.format(2),) * 2),
    Case("anchors and a merge key", MERGED, (SETS.format(4),) * 3),
    Case("an init container of the same number", INIT, (SETS.format(12),) * 2),
    Case("resources of a TrainJob", TRAIN_JOB, (SETS.format(16),)),
    Case("templates of a workflow", WORKFLOW, (SETS.format(16), SETS.format(1), SETS.format(4))),
    Case("a ScaledJob", SCALED_JOB, (CORES.format(1),)),
]  # fmt: skip


def limits_in(value: Any) -> Iterator[Obj]:
    """Return every `limits` in an object, in order."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        if key == "limits":
            yield each
        elif isinstance(each, dict | list):
            yield from limits_in(each)


def names_in(value: Any) -> tuple[str, ...]:
    """Return the resources of Neuron in every `limits` of an object."""
    return tuple(name for limits in limits_in(value) for name in limits if "neuron" in name)


def pods_for(item: Obj) -> Iterator[Obj]:
    """Return the pod of a built-in kind; of another kind one for each of its limits."""
    if item["kind"] in BUILT_IN:
        [spec] = pod_specs(item)
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        return
    for limits in limits_in(item):
        container = {"name": "main", "image": "example.com/image", "resources": {"limits": limits}}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}


def would_be_stored(place: Namespace, item: Obj) -> Obj:
    words = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    found: Obj = json.loads(place.kubectl(*words, stdin=json.dumps(item)))
    return found


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_migrate_and_the_policies_agree(
    case: Case, sets_place: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(case.text)
    code = cli.main(["migrate", str(file), "-o", "yaml"])
    printed = capsys.readouterr()
    [source] = yaml.safe_load_all(case.text)
    if case.refused:
        assert (code, case.refused in printed.err) == (1, True), printed.err
        for made in (source, *pods_for(source)):
            with pytest.raises(BedError, match="ValidatingAdmissionPolicy") as caught:
                would_be_stored(sets_place, made)
            assert case.refused in str(caught.value)
        return
    [after] = yaml.safe_load_all(printed.out)
    assert (code, names_in(after)) == (0, case.gets), printed.err
    assert tuple(name for made in pods_for(source) for name in names_in(would_be_stored(sets_place, made))) == case.gets
    if after["kind"] in BUILT_IN:
        assert names_in(would_be_stored(sets_place, after)) == case.gets


@pytest.mark.long
def test_a_rendered_kustomization_gets_the_number_of_its_patch(
    sets_place: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base with eight devices and its patch with four are left alone apart; rendered, they get four, not twelve."""
    base = deployment("trn2.48xlarge", NEURON, 8)
    patch = base.replace("image: example.com/serve, ", "").replace(f"{NEURON}: 8", f"{NEURON}: 4")
    for name, text in (("base", base), ("patch", patch), ("kustomization", KUSTOMIZATION)):
        (tmp_path / f"{name}.yaml").write_text(text)
    apart = [str(tmp_path / f"{name}.yaml") for name in ("base", "patch")]
    assert cli.main(["migrate", *apart, "-o", "yaml"]) == 1
    assert SETS.format(8) not in (printed := capsys.readouterr().out)
    assert SETS.format(4) not in printed

    whole = tmp_path / "whole.yaml"
    whole.write_text(sets_place.kubectl("kustomize", str(tmp_path)))
    assert cli.main(["migrate", str(whole), "-o", "yaml"]) == 0
    [after] = yaml.safe_load_all(capsys.readouterr().out)
    assert names_in(would_be_stored(sets_place, after)) == (SETS.format(4),)
    [rendered] = yaml.safe_load_all(whole.read_text())
    [made] = pods_for(rendered)
    assert names_in(would_be_stored(sets_place, made)) == (SETS.format(4),)


@pytest.mark.long
def test_what_a_claim_has_in_its_source_is_stored_once_migrated(
    sets_place: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(SOURCE)
    with pytest.raises(BedError, match="source"):
        would_be_stored(sets_place, yaml.safe_load(SOURCE))
    assert cli.main(["migrate", str(file), "-o", "yaml"]) == 0
    stored = would_be_stored(sets_place, yaml.safe_load(capsys.readouterr().out))
    assert stored["spec"]["resourceClaims"] == [{"name": "neurons", "resourceClaimTemplateName": "one"}]


@pytest.mark.long
@pytest.mark.parametrize("by_policy", [True, False])
def test_containers_of_reported_pods_get_their_devices(
    by_policy: bool, sets_place: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = sets_place
    for name, text in (("merged", MERGED), ("init", INIT)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        assert cli.main(["migrate", str(file), "-o", "yaml"]) == 0
        migrated = capsys.readouterr().out
        place.apply(text if by_policy else migrated)
        place.wait_ready(name)
        [item] = yaml.safe_load_all(text)
        found = [in_container(place, name, each["name"]) for each in item["spec"]["containers"]]
        assert sorted(number for ids in found for number in ids) == list(range(12))
        assert all(is_arc(ids) for ids in found)
        ended(place, name)
