"""What a checkpoint may lack after a loss: the last write, or one of the other plugin of an update.

Each plugin removes the CDI file of a claim that it unprepares, and writes one for a claim that it prepares.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import PreparedClaim


def corrected(current: Checkpoint, uids_with_files: Collection[str], *, remembers: bool, era: str) -> Checkpoint:
    """Return a checkpoint that may lack a write, without what the CDI files do not show.

    A claim without a file is in doubt, or forgotten if this process `remembers` the file and those of others are there.
    The lost write may have been a withdrawal; the new `era` rejects every prepare that began before.
    """
    own_uids = {uid for uid, claim in current.claims.items() if not claim.adopted}
    present = own_uids.intersection(uids_with_files)
    if remembers and present:
        current = current.without(own_uids - present)
    else:
        current = current.with_claims({uid: replace(current.claims[uid], doubtful=True) for uid in own_uids - present})
    return current.with_withdrawals(replace(current.withdrawals, era=era))


def missed(memory: Checkpoint, current: Checkpoint) -> dict[str, PreparedClaim]:
    """Return, in doubt, the claims of `memory` that another process did not know when it corrected the checkpoint."""
    if memory.boot_id != current.boot_id or memory.withdrawals.era == current.withdrawals.era:
        return {}
    uids = memory.claims.keys() - current.claims.keys() - current.withdrawals.claims.keys()
    return {uid: replace(memory.claims[uid], doubtful=True) for uid in uids}
