"""Counters of devices and cores: what is read from the driver's files, and who has each device and core (17.6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuron_dra.core import catalogue, members, names, telemetry
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.claims import ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.in_use import ListedClaim, ListedPod
from neuron_dra.core.telemetry import CoreCounters, DeviceCounters, Power, User
from neuron_dra.node.endpoints.telemetry import CounterReading, families

FILES = [path for (path,) in telemetry.files(cores=True)]
TRN2 = catalogue.lookup("trn2.48xlarge")
INF2 = catalogue.lookup("inf2.48xlarge")


def texts(**contents: str) -> list[bytes | None]:
    """Return the contents of all files; those that are not named are missing. `__` stands for `/`."""
    named = {path.replace("__", "/"): text.encode() for path, text in contents.items()}
    assert named.keys() <= set(FILES)
    return [named.get(path) for path in FILES]


def claim(
    name: str, *devices: str, admin: bool = False, pod: str = "", spec: InstanceType | None = TRN2
) -> PreparedClaim:
    made = []
    for device in devices:
        found = members.of(device, spec) or members.Members((int(device.rpartition("-")[2]),))
        made.append(PreparedDevice("r", "node-a", device, found.ids, (), {}, admin, None, None, found.cores))
    return PreparedClaim(ClaimRef("ml", name, f"uid-{name}"), tuple(made), pod=pod)


def listed(pod: str, container: str, claim_name: str) -> ListedPod:
    devices = frozenset({(names.DRIVER, "node-a", "neuron-device-0")})
    return ListedPod("ml", pod, (ListedClaim("ml", claim_name, devices, container),))


def test_values_of_all_files_are_read() -> None:
    found = telemetry.counters(
        3,
        texts(
            stats__power__utilization="POWER_STATUS_VALID,1789180860,1.00,9.50,4.25\n",
            stats__hardware__sram_ecc_uncorrected="2\n",
            stats__memory_usage__host_mem__tensors__total="4096\n",
            neuron_core1__stats__other_info__nc_time_in_use__total="1500000\n",
            neuron_core1__stats__status__success__total="7\n",
            neuron_core1__stats__status__timeout__total="1\n",
            neuron_core1__stats__memory_usage__device_mem__constants__total="1024\n",
        ),
    )
    core = CoreCounters(1_500_000, None, {"success": 7, "timeout": 1}, {"constants": 1024})
    assert found == DeviceCounters(3, Power(1.0, 9.5, 4.25), {"sram_uncorrected": 2}, {"tensors": 4096}, {1: core})


@given(st.lists(st.none() | st.binary(max_size=24), min_size=len(FILES), max_size=len(FILES)))
def test_any_contents_are_a_value_or_none(contents: list[bytes | None]) -> None:
    found = telemetry.counters(0, contents)
    numbers = [*found.ecc.values(), *found.host_memory.values()]
    numbers += [each for core in found.cores.values() for each in (*core.results.values(), *core.memory.values())]
    assert all(0 <= number < 10**20 for number in numbers)
    assert found.power is None or 0 <= found.power.average <= 100


def test_power_without_a_valid_sample_is_unknown() -> None:
    for sample in ("POWER_STATUS_NO_DATA,0,0.00,0.00,0.00", "POWER_STATUS_VALID,1,nan,2,3", "busy", "", "a,b,c,d,e"):
        assert telemetry.counters(0, texts(stats__power__utilization=sample)).power is None


def test_pods_and_containers_are_those_that_the_kubelet_lists() -> None:
    pods = [listed("p1", "main", "shared"), listed("p2", "side", "shared"), listed("p3", "main", "other")]
    found = telemetry.users(
        [claim("shared", "neuron-device-5", pod="p1"), claim("alone", "neuron-device-6")], pods, TRN2
    )
    both = (User("ml", "p1", "main", "shared", ""), User("ml", "p2", "side", "shared", ""))
    assert found.of_device(5) == both
    assert found.of_core(5, 7) == both
    assert found.of_device(6) == (User("ml", "", "", "alone", ""),)
    assert found.of_device(7) == ()


def test_claim_that_is_not_listed_has_the_pod_it_was_prepared_for() -> None:
    found = telemetry.users([claim("job", "neuron-device-5", pod="p1")], [], TRN2)
    assert found.of_core(5, 0) == (User("ml", "p1", "", "job", ""),)


def test_claim_of_an_administrator_does_not_count() -> None:
    found = telemetry.users([claim("monitor", "neuron-device-5", admin=True)], [], TRN2)
    assert (found.of_device(5), found.of_core(5, 0)) == ((), ())


def test_core_partition_has_its_physical_cores_only() -> None:
    """A logical core of trn2 is two physical ones by default."""
    found = telemetry.users([claim("a", "neuron-cores-1-5"), claim("b", "neuron-cores-2-6")], [], TRN2)
    users = {core: [user.claim for user in found.of_core(1, core)] for core in range(8)}
    assert users == {0: [], 1: [], 2: ["a"], 3: ["a"], 4: ["b"], 5: ["b"], 6: ["b"], 7: ["b"]}
    assert [user.claim for user in found.of_device(1)] == ["a", "b"]


def test_set_has_all_cores_of_its_devices() -> None:
    found = telemetry.users([claim("ring", "neuron-set-3-11", spec=INF2)], [], INF2)
    assert sorted(found.devices) == [0, 1, 11]
    assert found.of_core(0, 1) == (User("ml", "", "", "ring", ""),)


def test_series_name_the_first_user_and_their_number() -> None:
    """Users decide how many pods share a device, and how long their names are."""
    pods = [listed(f"p{number:03}" + "x" * 240, "main", "shared") for number in range(250)]
    found = telemetry.users([claim("shared", "neuron-device-5", pod="p000")], pods, TRN2)
    counters = DeviceCounters(5, None, {"sram_corrected": 1}, {}, {})
    reading = CounterReading((counters,), found, ("trn2.48xlarge", ""), 1.0, 0.1, 0)
    [sample] = next(family.samples for family in families(reading) if family.name == "neuron_dra_device_ecc_errors")
    assert sample.labels == {
        "neuron_device": "5",
        "namespace": "ml",
        "pod": "p000" + "x" * 240,
        "container": "main",
        "claim": "shared",
        "workload": "",
        "users": "250",
        "kind": "sram_corrected",
    }
