"""Readings of a node's hardware, without interpretation: each is a value, or the reason why there is none.

node/hardware/sysfs.py reads them; core/topology.py and core/health.py interpret them. Sources: aws-neuron-driver,
neuron_cdev.c (sysfs class and device files) and neuron_sysfs_metrics.c (counters).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from neuron_dra.core import names
from neuron_dra.core.kernel_driver import DriverState


class Unread(enum.Enum):
    """Why there is no value; neither reason counts as zero, as healthy, or as a link that is up or down."""

    BUSY = "busy"  # the kernel driver does not have the value yet
    UNKNOWN = "unknown"  # the file is absent, unreadable, or contains "not applicable"


NO_SERIAL: Final = ""
"""The serial number of a device whose firmware does not answer: the file is there, and its line is empty."""

ALL_ONES: Final = "f" * 16
"""The serial number of a device that is not on the bus any more: every read of it returns ones."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The readings of one Neuron device.

    - `device_id`: N of /dev/neuronN.
    - `connected`: ids of the devices to which this end reports a link, in the driver's order.
    - `dev`: (major, minor) of the device file.

    - `serial`: 16 hex digits, NO_SERIAL if the device's firmware gave none.

    The kernel driver asks the firmware for each value when it is read. Nothing here sets counters back.
    """

    device_id: int
    core_count: int | Unread = Unread.UNKNOWN  # physical NeuronCores
    connected: tuple[int, ...] | Unread = Unread.UNKNOWN
    dev: tuple[int, int] | None = None
    device_file: bool | None = None  # /dev/neuronN exists on the host; None if the host's /dev is not visible
    reset_state: int | Unread = Unread.UNKNOWN  # 0 resetting, 1 ready, 2 invalid
    serial: str | Unread = Unread.UNKNOWN
    sram_ecc_uncorrected: int | Unread = Unread.UNKNOWN
    mem_ecc_uncorrected: int | Unread = Unread.UNKNOWN  # on Trn2 and later: errors that cannot be repaired
    mem_ecc_repairable: int | Unread = Unread.UNKNOWN  # errors that reloading the kernel driver repairs
    unhealthy_components: tuple[str, ...] | Unread = Unread.UNKNOWN
    heartbeat: int | Unread = field(default=Unread.UNKNOWN, compare=False)  # of the firmware's health check
    hangs: bool = False  # it could not be read: the values, if any, are from an earlier reading
    found: tuple[str, ...] = ()  # the values that were found by the name of their file, by that name


DEFAULT_SERVER_ID: Final = f"{1:016x}"
"""The id that the kernel driver gives every PDS node unless its parameter is set, so that it identifies none."""

RUNTIME_MODES: Final[Mapping[int, tuple[int, ...]]] = {1: (4,), 2: (3, 2), 4: (1,)}
"""By number of nodes, the runtime's modes for such a group, best first (1=X4, 2=X2H, 3=X2V, 4=X1)."""


def group_sizes(modes: Iterable[int]) -> list[int]:
    """Return the numbers of nodes, in ascending order, for which the runtime has one of these modes."""
    offered = set(modes)
    sizes = []
    for nodes, choices in RUNTIME_MODES.items():
        if not offered.isdisjoint(choices):
            sizes.append(nodes)
    return sizes


@dataclass(frozen=True, slots=True)
class UltraServerFacts:
    """The sysfs class attributes of an UltraServer node; ids that read -1 or all zeros are UNKNOWN.

    `modes` are the runtime's mode numbers; RUNTIME_MODES says what each stands for. None at all mean that the kernel
    driver does not know the instance type as one of UltraServers.
    """

    modes: tuple[int, ...] | Unread = Unread.UNKNOWN
    node_id_2: int | Unread = Unread.UNKNOWN
    node_id_4: int | Unread = Unread.UNKNOWN
    server_id_2: str | Unread = Unread.UNKNOWN
    server_id_4: str | Unread = Unread.UNKNOWN
    node_id: int | Unread = Unread.UNKNOWN
    reservation_id: str | Unread = Unread.UNKNOWN


@dataclass(frozen=True, slots=True)
class NumaFacts:
    """NUMA nodes of PCI functions.

    - `efa`: function and NUMA node of those that may be EFA interfaces; one without a NUMA node is not in it.
    - `neuron`: the NUMA node of the functions that are bound to the kernel driver; None if they differ or one has none.
    """

    efa: tuple[tuple[str, int], ...] = ()
    neuron: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All readings from one node's sysfs, /dev and DMI.

    - `product_name`: from DMI, on EC2 the instance type.
    - `driver_version`: of the kernel driver, as it reports it.
    - `devices`: in the order of their ids.
    - `hanging`: the paths whose read blocks, relative to the root.
    - `found`: the paths of values that were found by the name of their file, relative to the root.
    - `unread`: the names of files that no device, or the class, has where they are known or anywhere else.
    - `vanished`: the kernel driver's folders are not there; `devices` are those of an earlier reading, if any.
    - `driver_state`: unless the driver is loaded, `devices` are at most those of an earlier reading.
    - `devices_so_far`: the number of devices while the driver loads.
    """

    product_name: str | None
    driver_version: str | None
    devices: tuple[DeviceFacts, ...]
    ultraserver: UltraServerFacts = field(default_factory=UltraServerFacts)
    hanging: tuple[str, ...] = ()
    numa: NumaFacts = field(default_factory=NumaFacts)
    found: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    vanished: bool = False
    driver_state: DriverState = DriverState.LOADED
    devices_so_far: int = 0


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The labels of the Node object that matter here; None for a label that it does not have.

    `network_layers` are EC2's instance topology, from the layer that most instances share to the nearest one.
    """

    instance_type: str | None = None
    network_layers: tuple[str | None, str | None, str | None] = (None, None, None)
    capacity_block_id: str | None = None

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> NodeLabels:
        """Return these labels out of all `labels` of a Node; an empty value counts as absent."""
        layer_1, layer_2, layer_3 = (labels.get(label) or None for label in names.NETWORK_LAYER_LABELS)
        return cls(
            labels.get(names.INSTANCE_TYPE_LABEL) or None,
            (layer_1, layer_2, layer_3),
            labels.get(names.CAPACITY_BLOCK_LABEL) or None,
        )
