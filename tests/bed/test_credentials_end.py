"""Controller and plugin with a kubeconfig whose login program returns certificates that expire after a minute."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.bed.real_cluster import TESTBED, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import CONTROLLER, NAMESPACE, devices, registered_pods, relabel, settled
from tests.support.logins import Authority, Login

LIFE_S = 60
WORK_S = 120.0
TRN2 = "trn2.48xlarge"
GROUP = "system:masters"


class Logins:
    """A kubeconfig of the test bed whose login program returns a new certificate at each call."""

    def __init__(self, bed: TestBed, folder: Path) -> None:
        pki = bed.where.pki_dir
        self._authority = Authority(folder / "pki", like=(pki / "ca.crt", pki / "ca.key"))
        self.login = Login(folder, bed.parts.plane.url, ca=pki / "ca.crt")
        self._numbers = itertools.count()
        self.renew()

    def renew(self) -> None:
        subject = f"/O={GROUP}/CN=ends-soon"
        self.login.gives_certificate(*self._authority.issue(f"c{next(self._numbers)}", subject=subject, life_s=LIFE_S))


@pytest.fixture
def logins(driver: TestBed, tmp_path: Path) -> Logins:
    return Logins(driver, tmp_path)


@pytest.fixture
def alone(driver: TestBed) -> Iterator[None]:
    """No controller runs in the cluster."""
    deployment = ("--namespace", NAMESPACE, f"deployment/{CONTROLLER}")
    before = driver.get(f"deployment/{CONTROLLER}", "--namespace", NAMESPACE)["spec"]["replicas"]
    driver.kubectl("scale", *deployment, "--replicas=0")
    selector = f"--selector=app={CONTROLLER}"
    eventually("it is gone", lambda: not driver.get("pods", "--namespace", NAMESPACE, selector)["items"], 120)
    yield
    driver.kubectl("scale", *deployment, f"--replicas={before}")
    driver.kubectl("rollout", "status", *deployment, "--timeout=120s", timeout_s=130)


@contextlib.contextmanager
def program(log: Path, *words: str | Path) -> Iterator[None]:
    """Run a command of the test bed until the end of the block, which sends SIGTERM."""
    with log.open("wb") as out:
        process = subprocess.Popen([TESTBED / "testbed", "exec", *words], stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def installed(name: str) -> Path:
    """Return one of the programs of this repository."""
    return Path(sys.executable).with_name(name)


def controller(logins: Logins, log: Path) -> contextlib.AbstractContextManager[None]:
    """Run the controller outside the cluster; it renews its Lease every 2 s."""
    serves = [f"--{name}-address=" for name in ("health-probe-bind", "metrics-bind", "grpc")]
    words = ("run", f"--kubeconfig={logins.login.kubeconfig}", "--leader-elect=true", "--identity=outside", *serves)
    return program(log, "--", installed("neuron-ultraserver-controller"), *words)


def plugin(logins: Logins, node: BedNode, log: Path) -> contextlib.AbstractContextManager[None]:
    """Run the plugin on a node as a process, without a pod."""
    words = (
        f"--kubeconfig={logins.login.kubeconfig}",
        f"--node-name={node.name}",
        "--healthcheck-port=0",
        "--unhealthy-device-hold-seconds=5",
    )
    boot_id = "--boot-id-file=/proc/sys/kernel/random/boot_id"
    return program(log, "--node", node.name, "--", installed("neuron-dra"), "plugin", *words, boot_id)


@pytest.fixture
def trn2(driver: TestBed, node: Callable[[str], BedNode]) -> Iterator[BedNode]:
    """A trn2.48xlarge without the DaemonSet's plugin, which returns afterwards."""
    taken = node(TRN2)
    settled(taken)
    relabel(taken, "not-a-neuron-node")
    eventually("the DaemonSet's plugin has ended", lambda: registered_pods(taken) == set(), 60)
    yield taken
    taken.repair_all()
    relabel(taken, TRN2)
    settled(taken)


def unhealthy_devices(node: BedNode) -> set[str]:
    """Return the names of the devices that a node publishes as unhealthy."""
    return {each["name"] for each in devices(node.bed, node.name) if "unhealthy" in each["attributes"]}


def submit(place: Namespace, name: str) -> None:
    """Request UltraServers of a type that this cluster does not have."""
    spec = {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 1}
    kind = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronUltraServerWorkload"}
    place.apply({**kind, "metadata": {"name": name}, "spec": spec})


def waits(place: Namespace, name: str) -> bool:
    status: Obj = place.get("nusw", name).get("status") or {}
    return status.get("state") == "Pending"


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_programs_survive_certificate_expiry(
    driver: TestBed, trn2: BedNode, logins: Logins, namespace: Namespace, tmp_path: Path
) -> None:
    """(14.8) Two minutes of work with certificates of one minute."""
    logs = [tmp_path / "controller.log", tmp_path / "plugin.log"]
    with controller(logins, logs[0]), plugin(logins, trn2, logs[1]):
        submit(namespace, "first")
        eventually("the first workload has a status", lambda: waits(namespace, "first"), 60)
        eventually("the devices are published", lambda: len(devices(driver, trn2.name)) == 16, 60)
        until = time.monotonic() + WORK_S
        while time.monotonic() < until:
            logins.renew()
            time.sleep(5)
        submit(namespace, "last")
        eventually("the last workload has a status", lambda: waits(namespace, "last"), 60)
        trn2.break_("ecc", "3")
        eventually("an unhealthy device is published", lambda: unhealthy_devices(trn2) == {"neuron-device-3"}, 60)
        lease = driver.get("lease", CONTROLLER, "--namespace", NAMESPACE)
        assert lease["spec"]["holderIdentity"].startswith("outside_")
        renewed = [log.read_text().count("credentials for the API server renewed") for log in logs]
        assert min(renewed) >= 2
        trn2.repair("ecc", "3")
