"""`validate` rejects what the API server rejects by our CRDs; `tests.support.invalid_workloads` has its answers."""

from __future__ import annotations

from typing import Any

import pytest

from hack.generate import crd_fields as crd_program
from hack.generate.crd_fields import ROOT
from neuron_dra.ask.validate import crd_rules
from neuron_dra.core.wire import Obj
from tests.support.invalid_workloads import JOB, REJECTED, changed


def problems(workload: Obj) -> list[str]:
    return [problem.text for problem in crd_rules.of_object("", workload)]


def test_schemas_are_those_of_the_crds() -> None:
    assert (ROOT / "neuron_dra/data" / crd_rules.FILE).read_text() == crd_program.schemas_text()


@pytest.mark.parametrize(("changes", "message"), REJECTED, ids=[next(iter(changes)) for changes, _ in REJECTED])
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_workload_that_the_server_rejects_has_the_servers_message(
    version: str, changes: dict[str, Any], message: str
) -> None:
    (text,) = problems({**changed(**changes), "apiVersion": f"neuron.aws.com/{version}"})
    assert message in text


@pytest.mark.parametrize("strategy", ["NoOp", "RestartAll", "MigrateAffected", "ReplaceAffected"])
def test_valid_workload_has_no_problem(strategy: str) -> None:
    assert problems(changed(spec__allocationPolicy__failureStrategy=strategy)) == []


def test_required_field_is_named() -> None:
    spec = {name: value for name, value in JOB["spec"].items() if name != "serverCount"}
    assert problems({**JOB, "spec": spec}) == ["spec.serverCount: it is required"]


def test_object_of_another_group_is_not_judged() -> None:
    assert problems({**changed(spec__topologySize=3), "apiVersion": "example.com/v1"}) == []
