"""The commands and the chart know the releases of Kubernetes that go wrong with shared counters (32.1)."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from hack.generate import render
from neuron_dra import cli
from neuron_dra.api import objects
from neuron_dra.api.objects import slice_objects
from neuron_dra.ask.doctor import counters
from neuron_dra.ask.doctor.seen import Seen
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.validate import rules
from neuron_dra.core import devices, partitions, releases
from neuron_dra.core.wire import Obj
from tests.support import small_clusters as small
from tests.support.built_tools import needs
from tests.support.chart_notes import notes

BAD = ("1.36.0", "v1.36.1", "1.36.2-eks-5")
GOOD = ("1.36", "1.36.3", "v1.37", "1.37.1")
LIMIT = "deviceclass.resource.kubernetes.io/connected-3.neuron.aws.com"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeSelector: {node.kubernetes.io/instance-type: trn1.32xlarge}
  containers: [{name: main, image: web, resources: {limits: {aws.amazon.com/neuron: 4}}}]
"""


def divided(driver: str = "neuron.aws.com") -> list[Obj]:
    """Return the slices of node a, an inf2.48xlarge with connected sets."""
    node = objects.healthy_node("inf2.48xlarge")
    published = devices.published(node, driver_version="1")
    made = slice_objects("a", published, partitions.partitioned(node, published))
    items = [{**item, "metadata": {"name": f"{driver}-{item['metadata']['name']}"}} for item in made]
    return [{**item, "spec": {**item["spec"], "driver": driver}} for item in copy.deepcopy(items)]


def holding(name: str, device: str) -> Obj:
    return objects.allocated_claim(name, "a", [device])


def seen(version: str, *items: Obj) -> Seen:
    return Seen(small.cluster([small.node("a", "inf2.48xlarge"), *items]), version=version)


def test_doctor_lists_the_claims_that_keep_counters() -> None:
    held = [holding("one", "neuron-set-3-0"), holding("two", "neuron-device-7")]
    [line] = counters.lines(seen("v1.36.1-eks-3", *divided(), *held))
    assert (line.state.value, line.code) == ("wrong", "KubernetesKnownBad")
    assert "#138882" in line.text
    assert line.text.endswith("until these claims end: 1 claim, default/one")
    [line] = counters.lines(seen("v1.36.1", *divided(), held[1]))
    assert line.text.endswith("No claim has a set: the driver takes them all back")


@pytest.mark.parametrize(
    ("oldest", "state"), [("1.36.1", "ok"), ("any", "ok"), ("1.36.2", "wrong"), ("soon", "wrong"), (None, "wrong")]
)
def test_doctor_knows_that_a_vendor_has_ported_the_mends_back(oldest: str | None, state: str) -> None:
    driver = small.pod("driver")
    driver["spec"]["containers"][0]["env"] = ["a", {"name": "CONNECTED_SETS_OLDEST_RELEASE", "value": oldest}]
    other = small.pod("other")
    other["spec"]["containers"][0]["env"] = 4
    [line] = counters.lines(seen("v1.36.1-vendor.7", *divided(), other, driver))
    assert line.state.value == state
    assert ("scheduler.oldestRelease=" in line.text) is (state == "ok")


def test_doctor_names_another_driver_whose_pool_has_the_nodes_name() -> None:
    both = [*divided(), *divided("dra.net")]
    [line] = counters.lines(seen("v1.36.3", *both))
    assert (line.code, line.text.partition(" have ")[0]) == ("PoolNameShared", "dra.net and neuron.aws.com")
    assert "#140434" in line.text
    for version, items in (("v1.36.4", both), ("v1.36.3", divided())):
        assert [each.code for each in counters.lines(seen(version, *items))] == ["Ok"]


def test_doctor_is_silent_without_sets_and_unsure_without_a_version() -> None:
    assert list(counters.lines(seen("v1.36.0", *small.slices("a")))) == []
    assert [each.code for each in counters.lines(seen("", *divided()))] == ["Unknown"]


@pytest.mark.parametrize("version", [*BAD, *GOOD])
def test_migrate_writes_claims_where_nodes_publish_no_sets(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    assert cli.main(["migrate", "--kubernetes", version, str(path)]) == 0
    shown = capsys.readouterr()
    assert ("resourceClaimTemplateName" in shown.out) is (version in BAD)
    assert ("#140436" in shown.err) is (version in BAD)


@pytest.mark.parametrize("version", ["", *BAD, *GOOD, "1.34"])
def test_validate_names_a_release_without_sets(version: str) -> None:
    bad = version in (*BAD, "1.34")
    pod = small.pod("web")
    pod["spec"]["containers"][0]["resources"] = {"limits": {LIMIT: 1}}
    claim = small.template("t")
    claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "connected-3.neuron.aws.com"
    why = releases.why_no_sets_on(version) if version else ""
    for item in (pod, claim):
        found = rules.Checker(snapshot.build([item]), (1, 36), why).run()
        assert [each.code for each in found] == (["SetsNotPublished"] if bad else [])


@pytest.mark.parametrize(
    ("name", "served"),
    [("connected-17", "served: 1-16"), ("connected-0", "served: 1-16"), ("cores-193", ""), ("cores-9", None)],
)
def test_validate_names_a_size_that_no_type_serves(name: str, served: str | None) -> None:
    pod = small.pod("web")
    resource = f"deviceclass.resource.kubernetes.io/{name}.neuron.aws.com"
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: 1}}
    found = rules.Checker(snapshot.build([pod]), (1, 37)).run()
    assert [each.code for each in found] == ([] if served is None else ["SizeNotServed"])
    assert all(served in each.text for each in found if served)


@pytest.mark.parametrize(("version", "runs"), [("1.36.1", False), ("1.36", True), ("1.37", True)])
def test_simulate_imagines_no_sets_on_a_release_without_them(
    version: str, runs: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD.replace("aws.amazon.com/neuron: 4", f"{LIMIT}: 1").replace("trn1.32xlarge", "inf2.48xlarge"))
    words = ["simulate", str(path), "--fleet", "1 x inf2.48xlarge", "--kubernetes", version]
    assert cli.main(words) == (0 if runs else 1)
    assert ("nodes publish no connected sets" in capsys.readouterr().out) is not runs


def test_the_charts_table_is_that_of_the_code() -> None:
    assert render.KNOWN_BAD.read_text() == render.known_bad_releases()
    assert [each["issue"] for each in json.loads(render.KNOWN_BAD.read_text())] == [138882, 140436, 140434]


@needs("helm")
@pytest.mark.parametrize(
    ("version", "issues"), [("1.36.1-eks-3", [138882, 140436, 140434]), ("1.36.3", [140434]), ("1.37.0", [])]
)
def test_the_charts_notes_name_the_faults_of_the_release(version: str, issues: list[int], tmp_path: Path) -> None:
    shown = notes(tmp_path, "--kube-version", version, "--set", "scheduler.enabled=true")
    assert [issue for issue in (138882, 140436, 140434) if f"#{issue}" in shown] == issues
    assert (version in shown) is bool(issues)


@needs("helm")
@pytest.mark.parametrize(("oldest", "is_off"), [("", True), ("1.36.2", True), ("1.36.1", False), ("any", False)])
def test_the_charts_notes_know_that_the_setting_permits_a_release(oldest: str, is_off: bool, tmp_path: Path) -> None:
    values = ("--set", "scheduler.enabled=true", "--set-string", f"scheduler.oldestRelease={oldest}")
    shown = notes(tmp_path, "--kube-version", "1.36.1-vendor.7", *values)
    assert "#138882" in shown
    assert ("until then no sets are published" in shown) is is_off
