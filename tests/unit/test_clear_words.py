"""Words of `why` that say a thing once, and say nothing that the next words take back (4.09)."""

from __future__ import annotations

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.render import report_text
from neuron_dra.ask.why import answer
from neuron_dra.ask.world.world import World
from neuron_dra.core import signals
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small


def first_line(items: list[Obj], kind: str, name: str) -> str:
    world = World(snapshot.build(items))
    line = report_text.lines(answer.REPORTS[kind](world, world.snapshot.objects[kind, "default", name]))
    return " ".join(" ".join(line).split())


def test_a_claim_in_deletion_says_once_what_it_waits_for() -> None:
    items = [*small.base("a"), *small.running(small.base("a"), "train", 4, "a")]
    [claim] = [item for item in items if item["kind"] == "ResourceClaim"]
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    text = first_line(items, "ResourceClaim", claim["metadata"]["name"])
    assert text.endswith("is being deleted: it is gone when these pods have ended: train")
    assert text.count("deleted") == 1


def test_a_cordoned_node_in_use_would_not_serve_the_pod() -> None:
    items = [*small.base("a"), *small.running(small.base("a"), "train", 16, "a")]
    items += [small.template("four", 4), small.pod("late", "four")]
    for item in items:
        if item["kind"] == "Node":
            item["spec"] = {"unschedulable": True}
    text = first_line(items, "Pod", "late")
    assert "it may not run on node a that has such devices: it is cordoned; also devices in use" in text


def test_advice_of_several_faults_names_the_devices_of_each() -> None:
    items = small.base("a")
    for item in items:
        for device in item["spec"]["devices"] if item["kind"] == "ResourceSlice" else ():
            reason = {"neuron-device-5": signals.SRAM_ECC, "neuron-device-6": signals.FIRMWARE}.get(device["name"])
            if reason is not None:
                device["attributes"]["unhealthy"] = {"string": reason}
    world = World(snapshot.build(items))
    [finding] = answer.REPORTS["Node"](world, world.nodes["a"]).findings
    advice = [text for label, text in finding.facts if label == "to do"]
    assert [text.partition(":")[0] for text in advice] == ["device 5", "device 6"]
