"""Checks one node, in the container of its driver: the plugin, its sockets and files, the hardware, the API server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from neuron_dra.ask.doctor import gather, node_checks, node_files
from neuron_dra.ask.doctor.lines import Line, ok, unknown, wrong
from neuron_dra.ask.doctor.timing import DEFAULT_TIMING, DoctorTiming
from neuron_dra.ask.inspect import command as inspect_command
from neuron_dra.ask.inspect import state as plugin_state
from neuron_dra.ask.inspect.state import PluginState
from neuron_dra.ask.read import views
from neuron_dra.ask.read.node_views import KubeNodeView, SliceView
from neuron_dra.ask.render import words
from neuron_dra.core import cdi, program, shapes
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.dra_driver import EFA
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ApiError, CheckpointDamaged, ClaimError, Forbidden, NeuronDraError, SettingsError
from neuron_dra.kube import config, requests
from neuron_dra.kube.client import KubeClient
from neuron_dra.node.survey import Overdue, Survey, in_thread
from neuron_dra.settings import PluginSettings

_SLICE: Final = views.shape(SliceView)
_SHAPES: Final[Mapping[requests.Resource, Any]] = {
    requests.NODES: views.shape(KubeNodeView),
    requests.RESOURCE_SLICES: {**_SLICE, "spec": {**_SLICE["spec"], "devices": [{"name": str}]}},
}


@dataclass(frozen=True, slots=True)
class CheckedNode:
    """What the checks share: the plugin's state if it answers, its settings, and how to reach the API server."""

    settings: PluginSettings
    state: PluginState | None
    problem: str  # why there is no state
    kube: config.KubeConfig | None
    kube_problem: str
    timing: DoctorTiming

    @property
    def survey(self) -> Survey:
        """What is read of the node."""
        return Survey(self.settings)

    @property
    def name(self) -> str:
        """The name of the Node."""
        return self.settings.node_name or (self.state.devices.node_name if self.state else "")


async def lines(socket: str = "", timing: DoctorTiming = DEFAULT_TIMING) -> list[Line]:
    """Return the line of each check; `socket` is that of the plugin, empty for the newest that answers."""
    node = await _node(socket, timing)
    checks: Mapping[str, Callable[[CheckedNode], Awaitable[list[Line]]]] = {
        "plugin": _plugin,
        "sockets": _sockets,
        "hardware": _hardware,
        "files": _files,
        "CDI": _cdi_folder,
        "permissions": _permissions,
        "kubelet": _kubelet,
        "device plugin": _device_plugin,
        "EFA": _interfaces,
        "API server": _api_server,
    }
    bounded_checks = (_bounded(area, check(node), timing.check_s) for area, check in checks.items())
    lines_by_check = await asyncio.gather(*bounded_checks)
    return list(itertools.chain.from_iterable(lines_by_check))


async def _bounded(area: str, check: Awaitable[list[Line]], limit_s: float) -> list[Line]:
    try:
        async with asyncio.timeout(limit_s):
            return await check
    except TimeoutError:
        return [unknown(area, f"no answer within {limit_s:g} s", "look at the node's load, disks and kernel log")]
    except (OSError, NeuronDraError) as err:
        return [unknown(area, str(err))]


async def _node(socket: str, timing: DoctorTiming) -> CheckedNode:
    state, problem = None, ""
    try:
        async with asyncio.timeout(timing.check_s):
            state = await in_thread(_state, socket, timing)
    except (SettingsError, TimeoutError) as err:
        problem = str(err) or f"the plugin does not answer within {timing.check_s:g} s"
    settings = _settings(state)
    kube, why = None, ""
    try:
        kube = config.from_settings(settings.kube_api_server, settings.kubeconfig, os.environ)
    except (SettingsError, OSError) as err:
        why = str(err)
    return CheckedNode(settings, state, problem, kube, why, timing)


def _state(socket: str, timing: DoctorTiming) -> PluginState:
    """Return the state of the plugin at a socket, empty for the newest that answers. Raises SettingsError."""
    _, state = inspect_command.read(socket, call_s=timing.plugin_s)
    return state


def _settings(state: PluginState | None) -> PluginSettings:
    """Return the settings in force, as the plugin reports them; without it, those of the container's environment."""
    if state is None:
        from neuron_dra import settings

        with contextlib.suppress(SettingsError):
            return settings.load({}, os.environ)
        return PluginSettings()
    texts = set()
    for setting_field in dataclasses.fields(PluginSettings):
        if setting_field.type == "str":
            texts.add(setting_field.name)
    values: dict[str, Any] = {}
    for setting in state.configuration.settings:
        if setting.name in texts:
            values[setting.name] = setting.value
        elif setting.name == "efa_interfaces":
            values[setting.name] = setting.value.lower() == "true"
    return PluginSettings(**values)


async def _plugin(node: CheckedNode) -> list[Line]:
    if node.state is None:
        todo = "look at the log of the driver's pod on this node: kubectl logs"
        return [wrong("plugin", "PluginSilent", node.problem, todo)]
    todo = f"{program.NAME} explain, docs/troubleshooting.md and the driver's log have more"
    problem_lines = []
    for text in plugin_state.problems(node.state):
        problem_lines.append(wrong("plugin", "PluginProblem", text, todo))
    status = node.state.status
    published = (
        f"{words.count(status.devices, 'device')} in {words.count(status.slices, 'slice')}, "
        f"generation {status.pool_generation}"
    )
    return problem_lines or [ok("plugin", f"version {status.version}, registered, published {published}")]


async def _sockets(node: CheckedNode) -> list[Line]:
    settings = node.settings
    for path in (settings.dra_socket, settings.registration_socket):
        if not await in_thread(path.is_socket):
            text = f"there is no socket {path}"
            return [wrong("sockets", "SocketMissing", text, "restart the driver's pod on this node")]
    if await node.survey.answers(node.timing.socket_s):
        return [ok("sockets", f"{settings.dra_socket} and {settings.registration_socket} answer")]
    text = f"{settings.dra_socket} or {settings.registration_socket} does not answer"
    return [wrong("sockets", "SocketSilent", text, "restart the driver's pod on this node")]


async def _hardware(node: CheckedNode) -> list[Line]:
    try:
        facts = await node.survey.hardware(node.timing.hardware_s)
    except Overdue as err:
        text = f"a read of {err.path or 'sysfs'} does not end: the kernel driver hangs"
        return [wrong("hardware", "ReadingHangs", text, "docs/health.md, when a reading hangs; reboot the node")]
    return node_checks.hardware(facts, node.state)


async def _files(node: CheckedNode) -> list[Line]:
    """Compare checkpoint, CDI files and prepared claims; what differs twice is wrong."""
    differences = await in_thread(_compare, node, node.state)
    if not differences:
        return [ok("files", "the checkpoint, the CDI files and the plugin have the same claims")]
    await asyncio.sleep(node.timing.again_s)
    state = node.state
    with contextlib.suppress(SettingsError):
        if state is not None:
            state = await in_thread(_state, str(node.settings.dra_socket), node.timing)
    later_differences = await in_thread(_compare, node, state)
    same = [line for line in differences if line in later_differences]
    return same or [unknown("files", "claims are prepared now, so the files could not be compared: try again")]


def _compare(node: CheckedNode, state: PluginState | None) -> list[Line]:
    try:
        checkpoint = _checkpoint(node)
    except CheckpointDamaged as err:
        text = f"the checkpoint is damaged: {err}"
        return [wrong("files", "CheckpointDamaged", text, "the driver rebuilds it; if not, look at its log")]
    names = node_files.names(Path(node.settings.cdi_root))
    uids = map(cdi.claim_uid_of, names)
    uids_with_files = {uid for uid in uids if uid is not None}
    prepared = None if state is None else {claim.uid for claim in state.claims.claims}
    return node_checks.files(checkpoint, node.survey.boot_id(), uids_with_files, prepared)


def _checkpoint(node: CheckedNode) -> Checkpoint | None:
    """Return the checkpoint, None if there is none. Raises CheckpointDamaged, OSError."""
    return checkpoints.newest(node_files.read(path) for path in node.survey.checkpoint_slots)


async def _cdi_folder(node: CheckedNode) -> list[Line]:
    folder = Path(node.settings.cdi_root)
    problem = await in_thread(node_files.why_not_writable, folder)
    todo = f"mount the host's {folder} into the driver's pod, writable, and free space on its disk"
    if problem:
        return [wrong("CDI", "CdiNotWritable", problem, todo)]
    runtime = await in_thread(node_files.runtime_config)
    wire = await _wire(node)
    return [ok("CDI", f"{folder} is writable"), node_checks.runtime(wire, runtime, str(folder))]


async def _permissions(node: CheckedNode) -> list[Line]:
    settings = node.settings
    folders = (settings.data_folder, Path(settings.kubelet_registrar_directory_path))
    problems = [await in_thread(node_files.why_not_writable, folder) for folder in folders]
    wrongs = [text for text in problems if text]
    if os.geteuid() != 0:
        wrongs.append(f"it runs as uid {os.geteuid()}, and the kubelet's registry and core_count are root's")
    if not wrongs:
        return [ok("permissions", "the kubelet's folders are writable")]
    todo = "use the DaemonSet of the chart: uid 0, and the kubelet's folders mounted writable"
    return [wrong("permissions", "NoPermission", text, todo) for text in wrongs]


async def _kubelet(node: CheckedNode) -> list[Line]:
    path = node.survey.pods_socket
    if not await in_thread(path.exists):
        text = (
            f"{path} is not mounted or the kubelet does not serve it: claims of an earlier driver stay until a reboot"
        )
        return [unknown("kubelet", text)]
    try:
        pods = await node.survey.pods()
    except ConnectionError as err:
        return [wrong("kubelet", "KubeletSilent", f"{path} does not answer: {err}", "look at the kubelet's log")]
    return [ok("kubelet", f"{path} answers: {len(pods)} pods on the node")]


async def _device_plugin(node: CheckedNode) -> list[Line]:
    folder = node.survey.device_plugins
    wire = await _wire(node)
    text = await node.survey.device_plugin(wire, node.name)
    if text:
        return [wrong("device plugin", "DevicePluginAlive", text, "docs/updates.md, from the device plugin")]
    if wire is None or not await in_thread(os.access, folder, os.R_OK):
        return [unknown("device plugin", f"{folder} or the Node cannot be read")]
    return [ok("device plugin", "no Neuron device plugin is on the node")]


async def _interfaces(node: CheckedNode) -> list[Line]:
    """Check the EFA interfaces of the host, and who manages them."""
    wire = await _wire(node)
    raw_slices = await _interface_slices(node)
    slice_names = None if raw_slices is None else [raw_slice["metadata"]["name"] for raw_slice in raw_slices]
    try:
        surveyed = await node.survey.interfaces(wire, node.name, slice_names)
    except OSError:
        if not node.settings.efa_interfaces:
            return []  # nothing reads them here
        raise
    if not node.settings.efa_interfaces:
        return node_checks.unserved_interfaces(surveyed.reading, surveyed.why_not)
    manager = node_checks.manager(surveyed.why_not, surveyed.unread)
    return [*manager, *node_checks.interfaces(surveyed.reading, raw_slices or (), node.name)]


async def _interface_slices(node: CheckedNode) -> list[Wire] | None:
    """Return the node's slices of EFA interfaces; None if they cannot be read."""
    if node.kube is None or not node.name:
        return None
    with contextlib.suppress(ApiError):
        async with KubeClient(node.kube) as client:
            selector = f"spec.driver={EFA.name},spec.nodeName={node.name}"
            return list(await _listed(client, requests.RESOURCE_SLICES, selector))
    return None


async def _wire(node: CheckedNode) -> Wire | None:
    """Return the Node as the API server has it; None if it cannot be read."""
    if node.kube is None or not node.name:
        return None
    with contextlib.suppress(ApiError):
        async with KubeClient(node.kube) as client:
            raw_nodes = await _listed(client, requests.NODES, f"metadata.name={node.name}")
            if raw_nodes:
                return raw_nodes[0]
            return None
    return None


async def _api_server(node: CheckedNode) -> list[Line]:
    if node.kube is None:
        return [unknown("API server", f"it cannot be reached: {node.kube_problem}")]
    async with KubeClient(node.kube) as client:
        try:
            slices = await _listed(client, requests.RESOURCE_SLICES, f"spec.nodeName={node.name}")
        except Forbidden as err:
            todo = "apply the ClusterRole of this release (deploy/manifests/10-rbac.yaml, or the chart)"
            return [wrong("API server", "Forbidden", str(err), todo)]
        api_lines = node_checks.published(slices, node.name, node.state)
        api_lines.append(node_checks.clock(gather.clock(client.date), datetime.datetime.now(datetime.UTC)))
        return [*api_lines, await _claims(node, client)]


async def _claims(node: CheckedNode, client: KubeClient) -> Line:
    """Return whether each claim of the checkpoint is in the API server, with the same devices."""
    checkpoint = await in_thread(_checkpoint, node)
    missing_claims, differing_claims = [], []
    for claim in (checkpoint.claims if checkpoint is not None else {}).values():
        try:
            wire = await node.survey.claim(client, node.name, claim.ref)
        except ClaimError as err:
            return unknown("claims", str(err))
        if wire is None:
            missing_claims.append(str(claim.ref))
        elif not node_checks.same_devices(claim, wire, node.name):
            differing_claims.append(str(claim.ref))
    return node_checks.claims(len(checkpoint.claims) if checkpoint else 0, missing_claims, differing_claims)


async def _listed(client: KubeClient, resource: requests.Resource, selector: str) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = []
    async for page in client.list(resource, fieldSelector=selector):
        objects += gather.items(page, resource)
    for raw_object in objects:
        if wrong_field := shapes.wrong(raw_object, _SHAPES[resource]):
            raise ApiError(f"the API server's list of {resource.plural} cannot be read: {wrong_field}")
    return objects
