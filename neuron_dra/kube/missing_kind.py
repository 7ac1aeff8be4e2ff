"""Finds out whether the API server has a kind at all, when a request for its objects was answered with 404."""

from __future__ import annotations

from neuron_dra.errors import Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.replies import served_plurals, served_versions
from neuron_dra.kube.requests import Resource, is_path_segment


async def is_missing(client: KubeClient, resource: Resource) -> bool:
    """Return True if the API server lists its kinds, and has this one in no version. Raises ApiError.

    A 404 alone does not show that: a proxy answers it too, and so does the API server for a version that it no longer
    serves while the objects exist in another.
    """
    group = resource.group
    for version in sorted(served_versions(await client.request("GET", "/apis"), group)):
        if not is_path_segment(version):
            raise Unavailable(f"the API server lists a version of {group} that cannot be one")
        group_version = f"{group}/{version}"
        if resource.plural in served_plurals(await client.request("GET", f"/apis/{group_version}"), group_version):
            return False
    return True
