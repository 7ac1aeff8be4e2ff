"""The scenes of the demo; each step waits for the result that it shows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from neuron_dra.core import names
from neuron_dra.core.wire import Obj
from neuron_dra.demo import examples, ultraservers
from neuron_dra.demo.cluster import Cluster, NodeSpec
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.demo.processes import DemoError
from neuron_dra.demo.steps import Steps, published
from neuron_dra.demo.view import DemoScreen, ranges
from neuron_dra.emulation.cdi_runtime import Container

NODES: Final = (
    NodeSpec("trn2-a", "trn2.48xlarge"),
    NodeSpec("trn2-b", "trn2.48xlarge", driver_version="2.24.7.0", efa=True, connected_sets=True),
    NodeSpec("trn1-a", "trn1.2xlarge", driver_version="2.26.5.0"),
    *ultraservers.NODES,
)
FIRST: Final = (
    "1x4-connected-devices.yaml",
    "row-of-topology.yaml",
    "l-trn2.yaml",
    "2.26-driver-trn2.yaml",
    "aligned-efa-neuron.yaml",
    "single-neuron-device.yaml",
    "4-node-inference-us.yaml",
)
SECOND: Final = (
    "lnc-setting-trn2.yaml",
    "xl-trn2.yaml",
    "neuron-with-driver-version.yaml",
    "2-node-inference-us.yaml",
    "shared-efa.yaml",
)
SHARED_CLAIM: Final = "shared-efa"


class Story(Steps):
    """Runs all scenes and shows them on one view. Raises DemoError if a step does not happen."""

    def __init__(self, cluster: Cluster, scheduler: PodScheduler, view: DemoScreen, started: float) -> None:
        super().__init__(cluster, scheduler, view)
        self._started = started

    async def run(self) -> None:
        """Run all scenes."""
        self._nodes()
        await self._documents()
        await self._refusals()
        await self._fifth()
        await self._leave_all()
        await ultraservers.UltraServers(self._cluster, self._scheduler, self._view).run()
        took = time.monotonic() - self._started
        self._view.line(f"All of this took {took:.1f} s, most of it the start of {len(NODES) + 1} programs.", "dim")

    def _nodes(self) -> None:
        self._view.title(
            "neuron-dra demo",
            f"{len(NODES)} simulated nodes, the real plugin on each, the real controller, and no cluster",
        )
        rows: list[tuple[str, str, str, str]] = []
        for spec in NODES:
            devices: dict[str, list[Obj]] = {names.DRIVER: []}  # by driver, the Neuron devices first
            for resource_slice in self._api.objects("resourceslices"):
                if resource_slice["spec"].get("nodeName") == spec.name:
                    driver = resource_slice["spec"]["driver"]
                    devices.setdefault(driver, []).extend(resource_slice["spec"].get("devices") or ())
            what = " + ".join(published(driver, of_driver) for driver, of_driver in devices.items())
            row = (spec.name, spec.instance_type, spec.driver_version, what)
            if rows and spec.ultraserver_node and rows[-1][1:] == row[1:]:
                rows[-1] = (f"{rows[-1][0].split()[0]} to {spec.name}", *row[1:])
            else:
                rows.append(row)
        self._view.blank()
        self._view.table(("NODE", "INSTANCE TYPE", "DRIVER", "PUBLISHED"), rows)

    # The documents' examples

    async def _documents(self) -> None:
        self._view.heading("The documents' examples, from deploy/examples (of LeaderWorkerSets, the first group)")
        rows: list[tuple[str, ...]] = []
        first = await self._example(FIRST, rows)
        detail = self._detail("pod0") + self._environment("vllm-0-3")
        await self.leave(*first)
        await self._example(SECOND, rows)
        detail += self._environment("lnc-1")
        self._view.table(("EXAMPLE", "POD", "NODE", "DEVICES", "CONFIGURED"), rows)
        self._view.heading("What their containers get")
        self._view.table(("", "", ""), detail)

    async def _example(self, files: Sequence[str], rows: list[tuple[str, ...]]) -> list[str]:
        """Apply files, wait until their pods run, add a row for each pod, and return the pods' names."""
        applied = {name: self.apply(examples.load(name)) for name in files}
        for name, pods in applied.items():
            await self.running(*pods)
            rows += [self._row(name if index == 0 else "", pod) for index, pod in enumerate(pods)]
        return [pod for pods in applied.values() for pod in pods]

    def _row(self, example: str, pod: str) -> tuple[str, ...]:
        node, container = self._cluster.container(pod)
        env = container.env
        settings = []
        if "NEURON_LOGICAL_NC_CONFIG" in env:
            settings.append(f"LNC {env['NEURON_LOGICAL_NC_CONFIG']}")
        if "NEURON_RT_ULTRASERVER_MODE" in env:
            settings.append(f"mode {env['NEURON_RT_ULTRASERVER_MODE']}, node {env['NEURON_RT_ULTRASERVER_NODE_ID']}")
        claim = self.claim_of(pod)
        others = []
        for result in self._results(claim):
            if result["driver"] != names.DRIVER:
                others.append(result["driver"])
        if claim["metadata"]["name"] == SHARED_CLAIM:
            settings.append("the same claim")
        parts = [ranges(_ids(_files(container))), f"{len(others)} EFA" if others else ""]
        return example, pod, node, " + ".join(part for part in parts if part), ", ".join(settings)

    def _detail(self, pod: str) -> list[tuple[str, str, str]]:
        node, container = self._cluster.container(pod)
        claim = self.claim_of(pod)
        uid = claim["metadata"]["uid"]
        (file,) = self._cluster.nodes[node].cdi.glob(f"*{uid}*")
        group = self._group(self._results(claim)[0])
        return [
            (pod, "devices", " ".join(sorted(_files(container)))),
            ("", "group", f"{group}, which the four nearest EFA interfaces publish too"),
            ("", "CDI id", container.cdi_ids[0]),
            ("", "in file", file.name),
        ]

    def _environment(self, pod: str) -> list[tuple[str, str, str]]:
        _, container = self._cluster.container(pod)
        return [(pod, "env", " ".join(f"{name}={value}" for name, value in sorted(container.env.items())))]

    @staticmethod
    def _results(claim: Obj) -> list[Obj]:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        return list((allocation.get("devices") or {}).get("results") or ())

    def _group(self, result: Obj) -> str:
        for wire in self._api.objects("resourceslices"):
            for device in wire["spec"]["devices"]:
                if (wire["spec"]["nodeName"], device["name"]) == (result["pool"], result["device"]):
                    return str(device["attributes"]["resource.aws.com/devicegroup4_id"]["string"])
        raise DemoError(f"{result['device']} is not published any more")

    async def _leave_all(self) -> None:
        await self.leave(*(wire["metadata"]["name"] for wire in self._api.objects("pods", "default")))
        self._api.delete("resourceclaims", SHARED_CLAIM, "default")

    # Pods that stay Pending, and rejected claims

    async def _refusals(self) -> None:
        view = self._view
        view.heading("A pod that does not fit waits, and the driver rejects an invalid claim")
        await self.leave("lnc-1", "neuron-driver-version")
        self.apply(examples.with_count(examples.load("xl-trn2.yaml"), 17, "seventeen"))
        message = await self.waiting("seventeen")
        view.refusal("seventeen", "Pending", [message, *self.why("seventeen", "trn2-a")])
        self.apply(examples.load("neuron-lnc-1.yaml"))
        event = await self.event("neuron-lnc-1", "FailedPrepareDynamicResources")
        view.refusal("neuron-lnc-1", "ContainerCreating", [str(event["message"])])
        await self.leave("seventeen", "neuron-lnc-1")

    # The fifth pod

    async def _fifth(self) -> None:
        view = self._view
        view.heading("Pods of four connected devices: four of them fill trn2-a, the fifth waits for one to leave")
        four = examples.load("1x4-connected-devices.yaml")
        columns = [("trn2-a, empty", self._held("trn2-a"))]
        for number in range(5):
            self.apply(examples.renamed(four, f"pod{number}"))
            if number < 4:
                await self.running(f"pod{number}")
        message = await self.waiting("pod4")
        why = self.why("pod4", "trn2-a")
        columns.append(("pod0 to pod3 run", self._held("trn2-a")))
        deleted_at = time.monotonic()
        await self.leave("pod2", until_gone=False)
        await self.running("pod4")
        took_ms = 1000 * (time.monotonic() - deleted_at)
        columns.append(("pod2 was deleted", self._held("trn2-a")))
        view.maps(columns)
        view.refusal("pod4", "Pending", [message, *why])
        view.line(f"pod4   Running {took_ms:.0f} ms after pod2 was deleted, on the devices that it had", "green")

    def _held(self, node: str) -> dict[int, str]:
        pod_by_device = {}
        for pod in (wire["metadata"]["name"] for wire in self._api.objects("pods", "default")):
            for number in self._devices_of(pod, node):
                pod_by_device[number] = pod
        return pod_by_device

    def _devices_of(self, pod: str, node: str) -> list[int]:
        device_names = []
        for result in self._results(self.claim_of(pod, missing_ok=True)):
            if result["pool"] == node:
                device_names.append(result["device"])
        device_ids = []
        for name in device_names:
            if name.startswith(names.DEVICE_PREFIX):
                device_ids.append(int(name.removeprefix(names.DEVICE_PREFIX)))
        return device_ids


def _files(container: Container) -> list[str]:
    """Return the Neuron device files of a container: device nodes or, without root, mounted plain files."""
    paths = []
    for path in (*container.device_nodes, *container.mounts):
        if path.startswith("/dev/neuron"):
            paths.append(path)
    return paths


def _ids(paths: Iterable[str]) -> list[int]:
    tails = (path.removeprefix("/dev/neuron") for path in paths)
    return [int(tail) for tail in tails if tail.isdigit()]
