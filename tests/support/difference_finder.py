"""Finds where the shared fixtures of tests differ from the shipped product: `differences` has the reasons."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml

from controller import settings as controller_settings
from controller.program import Controller
from controller.settings import ControllerSettings
from neuron_dra.arguments import Parser
from neuron_dra.demo.pod_scheduler import PodScheduler
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.cdi_runtime import CdiRuntime
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.embedded_api.watch import Watches
from neuron_dra.emulation.scripted_kubelet import Script, ScriptedKubelet
from neuron_dra.emulation.scripted_node import ScriptedNode
from neuron_dra.node.plugin import Plugin
from neuron_dra.settings import PluginSettings
from tests.support import controller_timings, timings
from tests.support.differences import ROWS
from tests.support.fleet import controllers
from tests.support.fleet.nodes import FleetNode, FleetPlugin
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import PodResources

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CONTROLLER: Final = REPOSITORY / "deploy" / "manifests" / "ultraserver" / "50-ultraserver-controller.yaml"
CONFTESTS: Final = ("tests/conftest.py", "tests/contract/conftest.py", "tests/story/conftest.py")

NEUTRAL: Final = object()
"""The real part has no such value, or any: a name, a seed, a fault."""

REAL: Final[Mapping[str, Any]] = {
    "EmbeddedApi.port": NEUTRAL,
    "EmbeddedApi.controllers": True,
    "EmbeddedApi.workloads": True,
    "EmbeddedApi.seed": NEUTRAL,
    "EmbeddedApi.now": inspect.signature(EmbeddedApi).parameters["now"].default,
    "EmbeddedApi.tls": "its certificate",
    "EmbeddedApi.clock_offset_s": 0.0,
    "Watches.bookmark_interval_s": 60.0,  # about once a minute
    "ScriptedKubelet.node_name": "its node",
    "ScriptedKubelet.api_url": "the API server's",
    "ScriptedKubelet.services": ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
    "ScriptedKubelet.poll_s": 0.0,
    "ScriptedKubelet.dial_timeout_s": 10.0,
    "ScriptedKubelet.info_timeout_s": 1.0,
    "ScriptedKubelet.notify_timeout_s": 5.0,
    "ScriptedKubelet.deadline_s": 45.0,
    "ScriptedKubelet.wipe_delay_s": 30.0,
    "Script.refusals": NEUTRAL,
    "Script.silent_attempts": 0,
    "Script.retries_registration": True,
    "ScriptedNode.host_root": NEUTRAL,
    "ScriptedNode.retry_s": 90.0,
    "ScriptedNode.ends_programs": True,
    "CdiRuntime.host_root": NEUTRAL,
    "PodScheduler.name": "default-scheduler",
    "PodScheduler.posts_events": True,
    "PodResources.lists_claims": True,
    "PodResources.error": None,
    "PodResources.body": None,
    "PodResources.asked": 0,
    "simulated_node.write.node_id": NEUTRAL,
    "simulated_node.write.server_id": NEUTRAL,
    "simulated_node.write.capacity_block_id": NEUTRAL,
    "simulated_node.write.driver_version": NEUTRAL,
    "simulated_node.write.nodes": NEUTRAL,
    "simulated_node.write.missing": NEUTRAL,
    "simulated_node.write.statistics": True,
    "simulated_node.write.boot_id": NEUTRAL,
    "simulated_node.write.major": NEUTRAL,
    "PluginHost.node_name": NEUTRAL,
    "PluginHost.instance_type": NEUTRAL,
    "PluginHost.timing": inspect.signature(Plugin).parameters["timing"].default,
    "PluginHost.reuses_hardware": NEUTRAL,
}
"""The values of the real parts for each parameter of a double that has a default, and for each public attribute."""

DOUBLES: Final[Mapping[str, Callable[..., Any]]] = {
    "EmbeddedApi": EmbeddedApi,
    "Watches": Watches,
    "ScriptedKubelet": ScriptedKubelet,
    "Script": Script,
    "ScriptedNode": ScriptedNode,
    "CdiRuntime": CdiRuntime,
    "PodScheduler": PodScheduler,
    "PodResources": PodResources,
    "simulated_node.write": simulated_node.write,
    "PluginHost": PluginHost,
}


def computed() -> set[str]:
    """Return the differences of all shared fixtures, as keys of ROWS."""
    with tempfile.TemporaryDirectory(prefix="nd") as folder:
        host = PluginHost(Path(folder) / "host", "http://127.0.0.1:1")
        node = FleetNode("node-a", "block", 0, "trn2u.48xlarge", Path(folder) / "fleet", _unconnected)
        found = {f"PluginHost: {name}" for name in [*of_settings(host.settings()), *_missing(host.settings())]}
        found |= {f"FleetNode: {name}" for name in [*of_settings(node.settings), *_missing(node.settings)]}
    found |= {f"FleetPlugin: {name}" for name in _missing_parts()}
    found |= {
        f"Replica: {name}" for name in of_controller_settings(_loaded([*controllers.FLAGS, "--kube-api-server=line:"]))
    }
    for module in (timings, controller_timings):
        found |= of_timings(module)
    for path in CONFTESTS:
        found |= {f"{path}: {name}" for name in _of_conftest(REPOSITORY / path)}
    return found | set(_of_doubles())


def of_plugin(plugin: Plugin) -> set[str]:
    """Return the settings and waits in which a plugin that runs differs from the shipped one."""
    found = set(of_settings(plugin.settings))
    return found | {f"timing.{name}" for name in unequal(plugin._timing, type(plugin._timing)())}


def of_controller(controller: Controller) -> set[str]:
    """Return the settings and waits in which a controller that runs differs from the shipped one."""
    waits = {f"timing.{name}" for name in unequal(controller._timing, type(controller._timing)())}
    return waits | of_controller_settings(controller._settings)


def of_controller_settings(settings: ControllerSettings) -> set[str]:
    """Return the settings of a controller that are not those of the manifests, but for its own name."""
    return {f"settings.{name}" for name in unequal(settings, shipped_controller())} - {"settings.identity"}


def of_the_machine(where: str) -> set[str]:
    """Return the names of the rows of a fixture that no test can have as a node has them."""
    prefix = f"{where}: "
    return {key.removeprefix(prefix) for key, row in ROWS.items() if key.startswith(prefix) and not row.production}


def shipped_controller() -> ControllerSettings:
    """Return the settings that the manifests of the controller have."""
    for document in yaml.safe_load_all(CONTROLLER.read_text()):
        if document["kind"] == "Deployment" and document["metadata"]["name"] == "neuron-ultraserver-controller":
            return _loaded(document["spec"]["template"]["spec"]["containers"][0]["args"])
    raise ValueError(f"{CONTROLLER} has no controller")


def unequal(value: Any, shipped: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields in which two values of a dataclass differ."""
    for field in dataclasses.fields(value):
        if not field.compare:
            continue
        mine, theirs = getattr(value, field.name), getattr(shipped, field.name)
        if dataclasses.is_dataclass(mine):
            yield from unequal(mine, theirs, f"{path}{field.name}.")
        elif mine != theirs:
            yield f"{path}{field.name}"


def _unconnected(name: str) -> Any:
    raise AssertionError("no plugin is started")


def _loaded(flags: list[str]) -> ControllerSettings:
    parser = Parser()
    controller_settings.add_arguments(parser)
    return controller_settings.load(parser.parse_args(flags), {}, "")


def of_settings(settings: PluginSettings) -> Iterator[str]:
    """Yield the settings that are not the defaults, which the manifests set too (tests/unit/test_chart.py)."""
    for name in unequal(settings, PluginSettings()):
        yield f"settings.{name}"


def _missing(settings: PluginSettings) -> Iterator[str]:
    """Yield the folders, files and sockets of the settings that are there on a node, and not here."""
    for field in dataclasses.fields(settings):
        if field.name.endswith(("_path", "_root", "_socket", "_file", "_dev")):
            value = getattr(settings, field.name)
            if value and not Path(value).exists():
                yield f"missing: {field.name}"


def _missing_parts() -> Iterator[str]:
    """Yield what the plugin starts, and ends, and the fleet's plugin does not."""
    for call in sorted(_calls(Plugin, "run", "_serve", "loops") - _calls(FleetPlugin, "run")):
        yield f"without {call}"


def _calls(kind: type, *methods: str) -> set[str]:
    found = set()
    for method in methods:
        source = textwrap.dedent(inspect.getsource(getattr(kind, method)))
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            called = [node.func]
            if ast.unparse(node.func) == "Loop":
                called.append(node.args[1])
            for function in map(ast.unparse, called):
                if re.fullmatch(r"self\.(?!settings\.)[\w.]+", function):
                    found.add(function)
    return found


def of_timings(module: ModuleType) -> set[str]:
    found = set()
    for name, value in vars(module).items():
        is_imported = module is not timings and value is vars(timings).get(name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and not is_imported:
            short = module.__name__.rpartition(".")[2]
            found |= {f"{short}.{name}: {path}" for path in unequal(value, type(value)())}
    return found


def _of_conftest(path: Path) -> Iterator[str]:
    """Yield the parameters of doubles for which a fixture has a constant that is not the real part's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        for keyword in node.keywords:
            name = f"{node.func.id}.{keyword.arg}"
            if isinstance(keyword.value, ast.Constant) and REAL.get(name, NEUTRAL) not in (
                NEUTRAL,
                keyword.value.value,
            ):
                yield name


def _of_doubles() -> Iterator[str]:
    for double, name, value in defaults():
        real = REAL.get(f"{double}.{name}", NEUTRAL)
        if real is not NEUTRAL and real != value:
            yield f"{double}: {name}"


def defaults() -> Iterator[tuple[str, str, Any]]:
    """Yield each double with its parameters that have defaults, and its public attributes that are constants."""
    for double, make in DOUBLES.items():
        parameters = inspect.signature(make).parameters
        for parameter in parameters.values():
            if parameter.default is not inspect.Parameter.empty:
                yield double, parameter.name, parameter.default
        for name, value in _constants(make):
            if name not in parameters:
                yield double, name, value


def _constants(make: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    if not isinstance(make, type) or dataclasses.is_dataclass(make):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(vars(make)["__init__"])))):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            value = getattr(node, "value", None)
            is_public = isinstance(target, ast.Attribute) and not target.attr.startswith("_")
            if is_public and isinstance(target, ast.Attribute) and isinstance(value, ast.Constant):
                yield target.attr, value.value
