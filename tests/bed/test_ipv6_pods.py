"""30: pods whose main address is an IPv6 one. Both programs are ready there, and the ranks of a job meet.

The nodes are a test bed of their own: an address family is that of a whole cluster. Node and pods have an IPv4 address,
too, because the bed's API server has no other.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from tests.bed.deployed import NAMESPACE
from tests.bed.fleet import TRN3, end_workloads
from tests.bed.recipes import all_reduce, complete, last_lines, log, start
from tests.support.skipping import impossible

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # CoreDNS is built first

NAME = "all-reduce"
OF_THE_JOB = f"job-name={NAME}"
RANKS = 4


@pytest.fixture(scope="module")
def ipv6_bed(running_bed: TestBed) -> Iterator[TestBed]:
    """A second test bed beside the shared one, with one UltraServer, driver, controller and CoreDNS."""
    if not running_bed.where.is_root:
        impossible("UltraServers need nodes, and nodes need root")
    name = f"{running_bed.where.name}-ipv6"
    bed = TestBed(replace(running_bed.where, name=name, state_dir=running_bed.where.state_dir.with_name(name)))
    bed.command("down")
    bed.command("up", "--ipv6", "--ultraserver", f"u={TRN3}", "--with", "dns", timeout_s=3600)
    bed.command("up", "--driver", "daemonset", timeout_s=1200)
    yield bed
    bed.command("down")


@pytest.fixture
def ipv6_place(ipv6_bed: TestBed) -> Iterator[Namespace]:
    """A fresh namespace; when it goes, its jobs have ended."""
    own = Namespace(ipv6_bed, f"test-{uuid.uuid4().hex[:8]}")
    ipv6_bed.kubectl("create", "namespace", own.name)
    yield own
    own.kubectl("delete", "jobs", "--all", "--timeout=180s", timeout_s=190)
    end_workloads(own)
    own.remove()


def families(place: Namespace) -> dict[str, list[int]]:
    """Return the IP versions of each pod, that of status.podIP first."""
    found: dict[str, list[int]] = {}
    for item in place.get("pods")["items"]:
        addresses = [each["ip"] for each in item["status"]["podIPs"]]
        assert addresses[0] == item["status"]["podIP"]
        found[item["metadata"]["name"]] = [ipaddress.ip_address(address).version for address in addresses]
    return found


def endpoints(place: Namespace) -> dict[str, tuple[str, list[str]]]:
    """Return the address type and the addresses of each EndpointSlice that has some."""
    found = {}
    for item in place.get("endpointslices")["items"]:
        addresses = [address for each in item.get("endpoints") or () for address in each["addresses"]]
        if addresses:
            found[item["metadata"]["name"]] = (item["addressType"], addresses)
    return found


def rank_0(place: Namespace) -> str:
    """Return the address of the pod that prints that it has rank 0; empty while none does."""
    for item in place.get("pods", f"--selector={OF_THE_JOB}")["items"]:
        lines = log(place, item["metadata"]["name"]) if item["status"]["phase"] == "Running" else []
        if any(line.startswith("rank 0 of") for line in lines):
            return str(item["status"]["podIP"])
    return ""


def test_programs_are_ready_at_ipv6_addresses(ipv6_bed: TestBed) -> None:
    """The kubelet's probes go to the main address of a pod."""
    own = Namespace(ipv6_bed, NAMESPACE)
    own.kubectl("wait", "pods", "--all", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
    found = families(own)
    assert len(found) > RANKS  # the plugins, and the controller
    assert set(map(tuple, found.values())) == {(6, 4)}


def test_a_job_finds_rank_0_at_its_ipv6_address(ipv6_bed: TestBed, ipv6_place: Namespace) -> None:
    start(ipv6_place, all_reduce(ipv6_bed, size=RANKS, groups=1, rounds=200))
    address = eventually("rank 0 runs", lambda: rank_0(ipv6_place), 180)
    wanted = {f"{NAME}-rank0-ipv6": ("IPv6", [address])}
    eventually("its address is published", lambda: endpoints(ipv6_place) == wanted, 60)
    complete(ipv6_place, f"job/{NAME}")
    assert set(map(tuple, families(ipv6_place).values())) == {(6, 4)}
    assert last_lines(ipv6_place, OF_THE_JOB) == {
        f"rank {rank} of {RANKS}: finished 200 rounds" for rank in range(RANKS)
    }
    others = [item["metadata"]["name"] for item in ipv6_place.get("pods", f"--selector={OF_THE_JOB}")["items"]]
    text = "\n".join(line for name in others for line in log(ipv6_place, name))
    assert set(re.findall(r"connected to (\S+),", text)) == {address}
