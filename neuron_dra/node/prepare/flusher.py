"""Flushes the checkpoint after the replies: the kubelet waits for no flush, and many writes share one.

A power cut ends the boot, and with it all claims, so a flush saves none. It shows whether the disk keeps what it
accepted: if not, a plugin that starts later in this boot may read an older checkpoint. So nothing new is prepared until
everything has been written again and flushed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from neuron_dra.core import backoff, names
from neuron_dra.node.prepare.daemon_worker import Worker
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.timing import DEFAULT_TIMING, PrepareTiming

log = logging.getLogger(__name__)


class Flusher:
    """Flushes what `prepared` wrote. `report` gets the text of an Event."""

    def __init__(
        self,
        prepared: PreparedClaims,
        report: Callable[[str], None],
        timing: PrepareTiming = DEFAULT_TIMING.prepare,
    ) -> None:
        self._prepared = prepared
        self._report = report
        self._timing = timing
        self._worker = Worker("flush")  # its own thread: the next claim does not wait for the flush of the one before

    async def run(self) -> None:
        """Flush after each change, until cancelled; write everything again after an error."""
        while True:
            changes_seen = self._prepared.changed.count
            await self.flush()
            await self._prepared.changed.after(changes_seen)
            await asyncio.sleep(self._timing.flush_s)

    async def flush(self) -> None:
        """Flush once; after an error return when everything was written again and flushed."""
        try:
            await self._worker.do(self._prepared.store.flush)
        except OSError as err:
            await self._write_anew(err)

    async def _write_anew(self, err: OSError) -> None:
        waits = backoff.delays(*self._timing.flush_retry_s, random.random)
        self._failed(err)
        while True:
            try:
                await self._prepared.write_anew()
            except OSError as retry_err:  # TimeoutError too
                self._failed(retry_err)
                await asyncio.sleep(next(waits))
            else:
                log.info("the disk has the prepared claims again")
                self._prepared.flushed()
                return

    def _failed(self, err: OSError) -> None:
        log.error("the disk did not keep what was written; nothing new is prepared", extra={"error": str(err)})
        self._prepared.flush_failed(err)
        self._report(
            f"the disk of {self._prepared.store.folder} did not keep what {names.DRIVER} wrote ({err}), so no new "
            "claim is prepared on this node until it does; prepared claims keep working. Check the disk and the "
            "kernel's log"
        )
