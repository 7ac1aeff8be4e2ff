"""Resolves CDI devices as a container runtime does: parses the spec files strictly and merges their edits.

Rules of the CDI library: an unknown field rejects the file, and so does a cdiVersion that is too low for the fields; a
device name in two files belongs to neither; a file's spec-level edits apply once per container; the last value of an
environment variable wins.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_VENDOR: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "spec": frozenset({"cdiVersion", "kind", "annotations", "devices", "containerEdits"}),
    "device": frozenset({"name", "annotations", "containerEdits"}),
    "edits": frozenset({"env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"}),
    "deviceNode": frozenset({"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}),
    "mount": frozenset({"hostPath", "containerPath", "options", "type"}),
    "hook": frozenset({"hookName", "path", "args", "env", "timeout"}),
}


class CdiError(Exception):
    """A spec file that a runtime rejects, or device ids that it cannot resolve."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    path: str
    host_path: str
    type: str = ""
    major: int | None = None
    minor: int | None = None
    permissions: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    container_path: str
    host_path: str
    options: tuple[str, ...] = ()


@dataclass(slots=True)
class Container:
    """What a container gets; keys are names of environment variables and paths in the container."""

    cdi_ids: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    device_nodes: dict[str, DeviceNode] = field(default_factory=dict)
    mounts: dict[str, Mount] = field(default_factory=dict)
    hooks: list[dict[str, Any]] = field(default_factory=list)


class CdiRuntime:
    """Resolves CDI ids from directories; later directories take precedence. Files are read again for each container.

    With `host_root`, device nodes must exist below that folder.
    """

    def __init__(self, directories: Iterable[Path | str], *, host_root: Path | str | None = None) -> None:
        self._directories = [Path(directory) for directory in directories]
        self._host_root = Path(host_root) if host_root is not None else None

    def create(self, cdi_ids: Iterable[str], env: Mapping[str, str] | None = None) -> Container:
        """Return a container with the edits of `cdi_ids`. Raises CdiError where a runtime would fail."""
        ids = tuple(dict.fromkeys(cdi_ids))
        container = Container(ids, dict(env or {}))
        devices, problems = self._load()
        missing = [name for name in ids if name not in devices]
        if missing:
            about = f" ({'; '.join(problems)})" if problems else ""
            raise CdiError(f"unresolvable CDI devices {', '.join(missing)}{about}")
        seen: set[Path] = set()
        for name in ids:
            path, spec, device = devices[name]
            if path not in seen:
                seen.add(path)
                self._apply(container, spec.get("containerEdits") or {})
            self._apply(container, device["containerEdits"])
        return container

    def specs(self) -> dict[Path, dict[str, Any]]:
        """Return all spec files, checked. Raises CdiError for the first invalid one."""
        specs_by_path = {}
        for directory in self._directories:
            for path in _spec_files(directory):
                specs_by_path[path] = load_spec(path)
        return specs_by_path

    def _load(self) -> tuple[dict[str, tuple[Path, dict[str, Any], dict[str, Any]]], list[str]]:
        devices: dict[str, tuple[Path, dict[str, Any], dict[str, Any]]] = {}
        problems: list[str] = []
        for directory in self._directories:
            devices_of_directory: dict[str, tuple[Path, dict[str, Any], dict[str, Any]]] = {}
            conflicts: set[str] = set()
            for path in _spec_files(directory):
                try:
                    spec = load_spec(path)
                except CdiError as error:
                    problems.append(str(error))
                    continue
                for device in spec["devices"]:
                    name = f"{spec['kind']}={device['name']}"
                    if name in devices_of_directory:
                        conflicts.add(name)
                        first_path, _, _ = devices_of_directory[name]
                        problems.append(f'conflicting device "{name}" (specs "{first_path}", "{path}")')
                    devices_of_directory[name] = path, spec, device
            devices.update(devices_of_directory)
            for name in conflicts:
                devices.pop(name, None)
        return devices, problems

    def _apply(self, container: Container, edits: Mapping[str, Any]) -> None:
        for assignment in edits.get("env") or []:
            name, _, value = assignment.partition("=")
            container.env[name] = value
        for node in edits.get("deviceNodes") or []:
            container.device_nodes[node["path"]] = self._device_node(node)
        for mount in edits.get("mounts") or []:
            path = mount["containerPath"]
            container.mounts[path] = Mount(path, mount["hostPath"], tuple(mount.get("options") or ()))
        container.hooks += edits.get("hooks") or []

    def _device_node(self, node: Mapping[str, Any]) -> DeviceNode:
        host_path = node.get("hostPath") or node["path"]
        kind = node.get("type", "")
        major = node.get("major")
        minor = node.get("minor")
        if self._host_root is not None and (not kind or major is None):
            try:
                status = os.stat(self._host_root / host_path.lstrip("/"))
            except FileNotFoundError:
                raise CdiError(f'failed to stat CDI host device "{host_path}": no such file or directory') from None
            if stat.S_ISCHR(status.st_mode):
                kind = "c"
                major = os.major(status.st_rdev)
                minor = os.minor(status.st_rdev)
        return DeviceNode(node["path"], host_path, kind, major, minor, node.get("permissions", ""))


def _spec_files(directory: Path) -> Iterator[Path]:
    if directory.is_dir():
        yield from sorted(path for path in directory.iterdir() if path.suffix == ".json" and path.is_file())


def load_spec(path: Path) -> dict[str, Any]:
    """Read one spec file and check it as the CDI library does. Raises CdiError, which names the file."""
    try:
        spec = json.loads(path.read_text(), object_pairs_hook=_no_duplicates)
        _check_spec(spec)
    except (ValueError, CdiError) as error:
        raise CdiError(f"failed to load CDI Spec {path}: {error}") from error
    return dict(spec)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise CdiError(f'key "{name}" already set in map')
    return dict(pairs)


def _known(kind: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CdiError(f"{kind} must be an object")
    for name in value:
        if name not in _FIELDS[kind]:
            raise CdiError(f'unknown field "{name}" in {kind}')
    return value


def _check_spec(spec: Any) -> None:
    _known("spec", spec)
    version = spec.get("cdiVersion")
    if version not in _VERSIONS:
        raise CdiError(f"invalid version {version!r}, must be one of {', '.join(_VERSIONS)}")
    vendor, _, klass = str(spec.get("kind") or "").partition("/")
    if not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(klass):
        raise CdiError(f"invalid kind {spec.get('kind')!r}")
    devices = spec.get("devices")
    if not devices:
        raise CdiError("no devices")
    names: set[str] = set()
    for device in devices:
        name = _known("device", device).get("name") or ""
        if not _DEVICE.fullmatch(name):
            raise CdiError(f"invalid device name {name!r}")
        if name in names:
            raise CdiError(f"multiple devices named {name!r}")
        names.add(name)
        if not device.get("containerEdits"):
            raise CdiError(f"invalid device {name!r}, empty device edits")
        _check_edits(device["containerEdits"])
    _check_edits(spec.get("containerEdits") or {})
    _check_strings("annotations", spec.get("annotations") or {})
    needed = minimum_version(spec)
    if _VERSIONS.index(version) < _VERSIONS.index(needed):
        raise CdiError(f"the spec version must be at least v{needed}")


def _check_strings(what: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, str):
            raise CdiError(f"{what}: {name} must be a string")


def _check_edits(edits: Any) -> None:
    _known("edits", edits)
    for assignment in edits.get("env") or []:
        if not isinstance(assignment, str) or assignment.find("=") < 1:
            raise CdiError(f'invalid environment variable "{assignment}"')
    for node in edits.get("deviceNodes") or []:
        if not _known("deviceNode", node).get("path"):
            raise CdiError("invalid (empty) device path")
        if node.get("type", "b") not in ("b", "c", "u", "p", ""):
            raise CdiError(f'device "{node["path"]}": invalid type "{node["type"]}"')
        permissions = node.get("permissions", "")
        if permissions != "none" and not set(permissions) <= set("rwm"):
            raise CdiError(f'device "{node["path"]}": invalid permissions "{permissions}"')
        for name in ("major", "minor", "fileMode", "uid", "gid"):
            if name in node and not isinstance(node[name], int):
                raise CdiError(f'device "{node["path"]}": {name} must be a number')
    for mount in edits.get("mounts") or []:
        if not _known("mount", mount).get("hostPath") or not mount.get("containerPath"):
            raise CdiError("invalid mount, empty host or container path")
    for hook in edits.get("hooks") or []:
        if _known("hook", hook).get("hookName") not in _HOOKS:
            raise CdiError(f'invalid hook name "{hook.get("hookName")}"')
        if not str(hook.get("path", "")).startswith("/"):
            raise CdiError("invalid hook, path must be absolute")


def minimum_version(spec: Mapping[str, Any]) -> str:
    """Return the lowest cdiVersion that has all the fields which the spec uses."""
    needed = ["0.3.0"]
    klass = str(spec["kind"]).partition("/")[2]
    if spec.get("annotations") or "." in klass:
        needed.append("0.6.0")
    edits = [spec.get("containerEdits") or {}]
    for device in spec["devices"]:
        edits.append(device["containerEdits"])
        if device["name"][0].isdigit():
            needed.append("0.5.0")
        if device.get("annotations"):
            needed.append("0.6.0")
    for edit in edits:
        if any(mount.get("type") for mount in edit.get("mounts") or []):
            needed.append("0.4.0")
        if any(node.get("hostPath") for node in edit.get("deviceNodes") or []):
            needed.append("0.5.0")
        if edit.get("intelRdt") or edit.get("additionalGids"):
            needed.append("0.7.0")
        if edit.get("netDevices"):
            needed.append("1.1.0")
    return max(needed, key=_VERSIONS.index)
