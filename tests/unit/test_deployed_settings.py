"""`simulate` plans with the settings of the controller's Deployment (4.07, acceptance 4)."""

from __future__ import annotations

import argparse
import datetime
from typing import Any

import pytest
import yaml

from controller import settings as controller_settings
from neuron_dra import plan_settings
from neuron_dra.arguments import go_style
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.simulate.reserved import reserve
from neuron_dra.ask.world import imagined
from neuron_dra.core.node_conditions import FaultCondition
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS
from neuron_dra.setting_table import settings_of
from tests.support.installations import ROOT

NOW = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)
LABELS = {"app.kubernetes.io/name": "neuron-ultraserver-controller", "app.kubernetes.io/component": "controller"}
NAME = f"Deployment {NAMESPACE}/neuron-ultraserver-controller"
DEFAULTS = "settings of the UltraServer controller: the defaults"
RESERVED = "NeuronUltraServerWorkload train: 2 groups of 4 nodes reserved"
NO_SPARE_LEFT = "1 of 2 groups of 4 are free: short of 4 nodes"


def deployment(*arguments: object, **metadata: Any) -> Obj:
    """Return a Deployment of the controller with these arguments."""
    container = {
        "name": "controller",
        "command": ["k8s-neuron-ultraserver-operator"],
        "args": ["--leader-elect", *arguments, "-v=2"],
    }
    meta = {"name": "neuron-ultraserver-controller", "namespace": NAMESPACE, "labels": LABELS, **metadata}
    template = {"spec": {"containers": [{"name": "proxy", "args": ["--tag-timeout=1h"]}, container]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {"template": template}}


def notes(*deployments: Obj) -> list[str]:
    """Return what is said of a workload that needs both UltraServers of a fleet."""
    workload = {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"instanceType": "trn2u.48xlarge", "topologySize": 4, "serverCount": 2},
    }
    items = imagined.fleet("2 x ultraserver trn2u.48xlarge", "test")
    return reserve([workload], snapshot.build([*items, *deployments]), NOW).notes


def test_simulate_plans_with_the_deployed_settings() -> None:
    said, settings = notes(deployment("--spares", "trn2u.48xlarge=1", "--tag-timeout=60s"))
    assert NO_SPARE_LEFT in said
    assert settings == (
        f"settings of the UltraServer controller, from {NAME}: --spares=trn2u.48xlarge=1, else the defaults"
    )
    said, settings = notes(deployment())
    assert RESERVED in said
    assert settings == f"settings of the UltraServer controller, from {NAME}: the defaults"


def test_malformed_arguments_are_named() -> None:
    workload, *problems, settings = notes(
        deployment("--spares=lots", "--speed=3", "--restart-limit=$(LIMIT)", "--queues")
    )
    assert RESERVED in workload
    assert problems == [
        f"{NAME}: --spares=lots: write TYPE=NUMBER,…, such as trn2u.48xlarge=1, with a number of groups of four nodes; "
        "the default is used",
        f"{NAME}: this release has no argument '--speed'; the default is used",
        f"{NAME}: --restart-limit=$(LIMIT): write a whole number, at most 1000; the default is used",
    ]
    assert settings.endswith(f"from {NAME}: the defaults")


@pytest.mark.parametrize(
    "other",
    [
        deployment("--spares=trn2u.48xlarge=1", namespace="ml"),
        deployment("--spares=trn2u.48xlarge=1", labels={}),
        deployment("--spares=trn2u.48xlarge=1", labels={**LABELS, "app.kubernetes.io/component": "limits-watcher"}),
        {**deployment("--spares=trn2u.48xlarge=1"), "apiVersion": "example.com/v1"},
    ],
)
def test_deployments_of_others_do_not_count(other: Obj) -> None:
    """A tenant can create a Deployment with any labels, but not in the namespace of the driver."""
    said, settings = notes(other)
    assert (RESERVED in said, settings) == (True, DEFAULTS)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"template": {"spec": {"containers": [{"name": "controller", "args": [3]}]}}},
            "cannot be read (Expected `str`",
        ),
        ({"template": {"spec": {"containers": 3}}}, "cannot be read (Expected `array`"),
        ({"template": None}, "has no container controller"),
        (None, "has no container controller"),
    ],
)
def test_a_damaged_deployment_gives_the_defaults(spec: object, said: str) -> None:
    _, problem, settings = notes({**deployment(), "spec": spec})
    assert said in problem
    assert problem.endswith("its settings are not used")
    assert settings == DEFAULTS


def test_two_deployments_give_the_defaults() -> None:
    _, problem, settings = notes(deployment("--spares=trn2u.48xlarge=1"), deployment(name="another"))
    assert "are all Deployments of the UltraServer controller: the settings of none are used" in problem
    assert settings == DEFAULTS


def test_arguments_are_read_as_the_controller_reads_them() -> None:
    words = ["--outage-nodes=5", "-fault-grace=4m", "--max-reserved-nodes", "8", "--node-conditions=A=False", "-v", "3"]
    parser = argparse.ArgumentParser()
    controller_settings.add_arguments(parser)
    parsed = parser.parse_args(go_style(words))
    loaded = controller_settings.load(parsed, {}, "host")
    read = plan_settings.of_arguments(words)
    assert read.limits == loaded.limits != DEFAULT_LIMITS
    assert read.fault_conditions == loaded.node_conditions == (FaultCondition("A", "False"),)
    assert read.block_annotation == loaded.block_annotation
    assert (len(read.changed), read.problems) == (4, ())


def test_every_flag_of_the_controller_is_known() -> None:
    flags = {setting.flag.removeprefix("--") for setting in settings_of(controller_settings.ControllerSettings)}
    of_plans = {name.replace("_", "-") for name in plan_settings.SETTINGS}
    assert of_plans | plan_settings.OTHER_FLAGS == flags
    assert not of_plans & plan_settings.OTHER_FLAGS


def test_the_shipped_deployment_is_read() -> None:
    for file in sorted((ROOT / "deploy" / "manifests" / "ultraserver").glob("*.yaml")):
        for item in yaml.safe_load_all(file.read_text()):
            if item and item["kind"] == "Deployment":
                *_, settings = notes(item)
                assert settings == f"settings of the UltraServer controller, from {NAME}: the defaults"
                return
    pytest.fail("no manifest has the controller's Deployment")
