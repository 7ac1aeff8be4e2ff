"""What the kernel driver of each version writes into sysfs: files with contents and modes, as (path, content, mode).

Up to 2.26 it is compared with trees of the real driver (tests/data/kernel-driver); later versions follow the sources
and release notes. Facts: aws-neuron-driver, neuron_cdev.c, neuron_sysfs_metrics.c and neuron_module.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from neuron_dra.core import telemetry
from neuron_dra.core.catalogue import InstanceType, Platform
from neuron_dra.emulation.simulated_files import SimulatedPlace, elected_files, reserved_files

File = tuple[str, str, int]
"""A file: path, content and mode."""

ECC_COUNTERS: Final = ("sram_ecc_uncorrected", "mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected")

BY_PLATFORM: Final = (2, 27)
"""From this version on, the class files depend on the platform; before, every machine has those of Trn2."""

KNOWN_SINCE: Final[Mapping[str, tuple[int, ...]]] = {
    "trn2p.48xlarge": (0,),
    "trn2eu.48xlarge": (0,),
    "trn2u.48xlarge": (0,),
    "trn2u-ac.24xlarge": (2, 25),
    "trn2es.48xlarge": (2, 25),
    "trn2en.24xlarge": (2, 29),
    "trn3s.48xlarge": (2, 25),
    "trn3-dev0.48xlarge": (2, 25),
}
"""Since which version the driver knows that a type forms UltraServers; of all others, since BY_PLATFORM."""

ROUTED_IDS: Final = (0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10)
"""The device ids by routing id, which a Trn3 with four devices has until its driver knows the type."""

_PARAMETERS: Final = {
    "dev_nc_map": 1,
    "dup_helper_enable": 1,
    "force_die_flip": 0,
    "force_userver": 0,
    "mempool_host_memory_size": 33554432,
    "mempool_min_alloc_size": 4096,
    "mempool_small_alloc_max": 524288,
    "mempool_small_pool_size": 1073741824,
    "nc_per_dev_param": 1,
    "nmetric_log_posts": 1,
    "nmetric_metric_post_delay": 150000,
    "no_reset": 0,
    "userver_ctl": 0,
    "userver_etimeout": 600,
    "wc_enable": 1,
}
_PARAMETERS_SINCE: Final[Mapping[tuple[int, ...], Mapping[str, int]]] = {
    (2, 25): {"userver_pds_node_cnt": 2, "userver_pds_server_id": 1, "zerocopy_trn1_override": 0},
    (2, 26): {"dma_teardown_on_exit": 1},
}
MODULE_FOLDERS: Final = ("holders", "notes", "sections")

_PE_COUNTERS: Final = "xrow_grp,mm_active,wl_active,idle\n" + "".join(f"{row},0,0,0\n" for row in range(4))
_OTHER_INFO: Final = ("flop_count", "inference_count", "model_load_count", "nc_time_in_use", "reset_fail_count")


def version_of(driver_version: str) -> tuple[int, ...]:
    """Return a kernel driver's version as numbers, for comparison; parts that are not numbers count as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in driver_version.split("."))


def platform_of(spec: InstanceType, driver_version: str) -> Platform:
    """Return the platform of a type as this version of the driver knows it; an unknown type is an ordinary one."""
    since = KNOWN_SINCE.get(spec.name, BY_PLATFORM)
    return spec.platform if version_of(driver_version) >= since else Platform.STANDARD


def device_ids(spec: InstanceType, driver_version: str) -> list[int]:
    """Return the ids of a type's devices."""
    if spec.platform is Platform.MAX and platform_of(spec, driver_version) is Platform.STANDARD:
        return sorted(ROUTED_IDS[: spec.device_count])
    return list(range(spec.device_count))


def connected_devices(spec: InstanceType, device_id: int, device_count: int) -> str:
    """Return the table of a device's links.

    Except on Inf1 it depends on the number of devices alone: if one was missing at load, no device has links.
    """
    is_measured = spec.generation == "inf1"
    if device_id >= len(spec.links) or not (is_measured or device_count == spec.device_count):
        return "\n"
    return ", ".join(map(str, spec.links[device_id])) + "\n"


def device_files(
    spec: InstanceType, device_id: int, driver_version: str, major: int, serial: str, *, statistics: bool
) -> Iterator[File]:
    """Yield the files of a device, below its folder; links and empty folders are not files."""
    version = version_of(driver_version)
    readable = 0o444 if version >= (2, 28) else 0o400
    yield "dev", f"{major}:{device_id}\n", 0o444
    yield "uevent", f"MAJOR={major}\nMINOR={device_id}\nDEVNAME=neuron{device_id}\n", 0o644
    yield "core_count", str(spec.cores_per_device), readable  # no newline: a quirk that tools rely on
    yield "reset", "1\n", 0o600
    device_arch, core_arch, family, device_name = spec.arch
    yield "info/architecture/arch_type", device_arch + "\n", 0o644
    yield "info/architecture/instance_type", family + "\n", 0o644
    yield "info/architecture/device_name", device_name + "\n", 0o644
    yield "info/notify_delay", "-1\n", 0o644
    if version >= (2, 29):
        yield "fw_api_version", "1\n", 0o444
        yield "fw_build", "1\n", 0o444
        yield "stats/power/utilization_raw", _no_power(), 0o444
    if spec.generation != "inf1":
        yield "info/serial_number", serial + "\n", 0o644
        yield from _ecc_files(version)
    if version >= (2, 28) and spec.generation in ("trn2", "trn3"):
        yield from _health_files(version)
    yield "stats/power/utilization", _no_power(), 0o644
    for core in range(spec.cores_per_device):
        yield f"neuron_core{core}/info/architecture/arch_type", core_arch + "\n", 0o644
    if statistics:
        yield from statistic_files(spec)


def _no_power() -> str:
    return "POWER_STATUS_NO_DATA,0,0.00,0.00,0.00\n"


def _ecc_files(version: tuple[int, ...]) -> Iterator[File]:
    for counter in ECC_COUNTERS:
        yield f"stats/hardware/{counter}", "0\n", 0o644
    if version >= (2, 30, 2):
        for counter in ("sram_ecc_corrected", "mem_ecc_corrected"):
            yield f"stats/hardware/{counter}", "0\n", 0o644


def _health_files(version: tuple[int, ...]) -> Iterator[File]:
    folder = "stats/hardware/health_status"
    for name in ("hbm_ecc_err_count", "repairable_hbm_ecc_err_count", "sram_ecc_err_count", "hw_error_event"):
        yield f"{folder}/{name}", "0\n", 0o444
    if version >= (2, 30, 2):
        yield f"{folder}/unhealthy_components", "\n", 0o444
        yield f"{folder}/healthcheck_heartbeat", "1\n", 0o444


def statistic_files(spec: InstanceType) -> Iterator[File]:
    """Yield the statistics of a device and all its cores: 808 files on a Trn2, which nothing here reads by default."""
    for category in telemetry.HOST_MEMORY:
        for value in ("total", "present", "peak"):
            yield f"stats/memory_usage/host_mem/{category}/{value}", "0\n", 0o644
    for core in range(spec.cores_per_device):
        for path in _core_statistics(spec):
            if path.endswith("pe_cntrs"):
                text = _PE_COUNTERS
            else:
                text = "1\n" if "reset_req_count" in path else "0\n"
            yield f"neuron_core{core}/stats/{path}", text, 0o644


def _core_statistics(spec: InstanceType) -> Iterator[str]:
    values = ("total", "present", "peak")
    yield from (f"memory_usage/{kind}/{value}" for kind in ("host_mem", "device_mem") for value in values)
    for category in telemetry.MEMORY:
        yield from (f"memory_usage/device_mem/{category}/{value}" for value in values)
    for name in (*_OTHER_INFO, "reset_req_count"):
        yield from (f"other_info/{name}/{value}" for value in values[:2])
    for name in telemetry.RESULTS:
        yield from (f"status/{name}/{value}" for value in values[:2])
    if spec.generation != "inf1":
        yield "tensor_engine/pe_cntrs"


def class_files(
    spec: InstanceType, place: SimulatedPlace | None, driver_version: str, present: Collection[int]
) -> dict[str, str]:
    """Return the class files of a driver that has loaded with the devices `present`, without their newlines."""
    version = version_of(driver_version)
    platform = platform_of(spec, driver_version)
    files: dict[str, str] = {}
    if version < BY_PLATFORM or platform is Platform.ULTRASERVER:
        files = elected_files(place, platform)
    elif platform is not Platform.STANDARD:
        files = reserved_files(place)
    if platform is not Platform.STANDARD and len(present) < spec.device_count:
        files |= {name: "busy" for name in files if name not in ("server_id_2", "server_id_4", "reservation_id")}
    if version >= BY_PLATFORM:
        files |= {"hbm_7200_capable": "0", "current_perf_profile": "0"}
    return files


def module_files(driver_version: str) -> Iterator[File]:
    """Yield the files below /sys/module/neuron of a driver that has loaded."""
    version = version_of(driver_version)
    yield "version", driver_version + "\n", 0o444
    yield "initstate", "live\n", 0o444
    yield "refcnt", "0\n", 0o444
    yield "coresize", "401408\n", 0o444
    yield "initsize", "0\n", 0o444
    yield "srcversion", "8818F61F4109E2E9CE9BA2E\n", 0o444
    yield "taint", "OE\n", 0o444
    yield "uevent", "", 0o200
    parameters = dict(_PARAMETERS)
    for since, more in _PARAMETERS_SINCE.items():
        if version >= since:
            parameters |= more
    for name, value in parameters.items():
        yield f"parameters/{name}", f"{value}\n", 0o660
