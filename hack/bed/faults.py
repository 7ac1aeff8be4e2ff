"""Break and repair: faults of a node, injected and removed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from hack.bed import cgroups, driver, hardware
from hack.bed.errors import BedError
from hack.bed.node import Node
from hack.bed.parts import Bed
from hack.bed.processes import end, start_ticks
from hack.bed.state import ProcessId
from neuron_dra.core import catalogue
from neuron_dra.emulation import hanging, simulated_efa
from neuron_dra.emulation.simulated_driver import LoadTiming, SimulatedDriver
from neuron_dra.errors import NeuronDraError

ECC_COUNTER = "mem_ecc_uncorrected"
COMPONENT = "hbm"
HANGS = "core_count"
RESET_READY, RESET_INVALID = 1, 2
PROBE_S = 0.5  # from one device of a load to the next; a real one takes two seconds
ECC_ALL = 10**9  # more than any value of a counter


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that can break; `argument` describes what may follow its name."""

    argument: str
    text: str
    break_: Callable[[Bed, Node, str], str]
    repair: Callable[[Bed, Node, str], str]


def _pair(node: Node, text: str) -> tuple[int, int]:
    """Return the two ends of a link that this type of node has.

    Raises:
        BedError: it has no such link.
    """
    first, separator, second = (text or "0-1").partition("-")
    if not (separator and first.isdigit() and second.isdigit()):
        raise BedError(f"{text!r}: a link is two device numbers, such as 0-1, or left or right")
    spec = catalogue.lookup(node.spec.instance_type)
    neighbours = spec.links[int(first)] if spec and int(first) < len(spec.links) else ()
    if int(second) not in neighbours:
        listed = ", ".join(map(str, neighbours)) or "none"
        raise BedError(f"a {node.spec.instance_type} has no link {first}-{second}; neighbors of {first}: {listed}")
    return int(first), int(second)


def _number(node: Node, text: str) -> int:
    """Return the number of a device that this type of node has.

    Raises:
        BedError: it has no such device.
    """
    spec = catalogue.lookup(node.spec.instance_type)
    count = spec.device_count if spec else 0
    if not (text or "0").isdigit() or int(text or "0") >= count:
        raise BedError(f"{text!r}: a {node.spec.instance_type} has devices 0 to {count - 1}")
    return int(text or "0")


def _between_nodes(bed: Bed, node: Node, side: str, *, broken: bool) -> str:
    """Write on all four nodes what they report while the link on `side` of `node` is broken, or after its repair."""
    peers = {"left": hardware.LEFT, "right": hardware.RIGHT}[side]
    members = [each for each in bed.nodes.values() if each.spec.ultraserver == node.spec.ultraserver]
    ends = (node.spec.position, peers.get(node.spec.position, -1))
    for each in members:
        hardware.write_election(each.hardware_dir, each.spec, ends if broken else None)
    state = "broken; the nodes report what a new election finds" if broken else "repaired; the UltraServer is complete"
    return f"the {side} link of {node.name} is {state}"


def _break_link(bed: Bed, node: Node, argument: str) -> str:
    if argument in ("left", "right"):
        return _between_nodes(bed, node, argument, broken=True)
    first, second = _pair(node, argument)
    hardware.load(node.hardware_dir).break_link(first, second)
    return f"devices {first} and {second} of {node.name} no longer list each other"


def _repair_link(bed: Bed, node: Node, argument: str) -> str:
    if argument in ("left", "right"):
        return _between_nodes(bed, node, argument, broken=False)
    first, second = _pair(node, argument)
    hardware.load(node.hardware_dir).repair_link(first, second)
    return f"devices {first} and {second} of {node.name} are connected again"


def _break_device(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).remove_device(_number(node, argument))
    hardware.show(node.hardware_dir, bed.processes.pid(node.namespace))
    return f"neuron{_number(node, argument)} of {node.name} is gone from sysfs and /dev"


def _repair_device(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).restore_device(_number(node, argument))
    hardware.show(node.hardware_dir, bed.processes.pid(node.namespace))
    return f"neuron{_number(node, argument)} of {node.name} is back"


def _break_ecc(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).add_ecc(_number(node, argument), ECC_COUNTER, 1)
    return f"one more uncorrected memory error on neuron{_number(node, argument)} of {node.name}"


def _repair_ecc(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).add_ecc(_number(node, argument), ECC_COUNTER, -ECC_ALL)
    return f"the uncorrected memory errors of neuron{_number(node, argument)} of {node.name} are cleared"


def _component(node: Node, argument: str) -> tuple[int, str]:
    """Return the device and the component in `N` or `N:NAME`."""
    number, _, name = argument.partition(":")
    return _number(node, number), name or COMPONENT


def _break_component(bed: Bed, node: Node, argument: str) -> str:
    device, name = _component(node, argument)
    hardware.load(node.hardware_dir).set_unhealthy_components(device, name)
    return f"neuron{device} of {node.name} has an unhealthy component: {name}"


def _repair_component(bed: Bed, node: Node, argument: str) -> str:
    device, _ = _component(node, argument)
    hardware.load(node.hardware_dir).set_unhealthy_components(device, "")
    return f"neuron{device} of {node.name} has no unhealthy component"


def _break_reset(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).set_reset_state(_number(node, argument), RESET_INVALID)
    return f"the kernel driver reports neuron{_number(node, argument)} of {node.name} as invalid"


def _repair_reset(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).set_reset_state(_number(node, argument), RESET_READY)
    return f"the kernel driver reports neuron{_number(node, argument)} of {node.name} as ready"


def _file(node: Node, argument: str) -> tuple[int, str]:
    """Return the device and the file of its sysfs folder in `N` or `N:FILE`."""
    number, _, name = argument.partition(":")
    return _number(node, number), name or HANGS


def _break_firmware(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).stop_firmware(_number(node, argument))
    return f"the firmware of neuron{_number(node, argument)} of {node.name} does not answer"


def _repair_firmware(bed: Bed, node: Node, argument: str) -> str:
    hardware.load(node.hardware_dir).start_firmware(_number(node, argument))
    return f"the firmware of neuron{_number(node, argument)} of {node.name} answers"


def _function(node: Node, argument: str) -> str:
    """Return the PCI function of an EFA interface by its number.

    Raises:
        BedError: this type of node has no such interface.
    """
    functions = hardware.interfaces(node.hardware_dir).functions
    if not (argument or "0").isdigit() or int(argument or "0") >= len(functions):
        raise BedError(f"{argument!r}: a {node.spec.instance_type} has {len(functions)} EFA interfaces, from 0 on")
    return functions[int(argument or "0")]


def _break_interface(bed: Bed, node: Node, argument: str) -> str:
    function = _function(node, argument)
    hardware.interfaces(node.hardware_dir).unbind(function)
    hardware.show(node.hardware_dir, bed.processes.pid(node.namespace))
    return f"EFA interface {function} of {node.name} is not bound to its kernel module"


def _repair_interface(bed: Bed, node: Node, argument: str) -> str:
    function = _function(node, argument)
    tree = hardware.interfaces(node.hardware_dir)
    if not (tree.root / simulated_efa.DRIVER / function).is_symlink():
        tree.bind(function)
        hardware.show(node.hardware_dir, bed.processes.pid(node.namespace))
    return f"EFA interface {function} of {node.name} is bound"


def _break_uverbs(bed: Bed, node: Node, argument: str) -> str:
    hardware.interfaces(node.hardware_dir).renumber(int(argument or "1"))
    hardware.show(node.hardware_dir, bed.processes.pid(node.namespace))
    return f"the EFA interfaces of {node.name} have other uverbs numbers"


def _repair_uverbs(bed: Bed, node: Node, argument: str) -> str:
    return _break_uverbs(bed, node, "0")


def _driver(node: Node) -> SimulatedDriver:
    return SimulatedDriver(hardware.load(node.hardware_dir), keeps_folders=True)  # the node mounts the folders


def _break_driver(bed: Bed, node: Node, argument: str) -> str:
    _driver(node).unload()
    hardware.show(node.hardware_dir, bed.processes.pid(node.namespace))
    return f"the kernel driver of {node.name} is not loaded"


def _repair_driver(bed: Bed, node: Node, argument: str) -> str:
    """Load the kernel driver as slowly as the real one; `-N` does not find a device, `N:S` waits S seconds for one."""
    kernel_driver = _driver(node)
    if kernel_driver.is_loaded:
        return f"the kernel driver of {node.name} is loaded"
    missing = [_number(node, argument[1:])] if argument.startswith("-") else []
    number, _, seconds = argument.partition(":")
    silent_s = {_number(node, number): float(seconds)} if seconds else {}
    began = time.monotonic()

    def wait_until(at_s: float) -> None:
        time.sleep(max(0.0, began + at_s - time.monotonic()))

    for _ in kernel_driver.loading(missing, silent_s, LoadTiming(probe_s=PROBE_S), wait_until):
        hardware.show(node.hardware_dir, bed.processes.pid(node.namespace))
    return f"the kernel driver of {node.name} has loaded"


def _break_hang(bed: Bed, node: Node, argument: str) -> str:
    device, name = _file(node, argument)
    hanging.hang(hardware.load(node.hardware_dir).device_path(device, name))
    return f"a read of {name} of neuron{device} of {node.name} does not end"


def _repair_hang(bed: Bed, node: Node, argument: str) -> str:
    device, name = _file(node, argument)
    hanging.release(hardware.load(node.hardware_dir).device_path(device, name))
    return f"{name} of neuron{device} of {node.name} can be read"


def _break_plugin(bed: Bed, node: Node, argument: str) -> str:
    pids = driver.plugin_pids(bed, node, cgroups.members(bed.layout, node.name))
    if not pids:
        raise BedError(f"no plugin runs on {node.name}; start the test bed with --driver process or daemonset")
    for pid in pids:
        end([ProcessId(pid, start_ticks(pid) or -1)], signal.SIGKILL, 5)
    again = "the kubelet restarts it" if bed.state.driver == "daemonset" else "`repair` or `up` restarts it"
    return f"the plugin on {node.name} is killed; {again}"


def _repair_plugin(bed: Bed, node: Node, argument: str) -> str:
    driver.wait_ready(bed, node)
    return f"the plugin on {node.name} is ready"


def _break_controller(bed: Bed, node: Node, argument: str) -> str:
    pids = driver.controller_pids(cgroups.members(bed.layout, node.name))
    if not pids:
        raise BedError(f"no replica of the UltraServer controller runs on {node.name}; `kubectl get pods -A -o wide`")
    for pid in pids:
        end([ProcessId(pid, start_ticks(pid) or -1)], signal.SIGKILL, 5)
    return f"the UltraServer controller's replica on {node.name} is killed; the kubelet restarts it"


def _repair_controller(bed: Bed, node: Node, argument: str) -> str:
    driver.wait_controller_ready(bed)
    return "the UltraServer controller is ready"


def _break_kubelet(bed: Bed, node: Node, argument: str) -> str:
    if argument == "stop":
        node.stop_kubelet()
        return (
            f"the kubelet of {node.name} is stopped; its containers keep running, and it is NotReady in half a minute"
        )
    if argument:
        raise BedError(f"{argument!r}: write nothing to restart the kubelet, or `stop` to leave it stopped")
    node.restart_kubelet()
    return f"the kubelet of {node.name} is killed and restarted"


def _break_containerd(bed: Bed, node: Node, argument: str) -> str:
    node.restart_containerd()
    return f"containerd of {node.name} is killed and restarted"


def _break_cdi(bed: Bed, node: Node, argument: str) -> str:
    node.without_cdi.touch()
    node.restart_containerd()
    return f"containerd of {node.name} looks for CDI files in an empty folder"


def _repair_cdi(bed: Bed, node: Node, argument: str) -> str:
    if node.without_cdi.exists():
        node.without_cdi.unlink()
        node.restart_containerd()
    return f"containerd of {node.name} reads CDI files"


def _break_reboot(bed: Bed, node: Node, argument: str) -> str:
    """Cut the power: every process and mount of the node ends, /run is empty afterwards, and the boot id is new."""
    node.stop()
    boot_id = hardware.load(node.hardware_dir).set_boot_id()
    node.up()
    if bed.state.driver == "process":
        driver.wait_ready(bed, node)
    return f"{node.name} has rebooted; boot id {boot_id}"


def _repair_node(bed: Bed, node: Node, argument: str) -> str:
    node.up()
    return f"{node.name} is Ready"


FAULTS = {
    "link": Fault(
        "A-B|left|right",
        "the link between two devices, or between two nodes of an UltraServer; both ends lose it",
        _break_link,
        _repair_link,
    ),
    "device": Fault("N", "a device: gone from sysfs and /dev", _break_device, _repair_device),
    "ecc": Fault("N", "an uncorrected memory error on a device", _break_ecc, _repair_ecc),
    "component": Fault(
        "N[:NAME]",
        f"a component of a device is unhealthy ({COMPONENT}), as reported by kernel drivers from 2.30.2 on",
        _break_component,
        _repair_component,
    ),
    "reset": Fault(
        "N", "a device that could not be reset: the kernel driver reports it as invalid", _break_reset, _repair_reset
    ),
    "firmware": Fault("N", "the firmware of a device does not answer", _break_firmware, _repair_firmware),
    "interface": Fault(
        "N", "an EFA interface is not bound to the kernel module efa", _break_interface, _repair_interface
    ),
    "uverbs": Fault(
        "SHIFT",
        "the kernel module efa is loaded again, and the files of its interfaces have other numbers",
        _break_uverbs,
        _repair_uverbs,
    ),
    "driver": Fault(
        "-N|N:S",
        "the kernel driver is unloaded; `repair` loads it, without device N, or waiting S seconds for its firmware",
        _break_driver,
        _repair_driver,
    ),
    "hang": Fault(
        "N[:FILE]",
        f"a read of a file of a device ({HANGS}) never ends, as with a stuck kernel driver",
        _break_hang,
        _repair_hang,
    ),
    "plugin": Fault("", "kill -9 of the plugin", _break_plugin, _repair_plugin),
    "controller": Fault(
        "", "kill -9 of the UltraServer controller's replica on the node", _break_controller, _repair_controller
    ),
    "kubelet": Fault(
        "stop",
        "kill -9 of the kubelet, which restarts at once or, with `stop`, at `repair`",
        _break_kubelet,
        _repair_node,
    ),
    "containerd": Fault("", "kill -9 of containerd, which restarts", _break_containerd, _repair_node),
    "cdi": Fault(
        "", "containerd looks for CDI files in another folder, as it may be configured", _break_cdi, _repair_cdi
    ),
    "reboot": Fault("", "power cut and start with a new boot id", _break_reboot, _repair_node),
}


def _fault(what: str, argument: str) -> Fault:
    fault = FAULTS[what]
    if argument and not fault.argument:
        raise BedError(f"{what} takes no argument, got {argument!r}")
    return fault


def _do(action: Callable[[Bed, Node, str], str], bed: Bed, node: str, argument: str) -> str:
    try:
        return action(bed, bed.node(node), argument)
    except (NeuronDraError, OSError) as err:
        raise BedError(f"{node} has no such thing to break or repair: {argument or 'see --help'} ({err})") from err


def break_(bed: Bed, node: str, what: str, argument: str) -> str:
    """Break something on a node and return what was done."""
    return _do(_fault(what, argument).break_, bed, node, argument)


def repair(bed: Bed, node: str, what: str, argument: str) -> str:
    """Undo `break_`, and return what was done."""
    return _do(_fault(what, argument).repair, bed, node, argument)
