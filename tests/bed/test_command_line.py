"""The command line on a real cluster: its output, and its connections to the plugins (17, acceptances 5 and 6)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hack.bed import hardware
from hack.bed.deployed import pod, template
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from neuron_dra.emulation import simulated_load
from tests.bed.deployed import NAMESPACE, plugin_pod, settled

WALKS = 12


def top(bed: TestBed, node: str) -> list[dict[str, Any]]:
    done = bed.neuron_dra("top", node, "-o", "json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["usage"])


@pytest.fixture
def holder(driver: TestBed, trn2: BedNode, namespace: Namespace) -> Namespace:
    """The pod `holder` with two devices of the node."""
    settled(trn2)
    namespace.apply(template("two", 2))
    namespace.apply(pod("holder", "two", node=trn2.name))
    namespace.wait_ready("holder")
    return namespace


def test_commands_show_who_holds_devices(driver: TestBed, trn2: BedNode, holder: Namespace) -> None:
    where = f"{holder.name}/holder"
    for words in (("status", "-o", "wide"), ("topology", trn2.name), ("topology", trn2.name, "-o", "svg")):
        done = driver.neuron_dra(*words)
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
        assert trn2.name in done.stdout
    assert where in driver.neuron_dra("topology", trn2.name).stdout
    why = driver.neuron_dra("why", "pod/holder", "-n", holder.name)
    assert (why.returncode, f"runs on node {trn2.name}" in why.stdout) == (0, True), why.stdout


def test_why_names_the_cause_of_a_waiting_pod(driver: TestBed, trn2: BedNode, namespace: Namespace) -> None:
    settled(trn2)
    namespace.apply(template("many", 17))
    namespace.apply(pod("greedy", "many", node=trn2.name))
    eventually(
        "the scheduler has seen the pod",
        lambda: [c for c in namespace.get("pod", "greedy")["status"].get("conditions", ()) if c["status"] == "False"],
    )
    why = driver.neuron_dra("why", "pod/greedy", "-n", namespace.name)
    assert why.returncode == 1
    assert "wants 17 devices of one node" in " ".join(why.stdout.split())


def test_doctor_runs_in_the_drivers_pod(driver: TestBed, trn2: BedNode, holder: Namespace) -> None:
    def looked() -> bool:
        done = driver.neuron_dra("doctor", f"node/{trn2.name}", "-o", "json")
        found = {each["area"]: each["state"] for each in json.loads(done.stdout)["checks"]}
        return done.returncode == 0 and set(found.values()) == {"ok"} and "on node: claims" in found

    eventually("nothing is wrong on the node", looked)
    outside = driver.neuron_dra("doctor")
    assert (outside.returncode in (0, 1), "Traceback" in outside.stderr) == (True, False), outside.stderr


def test_inspect_runs_in_the_drivers_pod(driver: TestBed, trn2: BedNode, holder: Namespace) -> None:
    name = plugin_pod(driver, trn2.name)["metadata"]["name"]
    shown = driver.kubectl("exec", "--namespace", NAMESPACE, name, "--", "neuron-dra", "inspect")
    assert f"{holder.name}/holder" in shown


def test_top_attributes_load_to_its_pods_while_pods_come_and_go(
    driver: TestBed, trn2: BedNode, namespace: Namespace
) -> None:
    settled(trn2)
    namespace.apply(template("one", 1))
    rng = random.Random(7)
    node = hardware.load(driver.parts.node(trn2.name).hardware_dir)
    running: dict[str, set[int]] = {}
    for step in range(WALKS):
        if len(running) < 3 or rng.random() < 0.5:
            name = f"p-{step}"
            namespace.apply(pod(name, "one", node=trn2.name))
            namespace.wait_ready(name)
            shown = namespace.exec(name, "bash", "-c", "ls -d /dev/neuron*").split()
            running[name] = {int(path.removeprefix("/dev/neuron")) for path in shown}
        else:
            gone = rng.choice(sorted(running))
            namespace.delete("pod", gone)
            del running[gone]
        for device_id in range(16):
            simulated_load.set_core(node, device_id, 0, busy_us=1000 * (step + 1) * (device_id + 1))
        rows = {row["pod"]: set(row["devices"]) for row in top(driver, trn2.name)}
        held = {device_id for devices in running.values() for device_id in devices}
        assert rows == {**running, "": set(range(16)) - held}
