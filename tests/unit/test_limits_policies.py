"""16.3 and 16.5: the chart's policies about limits, rendered by helm and evaluated with the simulator's CEL engine.

tests/bed/test_limits_on_a_real_server.py has the same table for a real API server.
"""

from __future__ import annotations

import copy
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hack.generate import render
from hack.oracle.limited import LABEL, NEURON, one, pod, sets
from neuron_dra.api.problems import CannotMigrate
from neuron_dra.ask.migrate import rewrite
from neuron_dra.core import catalogue, sizes
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.admission import Denied, admit, pod_specs
from tests.support import fast_yaml
from tests.support.built_tools import HELM, needs
from tests.support.chart_notes import notes
from tests.support.limit_rows import CORE, DENIED, LEGACY, ROWS, WHOLE, Row, on, refused, workload

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/neuron-dra"
needs_helm = needs("helm")


@cache
def rendered(*values: str, version: str = "1.37.0") -> tuple[Obj, ...]:
    """Return the chart's policies about limits, without their bindings."""
    given = ("draDriver.image.repository=r", "scheduler.enabled=true", *values)
    words = [word for value in given for word in ("--set", value)]
    command = [str(HELM), "template", "r", str(CHART), "--kube-version", version, *words]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(
        item
        for item in fast_yaml.load_all(text)
        if item
        and item["metadata"]["name"] in ("neuron-dra-driver-limits", "neuron-dra-driver-numbers")
        and not item["kind"].endswith("Binding")
    )


def namespace(label: str, name: str = "ml") -> Obj:
    labels = {"kubernetes.io/metadata.name": name, **({LABEL: label} if label else {})}
    return {"metadata": {"name": name, "labels": labels}}


def limits_of(item: Obj) -> dict[str, Obj]:
    [spec] = pod_specs(item)
    return {
        each["name"]: each["resources"].get("limits", {})
        for each in [*spec.get("initContainers", ()), *spec["containers"]]
    }


def outcome(row: Row, *values: str, name: str = "ml") -> Any:
    """Return the limits and the scheduler that are stored, or the message of a rejection."""
    item = {**row.item, "metadata": {**row.item["metadata"], **row.metadata}}
    try:
        stored = admit(list(rendered(*values)), item, namespace(row.label, name))
    except Denied as err:
        return str(err)
    [spec] = pod_specs(stored)
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        resources = container["resources"]
        assert resources.get("requests", {}) == resources["limits"], "a request follows its limit"
    return limits_of(stored), spec.get("schedulerName", "default-scheduler")


@needs_helm
@pytest.mark.parametrize("row", [row for row in ROWS if not row.invalid], ids=lambda row: row.name)
def test_a_pod_gets_what_the_table_says(row: Row) -> None:
    expected = limits_of(row.item) if row.limits is None else row.limits
    assert outcome(row) == (row.denied or (expected, row.scheduler))


@needs_helm
@pytest.mark.parametrize("row", [row for row in DENIED if row.invalid], ids=lambda row: row.name)
def test_what_kubernetes_rejects_is_left_to_it(row: Row) -> None:
    stored = admit(list(rendered()), row.item, namespace("true"))
    assert "deviceclass" not in json.dumps(stored)


@needs_helm
@pytest.mark.parametrize("row", [row for row in ROWS if not row.denied], ids=lambda row: row.name)
def test_a_second_pass_changes_nothing(row: Row) -> None:
    """Policies run again after webhooks that changed the pod."""
    policies = list(rendered())
    once = admit(policies, row.item, namespace(row.label))
    assert admit(policies, once, namespace(row.label)) == once


@needs_helm
def test_kube_system_is_left_alone() -> None:
    row = Row("", pod(one({NEURON: "3"}), schedulerName="my-scheduler"), label="true")
    for values in ((), ("scheduler.rewriteLimits.namespaces=all",)):
        assert outcome(row, *values, name="kube-system") == ({"a": {NEURON: "3"}}, "my-scheduler")


@needs_helm
@pytest.mark.parametrize(
    ("mode", "label", "is_rewritten"),
    [
        ("all", "", True),
        ("all", "true", True),
        ("all", "false", False),
        ("none", "true", False),
        ("labelled", "", False),
    ],
)
def test_a_value_selects_the_namespaces(mode: str, label: str, is_rewritten: bool) -> None:
    row = Row("", pod(one({NEURON: "3"})), label=label)
    name = sets(3) if is_rewritten else NEURON
    assert outcome(row, f"scheduler.rewriteLimits.namespaces={mode}") == (
        {"a": {name: "1" if is_rewritten else "3"}},
        "default-scheduler",
    )


@needs_helm
def test_the_scheduler_s_name_is_a_value() -> None:
    row = Row("", pod(one({NEURON: "1"}), schedulerName="neuron"))
    assert outcome(row)[1] == "neuron"
    assert outcome(row, "scheduler.rewriteLimits.schedulerName=neuron")[1] == "default-scheduler"
    mine = Row("", pod(one({NEURON: "1"}), schedulerName="my-scheduler"))
    assert outcome(mine, "scheduler.rewriteLimits.schedulerName=")[1] == "my-scheduler"


@needs_helm
def test_sizes_that_the_chart_leaves_out_are_named() -> None:
    chosen = "scheduler.sizes={connected-4,connected-5}"
    assert outcome(Row("", pod(one({NEURON: "3"}))), chosen) == (
        "No DeviceClass serves 3 connected devices: the chart value scheduler.sizes leaves them out. "
        "Please request a different number."
    )
    for count in (1, 4, 5):
        row = Row("", pod(one({NEURON: str(count)}), **on("inf1.24xlarge")))
        assert outcome(row, chosen)[0] == {"a": {sets(count): "1"}}


@needs_helm
def test_devices_of_an_ultraserver_s_node_are_a_value() -> None:
    row = Row("", pod(one({NEURON: "4"}), **on("trn2u.48xlarge")))
    undivided = "scheduler.ultraserverParts=off"
    assert outcome(row, "draDriver.ultraserverDevices=devices", undivided)[0] == {"a": {sets(4): "1"}}


@needs_helm
@pytest.mark.parametrize(
    ("values", "is_divided"),
    [
        ((), True),
        (("ultraserverOperator.enabled=true",), False),
        (("ultraserverOperator.enabled=true", "scheduler.ultraserverParts=on"), True),
        (("scheduler.ultraserverParts=off",), False),
    ],
)
@pytest.mark.parametrize(("resource", "kind"), [(NEURON, "connected devices"), (CORE, "contiguous cores")])
def test_one_of_an_ultraserver_s_node_depends_on_a_value_that_the_refusal_names(
    values: tuple[str, ...], is_divided: bool, resource: str, kind: str
) -> None:
    """(32.4)"""
    found = outcome(Row("", pod(one({resource: "1"}), **on("trn2u.48xlarge"))), *values)
    denied = f"Nodes of instance type trn2u.48xlarge do not publish 1 {kind}{WHOLE}"
    assert found == denied if not is_divided else not isinstance(found, str)
    whole = {NEURON: "16", CORE: "64"}[resource]
    assert not isinstance(outcome(Row("", pod(one({resource: whole}), **on("trn2u.48xlarge"))), *values), str)


@needs_helm
def test_a_workload_that_was_there_can_be_scaled() -> None:
    before = workload("Deployment", pod(one({NEURON: "7"}), **on("trn1.32xlarge"))["spec"])
    scaled = copy.deepcopy(before)
    scaled["spec"]["replicas"] = 3
    assert admit(list(rendered()), scaled, namespace("true"), old=before)["spec"]["replicas"] == 3
    changed = copy.deepcopy(before)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    with pytest.raises(Denied, match="device: 7"):
        admit(list(rendered()), changed, namespace("true"), old=before)


@needs_helm
def test_every_type_is_judged_by_its_own_numbers() -> None:
    for spec in catalogue.all_types():
        for count in range(1, 18):
            row = Row("", pod(one({NEURON: str(count)}), **on(spec.name)))
            served = count in sizes.device_counts(spec)
            found = outcome(row)
            if not served:
                assert found == refused(spec.name, "device", count)
            else:
                assert "does not support" not in found


@needs_helm
def test_before_1_36_there_are_no_such_policies() -> None:
    assert rendered(version="1.35.4") == ()
    assert len(rendered(version="1.36.0-eks-1")) == 2


@needs_helm
def test_the_values_of_the_extension_s_own_commands_are_accepted() -> None:
    """The commands of AWS's page, with this chart."""
    for values in (
        ("npd.enabled=false",),
        ("scheduler.customScheduler.enabled=false", "scheduler.defaultScheduler.enabled=true", "npd.enabled=false"),
    ):
        assert len(rendered(*values)) == 2


@needs_helm
@pytest.mark.parametrize(
    ("values", "is_said"),
    [
        (("scheduler.enabled=true", "npd.enabled=false"), True),
        (("scheduler.enabled=true", "scheduler.rewriteLimits.namespaces=all"), False),
        (("scheduler.enabled=false",), False),
    ],
)
def test_the_charts_notes_name_the_label_for_pods(values: tuple[str, ...], is_said: bool, tmp_path: Path) -> None:
    """(32.7) The pod of the extension's page waits in a namespace without it."""
    shown = notes(tmp_path, *(word for value in values for word in ("--set", value)))
    assert ("kubectl label namespace default neuron.aws.com/rewrite-limits=true" in shown) is is_said
    assert ("my-scheduler" in shown) is is_said


def test_the_sizes_in_the_chart_are_those_of_the_catalogue() -> None:
    assert render.SIZES.read_text() == render.served(), "run `make manifests`"


resources = st.dictionaries(
    st.sampled_from([NEURON, CORE, LEGACY, sets(1), "cpu"]),
    st.sampled_from(["0", "1", "2", "4", "8", "17"]),
    max_size=2,
)
containers = st.lists(resources, min_size=1, max_size=3)
sidecars = st.lists(st.tuples(resources, st.booleans()), max_size=3)


@needs_helm
@settings(max_examples=300, deadline=None)
@given(containers, sidecars, st.sampled_from(["", "trn1.32xlarge", "inf2.48xlarge", "inf2.xlarge"]))
@example([{NEURON: "4"}], [({NEURON: "2"}, False)], "trn1.32xlarge")  # it uses four devices, which the type serves
def test_the_policy_and_migrate_agree(mains: list[Obj], inits: list[tuple[Obj, bool]], instance_type: str) -> None:
    """The API server changes a pod as `neuron-dra migrate` changes its manifest."""
    item = pod(
        *(one(limits, f"m{n}") for n, limits in enumerate(mains)),
        initContainers=[
            one(limits, f"i{n}", **({"restartPolicy": "Always"} if stays else {}))
            for n, (limits, stays) in enumerate(inits)
        ],
        **(on(instance_type) if instance_type else {}),
    )
    expected: Any = copy.deepcopy(item)
    try:
        rewrite.rewrite(expected, rewrite.Options(names=True))
    except CannotMigrate as err:
        expected = err
    try:
        found: Any = admit(list(rendered()), item, namespace("true"))
    except Denied as err:
        found = err
    if isinstance(expected, CannotMigrate) or isinstance(found, Denied):
        assert isinstance(found, Denied), expected
        assert isinstance(expected, CannotMigrate), found
    else:
        assert limits_of(found) == limits_of(expected)
