"""URL paths of the objects in the API."""

from __future__ import annotations

from dataclasses import dataclass


def is_path_segment(name: str) -> bool:
    """Return True if an object may have this name: it is one segment of a path, and the API server stores no other."""
    return name not in (".", "..") and not {"/", "%"} & {*name}


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object: its group, version, plural name, and whether it is namespaced."""

    group: str
    version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of the collection, of one object, or of its subresource; in all namespaces by default.

        Raises ValueError for a name that no object can have, such as one from an annotation that chooses another path.
        """
        for part in (namespace, name):
            if not is_path_segment(part):
                raise ValueError(f"{part[:80]!r} is no name: it has '/' or '%', or is '.' or '..'")
        if self.group:
            base = f"/apis/{self.group}/{self.version}"
        else:
            base = f"/api/{self.version}"
        parts = [base]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


NODES = Resource("", "v1", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
EVENTS = Resource("", "v1", "events", namespaced=True)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", namespaced=True)
NEURON_ULTRASERVERS = Resource("neuron.aws.com", "v1beta1", "neuronultraservers", namespaced=True)
NEURON_WORKLOADS = Resource("neuron.aws.com", "v1beta1", "neuronultraserverworkloads", namespaced=True)
NEURON_QUALIFICATIONS = Resource("neuron.aws.com", "v1beta1", "neuronultraserverqualifications", namespaced=False)
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", namespaced=True)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", namespaced=False)
PODS = Resource("", "v1", "pods", namespaced=True)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", namespaced=True)
DEVICE_TAINT_RULES = Resource("resource.k8s.io", "v1", "devicetaintrules", namespaced=False)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", namespaced=True)
SERVICES = Resource("", "v1", "services", namespaced=True)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", namespaced=True)
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", namespaced=True)
KUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", namespaced=True)
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", namespaced=True)
JOBS = Resource("batch", "v1", "jobs", namespaced=True)
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", namespaced=True)
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", namespaced=True)
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", namespaced=True)
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", namespaced=False)
POLICY_BINDINGS = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", namespaced=False)
