"""EFA interfaces: reading them, what is published of them, their health, and what a claim gets (4.10)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.core import catalogue, cdi, efa, groups, signals
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.efa import EfaReading, Interface, WatchedInterface
from neuron_dra.core.health import Toleration
from neuron_dra.emulation.simulated_efa import EfaTree
from neuron_dra.errors import ClaimError, DeviceInUse
from neuron_dra.node.efa.interfaces import InterfaceReader
from neuron_dra.node.hardware.sysfs import DeviceFolder

TYPES = ("trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "trn3.48xlarge")

# The devices of a public slice of DRANET on a trn1.32xlarge (anson627/dranet@cce1d33, examples/eks-neuron-efa-dranet):
# function, RDMA device, NUMA node, groups of 4 and 8.
CAPTURED = (
    ("0000:10:19.0", "rdmap16s25", 0, "178a9e264a26793e", "aa86c05423d6e8cd"),
    ("0000:10:1a.0", "rdmap16s26", 0, "88a3c6ad1661fe1d", "86c451036f622685"),
    ("0000:20:19.0", "rdmap32s25", 0, "69b2225fd72a59dd", "86c451036f622685"),
    ("0000:20:1a.0", "rdmap32s26", 0, "e3c29faa0cd11323", "aa86c05423d6e8cd"),
    ("0000:90:19.0", "rdmap144s25", 1, "69b2225fd72a59dd", "86c451036f622685"),
    ("0000:90:1a.0", "rdmap144s26", 1, "e3c29faa0cd11323", "aa86c05423d6e8cd"),
    ("0000:a0:19.0", "rdmap160s25", 1, "178a9e264a26793e", "aa86c05423d6e8cd"),
    ("0000:a0:1a.0", "rdmap160s26", 1, "88a3c6ad1661fe1d", "86c451036f622685"),
)


def captured() -> list[dict[str, Any]]:
    devices = []
    for function, rdma_device, numa_node, group4, group8 in CAPTURED:
        attributes: dict[str, Any] = {
            "dra.net/numaNode": {"int": numa_node},
            "dra.net/pciAddress": {"string": function},
            "dra.net/pciDevice": {"string": "Elastic Fabric Adapter (EFA)"},
            "dra.net/pciSubsystem": {"string": "efa1"},
            "dra.net/pciVendor": {"string": "Amazon.com, Inc."},
            "dra.net/rdma": {"bool": True},
            "dra.net/rdmaDevice": {"string": rdma_device},
            "resource.aws.com/devicegroup1_id": {"string": function},
            "resource.aws.com/devicegroup4_id": {"string": group4},
            "resource.aws.com/devicegroup8_id": {"string": group8},
            "resource.aws.com/devicegroup16_id": {"string": "fb838249c99a6341"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci{function[:7]}"},
        }
        devices.append({"name": "pci-" + function.replace(":", "-").replace(".", "-"), "attributes": attributes})
    return devices


def reader(root: Path) -> InterfaceReader:
    return InterfaceReader(root, DeviceFolder(str(root / "dev")), may_be_plain=os.geteuid() != 0)


def watched(reading: EfaReading, instance_type: str = "trn1.32xlarge", before: efa.Watch | None = None) -> efa.Watch:
    return efa.observe(before or {}, reading, catalogue.lookup(instance_type), now=0.0, hold_s=60.0)


@pytest.fixture
def trn1(tmp_path: Path) -> EfaTree:
    return EfaTree.write(tmp_path, "trn1.32xlarge")


# EfaReading and publishing.


def test_trn1_publishes_the_captured_devices(trn1: EfaTree) -> None:
    published = efa.devices(watched(reader(trn1.root).read()), effect="NoSchedule", keeps_taints=True, held=())
    standard = "resource.kubernetes.io/numaNode"
    numa_nodes = [device["attributes"].pop(standard) for device in published]
    assert numa_nodes == [{"int": numa_node} for _, _, numa_node, *_ in CAPTURED]
    assert list(published) == captured()


@pytest.mark.parametrize("instance_type", TYPES)
def test_interfaces_are_in_the_groups_of_their_neuron_devices(instance_type: str, tmp_path: Path) -> None:
    tree = EfaTree.write(tmp_path, instance_type)
    spec = catalogue.lookup(instance_type)
    assert spec is not None
    assert spec.efa is not None
    attributes = {
        device["attributes"]["dra.net/pciAddress"]["string"]: device["attributes"]
        for device in efa.devices(
            watched(reader(tmp_path).read(), instance_type), effect="NoSchedule", keeps_taints=True, held=()
        )
    }
    assert attributes.keys() == set(tree.functions)
    for device_id, ids in groups.group_ids(spec).items():
        for size, group_id in ids.items():
            assert attributes[spec.efa[device_id]][f"resource.aws.com/devicegroup{size}_id"] == {"string": group_id}
    roots = {attribute["resource.kubernetes.io/pcieRoot"]["string"] for attribute in attributes.values()}
    assert len(roots) == (4 if spec.generation == "trn1" else 8)


def test_other_functions_are_not_published(trn1: EfaTree) -> None:
    folder = trn1.root / "sys/devices/pci0000:00/0000:00:05.0"
    folder.mkdir(parents=True)
    (trn1.root / "sys/bus/pci/drivers/ena").mkdir()
    (trn1.root / "sys/bus/pci/drivers/ena/0000:00:05.0").symlink_to(folder)
    (trn1.root / "sys/bus/pci/drivers/efa/module").mkdir()
    assert len(reader(trn1.root).read().interfaces) == 8


def no_rdma_name(tree: EfaTree) -> None:
    shutil.rmtree(tree.folder("0000:10:19.0") / "infiniband")


def no_uverbs(tree: EfaTree) -> None:
    shutil.rmtree(tree.folder("0000:10:19.0") / "infiniband_verbs")


def another_rdma_device(tree: EfaTree) -> None:
    (tree.folder("0000:10:19.0") / "infiniband_verbs/uverbs0/ibdev").write_text("rdmap1s1\n")


def malformed_number(tree: EfaTree) -> None:
    (tree.folder("0000:10:19.0") / "infiniband_verbs/uverbs0/dev").write_text("231\n")


def no_file(tree: EfaTree) -> None:
    tree.file(0).unlink()


def other_number(tree: EfaTree) -> None:
    (tree.folder("0000:10:19.0") / "infiniband_verbs/uverbs0/dev").write_text("231:7\n")


def a_folder(tree: EfaTree) -> None:
    tree.file(0).unlink()
    tree.file(0).mkdir()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (no_rdma_name, efa.NO_RDMA_NAME),
        (no_uverbs, efa.NO_UVERBS),
        (another_rdma_device, efa.NO_UVERBS),
        (malformed_number, efa.NO_UVERBS),
        (no_file, signals.DEVICE_FILE_MISSING),
        (a_folder, efa.DEVICE_FILE_DIFFERS),
        pytest.param(
            other_number, efa.DEVICE_FILE_DIFFERS, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs mknod")
        ),
        (lambda tree: tree.unbind("0000:10:19.0"), signals.MISSING),
    ],
)
def test_unusable_interface_is_tainted_only_once_published(
    trn1: EfaTree, fault: Callable[[EfaTree], None], reason: str
) -> None:
    healthy = watched(reader(trn1.root).read())
    fault(trn1)
    reading = reader(trn1.root).read()
    assert "pci-0000-10-19-0" not in watched(reading)
    assert len(watched(reading)) == 7
    after = watched(reading, before=healthy)
    (device, *others) = efa.devices(after, effect="NoSchedule", keeps_taints=True, held=())
    assert device["taints"] == [{"key": "neuron.aws.com/unhealthy", "value": reason, "effect": "NoSchedule"}]
    assert device["attributes"]["neuron.aws.com/unhealthy"] == {"string": reason}
    assert len(others) == 7
    assert not any("taints" in other for other in others)
    assert [state.reasons for state in efa.judged(after) if state.reasons] == [(reason,)]


def test_healed_interface_is_offered_after_the_hold_time(trn1: EfaTree) -> None:
    good, gone, spec = reader(trn1.root).read(), EfaReading(), catalogue.lookup("trn1.32xlarge")
    watch = efa.observe(watched(good), gone, spec, now=10.0, hold_s=60.0)
    assert {interface.reason for interface in watch.values()} == {signals.MISSING}
    watch = efa.observe(watch, good, spec, now=20.0, hold_s=60.0)
    assert {interface.reason for interface in watch.values()} == {signals.MISSING}
    watch = efa.observe(watch, good, spec, now=79.0, hold_s=60.0)
    assert {interface.reason for interface in watch.values()} == {signals.MISSING}
    watch = efa.observe(watch, good, spec, now=80.0, hold_s=60.0)
    assert {interface.reason for interface in watch.values()} == {""}


def test_restart_remembers_the_published_interfaces(trn1: EfaTree) -> None:
    healthy = watched(reader(trn1.root).read())
    trn1.unbind("0000:10:19.0")
    reading = reader(trn1.root).read()
    before = watched(reading, before=healthy)
    published = efa.devices(before, effect="NoSchedule", keeps_taints=True, held=())
    assert watched(reading, before=efa.recalled(published)) == before


def test_unhealthy_interface_leaves_a_slice_without_taints(trn1: EfaTree) -> None:
    watch = {**watched(reader(trn1.root).read())}
    watch["pci-0000-10-19-0"] = replace(watch["pci-0000-10-19-0"], reason=signals.MISSING)
    free = efa.devices(watch, effect="NoSchedule", keeps_taints=False, held=())
    held = efa.devices(watch, effect="NoSchedule", keeps_taints=False, held={"pci-0000-10-19-0"})
    reported = efa.devices(watch, effect="None", keeps_taints=False, held=())
    assert [len(free), len(held), len(reported)] == [7, 8, 8]
    assert "taints" not in reported[0]


def test_missing_sysfs_is_an_error_and_no_absence(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="devices"):
        reader(tmp_path).read()


def test_kernel_without_efa_has_no_interfaces(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    assert reader(tmp_path).read() == EfaReading()


def test_hostile_tree_yields_no_interface(trn1: EfaTree) -> None:
    folder = trn1.folder("0000:10:19.0")
    (folder / "subsystem_device").write_bytes(b"\xff" * 5000)
    (folder / "numa_node").write_bytes(b"9" * 100_000)
    (folder / "infiniband/..x").mkdir()
    shutil.rmtree(folder / "infiniband_verbs")
    (folder / "infiniband_verbs").symlink_to(folder / "infiniband_verbs")
    other = trn1.folder("0000:10:1a.0")
    for number in range(5000):
        (other / "infiniband" / f"a{number}").mkdir()
    reading = reader(trn1.root).read()
    assert reading.interfaces["pci-0000-10-19-0"] == Interface(
        "0000:10:19.0", "rdmap16s25", problem=efa.NO_UVERBS, pcie_root="pci0000:10"
    )
    assert reading.interfaces["pci-0000-10-1a-0"].problem == efa.NO_RDMA_NAME


def reload_the_module(tree: EfaTree) -> None:
    tree.renumber(3)


def rename_the_rdma_device(tree: EfaTree) -> None:
    folder = tree.folder("0000:10:19.0")
    (folder / "infiniband/rdmap16s25").rename(folder / "infiniband/efa_0")
    (folder / "infiniband_verbs/uverbs0/ibdev").write_text("efa_0\n")


def bind_again_with_other_numbers(tree: EfaTree) -> None:
    tree.unbind("0000:10:19.0")
    tree.unbind("0000:10:1a.0")
    tree.bind("0000:10:1a.0", 0)
    tree.bind("0000:10:19.0", 1)


@pytest.mark.parametrize("change", [reload_the_module, rename_the_rdma_device, bind_again_with_other_numbers])
def test_names_of_the_last_reading_are_checked(trn1: EfaTree, change: Callable[[EfaTree], None]) -> None:
    used = reader(trn1.root)
    used.read()
    change(trn1)
    fresh = reader(trn1.root).read()
    assert used.read_files() == fresh
    name = Interface("0000:10:19.0").name
    assert used.read_files({name}).interfaces == {name: fresh.interfaces[name]}


def test_class_folders_of_a_tree_follow_its_functions(trn1: EfaTree) -> None:
    def listed() -> dict[str, str]:
        folder = trn1.root / "sys/class/infiniband_verbs"
        return {path.name: (path / "ibdev").read_text().strip() for path in folder.glob("uverbs*")}

    assert (len(listed()), listed()["uverbs0"]) == (8, "rdmap16s25")
    trn1.renumber(3)
    assert (len(listed()), listed()["uverbs3"]) == (8, "rdmap16s25")
    trn1.unbind("0000:10:19.0")
    assert (len(listed()), "uverbs3" in listed()) == (7, False)
    assert not (trn1.root / "sys/class/infiniband/rdmap16s25").is_symlink()
    trn1.bind("0000:10:19.0")
    assert (len(listed()), listed()["uverbs3"]) == (8, "rdmap16s25")


def test_exclusive_network_mode_is_read(trn1: EfaTree) -> None:
    assert not reader(trn1.root).read().is_exclusive
    trn1.set_exclusive(True)
    assert reader(trn1.root).read().is_exclusive


# Deciding.

REF = ClaimRef("ml", "job", "11111111-2222-3333-4444-555555555555")


def claim(*devices: str, ref: ClaimRef = REF, **fields: Any) -> Claim:
    return Claim(ref, tuple(AllocatedDevice("efas", "node-a", device, **fields) for device in devices))


def decided(tree: EfaTree, asked: Claim, held: tuple[PreparedClaim, ...] = (), **changes: Any) -> PreparedClaim:
    reading = reader(tree.root).read()
    arguments: dict[str, Any] = {
        "node_name": "node-a",
        "reading": reading,
        "watch": watched(reading),
        "effect": "NoSchedule",
        "held": held,
        "device_files": cdi.DeviceFiles(),
        **changes,
    }
    return efa.decide(asked, **arguments)


def files(prepared: PreparedClaim) -> list[list[str]]:
    return [[node["path"] for node in device.edits["deviceNodes"]] for device in prepared.devices]


def test_claim_gets_the_files_of_its_interfaces(tmp_path: Path) -> None:
    tree = EfaTree.write(tmp_path, "trn1.32xlarge", rdma_cm=True)
    prepared = decided(tree, claim("pci-0000-10-19-0", "pci-0000-20-1a-0"))
    assert files(prepared) == [["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"], ["/dev/infiniband/uverbs3"]]
    assert cdi.spec(prepared, EFA)["kind"] == "k8s.dra.net/claim"
    assert prepared.devices[0].cdi_ids == (f"k8s.dra.net/claim={REF.uid}-pci-0000-10-19-0",)
    shown = cdi.devices(cdi.spec(prepared, EFA), REF.uid, EFA)
    assert [device.name for device in shown] == ["pci-0000-10-19-0", "pci-0000-20-1a-0"]


def test_number_of_the_file_is_that_of_now(trn1: EfaTree) -> None:
    prepared = decided(trn1, claim("pci-0000-10-19-0"))
    trn1.renumber(3)
    again = efa.renewed(prepared, reader(trn1.root).read(), cdi.DeviceFiles())
    assert files(prepared) == [["/dev/infiniband/uverbs0"]]
    assert files(again) == [["/dev/infiniband/uverbs3"]]


def test_lost_interface_never_leads_to_the_file_of_another(trn1: EfaTree) -> None:
    prepared = decided(trn1, claim("pci-0000-10-19-0"))
    trn1.unbind("0000:10:19.0")
    again = efa.renewed(prepared, reader(trn1.root).read(), cdi.DeviceFiles())
    assert files(again) == [["/dev/infiniband/pci-0000-10-19-0-is-unusable"]]


def test_interface_of_another_claim_is_refused(trn1: EfaTree) -> None:
    first = decided(trn1, claim("pci-0000-10-19-0"))
    other = ClaimRef("ml", "other", "99999999-2222-3333-4444-555555555555")
    with pytest.raises(DeviceInUse, match=r"pci-0000-10-19-0 is in use: it is held by claim ml/job"):
        decided(trn1, claim("pci-0000-10-19-0", ref=other), held=(first,))
    assert decided(trn1, claim("pci-0000-10-1a-0", ref=other), held=(first,)).devices
    assert decided(trn1, claim("pci-0000-10-19-0", ref=other, admin_access=True), held=(first,)).devices
    assert decided(trn1, claim("pci-0000-10-19-0"), held=(first,)) == first


def test_unusable_interfaces_and_other_pools_are_refused(trn1: EfaTree) -> None:
    trn1.file(0).unlink()
    with pytest.raises(ClaimError, match=r"cannot be used \(DeviceFileMissing\)"):
        decided(trn1, claim("pci-0000-10-19-0"))
    with pytest.raises(ClaimError, match=r"cannot be used \(missing\)"):
        decided(trn1, claim("pci-0000-55-19-0"))
    with pytest.raises(ClaimError, match="of pool node-b, and this node is node-a"):
        decided(trn1, Claim(REF, (AllocatedDevice("efas", "node-b", "pci-0000-10-1a-0"),)))
    with pytest.raises(ClaimError, match=r"no device of dra\.net"):
        decided(trn1, Claim(REF, ()))


def test_recovering_interface_is_given_where_it_is_tolerated(trn1: EfaTree) -> None:
    reading = reader(trn1.root).read()
    watch = {**watched(reading)}
    device = watch["pci-0000-10-19-0"].device
    watch["pci-0000-10-19-0"] = WatchedInterface(device, signals.MISSING, well_since=0.0)
    tolerations = (Toleration(operator="Exists"),)
    assert decided(trn1, claim("pci-0000-10-19-0", tolerations=tolerations), watch=watch).devices
    with pytest.raises(ClaimError, match="unhealthy"):
        decided(trn1, claim("pci-0000-10-19-0"), watch=watch)


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        (None, ""),
        ({}, ""),
        ([], "config[0]: must be an empty object"),
        ({"interface": {"name": "eth1"}}, "config[0].interface: an EFA interface has no network device to configure"),
    ],
)
def test_parameters_must_be_empty(parameters: object, why: str) -> None:
    assert efa.why_parameters(parameters, "config[0]").startswith(why)
    assert bool(efa.why_parameters(parameters, "config[0]")) == bool(why)
