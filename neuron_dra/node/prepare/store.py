"""The node's state on disk: the checkpoint, which is the only commit point, and the CDI and metadata files of claims.

After a crash before the commit, or in an unprepare, a CDI file shows the claim; the kubelet's retry ends the call.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from neuron_dra.core import decision, lost_writes
from neuron_dra.core.checkpoint import Checkpoint
from neuron_dra.core.claims import Claim, ClaimRef, PreparedClaim
from neuron_dra.core.dra_driver import NEURON, Driver
from neuron_dra.core.notice import Told
from neuron_dra.core.ultraserver import Tag
from neuron_dra.core.withdrawals import Mark, Withdrawals, refusal
from neuron_dra.errors import CheckpointDamaged, CheckpointLost, CheckpointOfLaterRelease
from neuron_dra.node.files import Files, locked
from neuron_dra.node.prepare import specs
from neuron_dra.node.prepare.checkpoint_file import CheckpointFile
from neuron_dra.node.prepare.claim_files import ClaimFiles, Renew
from neuron_dra.node.prepare.group_commit import value_of
from neuron_dra.node.prepare.host_folders import HostFolders
from neuron_dra.node.prepare.specs import Spec
from neuron_dra.node.timing import DEFAULT_TIMING

log = logging.getLogger(__name__)

_LOCK_S: Final = DEFAULT_TIMING.prepare.lock_s
INVENTORY: Final = "inventoryTaken"

Decide = Callable[[Claim, list[PreparedClaim]], PreparedClaim]


class Store:
    """The checkpoint and the CDI files of this node. Its methods block; each takes the lock.

    In a rolling update two processes use the same folders, so what was read before the lock is read again under it.
    """

    def __init__(
        self,
        folder: Path,
        cdi_root: Path,
        boot_id: str,
        files: Files,
        lock_s: float = _LOCK_S,
        clock: Callable[[], float] = time.monotonic,
        host_folders: HostFolders | None = None,
        driver: Driver = NEURON,
        renew: Renew = lambda claim: claim,
    ) -> None:
        """`clock` is the same in all processes of a boot. By default, only the CDI folder is checked."""
        self._host_folders = host_folders or HostFolders(cdi_root, (), files)
        self._clock = clock
        self._cdi_root = cdi_root
        self._boot_id = boot_id
        self._files = files
        self._checkpoint = CheckpointFile(folder, boot_id, files)
        self._claim_files = ClaimFiles(cdi_root, files, driver, renew)
        self._locked = functools.partial(locked, folder / "serialize.lock", timeout_s=lock_s)
        self._opened: Mark | None = None  # None if the checkpoint was damaged
        self.is_first_of_boot = False  # whether this process began the boot's checkpoint

    @property
    def cdi_root(self) -> Path:
        """The folder that the container runtime reads."""
        return self._cdi_root

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint."""
        return self._checkpoint.folder

    @property
    def boot_id(self) -> str:
        """The boot that prepared claims belong to."""
        return self._boot_id

    def open(self) -> Checkpoint:
        """Make the folders, drop the claims of an earlier boot, and return what is prepared.

        Raises CheckpointDamaged; the files then stay as they are until `rebuild` is called.
        """
        self._checkpoint.make_folder()
        self._files.make_folder(self._cdi_root, 0o755)
        self.check_folders()
        with self._locked():
            current = self._checkpoint.open()
            if current.boot_id != self._boot_id:
                current = self._rebooted(current)
            else:
                if self._checkpoint.is_partial:
                    current = self._corrected(current, remembers=False)
                current = self._with_traces(current)
                self._checkpoint.settle(current)
            self._sweep(current)
            specs.written(current.claims.values(), self._claim_files.write_missing)
            self._opened = current.mark
            return current

    def _rebooted(self, former: Checkpoint) -> Checkpoint:
        """Begin a boot: forget the claims of `former`, the checkpoint of an earlier boot."""
        self.is_first_of_boot = True
        if former.claims:
            log.info("the node was rebooted: nothing is prepared", extra={"claims": len(former.claims)})
        current = replace(former.without_claims(), boot_id=self._boot_id)
        current = replace(current, extra={**current.extra, INVENTORY: True})
        # Delete the CDI files first, because they do not record a boot ID.
        self._sweep(current)
        self._write(current)
        return current

    def _with_traces(self, current: Checkpoint) -> Checkpoint:
        """Return the checkpoint with the claims that only CDI files show.

        A CDI file of this driver without a claim belongs to a call that did not end, or to a claim that the disk has
        lost. The store adopts its claim, which keeps its devices until the kubelet prepares or unprepares it. The CDI
        file of another driver causes another inventory.
        """
        unknown_specs = {uid: spec for uid, spec in self.specs().items() if uid not in current.claims}
        adopted_claims = {uid: specs.adopted(spec) for uid, spec in unknown_specs.items() if spec is not None}
        for claim in adopted_claims.values():
            log.warning(
                "adopted a claim that has only a CDI file", extra={"claim": str(claim.ref), "uid": claim.ref.uid}
            )
        current = current.with_claims(adopted_claims)
        if current.extra.get(INVENTORY) is True and None in unknown_specs.values():
            current = replace(current, extra={name: v for name, v in current.extra.items() if name != INVENTORY})
        return current

    def _with_traces_of_others(self, current: Checkpoint, uids: Collection[str] = ()) -> Checkpoint:
        """Return the checkpoint with the claims of our CDI files that it does not have, except the claims `uids`.

        In a rolling update, the disk may have lost the writes of the other plugin. The slots are then whole and not
        older than what this process has read, so they do not show the loss.
        """
        for name in self._files.names(self._cdi_root):
            uid = self._claim_files.uid_of(name)
            if uid is None or uid in current.claims or uid in uids:
                continue
            if self._claim_files.spec(uid) is not None:
                return self._with_traces(current)
        return current

    def check_folders(self) -> None:
        """Check, without the lock, that the container runtime sees what is written. Raises HostFolderReplaced."""
        self._host_folders.check()

    def known(self, uid: str) -> PreparedClaim | None:
        """Return a prepared claim, with its CDI file in place, or None. Raises CheckpointDamaged, OSError."""
        with self._locked():
            claim = self._read().claims.get(uid)
            if claim is None or claim.adopted:
                return None
            self._host_folders.check_before_write()
            if self._claim_files.write_missing(claim):
                self._host_folders.wrote()
            return claim

    def surely_unknown(self, uid: str) -> bool:
        """Return True if a claim is certainly not prepared, without the lock and without reading the file.

        True only while the checkpoint is the file that was read last. A hint: `prepare_all` checks again in any case.
        """
        seen = self._checkpoint.seen
        return seen is not None and uid not in seen.claims and self._checkpoint.is_unchanged()

    def mark(self) -> Mark:
        """Return the mark of a prepare that begins now, without the lock; a later withdrawal ends that prepare.

        The file is read only if another process has written it. A damaged one is found later, under the lock.
        """
        return self._checkpoint.mark()

    def flush(self) -> None:
        """Flush what was written, without the lock: no call waits for it. Raises OSError."""
        self._checkpoint.flush()

    def write_anew(self) -> Checkpoint:
        """Write and flush everything again, after a flush has failed. Raises CheckpointDamaged, OSError."""
        with self._locked():
            current = self._read()
            self._checkpoint.write_anew(current)
            return current

    @property
    def outlived(self) -> Checkpoint | None:
        """What outlives a boot, as it was flushed last."""
        return self._checkpoint.outlived()

    def prepare_all(
        self, marked: Sequence[tuple[Claim, Mark | None]], decide: Decide
    ) -> list[PreparedClaim | Exception]:
        """Prepare several claims with one commit; return each one's result, or the exception that rejects it.

        Each decision takes the claims before it into account. A claim that any process has unprepared since its mark
        is rejected. Raises CheckpointDamaged, TimeoutError, HostFolderReplaced.
        """
        claims = [claim for claim, _ in marked]
        with self._locked():
            self._host_folders.check_before_write()
            current = self._with_traces_of_others(self._read(), {claim.ref.uid for claim in claims})
            new_claims: dict[str, PreparedClaim] = {}
            late_uids: set[str] = set()  # if several callers wait for a claim, it is late for all of them
            withdrawals = current.withdrawals
            for claim, mark in marked:
                if mark is not None and withdrawals.since(mark, claim.ref.uid):
                    late_uids.add(claim.ref.uid)
            outcomes: list[PreparedClaim | Exception] = []
            for claim in claims:
                if claim.ref.uid in late_uids and claim.ref.uid not in current.claims:
                    outcomes.append(refusal(claim.ref))
                else:
                    outcomes.append(self._prepared(claim, current, new_claims, decide))
            if new_claims:
                try:
                    self._write(current.with_claims(new_claims))
                except OSError as err:
                    for uid in new_claims:
                        self._undo_spec(uid)
                    outcome_by_claim = zip(claims, outcomes, strict=True)
                    return [err if claim.ref.uid in new_claims else outcome for claim, outcome in outcome_by_claim]
                self._replace_others_files(uid for uid in new_claims if uid in current.claims)
                self._host_folders.wrote()
            return outcomes

    def _prepared(
        self, claim: Claim, current: Checkpoint, new_claims: dict[str, PreparedClaim], decide: Decide
    ) -> PreparedClaim | Exception:
        """Return one claim's result and write its CDI file; add a new result to `new_claims`, which are committed."""
        uid = claim.ref.uid
        committed = current.claims.get(uid)
        try:
            if committed is not None and not committed.adopted:
                decision.refuse_new_allocation(committed, claim)
                self._claim_files.write_missing(committed)
                return committed
            prepared = decide(claim, [*current.claims.values(), *new_claims.values()])
        except Exception as err:  # an error of one claim must not affect the others
            return err
        try:
            if not new_claims:
                self._write_missing_specs(current)
            self._write_spec(prepared)
        except OSError as err:
            self._undo_spec(uid)
            return err
        new_claims[uid] = prepared
        return prepared

    def _replace_others_files(self, uids: Iterable[str]) -> None:
        """Remove another driver's files of claims that we prepared: runtimes reject duplicate devices."""
        for uid in uids:
            with contextlib.suppress(OSError):  # the next start removes it
                self._files.remove(self._claim_files.others_path(uid))

    def unprepare_all(self, uids: Sequence[str]) -> list[PreparedClaim | Exception | None]:
        """Forget several claims with one commit, and remove their CDI files.

        Returns the prepared claim of each UID; None if it was not prepared, and the error if a file cannot be removed.
        Raises CheckpointDamaged, OSError.
        """
        with self._locked():
            current = self._read()
            # Record claims that are not prepared too, because another process may be about to prepare them. Use the
            # spare bytes, because a full disk may be full of what the kubelet removes only after this call.
            self._checkpoint.write(current.withdrawing(uids, int(self._clock())), spare_bytes=0)
            return [self._removed(uid, current.claims.get(uid)) for uid in uids]

    def _removed(self, uid: str, prepared_claim: PreparedClaim | None) -> PreparedClaim | Exception | None:
        try:
            self._claim_files.remove(uid)
            if prepared_claim is None or prepared_claim.adopted:
                self._files.remove(self._claim_files.others_path(uid))
        except OSError as err:
            return err
        return prepared_claim

    def forget(self, claims: Iterable[PreparedClaim]) -> tuple[list[PreparedClaim], Checkpoint]:
        """Forget those of `claims` that have not changed, and remove their CDI files.

        Returns the removed claims, and what is prepared now. Raises CheckpointDamaged, OSError.
        """
        with self._locked():
            current = self._read()
            forgotten = [claim for claim in claims if current.claims.get(claim.ref.uid) == claim]
            if forgotten:
                current = current.withdrawing((claim.ref.uid for claim in forgotten), int(self._clock()))
                self._write(current)
                outcomes = [self._removed(claim.ref.uid, claim) for claim in forgotten]
                for outcome in outcomes:
                    value_of(outcome)
            return forgotten, current

    def repair(self) -> tuple[list[ClaimRef], Checkpoint]:
        """Write the CDI files that are missing; return the claims they belong to, and what is prepared.

        The kubelet does not call again for a claim that it recorded as prepared.
        """
        self._checkpoint.make_folder()
        with self._locked():
            current = self._with_traces_of_others(self._read())
            if self._checkpoint.settle(current):
                log.error("wrote the checkpoint again: one of its files was gone, damaged or unreadable")
            return specs.written(current.claims.values(), self._claim_files.write_missing), current

    def needs_inventory(self) -> bool:
        """Return whether claims of another driver may be here that are not adopted yet. Raises CheckpointDamaged."""
        with self._locked():
            return self._read().extra.get(INVENTORY) is not True

    def foreign_files(self) -> dict[str, tuple[int, ...]]:
        """Return the devices in the CDI files of other drivers, by the UID of claims that we did not prepare.

        Raises OSError. A damaged checkpoint has no claims.
        """
        own_uids: set[str] = set()
        with self._locked(), contextlib.suppress(CheckpointDamaged):
            own_uids = {uid for uid, claim in self._read().claims.items() if not claim.adopted}
        foreign_uids = [uid for uid, spec in self.specs().items() if spec is None and uid not in own_uids]
        return {uid: self._claim_files.foreign_device_ids(uid) for uid in foreign_uids}

    def is_foreign(self) -> bool:
        """Return whether there is a checkpoint of another driver. Raises OSError."""
        return self._checkpoint.is_foreign()

    def adopt(self, claims: dict[str, PreparedClaim], *, others_ran: bool = False) -> Checkpoint:
        """Add `claims` that were prepared here, except those that are free. Raises CheckpointDamaged, OSError.

        If another driver ran here, our own claims become doubtful, because it may have unprepared them.
        """
        with self._locked():
            current = self._read()
            if others_ran:
                current = current.doubting()
            unknown = {uid: claim for uid, claim in claims.items() if uid not in current.claims}
            added = {uid: claim for uid, claim in unknown.items() if not self._is_free(uid, current)}
            specs.written(added.values(), self._claim_files.write_missing)
            merged = Checkpoint(self._boot_id, {**added, **current.claims}, extra={**current.extra, INVENTORY: True})
            self._write(merged)
            self._sweep(merged)
            return merged

    def keep_tag(self, tag: Tag | None) -> Checkpoint:
        """Write the workload tag of the devices, which survives a reboot. Raises CheckpointDamaged, OSError."""
        with self._locked():
            current = self._read()
            if current.tag != tag:
                current = current.with_tag(tag)
                self._write(current)
            return current

    def tell(self, told: Told) -> Checkpoint:
        """Write the notice of a workload for its claims. Raises CheckpointDamaged, OSError."""
        with self._locked():
            current = self._read()
            self._claim_files.notices.tell(told, current.claims.values())
            return current

    def last_good(self) -> Checkpoint | None:
        """Return the newest whole slot, of any boot; None if there is none."""
        return self._checkpoint.last_good()

    def specs(self) -> dict[str, Spec | None]:
        """Return the contents of the claims' CDI files, by UID; None for a file that does not name its claim."""
        return {uid: self._claim_files.spec(uid) for uid in self._claim_files.uids()}

    def rebuild(self, claims: dict[str, PreparedClaim], tag: Tag | None = None) -> Checkpoint:
        """Replace a damaged or missing checkpoint with `claims` and `tag`; write their CDI files. Raises OSError.

        If another process has rebuilt it meanwhile, that checkpoint stays: it may have newer claims. Raises
        CheckpointOfLaterRelease, because that release must find its files.
        """
        with self._locked():
            try:
                current = self._read()
                if not self._checkpoint.is_foreign():
                    return current
            except CheckpointOfLaterRelease:
                raise
            except CheckpointDamaged:
                pass
            rebuilt = Checkpoint(self._boot_id, claims).doubting().with_tag(tag)
            if self.outlived is not None:
                rebuilt = replace(rebuilt, extra=self.outlived.extra)
            rebuilt = replace(rebuilt, extra={**rebuilt.extra, INVENTORY: True})
            # Earlier withdrawals are lost; the new era rejects every prepare that began before.
            rebuilt = rebuilt.with_withdrawals(Withdrawals(era=secrets.token_hex(4)))
            specs.written(claims.values(), self._claim_files.write_missing)
            self._write(rebuilt)
            self._checkpoint.set_foreign_aside()
            self._sweep(rebuilt)
            return rebuilt

    # Inside the lock.

    def _read(self) -> Checkpoint:
        """Return the checkpoint of this boot; repair it first if a slot is lost. Raises CheckpointDamaged, OSError."""
        remembered = self._checkpoint.seen
        try:
            current = self._checkpoint.read()
        except CheckpointLost as err:
            if remembered is None or remembered.boot_id != self._boot_id:
                raise
            log.error("writing the checkpoint again from memory", extra={"reason": str(err)})
            self._checkpoint.write_anew(self._corrected(remembered, remembers=True))
            return self._checkpoint.read()
        before = current
        if self._checkpoint.is_partial:
            current = self._corrected(current, remembers=True)
        if remembered is not None:
            current = current.with_claims(lost_writes.missed(remembered, before))
        if current != before:
            self._write(current)
        return current

    def _corrected(self, current: Checkpoint, *, remembers: bool) -> Checkpoint:
        era = secrets.token_hex(4)
        return self._with_traces(lost_writes.corrected(current, self.specs(), remembers=remembers, era=era))

    def _write(self, checkpoint: Checkpoint) -> None:
        self._checkpoint.write(checkpoint)

    def _write_spec(self, claim: PreparedClaim) -> None:
        self._claim_files.write(claim)

    def _write_missing_specs(self, current: Checkpoint) -> None:
        """Write the CDI files that were removed while their claims are prepared.

        A new file in an emptied folder would look as if the other claims had been unprepared: `lost_writes`.
        """
        names = set(self._files.names(self._cdi_root))
        for uid, claim in current.claims.items():
            if not claim.adopted and self._claim_files.path(uid).name not in names:
                self._claim_files.write_missing(claim)

    def _undo_spec(self, uid: str) -> None:
        """Remove the CDI file of a claim that could not be prepared, unless the checkpoint has the claim."""
        with contextlib.suppress(OSError, CheckpointDamaged):
            if uid not in self._read().claims:
                self._claim_files.remove(uid)

    def _is_free(self, uid: str, current: Checkpoint) -> bool:
        """Return whether a claim was unprepared since `open`, and no driver has prepared it since then."""
        paths = (self._claim_files.path(uid), self._claim_files.others_path(uid))
        is_withdrawn = self._opened is not None and current.withdrawals.certainly_since(self._opened, uid)
        return is_withdrawn and all(self._files.read(path) is None for path in paths)

    def _sweep(self, current: Checkpoint) -> None:
        """Remove CDI and metadata files without a held claim, and temporary files of processes that died.

        Files of another driver, which lack our annotations, stay until the inventory has adopted their claims, and
        then as long as the claim is held: a container that restarts needs them.
        """
        for name in self._files.names(self._cdi_root):
            if self._claim_files.is_temporary(name) or self._is_orphan(name, current):
                specs.remove_leftover(self._files, self._cdi_root / name)
        self._claim_files.sweep(current.claims)
        self._checkpoint.sweep()

    def _is_orphan(self, name: str, current: Checkpoint) -> bool:
        """Return whether a CDI file has no held claim, or is another driver's file of a claim that we prepared."""
        own_uid = self._claim_files.uid_of(name)
        other_uid = self._claim_files.others_uid_of(name)
        uid = own_uid or other_uid
        if uid is None:
            return False
        if uid in current.claims:
            return other_uid is not None and not current.claims[uid].adopted
        has_inventory = current.extra.get(INVENTORY) is True
        return has_inventory or (own_uid is not None and self._claim_files.spec(uid) is not None)
