"""18.3: the chart's policy for configuration on a real API server, by dry runs. The control plane is enough.

tests/unit/test_configuration_policy.py has the same rows.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.bed.real_cluster import REPOSITORY, BedError, TestBed, eventually
from neuron_dra.core import names
from tests.support.configurations import ROWS, Row, claim, entry, neuron, template

CHART = REPOSITORY / "deploy/helm/neuron-dra"
NAME = "neuron-dra-driver-configuration"
RUN = "neuron-dra-test-run"
WRONG = claim(entry(neuron(logicalNeuronCore=3)))


class Server:
    """The API server, with the policy in force for a namespace that rejects and one that warns."""

    def __init__(self, bed: TestBed, run: str) -> None:
        self._bed = bed
        self._run = run

    def namespace(self, action: str) -> str:
        return f"configuration-{self._run}-{action.lower()}"

    def create(self, item: dict[str, Any], *, action: str = "Deny", verb: str = "create", dry: bool = True) -> str:
        """Return the message of the rejection or the warning, an empty string without."""
        words = [verb, "--namespace", self.namespace(action), "--warnings-as-errors", "-f", "-"]
        try:
            self._bed.kubectl(*words, *(["--dry-run=server"] if dry else []), stdin=json.dumps(item))
        except BedError as err:
            return str(err)
        return ""


def policy(helm: str, run: str, action: str, namespace: str) -> list[dict[str, Any]]:
    """Return the chart's policy and binding for one namespace. It fails closed, so that an error of CEL is seen."""
    values = ("--set", "draDriver.image.repository=r", "--set", f"draDriver.configurationPolicy.action={action}")
    command = [helm, "template", "r", str(CHART), "--kube-version", "1.34.0", *values]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [item for item in yaml.safe_load_all(text) if item and item["metadata"]["name"] == NAME]
    for item in found:
        item["metadata"]["name"] = f"{NAME}-{run}-{action.lower()}"
        if "policyName" in item["spec"]:
            item["spec"]["policyName"] = item["metadata"]["name"]
        else:
            item["spec"]["failurePolicy"] = "Fail"
            labels = {"kubernetes.io/metadata.name": namespace}
            item["spec"]["matchConstraints"]["namespaceSelector"] = {"matchLabels": labels}
    return found


@pytest.fixture(scope="module")
def server(running_bed: TestBed) -> Iterator[Server]:
    path = running_bed.parts.plane.environment()["PATH"].split(":")
    helm = next(str(Path(each, "helm")) for each in path if Path(each, "helm").exists())
    found = Server(running_bed, uuid.uuid4().hex[:8])
    items: list[dict[str, Any]] = []
    for action in ("Deny", "Warn"):
        name = found.namespace(action)
        items.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        items += policy(helm, found._run, action, name)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    running_bed.kubectl("apply", "-f", "-", stdin=listed)
    try:
        for action in ("Deny", "Warn"):
            eventually("the policy is in force", lambda a=action: found.create(WRONG, action=a), 120)
        yield found
    finally:
        running_bed.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", stdin=listed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_claims_and_templates_get_the_message(row: Row, server: Server) -> None:
    for item in (claim(*row.entries), template(*row.entries)):
        found = server.create(item)
        assert bool(found) == bool(row.message), found
        assert row.message in found
        assert not row.message or "denied request: error applying config: " in found


def test_a_warning_lets_the_object_pass(server: Server) -> None:
    """(18.3) kubectl prints the same message, and the object is stored; later updates are not checked."""
    found = server.create(WRONG, action="Warn", dry=False)
    assert "Warning: Validation failed" in found
    assert "error applying config: strict decoding error: " in found
    changed = {**WRONG, "metadata": {"name": "c", "labels": {"a": "b"}}}
    assert server.create(changed, action="Warn", verb="replace") == ""


def test_the_largest_claim_stays_within_the_cost_limit(server: Server) -> None:
    """(18.3) 32 requests, and 32 entries of 10 KiB, each with 900 unknown fields; and the same for another driver."""
    requests = [{"name": f"r{n}", "exactly": {"deviceClassName": names.DRIVER}} for n in range(32)]
    many = {f"f{n:03}": 1 for n in range(900)}

    def largest(driver: str) -> dict[str, Any]:
        entries = [entry(neuron(logicalNeuronCore=1, **many), driver) for _ in requests]
        for number, each in enumerate(entries):
            each["requests"] = [f"r{number}"]
        item = claim(*entries)
        item["spec"]["devices"]["requests"] = requests
        return item

    assert "denied request: error applying config: the configuration" in server.create(largest(names.DRIVER))
    assert server.create(largest("gpu.example.com")) == ""
