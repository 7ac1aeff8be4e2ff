"""What `doctor` has read of a cluster, and what it could not read. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from neuron_dra.ask.read.snapshot import DamagedObject, Snapshot
from neuron_dra.ask.read.views import ObjectView
from neuron_dra.core.wire import Wire

CRDS: Final = "CustomResourceDefinition"
POLICIES: Final = "ValidatingAdmissionPolicy"
BINDINGS: Final = "ValidatingAdmissionPolicyBinding"
LEASES: Final = "Lease"
KINDS: Final = (CRDS, POLICIES, BINDINGS, LEASES)
"""Kinds that are read beside those of a snapshot."""
LEASE: Final = "neuron-ultraserver-controller"
NAMESPACE: Final = "neuron-dra-driver"


class BindingSpec(ObjectView, frozen=True):
    """Which policy a binding puts into force, and how."""

    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class BindingView(ObjectView, frozen=True):
    """A ValidatingAdmissionPolicyBinding."""

    spec: BindingSpec = BindingSpec()


class LeaseSpec(ObjectView, frozen=True):
    """Who holds a Lease, and since when."""

    holder_identity: str = ""
    renew_time: str = ""


class LeaseView(ObjectView, frozen=True):
    """A Lease."""

    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True, slots=True)
class Seen:
    """A cluster at one moment.

    - `objects`: those of KINDS, by kind; `unread`: why objects of a kind could not be read.
    - `damaged`: jobs and qualifications of which values, or the whole, cannot be decoded.
    - `version`: of the API server, empty if unknown; `serves_v1`: whether it serves resource.k8s.io/v1.
    - `why_no_version`: why the version is unknown.
    - `now`: the API server's clock; None if unknown.
    """

    snapshot: Snapshot
    objects: Mapping[str, Sequence[Wire]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    damaged: Sequence[DamagedObject] = ()
    version: str = ""
    serves_v1: bool = True
    why_no_version: str = ""
    now: datetime.datetime | None = None

    def named(self, kind: str, name: str) -> Wire | None:
        """Return an object of KINDS, or None."""
        for raw_object in self.objects.get(kind, ()):
            if raw_object["metadata"].get("name") == name:
                return raw_object
        return None
