"""`neuron-dra` as a later release may be: the same program with another field at each level of the checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuron_dra import cli
from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import Checkpoint

FIELD, VALUE = "sinceNextRelease", {"data": [1, "é"]}


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes that the next release writes."""

    def more(extra: Mapping[str, Any] | None) -> dict[str, Any]:
        return {FIELD: VALUE, **(extra or {})}

    claims = {
        uid: replace(
            claim,
            extra=more(claim.extra),
            devices=tuple(replace(device, extra=more(device.extra)) for device in claim.devices),
        )
        for uid, claim in checkpoint.claims.items()
    }
    return this_release(replace(checkpoint, claims=claims, extra=more(checkpoint.extra)))


this_release = checkpoints.encode

if __name__ == "__main__":
    checkpoints.encode = encode
    sys.exit(cli.main())
