"""Fixtures of the test bed: started once per run and shared; each test has its own namespace, and its nodes while it
runs.

`bed` is enough for the API server; `node` needs root and Linux, and its tests are skipped with the reason otherwise
(NEURON_DRA_REQUIRE_TESTBED=1 makes that a failure). A failing test keeps all logs in build/testbed-logs.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hack.bed.real_cluster import REPOSITORY, BedNode, Namespace, TestBed
from tests.bed.deployed import is_installed, relabel, settled
from tests.bed.fleet import TRN3, end_workloads, slots
from tests.bed.limited import REWRITE
from tests.bed.node_locks import NodeLocks
from tests.bed.releases import Shell, publish, with_registry
from tests.support.skipping import impossible

TRN2 = "trn2.48xlarge"
HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600  # a first test waits for the bed, and perhaps for images
FAILED = pytest.StashKey[bool]()
NODES = {"node", "running_driver", "running_fleet", "running_sets_bed"}
"""The fixtures that start nodes, which go on running until the run ends."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("testbed")
            if NODES.intersection(getattr(item, "fixturenames", ())):
                item.add_marker("nodes")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.when != "teardown":
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def running_bed() -> Iterator[TestBed]:
    """The shared test bed; a running one is used, and left running."""
    if sys.platform != "linux":
        impossible(f"the test bed needs Linux, this is {sys.platform}")
    from hack.bed import layout

    bed = TestBed(layout.from_environment())
    was_up = bed.is_up
    bed.command("up", timeout_s=3600)
    yield bed
    if not was_up:
        bed.command("down")


@pytest.fixture(scope="session")
def published(running_bed: TestBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A registry with two releases of what is checked out, in the shared test bed's network."""
    for shell in with_registry(running_bed, tmp_path_factory.mktemp("published")):
        publish(shell)
        yield shell


@pytest.fixture
def bed(running_bed: TestBed, request: pytest.FixtureRequest) -> Iterator[TestBed]:
    """The shared test bed, for one test. Without root it has the API server only."""
    yield running_bed
    if request.node.stash.get(FAILED, False):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.name)
        running_bed.keep_logs(REPOSITORY / "build" / "testbed-logs" / name)


@pytest.fixture
def other_bed(bed: TestBed) -> Iterator[TestBed]:
    """A second test bed beside the shared one, not started, for tests of `up` and `down`."""
    if not bed.where.is_root:
        impossible("a whole test bed needs root")
    name = f"{bed.where.name}-other"
    other = TestBed(replace(bed.where, name=name, state_dir=bed.where.state_dir.with_name(name)))
    other.command("down")
    yield other
    other.command("down")


@pytest.fixture
def namespace(bed: TestBed) -> Iterator[Namespace]:
    """A fresh namespace; its pods are gone before the next test."""
    own = Namespace(bed, f"test-{uuid.uuid4().hex[:8]}")
    bed.kubectl("create", "namespace", own.name)
    yield own
    own.remove()


@pytest.fixture
def tenant(bed: TestBed) -> Iterator[Namespace]:
    """A namespace of another tenant."""
    own = Namespace(bed, f"tenant-{uuid.uuid4().hex[:8]}")
    bed.kubectl("create", "namespace", own.name)
    yield own
    own.remove()


@pytest.fixture
def node(bed: TestBed) -> Iterator[Callable[[str], BedNode]]:
    """Returns a function: `node("trn2.48xlarge")` reserves a node of that type for the test; each call reserves
    another.
    """
    if not bed.where.is_root:
        impossible("nodes need root: a kubelet makes cgroups, mounts and network namespaces")
    locks = NodeLocks(REPOSITORY / "build" / "testbed-locks" / bed.where.name)
    taken: list[BedNode] = []

    def take(instance_type: str) -> BedNode:
        name = locks.take(instance_type.replace(".", "-"))
        one = BedNode(bed, name, instance_type)
        taken.append(one)
        if not bed.has(name, instance_type):
            bed.command("up", "--node", f"{name}={instance_type}")
        return one

    yield take
    for one in reversed(taken):
        one.repair_all()
        locks.release(one.name)


@pytest.fixture(scope="session")
def running_driver(running_bed: TestBed) -> TestBed:
    """The shared test bed with the driver of these sources installed as its DaemonSet."""
    if not running_bed.where.is_root:
        impossible("the driver's DaemonSet needs nodes, and nodes need root")
    running_bed.command("up", "--driver", "daemonset", timeout_s=1200)
    return running_bed


@pytest.fixture
def driver(running_driver: TestBed, bed: TestBed) -> TestBed:
    """The test bed with the driver installed as its DaemonSet, on present and later nodes."""
    if not is_installed(bed):
        bed.command("up", "--driver", "daemonset", timeout_s=1200)
    return bed


@pytest.fixture
def trn2(driver: TestBed, node: Callable[[str], BedNode]) -> BedNode:
    """A trn2.48xlarge with the driver on it, and every device healthy."""
    taken = node(TRN2)
    settled(taken)
    return taken


@pytest.fixture
def uninstall(trn2: BedNode) -> Iterator[Callable[[], None]]:
    """A function that removes the driver from the node, as an uninstall does; it is back there afterwards."""
    yield lambda: relabel(trn2, "not-a-neuron-node")
    relabel(trn2, TRN2)


@pytest.fixture(scope="session")
def running_fleet(running_bed: TestBed) -> TestBed:
    """The shared test bed with two UltraServers, u1 and u2, and the driver and controller that users install.

    The controller's grace periods are short.
    """
    if not running_bed.where.is_root:
        impossible("UltraServers need nodes, and nodes need root")
    ultraservers = ("--ultraserver", f"u1={TRN3}", "--ultraserver", f"u2={TRN3}")
    graces = [
        word for name in ("nodeFailureGrace", "faultGrace") for word in ("--set", f"ultraserverOperator.{name}=2s")
    ]
    graces += ["--set", "ultraserverOperator.allowShortGraces=true"]
    running_bed.command(
        "up", *ultraservers, "--driver", "daemonset", *graces, "--with", "leaderworkersets", timeout_s=1200
    )
    return running_bed


@pytest.fixture
def fleet(running_fleet: TestBed, bed: TestBed) -> TestBed:
    """The UltraServers, for one test: none of their nodes is reserved when it begins."""
    assert slots(running_fleet) == {}
    return running_fleet


@pytest.fixture(scope="session")
def running_sets_bed(running_bed: TestBed) -> Iterator[TestBed]:
    """A second test bed beside the shared one, with a ring, a torus and an UltraServer that publish sets and parts.

    A running one is used, and left running.
    """
    if not running_bed.where.is_root:
        impossible("connected sets need nodes, and nodes need root")
    name = f"{running_bed.where.name}-sets"
    bed = TestBed(replace(running_bed.where, name=name, state_dir=running_bed.where.state_dir.with_name(name)))
    was_up = bed.is_up
    nodes = ("--node", "ring=inf2.48xlarge", "--node", "torus=trn2.48xlarge", "--ultraserver", "u=trn2u.48xlarge")
    bed.command("up", *nodes, timeout_s=3600)
    values = ("--set", "scheduler.enabled=true", "--set", "scheduler.ultraserverParts=on")
    bed.command("up", "--driver", "daemonset", *values, timeout_s=1200)
    yield bed
    if not was_up:
        bed.command("down")


@pytest.fixture
def sets_bed(running_sets_bed: TestBed, request: pytest.FixtureRequest) -> Iterator[TestBed]:
    """The test bed with connected sets, for one test."""
    yield running_sets_bed
    if request.node.stash.get(FAILED, False):
        running_sets_bed.keep_logs(REPOSITORY / "build" / "testbed-logs" / request.node.name)


@pytest.fixture
def sets_place(sets_bed: TestBed) -> Iterator[Namespace]:
    """A fresh namespace for pods with connected sets, whose limits are rewritten."""
    own = Namespace(sets_bed, f"test-{uuid.uuid4().hex[:8]}")
    sets_bed.kubectl("create", "namespace", own.name)
    sets_bed.kubectl("label", "namespace", own.name, REWRITE)
    yield own
    end_workloads(own)
    own.remove()


@pytest.fixture
def place(fleet: TestBed, namespace: Namespace) -> Iterator[Namespace]:
    """A fresh namespace for workloads; when it goes, their nodes are free."""
    yield namespace
    namespace.kubectl("delete", "deployments", "--all", "--timeout=180s", timeout_s=190)
    end_workloads(namespace)
