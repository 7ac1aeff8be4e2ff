"""JSON merge patches (RFC 7386), the only ones that this server has."""

from __future__ import annotations

import copy
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api.errors import bad_request, unsupported_media_type

MERGE: Final = "application/merge-patch+json"


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch and return the result; neither argument is changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def apply(content_type: str, target: Obj, patch: Any) -> Obj:
    """Apply `patch` if it is a merge patch. Raises a 415 for other media types."""
    if content_type != MERGE:
        raise unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {MERGE}; the embedded "
            "API server has no server-side apply: use a merge patch or PUT with resourceVersion"
        )
    if not isinstance(patch, dict):
        raise bad_request("the patch must be a JSON object")
    return dict(merge(target, patch))
