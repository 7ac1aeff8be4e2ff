"""The ClusterRole for people who look at a cluster with `kubectl neuron` (34.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuron_dra.ask.doctor import requested
from neuron_dra.ask.read import cluster, job_objects
from neuron_dra.ask.read.job_objects import JobResource
from neuron_dra.kube import requests
from neuron_dra.kube.requests import Resource
from tests.support import fast_yaml

ROLE = "neuron-dra-reader"
OF_DOCTOR = (requests.DEFINITIONS, requests.POLICIES, requests.POLICY_BINDINGS, requests.LEASES)


def rules() -> list[dict[str, Any]]:
    objects = list(fast_yaml.load_all(Path("deploy/manifests/10-rbac.yaml").read_text()))
    [role] = [each for each in objects if each and (each["kind"], each["metadata"]["name"]) == ("ClusterRole", ROLE)]
    found: list[dict[str, Any]] = role["rules"]
    return found


def allowed(resource: Resource | JobResource) -> set[str]:
    of_it = [rule for rule in rules() if resource.group in rule["apiGroups"] and resource.plural in rule["resources"]]
    return {verb for rule in of_it for verb in rule["verbs"]}


def test_readers_may_list_each_kind_of_a_snapshot() -> None:
    missing = [kind for kind, resource in cluster.RESOURCES.items() if "list" not in allowed(resource)]
    assert missing == []


def test_readers_may_read_each_workload_that_why_explains() -> None:
    assert [kind for kind, resource in job_objects.RESOURCES.items() if "get" not in allowed(resource)] == []


def test_readers_may_read_what_doctor_checks() -> None:
    assert [each.plural for each in OF_DOCTOR if not {"get", "list"} <= allowed(each)] == []


def test_readers_may_list_the_jobs_and_qualifications_that_doctor_checks() -> None:
    assert [kind for kind, resource in requested.RESOURCES.items() if "list" not in allowed(resource)] == []


def test_readers_may_change_nothing_and_see_no_secrets() -> None:
    assert {verb for rule in rules() for verb in rule["verbs"]} <= {"get", "list"}
    assert not {"secrets", "configmaps", "pods/proxy", "*"} & {each for rule in rules() for each in rule["resources"]}
