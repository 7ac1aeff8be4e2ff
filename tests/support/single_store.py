"""A Store that works on one claim at a time, and can be read."""

from __future__ import annotations

from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import Claim, PreparedClaim
from neuron_dra.node.prepare.group_commit import value_of
from neuron_dra.node.prepare.store import Decide, Store


class SingleStore(Store):
    """Calls the Store's functions for several claims with one."""

    def prepare(self, claim: Claim, decide: Decide) -> PreparedClaim:
        """Prepare a claim. Raises ClaimError, OSError."""
        [result] = self.prepare_all([(claim, None)], decide)
        return value_of(result)

    def unprepare(self, uid: str) -> PreparedClaim | None:
        """Forget a claim; return what it held, or None if it was unknown. Raises OSError."""
        [result] = self.unprepare_all([uid])
        return value_of(result)

    def read(self) -> Checkpoint:
        """Return what is prepared now. Raises CheckpointDamaged."""
        with self._locked():
            return self._read()
