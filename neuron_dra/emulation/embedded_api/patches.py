"""JSON merge patches (RFC 7386), and strategic merge patches of built-in kinds."""

from __future__ import annotations

import copy
from typing import Any, Final

from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import strategic
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


def apply(content_type: str, target: Obj, patch: Any, *, custom: bool) -> Obj:
    """Return an object after a patch. Raises a 415 for a media type that a kind, or the server, does not accept."""
    accepted = (MERGE,) if custom else (MERGE, strategic.MEDIA_TYPE)
    if content_type not in accepted:
        raise unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}; "
            "the embedded API server has no server-side apply: use a merge patch or PUT with resourceVersion"
        )
    if not isinstance(patch, dict):
        raise bad_request("the patch must be a JSON object")
    if content_type == strategic.MEDIA_TYPE:
        return strategic.merge(target, patch)
    return dict(merge(target, patch))
