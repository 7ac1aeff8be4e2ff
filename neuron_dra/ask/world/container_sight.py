"""Which devices and variables each container of a pod sees, and what is wrong with that. Pure.

The kubelet gives the devices of a claim to the containers whose resources.claims name it: those of all its requests, or
of the one that the container names (kubernetes@v1.37.0 pkg/kubelet/cm/dra, cdiDevicesAsList). No API server compares
the two. Claims for devices of other drivers, such as those of network devices, need no container that names them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.ask.read.claim_views import AllocationView, ClaimView, RawClaimStatus
from neuron_dra.ask.read.pod_views import PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.views import ObjectView
from neuron_dra.ask.render import words
from neuron_dra.ask.world import demand, extended
from neuron_dra.ask.world.demand import FROM_LIMITS, PodClaim
from neuron_dra.core import names
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.wire import Wire
from neuron_dra.errors import ClaimError

HOST_DEVICES: Final = "/dev"
"""The host's folder with the files of all devices."""
VISIBLE_CORES: Final = "NEURON_RT_VISIBLE_CORES"
NUMBER_OF_CORES: Final = "NEURON_RT_NUM_CORES"
_CORE_SIZES: Final = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
_CORE_RANGE: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_WHOLE_DEVICES: Final = (names.DRIVER, names.WORKLOAD_CLASS)


class _ContainerSecurity(ObjectView, frozen=True):
    privileged: bool = False


class _VolumeMount(ObjectView, frozen=True):
    name: str = ""


class _ContainerVariable(ObjectView, frozen=True):
    name: str = ""
    value: str = ""


class _ExposedContainer(ObjectView, frozen=True):
    name: str = ""
    security_context: _ContainerSecurity = _ContainerSecurity()
    volume_mounts: tuple[_VolumeMount, ...] = ()
    env: tuple[_ContainerVariable, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The variables with a value of their own; of several with one name, the last counts."""
        return {variable.name: variable.value for variable in self.env if variable.value}


class _HostFolder(ObjectView, frozen=True):
    path: str = ""


class _HostVolume(ObjectView, frozen=True):
    name: str = ""
    host_path: _HostFolder | None = None


class _ExposedSpec(ObjectView, frozen=True):
    containers: tuple[_ExposedContainer, ...] = ()
    init_containers: tuple[_ExposedContainer, ...] = ()
    volumes: tuple[_HostVolume, ...] = ()


class _ExposedPod(ObjectView, frozen=True):
    """The fields that decide what a container sees besides the devices of its claims."""

    spec: _ExposedSpec = _ExposedSpec()

    @property
    def containers(self) -> tuple[_ExposedContainer, ...]:
        """Its init containers, then the others."""
        return (*self.spec.init_containers, *self.spec.containers)


@dataclass(frozen=True, slots=True)
class ContainerSight:
    """What one container sees of this driver's devices.

    - `devices`: the names of the devices as they are published; `variables`: what they set, as NAME=value.
    - `sees_all`: why it sees all devices of the node, as in "is privileged"; empty if it does not.
    """

    container: str
    devices: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    sees_all: str = ""

    def text(self, spec: InstanceType | None) -> str:
        """Return what it sees in words, as in "devices 0-3, NEURON_LOGICAL_NC_CONFIG=1"."""
        devices_text = words.devices(self.devices, spec) if self.devices else "nothing"
        if self.sees_all:
            devices_text += f" of its claims, and all devices of the node, because it {self.sees_all}"
        return ", ".join([devices_text, *self.variables])

    def to_wire(self) -> dict[str, Any]:
        """Return it for `-o json` and `-o yaml`."""
        row: dict[str, Any] = {"name": self.container, "devices": list(self.devices), "variables": list(self.variables)}
        if self.sees_all:
            row["seesAllDevices"] = self.sees_all
        return row


@dataclass(frozen=True, slots=True)
class SightFault:
    """What is wrong between the claims of a pod and its containers; a warning may be what is wanted."""

    code: str
    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class _Use:
    """A container's use of a claim: of all its requests, or of the one with this name."""

    container: str
    request: str

    def covers(self, request: str) -> bool:
        """Return whether the container gets what a request has, by its name or by that of its alternative."""
        return self.request in ("", request, request.partition("/")[0])


def sights(pod: Wire, claims: Sequence[PodClaim], spec: InstanceType | None) -> list[ContainerSight]:
    """Return what each container sees of the devices that are allocated to the claims of its pod.

    `spec` is the instance type of the pod's node; without it, no variables are known.
    """
    devices: dict[str, list[str]] = defaultdict(list)
    variables: dict[str, dict[str, None]] = defaultdict(dict)
    for claim in claims:
        allocation = RawClaimStatus.of((claim.claim or {}).get("status")).allocation
        if not allocation:
            continue
        by_request = _variables(allocation, spec)
        uses = _uses(pod, claim)
        for result in AllocationView.of(allocation).devices.results:
            for use in uses if result.driver == names.DRIVER else ():
                if use.covers(result.request) and result.device not in devices[use.container]:
                    devices[use.container].append(result.device)
                    variables[use.container].update(dict.fromkeys(by_request.get(result.request, ())))
    exposed = _exposed(pod)
    container_sights = []
    for container in PodView.of(pod).spec.all_containers:
        name = container.name
        sight = ContainerSight(name, tuple(devices[name]), tuple(variables[name]), exposed.get(name, ""))
        container_sights.append(sight)
    return container_sights


def _variables(allocation: Any, spec: InstanceType | None) -> Mapping[str, Sequence[str]]:
    from neuron_dra.ask.world import refusals  # prepare's decisions: only for pods with devices

    if spec is None:
        return {}
    return refusals.variables(allocation, spec.name)


def unnamed(pod: Wire, claims: Sequence[PodClaim], snapshot: Snapshot) -> list[str]:
    """Return the entries of a pod's claims for Neuron devices that none of its containers names."""
    entries = []
    for claim in claims:
        is_listed = claim.claim is not None and claim.entry != FROM_LIMITS
        if is_listed and demand.is_ours(snapshot, claim.seen) and not _uses(pod, claim):
            entries.append(claim.entry)
    return entries


def names_cores(pod: Wire) -> bool:
    """Return whether a container of a pod says which cores it uses, or how many."""
    return any(_named_cores(container.variables) for container in _ExposedPod.of(pod).containers)


def faults(
    pod: Wire, claims: Sequence[PodClaim], snapshot: Snapshot, types: Collection[InstanceType] = ()
) -> Iterator[SightFault]:
    """Yield what a pod's containers do not get of its claims for Neuron devices, and what they get besides.

    `types` are the instance types on which the pod may run; without them, numbers of cores are not judged.
    """
    neuron_claims = [claim for claim in claims if claim.claim is not None and demand.is_ours(snapshot, claim.seen)]
    if not neuron_claims:
        return
    for entry in unnamed(pod, neuron_claims, snapshot):
        yield SightFault(
            "ClaimNotNamed",
            f"no container names the claim {entry} in resources.claims: it is allocated, and no container sees its "
            f"devices; write resources: {{claims: [{{name: {entry}}}]}} in the container that uses them",
        )
    for claim in neuron_claims:
        yield from _unknown_requests(pod, claim)
    yield from _shared(pod, neuron_claims)
    yield from _core_sizes(pod, neuron_claims)
    yield from _cores_beyond(pod, neuron_claims, types)
    for container, why in _exposed(pod).items():
        yield SightFault(
            "SeesAllDevices",
            f"container {container} {why}, so it sees all Neuron devices of the node, also those of other pods; its "
            "claim gives it the files of its devices without that",
            is_warning=True,
        )


def _uses(pod: Wire, claim: PodClaim) -> list[_Use]:
    """Return the containers that get devices of a claim, and of which request."""
    if claim.entry == FROM_LIMITS:
        return [_Use(*use) for use in extended.containers_of(pod, claim.seen.requests)]
    uses = []
    for container in PodView.of(pod).spec.all_containers:
        for use in container.resources.claims:
            if use.name == claim.entry:
                uses.append(_Use(container.name, use.request))
    return uses


def _unknown_requests(pod: Wire, claim: PodClaim) -> Iterator[SightFault]:
    requests = sorted(request.name for request in claim.seen.requests)
    for use in _uses(pod, claim):
        if use.request and use.request not in requests:
            yield SightFault(
                "RequestUnknown",
                f"container {use.container}: the claim {claim.entry} has no request {use.request}, so the container "
                f"gets no device of it; its requests are {words.listed(requests)}",
            )


def _shared(pod: Wire, claims: Sequence[PodClaim]) -> Iterator[SightFault]:
    """Yield the requests whose devices several containers see at the same time without dividing the cores.

    An init container ends before the others start, unless it is a sidecar.
    """
    variables = {container.name: container.variables for container in _ExposedPod.of(pod).containers}
    spec = PodView.of(pod).spec
    running = [container.name for container in spec.init_containers if container.restart_policy == "Always"]
    running += [container.name for container in spec.containers]
    for claim in claims:
        uses = [use for use in _uses(pod, claim) if use.container in running]
        for request in claim.seen.requests:
            sharing = list(dict.fromkeys(use.container for use in uses if use.covers(request.name)))
            if len(sharing) < 2 or any(alternative.admin_access for alternative in request.alternatives):
                continue
            undivided = [name for name in sharing if not {VISIBLE_CORES, NUMBER_OF_CORES} & variables[name].keys()]
            if undivided:
                yield SightFault(
                    "RequestShared",
                    f"the containers {words.listed(sharing)} see the same devices, those of request {request.name} of "
                    f"the claim {claim.entry}, and the Neuron runtime gives a core to one process at a time: give "
                    f"each container a request of its own, or divide the cores with {VISIBLE_CORES}",
                    is_warning=True,
                )


def _core_sizes(pod: Wire, claims: Sequence[PodClaim]) -> Iterator[SightFault]:
    """Yield the containers that get several sizes of logical NeuronCores, or set another one than their claim."""
    for container in _ExposedPod.of(pod).containers:
        sizes: dict[int, str] = {}
        for claim in claims:
            container_uses = [use for use in _uses(pod, claim) if use.container == container.name]
            for request, size in _sizes(claim.seen).items():
                if any(use.covers(request) for use in container_uses):
                    sizes.setdefault(size, f"{claim.entry}/{request.partition('/')[0]}")
        if len(set(sizes.values())) > 1:
            texts = ", ".join(f"{size} from {name}" for size, name in sizes.items())
            yield SightFault(
                "CoreSizesDiffer",
                f"container {container.name}: logicalNeuronCore {texts}: a container has one size",
            )
        elif len(sizes) == 1:
            [(size, where)] = sizes.items()
            for name in _CORE_SIZES:
                value = container.variables.get(name, "")
                if value not in ("", str(size)):
                    yield SightFault(
                        "CoreSizesDiffer",
                        f"container {container.name} sets {name}={value}, and the claim sets {size} ({where}), which "
                        f"the container gets: remove the variable, or write logicalNeuronCore: {value} into the claim",
                        is_warning=True,
                    )


def _cores_beyond(pod: Wire, claims: Sequence[PodClaim], types: Collection[InstanceType]) -> Iterator[SightFault]:
    """Yield the containers that name more cores than their claims have on any of these types."""
    for container in _ExposedPod.of(pod).containers:
        named = _named_cores(container.variables)
        uses = [(claim, use) for claim in claims for use in _uses(pod, claim) if use.container == container.name]
        if not named or not uses:
            continue
        most = 0
        for spec in types:
            counts = [_cores(claim.seen, use, spec) for claim, use in uses]
            if None in counts:
                return
            most = max(most, sum(count for count in counts if count is not None))
        if not most:
            continue
        for variable, number in named.items():
            if number > most:
                counted = "; the variable counts the cores of the container's devices from 0"
                last = counted if variable == VISIBLE_CORES else ""
                yield SightFault(
                    "CoresBeyondClaim",
                    f"container {container.name} sets {variable}={container.variables[variable]}, and its claims "
                    f"have {words.count(most, 'logical NeuronCore')}{last}: name at most {most} cores, or request "
                    "more devices",
                )


def _named_cores(variables: Mapping[str, str]) -> dict[str, int]:
    """Return how many cores a container needs at least, by the variable that says so."""
    needed = {}
    parts = [part for part in variables.get(VISIBLE_CORES, "").split(",") if part.strip()]
    ranges = [_CORE_RANGE.fullmatch(part.strip()) for part in parts]
    if parts and all(ranges):
        needed[VISIBLE_CORES] = max(int(match[2] or match[1]) for match in ranges if match) + 1
    number = variables.get(NUMBER_OF_CORES, "")
    if number.isdecimal():
        needed[NUMBER_OF_CORES] = int(number)
    return needed


def _cores(claim: ClaimView, use: _Use, spec: InstanceType) -> int | None:
    """Return the most logical cores that a container gets of a claim on this type; None if that cannot be told."""
    sizes = _sizes(claim)
    total = 0
    for request in claim.requests:
        if not use.covers(request.name):
            continue
        most = 0
        for name, alternative in request.named_alternatives:
            if alternative.device_class_name not in _WHOLE_DEVICES:
                return None  # of connected sets and parts of devices, the class says how many cores there are
            is_all = alternative.wants_all or spec.whole_node
            devices = spec.device_count if is_all else alternative.number
            most = max(most, devices * spec.cores_per_device // sizes.get(name, spec.lnc_default))
        total += most
    return total


def _sizes(claim: ClaimView) -> dict[str, int]:
    """Return the size of logical cores of each request, or alternative, that sets one; by the names in results."""
    entries = claim.spec.devices.config
    if not entries:
        return {}
    from neuron_dra.ask.world import refusals
    from neuron_dra.core import config

    try:
        decoded = refusals.decoded_views(entries)
    except ClaimError:
        return {}  # another rule says so
    sizes: dict[str, int] = {}
    for request in claim.requests:
        for name, _ in request.named_alternatives:
            settings = config.effective(decoded, name).neuron
            if settings is not None:
                sizes[name] = settings.logical_neuron_core
    return sizes


def _exposed(pod: Wire) -> dict[str, str]:
    """Return why containers see device files that no claim gives them, by container."""
    exposed_pod = _ExposedPod.of(pod)
    folders = {}
    for volume in exposed_pod.spec.volumes:
        if volume.host_path is None:
            continue
        path = volume.host_path.path.rstrip("/") or "/"
        if path in ("/", HOST_DEVICES) or path.startswith(f"{HOST_DEVICES}/neuron"):
            folders[volume.name] = path
    exposed = {}
    for container in exposed_pod.containers:
        mounted = [folders[mount.name] for mount in container.volume_mounts if mount.name in folders]
        if container.security_context.privileged:
            exposed[container.name] = "is privileged"
        elif mounted:
            exposed[container.name] = f"mounts {mounted[0]} of the host"
    return exposed
