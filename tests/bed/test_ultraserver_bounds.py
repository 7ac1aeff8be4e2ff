"""30.7 on a real cluster: AWS's CRD has no maximum: numbers beyond all bounds are stored, and cost others nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from hack.bed.real_cluster import BedError, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import CONTROLLER, NAMESPACE
from tests.bed.fleet import AWSS_CRDS, OUR_CRDS, end_workloads, replicas, submit, wait_reason, workload

HUGE = 20_000_000


def numbered(name: str, count: int) -> Obj:
    return {**workload(name, 4, count), "apiVersion": "neuron.aws.com/v1beta1"}


def without_a_minimum(crds: str) -> str:
    """Return AWS's CRDs as they would be without a minimum of serverCount."""
    documents = list(yaml.safe_load_all(crds))
    for each in documents:
        for version in each["spec"]["versions"]:
            spec = version["schema"]["openAPIV3Schema"]["properties"].get("spec", {}).get("properties", {})
            spec.get("serverCount", {}).pop("minimum", None)
    return yaml.safe_dump_all(documents)


@pytest.fixture
def beyond(fleet: TestBed, place: Namespace) -> Iterator[Namespace]:
    """A namespace with workloads of 20,000,000 and of -1 groups, stored before our CRDs replaced AWS's."""
    fleet.kubectl("replace", "-f", str(AWSS_CRDS))
    try:
        eventually("AWS's CRDs are in force", lambda: is_stored(place, numbered("huge", HUGE)), 60)
        with pytest.raises(BedError, match="should be greater than or equal to 1"):
            place.apply(numbered("negative", -1))
        fleet.kubectl("replace", "-f", "-", stdin=without_a_minimum(AWSS_CRDS.read_text()))
        eventually("there is no minimum", lambda: is_stored(place, numbered("negative", -1)), 60)
    finally:
        fleet.kubectl("replace", "-f", str(OUR_CRDS))
    yield place
    end_workloads(place)


def is_stored(place: Namespace, made: Obj) -> bool:
    """Try to store a workload; a CRD that was replaced is in force some seconds later."""
    try:
        place.apply(made)
    except BedError as err:
        if "spec.serverCount" not in str(err):
            raise
        return False
    return True


def restarts(bed: TestBed) -> int:
    """Return how often the controller's containers have restarted."""
    pods = bed.get("pods", "--namespace", NAMESPACE, f"--selector=app={CONTROLLER}")["items"]
    return sum(status["restartCount"] for each in pods for status in each["status"]["containerStatuses"])


def test_numbers_beyond_all_bounds_are_an_invalid_spec_and_others_are_served(beyond: Namespace) -> None:
    for name, count in (("huge", HUGE), ("negative", -1)):
        said = wait_reason(beyond, name, "InvalidSpec", timeout_s=150)
        assert f"spec.serverCount {count}: write 1, 2 or 4 nodes for each group, and 1 to 1024 groups" in said
    submit(beyond, workload("before", 4, 1))
    replicas(beyond.bed, 0)
    replicas(beyond.bed, 2)  # ready only once they have listed everything
    submit(beyond, workload("after", 4, 1))
    assert restarts(beyond.bed) == 0


def test_status_works_and_why_names_the_number(beyond: Namespace) -> None:
    wait_reason(beyond, "huge", "InvalidSpec", timeout_s=150)
    submit(beyond, workload("job", 4, 1))
    status = beyond.bed.neuron_dra("status")
    assert status.returncode == 0, status.stderr
    why = beyond.bed.neuron_dra("why", "workload/huge", "-n", beyond.name, "-o", "json")
    [cause] = json.loads(why.stdout)["causes"]
    assert f"spec.serverCount {HUGE}" in cause["text"]
