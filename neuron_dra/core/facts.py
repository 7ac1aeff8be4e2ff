"""What was read on a node, unjudged. A reading is a value, or says why there is none."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_dra.core import names


class Unread(enum.Enum):
    """Why there is no value. Neither is ever read as zero, as healthy, or as a link that is up or down."""

    BUSY = "busy"  # the kernel driver is still finding out
    UNKNOWN = "unknown"  # the file is absent, unreadable, or says "not applicable"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One Neuron device. `dev` is (major, minor); counters count since the kernel driver was loaded."""

    device_id: int
    core_count: int | Unread = Unread.UNKNOWN  # physical NeuronCores
    connected: tuple[int, ...] | Unread = Unread.UNKNOWN
    dev: tuple[int, int] | None = None
    node_present: bool = False  # /dev/neuronN exists
    reset_state: int | Unread = Unread.UNKNOWN  # 0 resetting, 1 ready, 2 invalid
    serial: str | Unread = Unread.UNKNOWN
    arch_type: str | Unread = Unread.UNKNOWN
    sram_ecc_uncorrected: int | Unread = Unread.UNKNOWN
    mem_ecc_uncorrected: int | Unread = Unread.UNKNOWN  # on Trn2 and later: that could not be repaired
    mem_ecc_repairable: int | Unread = Unread.UNKNOWN  # repaired when the kernel driver is loaded again
    unhealthy_components: tuple[str, ...] | Unread = Unread.UNKNOWN
    heartbeat: int | Unread = field(default=Unread.UNKNOWN, compare=False)  # of the firmware's health check
    hangs: bool = False  # a read of one of its files does not end: what stands here was read before, if at all


@dataclass(frozen=True, slots=True)
class UltraServerFacts:
    """The class attributes of an UltraServer node; -1 and all-zero ids are UNKNOWN.

    `modes` are the runtime's mode numbers: 1 four nodes, 2 two nodes horizontal, 3 two nodes vertical, 4 one node.
    """

    modes: tuple[int, ...] | Unread = Unread.UNKNOWN
    node_id_2: int | Unread = Unread.UNKNOWN
    node_id_4: int | Unread = Unread.UNKNOWN
    server_id_2: str | Unread = Unread.UNKNOWN
    server_id_4: str | Unread = Unread.UNKNOWN
    node_id: int | Unread = Unread.UNKNOWN
    node_cnt: int | Unread = Unread.UNKNOWN
    reservation_id: str | Unread = Unread.UNKNOWN


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything read from one node's sysfs, /dev and DMI; devices in order of their ids.

    `hanging` are the paths a read of which does not end.
    """

    product_name: str | None
    driver_version: str | None
    devices: tuple[DeviceFacts, ...]
    ultraserver: UltraServerFacts = field(default_factory=UltraServerFacts)
    hanging: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """What the Node object's labels say; None where it has no such label."""

    instance_type: str | None = None
    network_layers: tuple[str | None, str | None, str | None] = (None, None, None)
    capacity_block_id: str | None = None

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> NodeLabels:
        """Pick ours out of a Node's labels."""
        one, two, three = (labels.get(label) or None for label in names.NETWORK_LAYER_LABELS)
        return cls(
            labels.get(names.INSTANCE_TYPE_LABEL) or None,
            (one, two, three),
            labels.get(names.CAPACITY_BLOCK_LABEL) or None,
        )
