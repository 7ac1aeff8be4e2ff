"""A simulated node on which the plugin runs, in this process or in its own.

host = PluginHost(folder, api.url)
async with host.running() as plugin: ...
process = await host.start_process("uid-1")
await process.stop()
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, Final

from neuron_dra.core import cdi
from neuron_dra.emulation import simulated_node
from neuron_dra.kube.config import KubeConfig
from neuron_dra.node.files import Files
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from neuron_dra.setting_table import settings_of
from neuron_dra.settings import PluginSettings
from tests.support import slots
from tests.support.ports import free_port
from tests.support.waiting import eventually

STOP_TIMEOUT_S: Final = 120.0  # a busy machine must not fail a test


async def published_again(plugin: Plugin) -> None:
    """Wake the publishing loop, and return when it has published once more, whether or not it wrote anything."""
    before = plugin.publish_state.at
    plugin.dirty.notify()
    await eventually(lambda: plugin.publish_state.at != before, what="another publish")


class PluginProcess:
    """A plugin in its own process; its log goes to a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Run a plugin in this process; raise the error that ends it early."""
        return self._process.returncode is None

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    async def ended(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the process to end and return its exit code. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, as the kubelet does, and return the exit code. Raises TimeoutError."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        """Send SIGKILL."""
        if self.running:
            self._process.kill()
        await self.ended()


class PluginHost:
    """The files of one node: simulated hardware, the kubelet's folders, the runtime's CDI folder.

    Keep `root` short: a socket's path has at most 107 bytes.
    """

    made: ClassVar[list[PluginHost] | None] = None  # those of the running test, where their ends are checked

    def __init__(
        self,
        root: Path,
        api_url: str,
        *,
        node_name: str = "node-a",
        instance_type: str = "trn2.48xlarge",
        timing: PluginTiming = DEFAULT_TIMING,
        reuses_hardware: bool = False,
        **hardware: Any,
    ) -> None:
        """With `reuses_hardware`, a complete simulated node below `root` is used again, with another boot id."""
        self.timing = timing  # of plugins in this process
        self.root, self.api_url, self.node_name = root, api_url, node_name
        if reuses_hardware and (root / "host" / simulated_node.WRITTEN).is_file():
            self.hardware = simulated_node.SimulatedNode.found(root / "host")
            self.hardware.set_boot_id()
        else:
            self.hardware = simulated_node.write(root / "host", instance_type, **hardware)
        self._instance_type, self._hardware_arguments = instance_type, hardware
        self.registry, self.plugins = root / "registry", root / "plugins"
        self.device_plugins, self.cdi = root / "device-plugins", root / "cdi"
        self.pod_resources = root / "pod-resources.sock"
        for folder in (self.registry, self.plugins, self.device_plugins):
            folder.mkdir()
        self.program: tuple[str, ...] = ("-m", "neuron_dra.cli")  # the command `neuron-dra`
        self.container: tuple[str, ...] = ()  # the command that runs it with other mounts: `HostMounts.container`
        self.processes: list[PluginProcess] = []
        if PluginHost.made is not None:
            PluginHost.made.append(self)

    def mend_hardware(self) -> None:
        """Write the simulated hardware again, without its faults, in the same boot."""
        boot_id = (self.root / "host" / simulated_node.BOOT_ID).read_text().strip()
        shutil.rmtree(self.root / "host")
        arguments = {**self._hardware_arguments, "boot_id": boot_id}
        self.hardware = simulated_node.write(self.root / "host", self._instance_type, **arguments)

    @property
    def data(self) -> Path:
        """The plugin's own folder."""
        return self.plugins / "neuron.aws.com"

    @property
    def checkpointed(self) -> set[str]:
        """UIDs of the claims in the checkpoint; none before the first commit, which writes it."""
        with contextlib.suppress(FileNotFoundError):
            return set(slots.read(self.data).claims)
        return set()

    @property
    def specified(self) -> set[str]:
        """UIDs of the claims that have a CDI file."""
        found = (cdi.claim_uid_of(name) for name in os.listdir(self.cdi))
        return {uid for uid in found if uid is not None}

    def spec(self, uid: str) -> Any:
        """The CDI file of a claim."""
        return json.loads((self.cdi / cdi.file_name(uid)).read_text())

    def settings(self, pod_uid: str = "", **more: Any) -> PluginSettings:
        """Settings for this node; by default without a TCP port and without a wait for devices."""
        settings = PluginSettings(
            node_name=self.node_name,
            pod_uid=pod_uid,
            cdi_root=str(self.cdi),
            kubelet_registrar_directory_path=str(self.registry),
            kubelet_plugins_directory_path=str(self.plugins),
            kubelet_device_plugins_directory_path=str(self.device_plugins),
            kubelet_pod_resources_socket=str(self.pod_resources),
            healthcheck_address="127.0.0.1",
            healthcheck_port=0,
            metrics_bind_address="",
            host_root=str(self.root / "host"),
            boot_id_file=str(self.root / "host" / simulated_node.BOOT_ID),
            kube_api_server=self.api_url,
            device_wait_seconds=0,
        )
        return dataclasses.replace(settings, **more)

    def as_shipped(self) -> dict[str, Any]:
        """The settings that `settings` switches off, with the shipped values, and ports that are free here."""
        shipped = PluginSettings()
        return {
            "device_wait_seconds": shipped.device_wait_seconds,
            "healthcheck_port": free_port(),
            "metrics_bind_address": f"127.0.0.1:{free_port()}",
        }

    @contextlib.asynccontextmanager
    async def running(self, pod_uid: str = "", *, files: Files | None = None, **more: Any) -> AsyncIterator[Plugin]:
        """Run a plugin in this process; what ends it early is raised here."""
        settings = self.settings(pod_uid, **more)
        plugin = Plugin(settings, KubeConfig(settings.kube_api_server), files, timing=self.timing)
        task = asyncio.create_task(plugin.run(), name="plugin")
        try:
            await eventually(lambda: task.done() or settings.registration_socket.exists(), what="the plugin's start")
            yield plugin
        finally:
            plugin.stop()
            _, late = await asyncio.wait([task], timeout=STOP_TIMEOUT_S)
            if late:
                busy = [f"{other.get_name()}: {other.get_stack(limit=1)}" for other in asyncio.all_tasks()]
                task.cancel()
                raise TimeoutError(f"the plugin did not end within {STOP_TIMEOUT_S:g} s: {busy}")
            await task

    async def start_process(self, pod_uid: str = "", **more: Any) -> PluginProcess:
        """Start a plugin as a process; `more` are settings by name."""
        settings = self.settings(pod_uid, **more)
        defaults = {f.name: f.default for f in dataclasses.fields(settings)}
        flags = []
        for setting in settings_of(type(settings)):
            value = getattr(settings, setting.name)
            if value != defaults[setting.name]:
                flags.append(f"{setting.flag}={str(value).lower() if isinstance(value, bool) else value}")
        return await self.start_command("plugin", *flags)

    async def start_command(self, *arguments: str, **environment: str) -> PluginProcess:
        """Start `neuron-dra` with these arguments."""
        log = self.root / f"log-{len(self.processes)}"
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME", "LANG") if name in os.environ}
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *(*self.container, sys.executable, *self.program, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**inherited, **environment},
            )
        started = PluginProcess(process, log)
        self.processes.append(started)
        return started

    async def close(self) -> None:
        """End all processes that still run."""
        for process in self.processes:
            await process.kill()
