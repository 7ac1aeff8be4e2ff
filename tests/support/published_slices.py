"""What the slices of a node on an API server are."""

from __future__ import annotations

from neuron_dra.emulation.embedded_api import EmbeddedApi


def is_complete(api: EmbeddedApi) -> bool:
    """Return True if all slices are of one generation, and none of it is missing.

    The last one may have no devices: counters are in slices of their own.
    """
    pools = [item["spec"]["pool"] for item in api.objects("resourceslices")]
    return len({each["generation"] for each in pools}) == 1 and len(pools) == pools[0]["resourceSliceCount"]
