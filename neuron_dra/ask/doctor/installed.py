"""Checks what is installed in a cluster: versions, custom resources, policies, classes, and the controller. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import Final

from neuron_dra.api import objects
from neuron_dra.ask.doctor import counters, crd_fields, requested
from neuron_dra.ask.doctor.crd_fields import CrdRule
from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.doctor.seen import BINDINGS, CRDS, LEASE, LEASES, POLICIES, BindingView, LeaseView, Seen
from neuron_dra.ask.read.claim_views import DeviceClassView
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.views import ConditionedObject
from neuron_dra.ask.render import words
from neuron_dra.ask.world import unseen
from neuron_dra.core import names, program, versions
from neuron_dra.core.wire import Wire

CONFIGURATION_POLICY: Final = "neuron-dra-driver-configuration"
"""It may only warn: prepare rejects the same values."""
DRIVER_POLICIES: Final = ("neuron-dra-driver-own-resourceslices", CONFIGURATION_POLICY)
CONTROLLER_POLICIES: Final = tuple(
    f"neuron-dra-driver-{name}"
    for name in (
        "reserved-templates",
        "reserved-claims",
        "reserved-pods",
        "ultraserver-status",
        "workload-status",
        "controller-nodes",
        "controller-services",
        "controller-endpointslices",
        "namespace-limits",
        "block-ends",
        "controller-pods",
        "jobs-reserve",
        "workload-priority",
    )
)
LEASE_AGE_S: Final = 60.0
"""The leader renews its Lease every few seconds; older than this, no controller works."""


def lines(seen: Seen) -> Iterator[Line]:
    """Yield the line of each check."""
    controllers = [pod for pod in seen.snapshot.all("Pod") if _is_controller(pod)]
    yield _kubernetes(seen)
    yield from counters.lines(seen)
    yield from _classes(seen, expected=bool(controllers))
    yield from _crds(seen, expected=bool(controllers))
    yield _policies(seen, controller=bool(controllers))
    yield _controller(seen, controllers)
    yield from _lease(seen, expected=bool(controllers))
    yield from _damaged(seen)


def _is_controller(pod: Wire) -> bool:
    labels = PodView.of(pod).metadata.labels
    return any("neuron-ultraserver" in str(labels.get(key, "")) for key in ("app", "app.kubernetes.io/name"))


def _kubernetes(seen: Seen) -> Line:
    area = "Kubernetes"
    if not seen.version:
        return unknown(area, f"the version of the API server is unknown: {seen.why_no_version}")
    release = versions.parse(seen.version)
    tested = f"{versions.text(versions.OLDEST)} to {versions.text(versions.NEWEST)}"
    if not seen.serves_v1 or (release is not None and release < versions.OLDEST):
        lacks = "" if seen.serves_v1 else " and does not serve resource.k8s.io/v1"
        return wrong(area, "KubernetesTooOld", f"the API server is {seen.version}{lacks}", f"use {tested}")
    if release is None or release > versions.NEWEST:
        return unknown(area, f"the API server is {seen.version}; this release was tested with {tested}")
    return ok(area, f"the API server is {seen.version}")


def _classes(seen: Seen, *, expected: bool) -> Iterator[Line]:
    area = "class"
    if (why := _unread(seen, "DeviceClass")) is not None:
        yield unknown(area, f"DeviceClasses: {why}")
        return
    todo = "apply the DeviceClasses of this release (deploy/manifests/20-deviceclasses.yaml, or the chart)"
    for shipped in objects.DEVICE_CLASSES:
        name = shipped["metadata"]["name"]
        device_class = seen.snapshot.get("DeviceClass", name)
        if device_class is None and (name == names.DRIVER or expected):
            yield wrong(area, "ClassMissing", f"the DeviceClass {name} does not exist", todo)
        elif device_class is not None and _selection(device_class) != _selection(shipped):
            text = f"the DeviceClass {name} is not that of this release: {_cel(device_class)}"
            yield wrong(area, "ClassEdited", text, todo)
        elif device_class is not None and DeviceClassView.of(device_class).spec.config:
            text = f"the DeviceClass {name} has configuration, which all claims of the class get"
            yield wrong(area, "ClassEdited", text, todo)
        elif device_class is not None:
            yield ok(area, f"the DeviceClass {name} is that of this release")


def _expressions(device_class: Wire) -> list[str]:
    expressions = []
    for selector in DeviceClassView.of(device_class).spec.selectors:
        expressions.append(selector.cel.expression)
    return expressions


def _cel(device_class: Wire) -> str:
    return " && ".join(_expressions(device_class)) or "it has no selector, so it selects the devices of all drivers"


def _selection(device_class: Wire) -> str:
    return re.sub(r"\s+", "", " && ".join(_expressions(device_class))).replace('"', "'")


def _crds(seen: Seen, *, expected: bool) -> Iterator[Line]:
    area = "CRD"
    if CRDS in seen.unread:
        yield unknown(area, f"CustomResourceDefinitions: {seen.unread[CRDS]}")
        return
    todo = "apply the CRDs of this release: kubectl apply --server-side -f deploy/crds"
    for name, paths in crd_fields.wanted().items():
        definition, rule = seen.named(CRDS, name), crd_fields.RULES.get(name, crd_fields.USUAL)
        if definition is None and rule.optional:
            yield ok(area, f"{name} does not exist; only {rule.needed_by} need it", "NotInstalled")
        elif definition is None and expected:
            yield wrong(area, "CrdMissing", f"{name} does not exist, and {rule.needed_by} needs it", todo)
        elif definition is None and (why := _unread(seen, "Pod")) is not None:
            yield unknown(
                area, f"{name} does not exist; whether the UltraServer controller runs is unknown: {why}", todo
            )
        elif definition is None:
            yield ok(area, f"{name} does not exist; only {rule.needed_by} needs it", "NotInstalled")
        else:
            yield _crd(area, name, rule, paths, definition, todo)


def _crd(area: str, name: str, rule: CrdRule, paths: Sequence[str], definition: Wire, todo: str) -> Line:
    served = crd_fields.schemas(definition)
    if missing := [version for version in rule.versions if version not in served]:
        return wrong(area, "CrdOutdated", f"{name} does not serve {' and '.join(missing)}", todo)
    if lost := crd_fields.dropped(paths, definition):
        text = f"{name} is of another release: the API server drops {words.listed(lost)}"
        return wrong(area, "CrdOutdated", text, todo)
    for condition in ConditionedObject.of(definition).status.conditions:
        if condition.type == "Established" and condition.status != "True":
            text = f"the API server does not serve {name}: {condition.message or condition.reason}"
            return wrong(area, "CrdNotServed", text, f"kubectl describe crd {name}")
    return ok(area, f"{name} keeps all {len(paths)} fields")


def _policies(seen: Seen, *, controller: bool) -> Line:
    area = "policy"
    for kind in (POLICIES, BINDINGS):
        if kind in seen.unread:
            return unknown(area, f"{kind}: {seen.unread[kind]}")
    policy_names = (*DRIVER_POLICIES, *(CONTROLLER_POLICIES if controller else ()))
    bound = set()
    for raw_binding in seen.objects.get(BINDINGS, ()):
        spec = BindingView.of(raw_binding).spec
        name, actions = spec.policy_name, spec.validation_actions
        if "Deny" in actions or (name == CONFIGURATION_POLICY and "Warn" in actions):
            bound.add(name)
    missing = [name for name in policy_names if seen.named(POLICIES, name) is None]
    not_bound = [name for name in policy_names if name not in missing and name not in bound]
    todo = "apply the admission policies of this release (the chart, or the -polic*.yaml files of deploy/manifests)"
    if missing:
        text = f"missing: {words.listed(missing)}; docs/security.md has what they prevent"
        return wrong(area, "PolicyMissing", text, todo)
    if not_bound:
        text = f"no ValidatingAdmissionPolicyBinding puts into force: {words.listed(not_bound)}"
        return wrong(area, "PolicyNotBound", text, todo)
    if (why := _unread(seen, "Pod")) is not None and not controller:
        return unknown(area, f"whether the UltraServer controller runs, which needs more policies, is unknown: {why}")
    if seen.version.endswith(versions.EMBEDDED):
        text = (
            f"all {len(policy_names)} admission policies are stored and bound; this API server does not evaluate them"
        )
        return ok(area, text)
    return ok(area, f"all admission policies are in force: {len(policy_names)}")


def _controller(seen: Seen, controllers: Sequence[Wire]) -> Line:
    area = "controller"
    if (why := _unread(seen, "Pod")) is not None:
        return unknown(area, f"Pods: {why}")
    workloads = seen.snapshot.all("NeuronUltraServerWorkload")
    ready = [pod for pod in controllers if PodView.of(pod).is_ready]
    if ready:
        return ok(area, f"{words.count(len(ready), 'pod')} of the UltraServer controller Ready")
    if controllers:
        meta = PodView.of(controllers[0]).metadata
        pod = f"{meta.namespace}/{meta.name}"
        text = f"no pod of the UltraServer controller is Ready, such as {pod}"
        return wrong(area, "ControllerNotReady", text, f"{program.NAME} why pod/{meta.name} -n {meta.namespace}")
    if workloads:
        text = f"{words.count(len(workloads), 'NeuronUltraServerWorkload')}, and no pod of the UltraServer controller"
        return wrong(area, "ControllerMissing", text, "install it: ultraserverOperator.enabled=true in the chart")
    if (why := _unread(seen, "NeuronUltraServerWorkload")) is not None:
        return unknown(area, f"the UltraServer controller does not run; whether it is needed is unknown: {why}")
    return ok(area, "the UltraServer controller is not installed, and nothing needs it", "NotInstalled")


def _lease(seen: Seen, *, expected: bool) -> Iterator[Line]:
    area = "lease"
    if not expected:
        return
    if LEASES in seen.unread:
        yield unknown(area, f"the Lease {LEASE}: {seen.unread[LEASES]}")
        return
    raw_lease = seen.named(LEASES, LEASE)
    if raw_lease is None:
        yield unknown(area, f"there is no Lease {LEASE}: leader election is off, or it is another operator")
        return
    lease = LeaseView.of(raw_lease).spec
    holder, renewed = lease.holder_identity, _time(lease.renew_time)
    todo = "look at the logs of the UltraServer controller's pods"
    if not holder:
        yield wrong(area, "LeaseFree", f"no replica of the controller holds the Lease {LEASE}", todo)
    elif renewed is None or seen.now is None:
        yield unknown(area, f"{holder} holds the Lease {LEASE}; when it was renewed, or the time now, is unknown")
    elif (age := (seen.now - renewed).total_seconds()) > LEASE_AGE_S:
        text = f"{holder} holds the Lease {LEASE} and renewed it {age:.0f} s ago: the controller does nothing"
        yield wrong(area, "LeaseOld", text, todo)
    elif age < -LEASE_AGE_S:
        text = f"{holder} renewed the Lease {LEASE} {-age:.0f} s in the future: its node's clock is wrong"
        yield wrong(area, "ClockWrong", text, "correct the clock of that node (chrony)")
    else:
        yield ok(area, f"{holder} holds the Lease {LEASE}")


def _damaged(seen: Seen) -> Iterator[Line]:
    """Yield a line for objects of which values, or the whole, cannot be decoded."""
    damaged = [*seen.snapshot.damaged, *seen.damaged]
    parts = [f"{damaged_object.kind} {damaged_object.key}" for damaged_object in damaged if damaged_object.paths]
    if parts:
        text = f"values that their author wrote cannot be decoded, and are left out: {words.listed(parts)}"
        yield unknown("objects", text, "nothing else is affected; have their author correct or delete them")
    whole = []
    for damaged_object in damaged:
        if not damaged_object.paths:
            whole.append(f"{damaged_object.kind} {damaged_object.key} ({damaged_object.why})")
    if whole:
        text = f"objects cannot be decoded, and are left out: {words.listed(whole)}"
        yield wrong("objects", "Unreadable", text, "correct or delete them")
    for kind, why in seen.unread.items():
        if kind in requested.RESOURCES:
            yield unknown("objects", f"whether each {kind} can be read: {why}")


def _time(text: object) -> datetime.datetime | None:
    try:
        time = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    if time.tzinfo is not None:
        return time
    return time.replace(tzinfo=datetime.UTC)


def _unread(seen: Seen, kind: str) -> str | None:
    """Return why not all objects of a kind of the snapshot could be read; None if they were, or if there are none."""
    return unseen.kinds(seen.snapshot).get(kind)
