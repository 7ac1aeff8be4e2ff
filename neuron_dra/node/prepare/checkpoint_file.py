"""The checkpoint's files: which copy counts, after the end of a process, a power cut, or a change of release.

    checkpoint.json   everything; it rules within a boot. It is not flushed for a claim: a power cut ends the boot, and
                      with it all claims
    boot.json         what outlives a boot: its id, the tag, the inventory; flushed with each change, and so rarely
    checkpoint.json.bak, .damaged    the checkpoint before, and one that could not be read

A number, `sequence`, grows with each change of what outlives a boot; checkpoint.json gets it first. If the two files
differ, the one with the higher number is newer. If the numbers are equal, or the checkpoint has none, a release that
does not know boot.json has changed the checkpoint, which is then newer.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.withdrawals import Mark
from neuron_dra.errors import CheckpointDamaged, CheckpointLost
from neuron_dra.node.files import Files, Stamp, make_durable_folder, replace, sweep, write_atomically

CHECKPOINT: Final = "checkpoint.json"
LAST_GOOD: Final = "checkpoint.json.bak"
DAMAGED: Final = "checkpoint.json.damaged"
BOOT: Final = "boot.json"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The checkpoint file as it was read or written last, under the lock."""

    stamp: Stamp | None
    raw: bytes
    checkpoint: Checkpoint


class CheckpointFile:
    """The checkpoint in a folder. Its methods need the store's lock, except those that say otherwise."""

    def __init__(self, folder: Path, boot_id: str, files: Files) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._files = files
        self._path = folder / CHECKPOINT
        self._seen: _Seen | None = None
        self._boot: Checkpoint | None = None  # boot.json, as it was read or written last

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._folder

    def make_folder(self) -> None:
        """Create the folder. Without the lock, whose file is in it. Raises OSError."""
        make_durable_folder(self._files, self._folder, 0o750)

    def open(self) -> Checkpoint:
        """Return the checkpoint, which may be one of an earlier boot. Raises CheckpointDamaged, OSError."""
        self._boot = self._read_boot()
        try:
            raw = self._files.read(self._path)
            current = self._decoded(raw) if raw is not None else None
        except OSError as err:
            self._unless_rebooted(CheckpointDamaged(f"{CHECKPOINT} cannot be read: {err}"))
            current = None
        except CheckpointDamaged as err:
            self._unless_rebooted(err)
            current = None
        if current is None and self._boot is None:
            return self.read()
        if current is None or (self._boot is not None and _is_older(current, self._boot)):
            assert self._boot is not None  # noqa: S101 - one of the two was read
            if self._boot.boot_id == self._boot_id:
                self._damaged(CheckpointDamaged(f"{CHECKPOINT} is gone, or older than {BOOT}"))
            return self._boot
        return current

    def read(self) -> Checkpoint:
        """Return the checkpoint of this boot. Raises CheckpointLost, CheckpointDamaged, OSError."""
        try:
            raw = self._files.read(self._path)
        except OSError as err:
            if self._seen is None:
                raise
            raise CheckpointLost(f"{CHECKPOINT} cannot be read: {err}") from err
        if raw is None and self._seen is not None:
            raise CheckpointLost(f"{CHECKPOINT} is gone")
        if raw is None:
            for witness in (LAST_GOOD, DAMAGED, BOOT):
                if self._files.read(self._folder / witness) is not None:
                    raise CheckpointDamaged(f"{CHECKPOINT} is gone, but {witness} shows that there was one")
            return Checkpoint(self._boot_id)
        before = self._seen
        try:
            current = self._decoded(raw)
            if before is not None and before.raw != raw:
                _check_order(before.checkpoint, current)
        except CheckpointDamaged as err:
            self._damaged(err)
        if current.boot_id != self._boot_id:
            return Checkpoint(self._boot_id, extra=current.extra)
        return current

    def settle(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint if it or boot.json differs from `checkpoint`. Raises OSError."""
        if self.seen != checkpoint or self._boot is None or not checkpoint.outlives_as(self._boot):
            self.write(checkpoint)

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint; flush it only if something changes that outlives a boot.

        Raises OSError; the checkpoint may then have been replaced, but not flushed.
        """
        boot = self._boot
        before = self._seen.checkpoint if self._seen is not None else None
        if boot is not None and before is not None and not before.outlives_as(boot):
            boot = self._read_boot()  # changed by another process; by one that does not know the file, if this differs
            if boot is not None and before.boot_id == self._boot_id and not before.outlives_as(boot):
                self._write_boot(before.with_sequence(max(before.sequence or 0, boot.sequence or 0)))
                boot = self._boot
        number = max((each.sequence or 0 for each in (boot, before) if each is not None), default=0)
        changed = boot is None or not checkpoint.outlives_as(boot)
        # Without boot.json a torn checkpoint would be damage after a power cut too.
        self._replace(checkpoint.with_sequence(number + 1 if changed else number), sync=boot is None)
        if changed:
            self.flush()
            self._write_boot(self._written)

    def write_anew(self, checkpoint: Checkpoint) -> None:
        """Write and flush all files again, after a flush has failed. Raises OSError.

        A later process must not take an older checkpoint, which the disk may have, for the current one; so boot.json
        gets a new number first, if the disk permits it.
        """
        number = max(checkpoint.sequence or 0, (self._boot.sequence or 0) if self._boot is not None else 0) + 1
        checkpoint = checkpoint.with_sequence(number)
        with contextlib.suppress(OSError):
            self._write_boot(checkpoint)
        self._replace(checkpoint)
        self.flush()
        self._write_boot(checkpoint)

    def flush(self) -> None:
        """Flush the checkpoint's bytes and its name. Without the lock. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):  # moved aside meanwhile, for it was damaged
            self._files.sync_file(self._path)
        self._files.sync_folder(self._folder)

    def forget_copies(self) -> None:
        """Remove the copies of an earlier boot. Raises OSError."""
        for name in (LAST_GOOD, DAMAGED):
            self._files.remove(self._folder / name)

    def sweep(self) -> None:
        """Remove temporary files of processes that died. Raises OSError."""
        for name in (CHECKPOINT, BOOT):
            sweep(self._files, self._folder / name)

    def keep_boot(self) -> bool:
        """Write boot.json again if it is gone or cannot be read; return whether that was so. Raises OSError."""
        if self._boot is None or self._copy(BOOT) is not None:
            return False
        self._write_boot(self._boot)
        return True

    # Copies

    def last_good(self) -> Checkpoint | None:
        """Return the newest readable copy, of any boot; None if there is none. Without the lock."""
        found = [self._copy(name) for name in (LAST_GOOD, DAMAGED)]
        return max((each for each in found if each is not None), key=lambda each: each.sequence or 0, default=None)

    def is_foreign(self) -> bool:
        """Return whether the damaged checkpoint has another driver's format. Without the lock."""
        with contextlib.suppress(OSError):
            raw = self._files.read(self._folder / DAMAGED)
            return raw is not None and checkpoints.is_foreign(raw)
        return False

    def outlived(self) -> Checkpoint | None:
        """Return what outlives a boot as it was flushed last; None if there is no such file. Without the lock."""
        return self._boot

    def _copy(self, name: str) -> Checkpoint | None:
        try:
            raw = self._files.read(self._folder / name)
            return checkpoints.decode(raw) if raw is not None else None
        except (OSError, CheckpointDamaged):
            return None

    def _unless_rebooted(self, err: CheckpointDamaged) -> None:
        """Raise `err` for a checkpoint of this boot; after a reboot it does not matter that it cannot be read."""
        kept = self._copy(LAST_GOOD)  # of this boot, if a release that does not know boot.json has run in it
        if self._boot is None or self._boot_id in (self._boot.boot_id, kept.boot_id if kept is not None else ""):
            self._damaged(err)

    def _damaged(self, err: CheckpointDamaged) -> NoReturn:
        self._seen = None
        with contextlib.suppress(OSError):  # gone, or on a disk that takes no writes: then the rebuild waits for it
            self._files.rename(self._path, self._folder / DAMAGED)
        raise err

    # What was read last

    def is_unchanged(self) -> bool:
        """Return whether the file is certainly the one that was read last. Without the lock."""
        with contextlib.suppress(OSError):
            stamp = self._files.stamp(self._path)
            return stamp is not None and self._seen is not None and self._seen.stamp == stamp
        return False

    @property
    def seen(self) -> Checkpoint | None:
        """The checkpoint as it was read or written last. Without the lock."""
        return self._seen.checkpoint if self._seen is not None else None

    def mark(self) -> Mark:
        """Return the mark of the last withdrawal; read the file only if it has changed. Without the lock."""
        seen = self.seen
        with contextlib.suppress(OSError, CheckpointDamaged):
            if not self.is_unchanged():
                raw = self._files.read(self._path)
                return checkpoints.decode(raw).withdrawals.mark if raw is not None else Mark()
        return seen.withdrawals.mark if seen is not None else Mark()

    def _decoded(self, raw: bytes) -> Checkpoint:
        """Decode the checkpoint's bytes; unchanged bytes return the checkpoint that was decoded last."""
        stamp = self._files.stamp(self._path)
        seen = self._seen
        current = seen.checkpoint if seen is not None and seen.raw == raw else checkpoints.decode(raw)
        self._seen = _Seen(stamp, raw, current)
        return current

    def _replace(self, checkpoint: Checkpoint, *, sync: bool = False) -> None:
        raw = checkpoints.encode(checkpoint)
        replace(self._files, self._path, raw, 0o600, keep=self._folder / LAST_GOOD, sync=sync)
        self._seen = _Seen(self._files.stamp(self._path), raw, checkpoint)

    @property
    def _written(self) -> Checkpoint:
        assert self._seen is not None  # noqa: S101 - it was just written
        return self._seen.checkpoint

    def _read_boot(self) -> Checkpoint | None:
        self._boot = self._copy(BOOT)
        return self._boot

    def _write_boot(self, checkpoint: Checkpoint) -> None:
        outliving = checkpoint.without_claims()
        write_atomically(self._files, self._folder / BOOT, checkpoints.encode(outliving), 0o600)
        self._boot = outliving


def _is_older(current: Checkpoint, boot: Checkpoint) -> bool:
    """Return whether the checkpoint is older than boot.json; without a number it is of a release that has none."""
    return current.sequence is not None and current.sequence < (boot.sequence or 0)


def _check_order(before: Checkpoint, current: Checkpoint) -> None:
    """Raise CheckpointDamaged if `current`, which another process should have written, is older than `before`.

    The disk may have lost what it accepted, and then returns an earlier file.
    """
    if before.boot_id != current.boot_id:
        return
    mark = before.withdrawals.mark
    if current.withdrawals.era == mark.era and current.withdrawals.count < mark.count:
        raise CheckpointDamaged(f"{CHECKPOINT} is older than it was: the disk has lost writes")
    for uid, claim in before.claims.items():
        if uid not in current.claims and not current.withdrawals.since(mark, uid):
            raise CheckpointDamaged(f"{CHECKPOINT} has lost claim {claim.ref}: the disk has lost writes")
