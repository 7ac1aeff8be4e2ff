"""What `validate` checks between a pod's claims and its containers, which no API server compares. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from neuron_dra.ask.read.claim_views import ClaimView
from neuron_dra.ask.read.pod_views import ContainerClaim, PodView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.read.views import ObjectView
from neuron_dra.ask.render import words
from neuron_dra.ask.validate.specs import ManifestProblem
from neuron_dra.ask.why import known_faults
from neuron_dra.ask.world import demand
from neuron_dra.core.wire import Wire

DEVICES: Final = "/dev"
"""The host's folder with the files of all devices."""


class _ContainerSecurity(ObjectView, frozen=True):
    privileged: bool = False


class _VolumeMount(ObjectView, frozen=True):
    name: str = ""


class _ExposedContainer(ObjectView, frozen=True):
    name: str = ""
    security_context: _ContainerSecurity = _ContainerSecurity()
    volume_mounts: tuple[_VolumeMount, ...] = ()


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
    """The fields that decide which device files a container sees besides those of its claims."""

    spec: _ExposedSpec = _ExposedSpec()


def of_pod(objects: Snapshot, where: str, pod: Wire) -> Iterator[ManifestProblem]:
    """Yield what a pod's containers do not get of its claims for Neuron devices, and what they get besides.

    Claims of other drivers, such as those of network devices, need no container that names them.
    """
    claims = {claim.entry: claim.seen for claim in demand.claims_of(objects, pod) if claim.claim is not None}
    ours = {entry: claim for entry, claim in claims.items() if known_faults.is_ours(claim)}
    if not ours:
        return
    where = str(PodView.of(pod).metadata.annotations.get("owner") or where)  # equal pods of an owner are named once
    named = _named(pod)
    for entry, claim in ours.items():
        if entry != "limits":
            yield from _of_claim(where, entry, claim, named.get(entry, {}))
    yield from _beside_claims(where, pod)


def _named(pod: Wire) -> Mapping[str, Mapping[str, Sequence[ContainerClaim]]]:
    """Return the uses of each entry of a pod's claims, by entry and container."""
    spec = PodView.of(pod).spec
    found: dict[str, dict[str, list[ContainerClaim]]] = {}
    for container in (*spec.init_containers, *spec.containers):
        for use in container.resources.claims:
            found.setdefault(use.name, {}).setdefault(container.name, []).append(use)
    return found


def _of_claim(
    where: str, entry: str, claim: ClaimView, uses: Mapping[str, Sequence[ContainerClaim]]
) -> Iterator[ManifestProblem]:
    if not uses:
        text = (
            f"no container names the claim {entry} in resources.claims: it is allocated, and no container sees its "
            f"devices; write resources: {{claims: [{{name: {entry}}}]}} in the container that uses them"
        )
        yield ManifestProblem(where, "ClaimNotNamed", text)
    requests = {request.name for request in claim.requests}
    for container, of_container in uses.items():
        for use in of_container:
            if use.request and use.request not in requests:
                known = words.listed(sorted(requests))
                text = (
                    f"container {container}: the claim {entry} has no request {use.request}, so the container gets no "
                    f"device of it; its requests are {known}"
                )
                yield ManifestProblem(where, "RequestUnknown", text)


def _beside_claims(where: str, pod: Wire) -> Iterator[ManifestProblem]:
    """Yield the containers that see device files which no claim gives them."""
    spec = _ExposedPod.of(pod).spec
    folders = {}
    for volume in spec.volumes:
        if volume.host_path is None:
            continue
        path = volume.host_path.path.rstrip("/") or "/"
        if path in ("/", DEVICES) or path.startswith(f"{DEVICES}/neuron"):
            folders[volume.name] = path
    for container in (*spec.init_containers, *spec.containers):
        mounted = [folders[mount.name] for mount in container.volume_mounts if mount.name in folders]
        why = ""
        if container.security_context.privileged:
            why = "is privileged"
        elif mounted:
            why = f"mounts {mounted[0]} of the host"
        if why:
            text = (
                f"container {container.name} {why}, so it sees all Neuron devices of the node, also those of other "
                "pods; its claim gives it the files of its devices without that"
            )
            yield ManifestProblem(where, "SeesAllDevices", text, warning=True)
