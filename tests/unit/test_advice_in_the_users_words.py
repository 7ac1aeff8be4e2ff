"""`why` gives advice in the words of the manifest, and says how to apply what cannot be updated (4.09)."""

from __future__ import annotations

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render.findings import Finding
from neuron_dra.ask.why import pod as why_pod
from neuron_dra.ask.world import demand, imagined
from neuron_dra.ask.world.world import World
from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

FIVE = f"{demand.IMPLICIT}connected-5.neuron.aws.com"


def waiting_for_five(*, is_rewritten: bool, number: int = 1) -> Finding:
    """Return why a pod waits whose limit no class serves, in a namespace whose limits a policy rewrites, or not."""
    pod = small.pod("train")
    pod["spec"]["containers"][0]["resources"]["limits"] = {FIVE: str(number)}
    labels = {names.REWRITES_LIMITS: "true"} if is_rewritten else {}
    namespace: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    fleet = imagined.fleet("1 x trn2.48xlarge", "test", ["connected-4", "connected-8"])
    world = World(snapshot.build([*fleet, namespace, pod]))
    [finding] = why_pod.report(world, world.snapshot.objects["Pod", "default", "train"]).findings
    return finding


def test_a_rewritten_limit_is_advised_as_the_limit_of_the_manifest() -> None:
    texts = [change.text for change in waiting_for_five(is_rewritten=True).changes]
    assert texts == [
        "in the pod's limits, write aws.amazon.com/neuron: 8: a policy makes it connected-8.neuron.aws.com",
        "in the pod's limits, write aws.amazon.com/neuron: 4: a policy makes it connected-4.neuron.aws.com",
    ]


def test_a_limit_of_a_class_is_advised_as_a_class() -> None:
    text = "in the pod's limits, write connected-8.neuron.aws.com instead of connected-5.neuron.aws.com"
    assert waiting_for_five(is_rewritten=False).changes[0].text == text


def test_few_classes_are_listed_and_none_that_is_far_from_the_name() -> None:
    fleet = imagined.fleet("1 x trn2.48xlarge", "test", [f"cores-{size}" for size in range(1, 60)])
    items = [*fleet, small.template("four", 4), small.pod("train", "four")]
    for item in items:
        if item["kind"] == "ResourceClaimTemplate":
            item["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "neurons.aws.com"
    world = World(snapshot.build(items))
    [finding] = why_pod.report(world, world.snapshot.objects["Pod", "default", "train"]).findings
    [text] = [text for label, text in finding.facts if label == "available"]
    assert text.startswith("neuron.aws.com, ")
    assert len(text.split(", ")) <= 4


def test_a_rejected_configuration_is_corrected_in_its_template_which_apply_cannot_change() -> None:
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCor": 1}
    config = {"source": "FromClaim", "requests": [], "opaque": {"driver": names.DRIVER, "parameters": parameters}}
    items = [*small.base("a"), *small.running(small.base("a"), "train", 4, "a")]
    for item in items:
        if item["kind"] == "ResourceClaim":
            item["status"]["allocation"]["devices"]["config"] = [config]
        if item["kind"] == "Pod":
            item["status"]["phase"] = "Pending"
    world = World(snapshot.build(items))
    [finding] = why_pod.report(world, world.snapshot.objects["Pod", "default", "train"]).findings
    assert "logicalNeuronCor" in finding.text
    assert [text for label, text in finding.facts if label == "to do"] == [
        "correct ResourceClaimTemplate train-devices, which kubectl apply cannot change: "
        "kubectl replace --force -f FILE, then delete the pod and create it again"
    ]
