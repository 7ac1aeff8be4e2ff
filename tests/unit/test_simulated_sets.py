"""Commands see what nodes publish and what prepare refuses, and make the claims that the scheduler makes (32.10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuron_dra import cli
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.validate import rules
from neuron_dra.ask.world import extended
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small

PREFIX = "deviceclass.resource.kubernetes.io/"


def limit(size: str) -> str:
    return f"{PREFIX}{size}.neuron.aws.com"


def container(name: str, *sizes: str, **fields: Any) -> Obj:
    return {"name": name, "image": "x", "resources": {"limits": dict.fromkeys(map(limit, sizes), 1)}, **fields}


def pod(*containers: Obj, inits: tuple[Obj, ...] = ()) -> Obj:
    made = small.pod("p")
    made["spec"] = {"initContainers": list(inits), "containers": list(containers)}
    return made


def simulated(item: Obj, fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    import yaml

    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(item))
    code = cli.main(["simulate", str(path), "--fleet", fleet])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fleet", "size", "runs"),
    [
        ("1 x inf1.24xlarge", "connected-5", True),
        ("1 x inf1.24xlarge", "cores-15", True),
        ("1 x inf1.24xlarge", "cores-17", False),  # left out: a node publishes at most 511 devices
        ("1 x inf2.48xlarge", "cores-4", True),  # two devices have them
        ("1 x trn1.32xlarge", "connected-5", False),
    ],
)
def test_a_fleet_publishes_what_its_nodes_would(
    fleet: str, size: str, runs: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = simulated(pod(container("a", size)), fleet, tmp_path, capsys)
    assert (code == 0) is runs


def test_an_init_container_uses_the_set_of_the_main_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = pod(container("main", "connected-12"), inits=(container("warm", "connected-12"),))
    code, out = simulated(shared, "1 x inf2.48xlarge", tmp_path, capsys)
    assert (code, "1 of 1 pods run" in out) == (0, True)


def requested(item: Obj) -> list[tuple[str, str, int]]:
    made = extended.requests(item, lambda name: name.removeprefix(PREFIX) if name.startswith(PREFIX) else "")
    return [(e["name"], e["exactly"]["deviceClassName"].partition(".")[0], e["exactly"]["count"]) for e in made]


def test_requests_are_those_of_the_scheduler() -> None:
    """Names have the container's index, init containers first, and the resource's in what the container requests."""
    main = container("main", "connected-4")
    main["resources"]["requests"] = {"cpu": "1", "memory": "1Gi"}
    assert requested(pod(main)) == [("container-0-request-1", "connected-4", 1)]
    sidecar = container("side", "connected-4", restartPolicy="Always")
    assert requested(pod(main, inits=(sidecar, container("warm", "connected-2")))) == [
        ("container-0-request-0", "connected-4", 1),
        ("container-1-request-0", "connected-2", 1),
        ("container-2-request-1", "connected-4", 1),
    ]


def test_init_containers_request_once_what_main_ones_lack() -> None:
    def many(name: str, count: int) -> Obj:
        return {"name": name, "resources": {"limits": {limit("connected-1"): count}}}

    item = pod(many("main", 2), inits=(many("one", 3), many("two", 5), many("three", 1)))
    assert requested(item) == [("container-1-request-0", "connected-1", 3), ("container-3-request-0", "connected-1", 2)]


def test_cores_that_prepare_refuses_are_refused_in_a_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last free core of each of two devices that are not linked, or not contiguous."""
    both = pod(container("a", "cores-1", "cores-9"))
    code, out = simulated(both, "1 x inf2.48xlarge", tmp_path, capsys)
    assert (code, "the Neuron runtime needs contiguous ones" in " ".join(out.split())) == (1, True)


def test_cores_that_prepare_refuses_are_refused_by_validate() -> None:
    found = rules.Checker(snapshot.build([pod(container("a", "cores-1", "cores-9"))]), (1, 37)).run()
    assert [(each.code, "needs contiguous ones" in each.text) for each in found] == [("DriverRejects", True)]
    one = rules.Checker(snapshot.build([pod(container("a", "cores-9"), container("b", "cores-1"))]), (1, 37)).run()
    assert one == []


def test_two_requests_for_cores_in_one_claim_are_refused_by_validate() -> None:
    claim = small.template("t")
    exactly = {"deviceClassName": "cores-1.neuron.aws.com", "allocationMode": "ExactCount", "count": 1}
    claim["spec"]["spec"]["devices"]["requests"] = [{"name": n, "exactly": dict(exactly)} for n in ("one", "two")]
    found = rules.Checker(snapshot.build([claim]), (1, 37)).run()
    assert [(each.code, each.warning) for each in found] == [("DriverRejects", False)]
    assert found[0].text.startswith(
        "the driver rejects it on every type that can serve it: neuron-cores-1-0 is one of several requests"
    )
