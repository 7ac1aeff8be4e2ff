"""The checkpoint's files: which one counts, after the end of a process, a power cut, or the loss of a file.

    checkpoint.0, checkpoint.1   the slots. A write goes into the older one, in place, so a torn one leaves the newer
                                 one. They have spare space, so that a claim can be unprepared on a full disk
    boot.json                    what outlives a boot: its id, the tag, the inventory; flushed with each change, and so
                                 rarely. A slot is not flushed for a claim: a power cut ends the boot, and all claims
    checkpoint.json              not ours: another driver has run here, or a version before the first release

Each write has a higher sequence than all before it. A slot is older than boot.json if its sequence is lower.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from neuron_dra.core import checkpoint as checkpoints
from neuron_dra.core.checkpoint import SLOTS, Checkpoint
from neuron_dra.core.withdrawals import Mark
from neuron_dra.errors import CheckpointDamaged, CheckpointLost, CheckpointOfLaterRelease
from neuron_dra.node.files import Files, Stamp, make_durable_folder, sweep, write_atomically

BOOT: Final = "boot.json"
FOREIGN: Final = "checkpoint.json"
SET_ASIDE: Final = "checkpoint.json.damaged"

SLOT_BYTES: Final = 64 * 1024  # of a new slot: claims for all devices of a node, one each, take half of it
SPARE_BYTES: Final = 4 * 1024  # left free by all but unprepares, each of which may add 50 bytes for two minutes


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot as it was read or written last, under the lock."""

    raw: bytes | None = None  # None if it is gone or cannot be read
    checkpoint: Checkpoint | None = None  # None if it is not whole
    problem: str = "is gone"  # why it does not count, unless it is the newest


class CheckpointFile:
    """The checkpoint in a folder. Its methods need the store's lock, except those that say otherwise.

    A write belongs to a read under the same lock, because that decides which slot is the older one.
    """

    def __init__(self, folder: Path, boot_id: str, files: Files) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._files = files
        self._paths = [folder / name for name in SLOTS]
        self._slots = [_Slot(), _Slot()]
        self._older = 0  # the index of the slot that is written next
        self._stamp: Stamp | None = None  # of that slot, which any other process writes next too
        self._seen: Checkpoint | None = None
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
        boot = self._read_boot()
        current = self._read_slots()
        if self.is_foreign():
            raise CheckpointDamaged(f"{FOREIGN} is of another driver, or of a version before the first release")
        # After a power cut the slots may lack what was not flushed. boot.json was, and no claim outlives a boot.
        if boot is not None and boot.boot_id != self._boot_id and _is_older(current, boot):
            return boot
        return self._accepted(current)

    def read(self) -> Checkpoint:
        """Return the checkpoint of this boot. Raises CheckpointLost, CheckpointDamaged, OSError."""
        current = self._read_slots()
        seen = self._seen
        if seen is not None:
            if _is_older(current, seen):
                raise CheckpointLost(self._problem())
            _check_order(seen, current)
        current = self._accepted(current)
        if current.boot_id != self._boot_id:
            return Checkpoint(self._boot_id, extra=current.extra)
        return current

    def _accepted(self, current: Checkpoint | None) -> Checkpoint:
        """Return the newest whole slot. Raises CheckpointDamaged if a newer one must have existed."""
        if current is None:
            if self._boot is not None or self._files.stamp(self._folder / BOOT) is not None or self._has_slots:
                raise CheckpointDamaged(self._problem())
            return Checkpoint(self._boot_id)  # no file exists, as at the first start on a node
        # Skip this once a checkpoint was seen: this process may have written boot.json and then failed at the slots.
        if self._seen is None and self._boot is not None and _is_older(current, self._boot):
            raise CheckpointDamaged(self._problem())
        self._seen = current
        return current

    def settle(self, checkpoint: Checkpoint) -> bool:
        """Write `checkpoint` if the slots or boot.json differ from it, or are not whole; return whether that was so.

        Raises OSError.
        """
        if self._slots_are_whole and self.seen == checkpoint and not _differs(checkpoint, self._read_boot()):
            return False
        self.write(checkpoint)
        return True

    def write(self, checkpoint: Checkpoint, *, spare_bytes: int = SPARE_BYTES) -> None:
        """Write the checkpoint; flush it only if something changes that outlives a boot.

        The slots have `spare_bytes` more than the checkpoint. Raises OSError; a later write may be needed then.
        """
        # Another process may have written boot.json since it was read.
        is_changed = _differs(checkpoint, self._boot) and _differs(checkpoint, self._read_boot())
        self._write_slot(checkpoint, spare_bytes)
        if is_changed:
            self.flush()
            self._write_boot(self._written)

    def write_anew(self, checkpoint: Checkpoint) -> None:
        """Create and flush all files again, on other blocks of the disk. Raises OSError.

        A later process must not take an older slot, which the disk may have, for the current one; so boot.json gets a
        new sequence first, if the disk permits it.
        """
        with contextlib.suppress(OSError):
            self._write_boot(replace(checkpoint, sequence=self._last_sequence + 1))
        self._slots = [_Slot(), _Slot()]
        self._write_slot(checkpoint, SPARE_BYTES)
        self._write_boot(self._written)

    def flush(self) -> None:
        """Flush the newest slot. Without the lock. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):  # the next read notices it
            self._files.sync_file(self._paths[1 - self._older])

    def sweep(self) -> None:
        """Remove temporary files of processes that died. Raises OSError."""
        for name in (*SLOTS, BOOT):
            sweep(self._files, self._folder / name)

    # Other sources

    def last_good(self) -> Checkpoint | None:
        """Return the newest whole slot, of any boot, even if it is too old; None if there is none. Without the lock."""
        with contextlib.suppress(OSError, CheckpointDamaged):
            return self._newest()
        return None

    def is_foreign(self) -> bool:
        """Return whether there is a checkpoint that this driver has not written. Without the lock. Raises OSError."""
        return self._files.stamp(self._folder / FOREIGN) is not None

    def set_foreign_aside(self) -> None:
        """Rename a checkpoint that this driver has not written, once its claims are found. Raises OSError."""
        if self.is_foreign():
            self._files.rename(self._folder / FOREIGN, self._folder / SET_ASIDE)

    def outlived(self) -> Checkpoint | None:
        """Return what outlives a boot as it was flushed last; None if there is no such file. Without the lock."""
        return self._boot

    # What was read last

    @property
    def is_partial(self) -> bool:
        """Whether only one slot was whole when they were read, so that it may lack what the other one had."""
        return sum(slot.checkpoint is not None for slot in self._slots) == 1

    def is_unchanged(self) -> bool:
        """Return whether nobody has written since the last read. A hint, without the lock.

        The stamp has a time, which a write right after ours may leave as it was.
        """
        with contextlib.suppress(OSError):
            stamp = self._files.stamp(self._paths[self._older])
            return stamp is not None and self._stamp == stamp
        return False

    @property
    def seen(self) -> Checkpoint | None:
        """The checkpoint as it was read or written last. Without the lock."""
        return self._seen

    def mark(self) -> Mark:
        """Return the mark of the last withdrawal; read the slots only if they have changed. Without the lock.

        While another process writes a slot, the mark is of the one before: that may reject a prepare, and no more.
        """
        seen = self.seen
        with contextlib.suppress(OSError, CheckpointDamaged):
            if not self.is_unchanged():
                seen = self._newest()
        return seen.mark if seen is not None else Mark()

    # Slots

    def _newest(self) -> Checkpoint | None:
        return checkpoints.newest(self._files.read(path) for path in self._paths)

    def _read_slots(self) -> Checkpoint | None:
        """Read both slots; return the newest whole checkpoint. Raises CheckpointOfLaterRelease, OSError."""
        self._slots = [self._read_slot(path, slot) for path, slot in zip(self._paths, self._slots, strict=True)]
        first, second = (slot.checkpoint for slot in self._slots)
        self._older = 1 if first is not None and (second is None or second.sequence <= first.sequence) else 0
        self._stamp = self._files.stamp(self._paths[self._older])
        return self._slots[1 - self._older].checkpoint

    def _read_slot(self, path: Path, before: _Slot) -> _Slot:
        try:
            raw = self._files.read(path)
        except OSError as err:
            return _Slot(problem=f"cannot be read: {err}")
        if raw is None:
            return _Slot()
        if raw == before.raw:
            return before
        try:
            return _whole(raw, checkpoints.decode(raw))
        except CheckpointOfLaterRelease:
            raise
        except CheckpointDamaged as err:
            return _Slot(raw, problem=f"is damaged: {err}")

    @property
    def _slots_are_whole(self) -> bool:
        return all(slot.checkpoint is not None for slot in self._slots)

    @property
    def _has_slots(self) -> bool:
        return any(slot != _Slot() for slot in self._slots)

    def _problem(self) -> str:
        """Return why no slot counts."""
        return ", ".join(f"{path.name} {slot.problem}" for path, slot in zip(self._paths, self._slots, strict=True))

    def _write_slot(self, checkpoint: Checkpoint, spare_bytes: int) -> None:
        """Write the older slot, and the other one too if that is not whole."""
        checkpoint = replace(checkpoint, sequence=self._last_sequence + 1)
        raw = checkpoints.encode(checkpoint)
        for index in (1 - self._older, self._older):
            slot = self._slots[index]
            is_kept = index != self._older and slot.checkpoint is not None
            if slot.raw is None or len(slot.raw) < len(raw) + spare_bytes:
                # Enlarge the kept slot too: the next write, perhaps of an unprepare on a full disk, goes into it.
                self._create(index, slot if is_kept else _whole(raw, checkpoint), max(SLOT_BYTES, 2 * len(raw)))
            elif not is_kept:
                self._files.overwrite(self._paths[index], raw)
                self._slots[index] = _whole(raw + slot.raw[len(raw) :], checkpoint)
        self._older = 1 - self._older
        self._stamp = self._files.stamp(self._paths[self._older])
        self._seen = checkpoint

    def _create(self, index: int, slot: _Slot, size: int) -> None:
        """Replace a slot's file with one of `size` bytes that has the contents of `slot`. Raises OSError."""
        raw = (slot.raw or b"").ljust(size, b"\0")
        write_atomically(self._files, self._paths[index], raw, 0o600)
        self._slots[index] = replace(slot, raw=raw)

    @property
    def _last_sequence(self) -> int:
        checkpoints_read = (self._seen, self._boot, *(slot.checkpoint for slot in self._slots))
        return max((checkpoint.sequence for checkpoint in checkpoints_read if checkpoint is not None), default=0)

    # boot.json

    @property
    def _written(self) -> Checkpoint:
        assert self._seen is not None  # noqa: S101 - it was just written
        return self._seen

    def _read_boot(self) -> Checkpoint | None:
        """Read boot.json; None if it is gone or cannot be read. Raises CheckpointOfLaterRelease."""
        self._boot = None
        try:
            raw = self._files.read(self._folder / BOOT)
            self._boot = checkpoints.decode(raw) if raw is not None else None
        except CheckpointOfLaterRelease:
            raise
        except (OSError, CheckpointDamaged):
            pass
        return self._boot

    def _write_boot(self, checkpoint: Checkpoint) -> None:
        outliving = checkpoint.without_claims()
        write_atomically(self._files, self._folder / BOOT, checkpoints.encode(outliving), 0o600)
        self._boot = outliving


def _whole(raw: bytes, checkpoint: Checkpoint) -> _Slot:
    return _Slot(raw, checkpoint, "is too old")


def _differs(checkpoint: Checkpoint, boot: Checkpoint | None) -> bool:
    return boot is None or not checkpoint.outlives_as(boot)


def _is_older(current: Checkpoint | None, other: Checkpoint) -> bool:
    return current is None or current.sequence < other.sequence


def _check_order(before: Checkpoint, current: Checkpoint | None) -> None:
    """Raise CheckpointDamaged if `current`, which another process should have written, lacks what `before` has.

    The disk may have lost what it accepted, and another process may then have continued from an earlier slot.
    """
    if current is None or before is current or before.boot_id != current.boot_id:
        return
    mark = before.mark
    if current.withdrawals.era == mark.era and current.withdrawals.count < mark.count:
        raise CheckpointDamaged("the checkpoint is older than it was: the disk has lost writes")
    for uid, claim in before.claims.items():
        if uid not in current.claims and not current.withdrawals.since(mark, uid):
            raise CheckpointDamaged(f"the checkpoint has lost claim {claim.ref}: the disk has lost writes")
