"""The reasons of the conditions of workloads, and of NeuronUltraServers, that plans write. Pure.

Their meanings for users are in `neuron_dra/core/vocabulary`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """A reason in CamelCase; it equals the text in the API."""

    # It has what it requests.
    ALLOCATED = "Allocated"
    # It waits for nodes.
    NO_ULTRASERVERS = "NoUltraServers"
    CREATING_ULTRASERVERS = "CreatingUltraServers"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    CAPACITY_SPLIT = "CapacitySplit"
    EXCEEDS_FLEET = "ExceedsFleet"
    BLOCK_ENDS_TOO_SOON = "BlockEndsTooSoon"
    NOT_QUALIFIED = "NotQualified"
    WAITS_FOR_OLDER = "WaitsForOlder"
    NO_SPARE_GROUP = "NoSpareGroup"
    NAMESPACE_LIMIT = "NamespaceLimit"
    NAMESPACE_UNKNOWN = "NamespaceUnknown"
    TOO_MANY_WAITING = "TooManyWaiting"
    # It waits for what nodes and pods do.
    WAITING_FOR_NODES = "WaitingForNodes"
    WAITING_FOR_RELEASE = "WaitingForRelease"
    WAITING_FOR_PODS = "WaitingForPods"
    EVICTION_BLOCKED = "EvictionBlocked"
    RELEASING = "Releasing"
    DRAINING = "Draining"
    MIGRATING = "Migrating"
    RESTARTING = "Restarting"
    RESTART_LIMIT_EXCEEDED = "RestartLimitExceeded"
    # Somebody must correct something.
    INVALID_SPEC = "InvalidSpec"
    NAME_TOO_LONG = "NameTooLong"
    TEMPLATE_NAME_TAKEN = "TemplateNameTaken"
    UNREADABLE_RESERVATION = "UnreadableReservation"
    RESERVATION_NOT_STORED = "ReservationNotStored"
    FINALIZER_REJECTED = "FinalizerRejected"
    TEMPLATE_REJECTED = "TemplateRejected"
    RESERVATION_NOT_SEEN = "ReservationNotSeen"
    CUSTOM_RESOURCES_OUTDATED = "CustomResourcesOutdated"
    DELETION_WAITS = "DeletionWaits"
    INTERNAL_ERROR = "InternalError"
    # A reserved node has a fault, see `recovery.FAULTS`.
    NODE_GONE = "NodeGone"
    NODE_REPLACED = "NodeReplaced"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNHEALTHY = "NodeUnhealthy"
    ULTRASERVER_CHANGED = "UltraServerChanged"
    TAG_LOST = "TagLost"
    SHAPE_CHANGED = "ShapeChanged"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    LINK_DOWN = "LinkDown"
    NODE_CORDONED = "NodeCordoned"
    NODE_TAINTED = "NodeTainted"
    UNQUALIFIED = "Unqualified"
    SLICE_MISSING = "SliceMissing"
    FOREIGN_CLAIM = "ForeignClaim"
    PODS_UNSCHEDULABLE = "PodsUnschedulable"
    # Nothing is wrong.
    NO_PROBLEM = "NoProblem"
    ALL_NODES_READY = "AllNodesReady"


WAITING: Final = (
    Reason.WAITS_FOR_OLDER,
    Reason.INSUFFICIENT_CAPACITY,
    Reason.CAPACITY_SPLIT,
    Reason.CREATING_ULTRASERVERS,
)
"""The reasons of workloads that wait for nodes which the fleet has."""
WAITS_FOR_NODES: Final = frozenset(
    {
        Reason.INSUFFICIENT_CAPACITY,
        Reason.CAPACITY_SPLIT,
        Reason.NO_SPARE_GROUP,
        Reason.NOT_QUALIFIED,
        Reason.BLOCK_ENDS_TOO_SOON,
        Reason.WAITS_FOR_OLDER,
    }
)
"""The reasons of workloads that might get nodes if tests of UltraServers ended."""
WAITS_FOR_QUEUE: Final = frozenset(
    {
        "QueueRequired",
        "QueueUnknown",
        "WaitingForQuota",
        "QueueFeatureUnsupported",
        "QueueFinished",
        "QueueDeactivated",
        "QuotaRevoked",
        "QuotaGivenBack",
    }
)
"""The reasons of workloads without nodes that wait for their queue, from `controller.queue`."""
