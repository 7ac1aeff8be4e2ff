"""What the kernel driver counts for each Neuron device and core, and which claims and pods have them.

A missing or malformed file has no value, never zero. Counters of executions start when the kernel driver loads, not
with a pod; those of memory errors are the firmware's, and a load does not set them back.
Sources: aws-neuron-driver, neuron_sysfs_metrics.c (files); AWS's Neuron sysfs user guide (meaning and units).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from neuron_dra.core import names
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.in_use import ListedPod
from neuron_dra.core.members import Cores, cores_each

CORES: Final = 8  # the most physical cores of a device
RESULTS: Final = (
    *("success", "failure", "timeout", "exec_bad_input", "hw_error"),
    *("execute_completed_with_error", "execute_completed_with_num_error", "execute_failed_to_queue"),
    *("generic_error", "resource_error", "resource_nc_error", "invalid_error", "oob_error"),
    *("unsupported_neff_version", "hw_collectives_error", "hw_hbm_ue_error", "hw_repairable_hbm_ue_error"),
    *("hw_nc_ue_error", "hw_dma_abort_error", "execute_sw_nq_overflow", "execute_sw_semaphore_error"),
    *("execute_sw_event_error", "execute_sw_psum_collision", "execute_sw_sequencer_fatal"),
)
"""Results of the runtime's calls. Before kernel driver 2.30.2 a process's calls are counted when it ends."""
MEMORY: Final = (
    *("tensors", "constants", "model_code", "model_shared_scratchpad", "nonshared_scratchpad", "runtime_memory"),
    *("driver_memory", "collectives", "notifications", "dma_rings", "uncategorized"),
)
"""Categories of a core's device memory."""
HOST_MEMORY: Final = (
    *("application_memory", "constants", "dma_buffers", "dma_rings", "driver_memory", "notifications", "tensors"),
    "uncategorized",
)
"""Categories of a device's host memory."""
ECC: Final[Mapping[str, str]] = {
    "sram_uncorrected": "sram_ecc_uncorrected",
    "sram_corrected": "sram_ecc_corrected",
    "memory_uncorrected": "mem_ecc_uncorrected",
    "memory_repairable": "mem_ecc_repairable_uncorrected",
    "memory_corrected": "mem_ecc_corrected",
}
"""Kinds of memory errors, with the names of their files."""
_CORE_FILES: Final = (
    "stats/other_info/nc_time_in_use/total",
    "stats/other_info/flop_count/total",
    *(f"stats/status/{result}/total" for result in RESULTS),
    *(f"stats/memory_usage/device_mem/{category}/total" for category in MEMORY),
)
_DEVICE_FILES: Final = (
    "stats/power/utilization",
    *(f"stats/hardware/{name}" for name in ECC.values()),
    *(f"stats/memory_usage/host_mem/{category}/total" for category in HOST_MEMORY),
)
_DIGITS: Final = 20  # of 64 bits
_POWER_VALID: Final = "POWER_STATUS_VALID"

Texts = Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class CoreCounters:
    """The counters of one physical NeuronCore.

    - `busy_us`: microseconds for which it executed; `flops`: floating-point operations.
    - `results`: calls by result; `memory`: bytes of device memory by category.
    """

    busy_us: int | None
    flops: int | None
    results: Mapping[str, int]
    memory: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Power:
    """Power in the last minute, as percentages of the device's maximum."""

    least: float
    most: float
    average: float


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """The counters of one Neuron device; `cores` by physical core, without cores that have no counter."""

    device_id: int
    power: Power | None
    ecc: Mapping[str, int]
    host_memory: Mapping[str, int]
    cores: Mapping[int, CoreCounters]


def files(*, cores: bool) -> tuple[tuple[str, ...], ...]:
    """Return the files to read of each device, as groups of one path; with `cores` also those of each core."""
    if cores:
        of_cores = []
        for core in range(CORES):
            for path in _CORE_FILES:
                of_cores.append(f"neuron_core{core}/{path}")
    else:
        of_cores = []
    return tuple((path,) for path in (*_DEVICE_FILES, *of_cores))


def counters(device_id: int, texts: Texts) -> DeviceCounters:
    """Return the counters of a device from the contents of `files`, in that order."""
    power, *rest = texts
    ecc, rest = rest[: len(ECC)], rest[len(ECC) :]
    host, rest = rest[: len(HOST_MEMORY)], rest[len(HOST_MEMORY) :]
    size = len(_CORE_FILES)
    counters_by_core = {}
    for number in range(0, len(rest), size):
        counters_by_core[number // size] = _core(rest[number : number + size])
    return DeviceCounters(
        device_id=device_id,
        power=_power(power),
        ecc=_numbers(ECC, ecc),
        host_memory=_numbers(HOST_MEMORY, host),
        cores={core: core_counters for core, core_counters in counters_by_core.items() if core_counters is not None},
    )


def _core(texts: Texts) -> CoreCounters | None:
    if all(text is None for text in texts):
        return None
    busy, flops, *rest = texts
    results, memory = rest[: len(RESULTS)], rest[len(RESULTS) :]
    return CoreCounters(_number(busy), _number(flops), _numbers(RESULTS, results), _numbers(MEMORY, memory))


def _numbers(keys: Iterable[str], texts: Texts) -> dict[str, int]:
    value_by_key = {key: _number(text) for key, text in zip(keys, texts, strict=True)}
    return {key: value for key, value in value_by_key.items() if value is not None}


def _number(text: bytes | None) -> int | None:
    word = (text or b"").strip()
    if word.isdigit() and len(word) <= _DIGITS:
        return int(word)
    return None


def _power(text: bytes | None) -> Power | None:
    """Return the power from `status,time,min,max,avg`; None if there is no valid sample."""
    words = (text or b"").decode("ascii", errors="replace").strip().split(",")
    if len(words) != 5 or words[0] != _POWER_VALID:
        return None
    try:
        least, most, average = (float(word) for word in words[2:])
    except ValueError:
        return None
    if all(0 <= percent <= 100 for percent in (least, most, average)):
        return Power(least, most, average)
    return None


@dataclass(frozen=True, slots=True)
class User:
    """A claim that has a device or core, and one pod and container that use it; empty if they are not known."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""
    workload: str = ""


WHO: Final = tuple(user_field.name for user_field in fields(User))
"""The labels of series that name a user: the first one of those that share a device or core."""
USERS: Final = "users"
"""The label with the number of the users: pods, and claims that no pod is known to have."""


@dataclass(frozen=True, slots=True)
class Users:
    """Who has each device and each physical core: all claims, pods and containers that share it."""

    devices: Mapping[int, tuple[User, ...]]
    cores: Mapping[tuple[int, int], tuple[User, ...]]

    def of_device(self, device_id: int) -> tuple[User, ...]:
        """Return who has any part of a device."""
        return self.devices.get(device_id, ())

    def of_core(self, device_id: int, core: int) -> tuple[User, ...]:
        """Return who has a physical core of a device."""
        return self.cores.get((device_id, core), ())


def users(claims: Iterable[PreparedClaim], pods: Iterable[ListedPod], spec: InstanceType | None) -> Users:
    """Return who has the devices and cores of a node; `pods` are those that the kubelet lists.

    A claim that the kubelet does not list has the pod for which it was prepared, without a container. Claims with
    adminAccess, which monitoring uses, do not count.
    """
    listed: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for pod in pods:
        for claim in pod.claims:
            if any(driver == names.DRIVER for driver, _, _ in claim.devices):
                listed.setdefault((claim.namespace, claim.name), []).append((pod.name, claim.container))
    devices: dict[int, set[User]] = {}
    cores: dict[tuple[int, int], set[User]] = {}
    for prepared_claim in claims:
        ref = prepared_claim.ref
        claim_users = {
            User(ref.namespace, pod, container, ref.name, prepared_claim.workload)
            for pod, container in listed.get((ref.namespace, ref.name)) or [(prepared_claim.pod, "")]
        }
        for device in prepared_claim.devices:
            if device.admin_access:
                continue
            for device_id in device.device_ids:
                devices.setdefault(device_id, set()).update(claim_users)
            for part in _parts(device.device_ids, device.cores, spec):
                cores.setdefault(part, set()).update(claim_users)
    return Users(
        {device_id: _sorted(device_users) for device_id, device_users in devices.items()},
        {part: _sorted(core_users) for part, core_users in cores.items()},
    )


def _sorted(unsorted: Iterable[User]) -> tuple[User, ...]:
    return tuple(sorted(unsorted, key=lambda user: (user.namespace, user.claim, user.pod, user.container)))


def _parts(device_ids: Iterable[int], cores: Cores | None, spec: InstanceType | None) -> Iterator[tuple[int, int]]:
    """Yield the physical cores of whole devices, or of a range of the node's logical cores at the default size."""
    if cores is None or spec is None:
        yield from ((device_id, core) for device_id in device_ids for core in range(CORES))
        return
    per_device = cores_each(spec)
    for logical in cores.all:
        first = logical % per_device * spec.lnc_default
        yield from ((logical // per_device, core) for core in range(first, first + spec.lnc_default))
