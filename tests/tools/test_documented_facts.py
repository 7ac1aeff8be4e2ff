"""Statements of README and docs that were wrong once, against what they are about."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller import timing as controller_timing
from controller.settings import ControllerSettings
from hack.bed.build import KUBERNETES
from hack.generate import docs
from hack.reports import night
from hack.reports.night_suites import PARTS
from neuron_dra import cli
from neuron_dra.core import catalogue, devices, releases, versions
from neuron_dra.settings import PluginSettings
from neuron_dra.simulate import semantics
from tests.support import fast_yaml, small_clusters

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CHOOSE = " ".join((ROOT / "docs/choose.md").read_text().split())
CHART = ROOT / "deploy/helm/neuron-dra"
SIZES: list[dict[str, Any]] = json.loads((CHART / "files/sizes.json").read_text())


def served(instance_type: str) -> list[int]:
    """Return the numbers of connected devices that a node of this type publishes by default."""
    [group] = [each for each in SIZES if instance_type in each["types"]]
    return [number for number in group["device"] if number not in group["devicesLeftOut"]]


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_a_page_names_the_numbers_of_connected_devices() -> None:
    found = re.search(
        r"a node serves ([\d, or]+) devices on Trn1, Trn2 and Trn3, and any number on Inf1 and Inf2\.", CHOOSE
    )
    assert found is not None
    of_torus = numbers(found[1])
    largest = ["trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3.48xlarge"]
    assert {name: served(name) for name in largest} == dict.fromkeys(largest, of_torus)
    smaller = [each for each in SIZES if any(name.startswith("trn") for name in each["types"])]
    assert all(set(each["device"]) <= set(of_torus) for each in smaller)
    others = {"inf1.6xlarge": 4, "inf1.24xlarge": 16, "inf2.24xlarge": 6, "inf2.48xlarge": 12}
    assert {name: served(name) for name in others} == {name: list(range(1, n + 1)) for name, n in others.items()}


def test_page_has_the_table_of_known_bad_releases() -> None:
    header = ["component", "releases", "what breaks", "kubernetes/kubernetes", "the driver"]
    assert docs.table(header, releases.table()) in (ROOT / "docs/known-faults.md").read_text()


def cells(page: str, row: str) -> list[str]:
    """Return the cells of the first row that begins with this cell."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("planned", "measured"),
    [
        ("controller's memory, idle", "resident memory, idle (64 MiB with no nodes)"),
        ("CPU of the controller, idle", "CPU, nothing changes"),
        ("the controller's start", "start: until all UltraServers are written"),
        ("to reserve 8 nodes, p50", "8 nodes: to Allocated, p50"),
    ],
)
def test_planning_page_has_the_report_s_figures(planned: str, measured: str) -> None:
    report = [re.findall(r"[\d.]+", cell)[0] for cell in cells("reports/scale.md", measured)[1:3]]
    assert [re.findall(r"[\d.]+", cell)[0] for cell in cells("planning.md", planned)[2:4]] == report


def test_planning_page_has_the_driver_s_figures() -> None:
    """Memory and CPU of an idle driver, from the report; the Lease's requests, from the timing of the controller."""
    memory, cpu = cells("reports/speed.md", "RSS idle")[1], cells("reports/speed.md", "CPU idle")[1]
    assert f"measured {float(memory.split()[0]):.0f} MiB" in cells("planning.md", "driver pods")[1]
    _, of_one, small, large = cells("planning.md", "CPU of a driver, idle ([measured](reports/speed.md))")
    millicores = float(cpu.split()[0])
    assert (of_one, small, large) == (cpu, f"{0.4 * millicores:.1f} CPUs", f"{5 * millicores:.1f} CPUs")
    pause_s = controller_timing.DEFAULT_TIMING.lease.retry_s * 1.05  # Leader._pause_s: 0.9 to 1.2 times
    requests = 3 * 3600 / pause_s  # a read and a write of the leader, a read of the other replica
    shown = cells("planning.md", "the controller's requests for its Lease, an hour, two replicas")[2]
    assert numbers(shown.replace(",", "")) == [round(requests, -2)]


def test_a_page_names_the_types_with_groups_of_devices() -> None:
    """Only single devices with EFA functions have devicegroup4_id; elsewhere a pod that requests it waits."""
    found = re.search(r"Only ([^.]*(?:\.\d+xlarge[^.]*)+) publish single devices with this attribute", CHOOSE)
    assert found is not None
    types = {each.name for each in catalogue.all_types() if each.efa and not each.whole_node}
    assert set(re.findall(r"`([\w.-]+)`", found[1])) == types
    assert len(types) == 4


def expressions_in(value: Any) -> Iterator[str]:
    """Yield the CEL expressions of an object."""
    if isinstance(value, dict):
        if isinstance(value.get("expression"), str):
            yield value["expression"]
        for inner in value.values():
            yield from expressions_in(inner)
    if isinstance(value, list):
        for inner in value:
            yield from expressions_in(inner)


UNGUARDED = r"(?<!has\()device\.attributes\['([\w.]+)'\]\.(\w+)"
GUARD_BY_TYPE = "device.attributes['neuron.aws.com'].instanceType == '"


def test_selectors_of_examples_and_pages_follow_the_rule_about_has() -> None:
    """An attribute that not every device publishes stands behind has(…), or behind a condition on the instance type."""
    always = {attribute.name for attribute in devices.ATTRIBUTES if attribute.when == "always"}
    glossary = (ROOT / "docs/glossary.md").read_text()
    expressions = re.findall(r"^\| selector \|.*`(device[^`]*)` \|$", glossary, re.MULTILINE)
    for path in sorted((ROOT / "deploy/examples").rglob("*.yaml")):
        for item in fast_yaml.load_all(path.read_text()):
            expressions += expressions_in(item)
    assert len(expressions) > 8
    for expression in expressions:
        for domain, name in re.findall(UNGUARDED, expression):
            is_guarded = f"has(device.attributes['{domain}'].{name})" in expression or GUARD_BY_TYPE in expression
            assert name in always or is_guarded, expression


@pytest.mark.parametrize(
    ("selector", "code"),
    [
        ("{own}.instanceType == 'trn2.48xlarge'", 0),
        ("{own}.topology_x == 1", 1),
        ("has({own}.topology_x) && {own}.topology_x == 1", 0),
        ("{own}.instanceType == 'trn2.48xlarge' && {own}.topology_x == 1", 0),
    ],
    ids=["always published", "unguarded", "has", "type first"],
)
def test_an_unguarded_attribute_blocks_the_pod_on_every_node(selector: str, code: int, tmp_path: Path) -> None:
    """What docs/choose.md says about selectors; the EFA interfaces of the fleet publish no attribute of this driver."""
    cel = selector.format(own="device.attributes['neuron.aws.com']")
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump_all([small_clusters.template("four", 4, cel=cel), small_clusters.pod("p", "four")]))
    assert cli.main(["simulate", str(file), "--fleet", "1 x inf2.48xlarge, 1 x trn2.48xlarge efa"]) == code


def test_connected_sets_are_off_by_default() -> None:
    assert "| 3. a limit with connected devices | 1.36.3 and later | `scheduler.enabled` |" in CHOOSE
    assert "Both settings are off by default" in CHOOSE
    assert fast_yaml.load((CHART / "values.yaml").read_text())["scheduler"]["enabled"] is False


def test_a_page_names_the_flag_that_slices_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`neuron-dra slices --node-name NAME`" in (ROOT / "docs/command-line.md").read_text()
    with pytest.raises(SystemExit):
        cli.main(["slices"])
    assert "--node-name" in capsys.readouterr().err


def test_compatibility_page_says_what_ran_on_which_release() -> None:
    page = night.COMPATIBILITY.read_text()
    assert night.with_releases(page, night.REPORT.read_text()) == page
    assert {part.release for part in PARTS.values()} - {""} == KUBERNETES.keys()


def test_readme_names_the_releases_that_are_built_for_each_change() -> None:
    script = (ROOT / "hack/test.sh").read_text()
    new, old = re.findall(r"\b(?:NEW|OLD)=([\d.]+)", script)
    assert f"Each change is tested on {new} and {old}" in README
    tested = f"on {KUBERNETES[new]}, and the DaemonSet, pods, UltraServers and rights on {KUBERNETES[old]}"
    assert tested in " ".join(night.COMPATIBILITY.read_text().split())


def test_readme_ticks_only_releases_with_results() -> None:
    """A release has a result if a suite ran on it, or if `make test` runs on it for each change."""
    ticked = re.search(r"^- \[x\] Kubernetes ([\d., and]+) with real kubelets", README, re.MULTILINE)
    assert ticked is not None
    page = night.REPORT.read_text().partition(night.HISTORY)[0]
    results = {match[1]: match[2].strip() for match in night.LINE.finditer(page)}
    ran = {part.release for name, part in PARTS.items() if results.get(name, night.NOT_RUN) != night.NOT_RUN}
    each_change = set(re.findall(r"\b(?:NEW|OLD)=([\d.]+)", (ROOT / "hack/test.sh").read_text()))
    assert {"1.34", "1.37"} <= set(re.findall(r"\d\.\d+", ticked[1])) <= ran | each_change


def test_readme_shows_the_example_of_a_pod() -> None:
    block = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert block is not None
    example = (ROOT / "deploy/examples/1x4-connected-devices.yaml").read_text()
    assert list(fast_yaml.load_all(block[1])) == list(fast_yaml.load_all(example))


def test_template_without_pods_is_not_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "The file must contain a pod, not only a template" in (ROOT / "docs/faq.md").read_text().replace("\n", " ")
    file = tmp_path / "template.yaml"
    file.write_text(yaml.safe_dump(small_clusters.template("four", 4)))
    assert cli.main(["simulate", str(file), "--fleet", "1 x trn2.48xlarge"]) == 2
    assert "no pods to place" in capsys.readouterr().err


def test_workload_reason_is_shown_without_wide() -> None:
    text = (ROOT / "deploy/crds/neuron.aws.com_neuronultraserverworkloads.yaml").read_text()
    for version in fast_yaml.load(text)["spec"]["versions"]:
        columns = {each["name"]: each.get("priority", 0) for each in version["additionalPrinterColumns"]}
        assert (columns["State"], columns["Reason"], columns["Message"]) == (0, 0, 1)
    page = (ROOT / "docs/ultraservers.md").read_text()
    assert "shows the state and its reason, with `-o wide` also the message" in page


def test_runbooks_name_the_commands_that_show_it() -> None:
    """`doctor` prints the holder of the Lease, and `topology` the pod that has a device; `status` prints neither."""
    page = (ROOT / "docs/runbooks.md").read_text()
    assert "`neuron-dra doctor` names the leader" in page
    assert "or `neuron-dra topology NODE`" in page
    assert "`neuron-dra status`" not in page


def test_times_of_the_page_about_failures_are_the_defaults() -> None:
    page = " ".join((ROOT / "docs/node-failure.md").read_text().split())
    controller, plugin = ControllerSettings(), PluginSettings()
    assert f"`--node-failure-grace`, {controller.node_failure_grace.seconds // 60} minutes" in page
    assert f"`--fault-grace`, {controller.fault_grace.seconds // 60} minutes" in page
    assert f"`--tag-timeout`, {controller.tag_timeout.seconds} s" in page
    assert f"`--unhealthy-device-hold-seconds`, {plugin.unhealthy_device_hold_seconds}" in page
    assert (controller.outage_nodes, controller.restart_limit) == (3, 3)
    assert f"at least three nodes and more than {controller.outage_percent} %" in page
    assert "at most three times in a row" in page


def test_the_monitoring_page_names_metrics_and_alerts_that_exist() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    metrics, runbooks = (ROOT / "docs/metrics.md").read_text(), (ROOT / "docs/runbooks.md").read_text()
    named = set(re.findall(r"`(neuron_(?:dra|ultraserver)_\w+)`", page))
    assert len(named) > 5
    assert {name for name in named if f"| `{name}` |" not in metrics} == set()
    alerts = set(re.findall(r"`(Neuron\w+)`", page))
    assert len(alerts) > 5
    assert {name for name in alerts if f"### {name}\n" not in runbooks} == set()


def alert_rules() -> dict[str, dict[str, Any]]:
    """Return the rules of the chart's alerts by name."""
    files = sorted((CHART / "files/alerts").glob("*.yaml"))
    groups = [group for path in files for group in fast_yaml.load(path.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_the_monitoring_page_has_the_severities_of_its_alerts() -> None:
    severities = {name: rule["labels"]["severity"] for name, rule in alert_rules().items()}
    rows = re.findall(r"^\| `(Neuron\w+)` \| (\w+) \|", (ROOT / "docs/monitoring.md").read_text(), re.MULTILINE)
    assert len(rows) == 5
    assert dict(rows).items() <= severities.items()


def test_each_alert_says_when_it_fires() -> None:
    """In the table of docs/monitoring.md and in its runbook, from the comment above its rule."""
    rules = alert_rules()
    alerts = {alert.name: alert for alert in docs.alerts()}
    assert list(alerts) == list(rules)
    assert len(alerts) == 24
    runbooks = (ROOT / "docs/runbooks.md").read_text()
    for name, rule in rules.items():
        number, unit = rule["for"][:-1], {"s": "second", "m": "minute", "h": "hour"}[rule["for"][-1]]
        assert alerts[name].severity == rule["labels"]["severity"]
        assert alerts[name].duration == ("" if number == "0" else f"{number} {unit}{'s' if number != '1' else ''}")
        assert set(numbers(alerts[name].cause)) <= set(numbers(rule["expr"])), "the comment has another threshold"
        severity = f"Severity: {rule['labels']['severity']}. The alert fires when {alerts[name].cause}"
        assert f"### {name}\n\n{severity}" in runbooks


def test_readme_has_the_report_s_time_of_a_reservation() -> None:
    [*_, largest, _target] = cells("reports/scale.md", "8 nodes: to Allocated, p99 (largest of 20)")
    assert f"the slowest of 20 reservations of 8 nodes took {largest}" in README


def test_differences_between_schedulers_are_on_the_page() -> None:
    page = (ROOT / "docs/how-commands-look.md").read_text()
    for each in semantics.DIFFERENCES:
        assert f"| {versions.text(each.since)} | {each.before} | {each.after} |\n" in page
