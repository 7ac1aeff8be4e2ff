"""Claims that all pods of a PodGroup share. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neuron_dra.ask.read.pod_views import PodGroupView
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.validate.specs import ClaimSpec, ManifestProblem
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.model import DeviceClass


def shared_claims(
    objects: Snapshot, where: str, group: Wire, classes: Mapping[str, DeviceClass]
) -> Iterator[ManifestProblem]:
    """Warn of a claim of a PodGroup for Neuron devices: they are on one node, and so are all its pods then."""
    group_view = PodGroupView.of(group)
    for group_claim in group_view.spec.resource_claims:
        by_template = group_claim.resource_claim_template_name
        kind = "ResourceClaimTemplate" if by_template else "ResourceClaim"
        name = by_template or group_claim.resource_claim_name
        raw_claim = objects.get(kind, name, group_view.metadata.namespace)
        if raw_claim is None:
            continue
        spec = ClaimSpec.of("", raw_claim["spec"]["spec"] if by_template else raw_claim["spec"])
        if any(spec.is_ours(alternative, classes) for _, alternative in spec.alternatives()):
            text = (
                f"all pods of the group share the claim {group_claim.name} ({kind} {name}), whose devices are on one "
                "node: all of them run there; for devices on several nodes, leave the claim out of the group, and name "
                "the template in the pods only"
            )
            yield ManifestProblem(where, "OneNodeForAGroup", text, warning=True)
