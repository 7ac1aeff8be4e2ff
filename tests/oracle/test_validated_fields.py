"""`validate` beside real API servers: manifests with structural faults, as kubectl would create them (4.08)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from hack.bed.errors import BedError
from hack.bench import api
from neuron_dra.ask.validate import api_rules, fields
from neuron_dra.core.wire import Obj
from tests.support import mutated_manifests

SEEDS: Final = 500
RELEASES: Final = ("1.35", "1.37")
MOST_MISSED: Final = 0.01
PATHS: Final = {
    "ResourceClaim": "namespaces/default/resourceclaims",
    "ResourceClaimTemplate": "namespaces/default/resourceclaimtemplates",
    "DeviceClass": "deviceclasses",
    "Pod": "namespaces/default/pods",
    "Deployment": "namespaces/default/deployments",
    "Job": "namespaces/default/jobs",
}
FORBIDDEN: Final = 403

pytestmark = [
    pytest.mark.tool,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture(scope="module", params=RELEASES)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[api.Plane, tuple[int, int]]]:
    major, _, minor = request.param.partition(".")
    try:
        with api.running(request.param, only_api=True) as plane:
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            plane.create("/api/v1/namespaces/default/serviceaccounts", account)
            yield plane, (int(major), int(minor))
    except BedError as err:
        pytest.skip(str(err))


def answer(plane: api.Plane, item: Obj) -> tuple[int, Any]:
    version = item["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return plane.create(f"{root}/{PATHS[item['kind']]}?dryRun=All&fieldValidation=Strict", item)


def found(item: Obj, version: tuple[int, int]) -> list[str]:
    """Return what `validate` says that the API server rejects."""
    problems = [problem.text for problem in fields.of_object("", item, version) if not problem.warning]
    if not problems:
        problems += [problem.text for problem in api_rules.of_object("", item)]
    return problems


def test_real_server_accepts_the_manifests_without_faults(server: tuple[api.Plane, tuple[int, int]]) -> None:
    plane, version = server
    for item in mutated_manifests.bases():
        status, said = answer(plane, item)
        assert (status, found(item, version)) == (201, []), said


def test_validate_and_the_server_reject_the_same_manifests(server: tuple[api.Plane, tuple[int, int]]) -> None:
    plane, version = server
    wrongly, missed, rejected = [], [], 0
    for seed in range(SEEDS):
        what, item = mutated_manifests.mutated(seed)
        status, said = answer(plane, item)
        if status == FORBIDDEN:
            continue
        problems = found(item, version)
        is_rejected = status >= 400
        rejected += is_rejected
        if problems and not is_rejected:
            wrongly.append(f"{seed} {what}: {problems}")
        if is_rejected and not problems:
            missed.append(f"{seed} {what}: {said.get('message')}")
    print(f"{version}: {rejected} of {SEEDS} rejected, {len(missed)} missed, {len(wrongly)} rejected wrongly")
    assert wrongly == []
    assert len(missed) <= MOST_MISSED * rejected, "\n".join(missed)
