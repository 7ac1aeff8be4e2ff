"""Situations that people reported of devices on Kubernetes: what each command answers to their manifests (34, 1).

The inputs in tests/data/reports were written for these tests, after the situations alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.questions import Answer, ask

REPORTS = Path("tests/data/reports")
TRN1 = ("--fleet", "2 x trn1.32xlarge")
TRN2 = ("--fleet", "2 x trn2.48xlarge")
INF1 = ("--fleet", "1 x inf1.24xlarge")
INF2 = ("--fleet", "1 x inf2.48xlarge")
EFA = ("--fleet", "2 x trn2.48xlarge efa")
NEEDS_NEWER = "limits of DeviceClasses need Kubernetes 1.36 or later"


def answer(capsys: pytest.CaptureFixture[str], command: str, name: str, *words: str) -> Answer:
    return ask(capsys, command, str(REPORTS / f"{name}.yaml"), *words)


def case(name: str, command: str, code: int, *texts: str, words: tuple[str, ...] = (), marks: Any = ()) -> Any:
    return pytest.param(name, command, words, code, texts, id=f"{command} {name}", marks=marks)


MIGRATED = [
    case("trainjob", "migrate", 0, "requests: {deviceclass.resource.kubernetes.io/connected-16.neuron.aws.com: 1}"),
    case("trainjob-seven-cores", "migrate", 0, "cores-7.neuron.aws.com: 1"),
    case("argo-workflow", "migrate", 0, "connected-16.neuron.aws.com: 1", "connected-1.neuron.aws.com: 1"),
    case("argo-workflow", "migrate", 1, "spec.templates[0].container", words=("--kubernetes", "1.34")),
    case("cores-24", "migrate", 1, "trn1.32xlarge does not support requests for core: 24",
         "trn1.32xlarge serves 1, 2, 8, 16 or 32 cores"),
    case("hyperpod-16", "migrate", 0, "connected-16.neuron.aws.com: 1"),
    case("hyperpod-7", "migrate", 1, "ml.trn1.32xlarge does not support requests for device: 7"),
    case("merge-keys", "migrate", 0, "connected-4.neuron.aws.com: 1"),
    case(
        "source-field",
        "migrate",
        0,
        "- source: {resourceClaimTemplateName: one}",
        "+ resourceClaimTemplateName: one",
    ),
    case("without-exactly", "migrate", 0, "+ exactly:"),
    case("privileged", "migrate", 0, "containers[0]: the container is privileged"),
]  # fmt: skip
SIMULATED = [
    case("trainjob-claims", "simulate", 0, "2 of 2 pods run", words=TRN1),
    case(
        "trainjob-too-many",
        "simulate",
        1,
        "2 pods cannot run: request neurons wants 17 devices of one node",
        words=TRN1,
    ),
    case("trainjob-runtime", "simulate", 0, "3 of 3 pods run", words=("--fleet", "3 x trn1.32xlarge")),
    case("scaledjob", "simulate", 0, "1 of 1 pods run", "up to 4 jobs", words=("--fleet", "2 x inf2.xlarge")),
    case("source-field", "simulate", 1, "source was removed in Kubernetes 1.31", words=TRN2),
    case("monitor", "simulate", 1, "2 pods cannot run", "resource.kubernetes.io/admin-access=true", words=TRN2),
    case("monitor-allowed", "simulate", 0, "2 of 2 pods run", words=TRN2),
    case("efa-prefill", "simulate", 0, "2 of 2 pods run", words=EFA),
    case("five-connected", "simulate", 0, "devices 0-4", words=INF1),
    case("three-connected", "simulate", 0, "devices 0-2", words=INF2),
    case("init-shares-set", "simulate", 0, "1 of 1 pods run", words=INF2),
    case("dranet-mpijob", "simulate", 0, "trn1-1 devices 0-15, pci-0000-10-19-0 and 7 more",
         words=("--fleet", "2 x trn1.32xlarge efa, 1 x node")),
    case("dranet-mpijob", "simulate", 1, "no ResourceSlice of that driver is known: whether the pod fits is unknown",
         words=("--fleet", "2 x trn1.2xlarge, 1 x node")),
    case("pcie-root", "simulate", 1, "which no device of request chip publishes", words=EFA),
    case("without-exactly", "simulate", 1, "request chip names no DeviceClass: resource.k8s.io/v1 has deviceClassName "
         "and count below exactly", words=("--fleet", "1 x inf2.xlarge")),
    case("version-compare", "simulate", 1, "neuronDriverVersion is a string, not a version", words=TRN2),
    case("share-of-memory", "simulate", 1, "2 of 4 pods run",
         "request part wants 200Gi of memory, and the largest device has",
         "request part: no device has the capacity cores", words=("--fleet", "4 x inf2.xlarge")),
    case("grove-sharing", "simulate", 0, "resourceSharing is not simulated", words=TRN2),
    case("claim-not-named", "simulate", 0, "nothing (holds devices 0-3)", words=TRN2),
    case("core-size-of-a-type", "simulate", 0, "device 0", "NEURON_LOGICAL_NC_CONFIG=1", words=TRN2),
    case("shared-claim", "simulate", 0, "chat-2 inf2-0 device 0 (shared)", words=("--fleet", "2 x inf2.xlarge")),
    case("first-available", "simulate", 1, "6 of 7 pods run",
         words=("--fleet", "1 x trn2.48xlarge, 1 x trn1.32xlarge")),
    case("many-pods-one-claim", "simulate", 1, "256 of 300 pods run", words=TRN2),
    case("shared-rejected", "simulate", 1, "3 pods cannot run: the driver would reject the claim", "0 of 3 pods run",
         "1 of 1 device is held", words=("--fleet", "1 x inf2.xlarge")),
    case("shared", "simulate", 0, "chat/talk-0 inf2-0 device 0 (shared)", "chat/talk-2 inf2-0 device 0 (shared)",
         "3 of 3 pods run", words=("--fleet", "2 x inf2.xlarge")),
    case("shared-by-300", "simulate", 1, "chat/both is in use by 256 pods", "256 of 300 pods run", words=TRN2),
    case("eight-cores-of-a-group", "simulate", 1,
         "request neurons wants 8 devices of one node, and the largest node has 6",
         "also: request neurons wants 8 devices with the same resource.aws.com/devicegroup8_id, which none of",
         words=("--fleet", "1 x inf2.24xlarge")),
    case("class-limit", "simulate", 0, "1 of 1 pods run", words=TRN2),
    case("class-limit", "simulate", 1, NEEDS_NEWER, "0 of 1 pods run", words=(*TRN2, "--kubernetes", "1.34")),
    case("resource-name-on-class", "simulate", 0, "1 of 1 pods run", words=TRN2),
    case("resource-name-on-class", "simulate", 1, NEEDS_NEWER, words=(*TRN2, "--kubernetes", "1.35")),
]  # fmt: skip
VALIDATED = [
    case("source-field", "validate", 1, "resourceClaims[0].source", "removed in Kubernetes 1.31",
         "resourceClaimName", "resourceClaimTemplateName"),
    case("monitor", "validate", 1, "the API server rejects adminAccess", "resource.kubernetes.io/admin-access=true"),
    case("monitor-allowed", "validate", 0),
    case("five-connected", "validate", 0),
    case("trainjob-too-many", "validate", 1, "wants 17 devices of one node"),
    case("version-compare", "validate", 0, "neuronDriverVersion is a string, not a version or a quantity: compare it"),
    case("share-of-memory", "validate", 1,
         "default/slice: warning: request part: a Neuron device is allocated as a whole",
         "no device has the capacity cores"),
    case("without-exactly", "validate", 1, "requests[0].deviceClassName: unknown field; write it below exactly"),
    case("pcie-root", "validate", 1, "the Neuron driver does not publish resource.kubernetes.io/pcieRoot",
         "write resource.aws.com/devicegroup1_id"),
    case("dranet-mpijob", "validate", 0),
    case("other-driver", "validate", 0),
    case("other-driver-beside", "validate", 0),
    case("claim-not-named", "validate", 1, "Job embed: no container names the claim neurons in resources.claims",
         "resources: {claims: [{name: neurons}]}"),
    case("core-size-of-a-type", "validate", 0),
    case("cores-as-devices", "validate", 1, "inf2.24xlarge cannot serve it", "write count: 4 into request neurons",
         "no device of inf2.24xlarge publishes resource.aws.com/devicegroup8_id: remove the constraint"),
    case("group-of-inf2", "validate", 1, "no device of inf2.24xlarge publishes resource.aws.com/devicegroup8_id"),
    case("first-available", "validate", 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "command", "words", "code", "texts"), [*MIGRATED, *SIMULATED, *VALIDATED])
def test_reported_manifests_are_answered(
    name: str,
    command: str,
    words: tuple[str, ...],
    code: int,
    texts: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(capsys, command, name, *words)
    assert (found.code, [each for each in texts if each not in found.text]) == (code, []), found.text


def test_two_halves_of_a_device_are_two_parts_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written = answer(capsys, "migrate", "two-halves", "-o", "yaml")
    file = tmp_path / "migrated.yaml"
    file.write_text(written.out)
    found = ask(capsys, "simulate", str(file), "--fleet", "1 x inf1.xlarge")
    assert (found.code, "neuron-cores-2-0, neuron-cores-2-2" in found.text) == (0, True)


def test_two_files_about_one_object_are_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A base and its patch: migrated alone, the merged pod would have both sizes."""
    names = []
    for name, image, number in (("base", "image: train", 8), ("patch", "env: []", 4)):
        file = tmp_path / f"{name}.yaml"
        container = f"{{name: m, {image}, resources: {{limits: {{aws.amazon.com/neuron: {number}}}}}}}"
        template = f"{{spec: {{containers: [{container}]}}}}"
        file.write_text(
            f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec:\n  template: {template}\n"
        )
        names.append(str(file))
    found = ask(capsys, "migrate", "--in-place", *names)
    assert (found.code, "are about one object" in found.text) == (1, True)
    assert "aws.amazon.com/neuron: 8" in Path(names[0]).read_text()


def test_aligned_example_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "simulate", "deploy/examples/aligned-efa-neuron.yaml", *EFA)
    assert (found.code, "1 of 1 pods run" in found.text) == (0, True), found.text
