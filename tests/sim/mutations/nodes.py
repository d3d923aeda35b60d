"""Deliberate faults outside the core: driver, log files, disk, store and the answers clients get."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import dledger.log.hard_state
import dledger.log.segment_recovery
import dledger.replica.proposals
import store.state.sequences
from broker.leadership.lease import ServiceLease
from dledger.core.effects import CutTail, Effect, Send
from dledger.core.types import EntryKind, HardState
from dledger.driver import Driver
from dledger.log.entry import Header, header_fault
from dledger.log.hard_state import SLOT_BYTES, HardStateFile, Record, SlotCopy, read_copies
from dledger.log.index_units import EntryPlace
from dledger.log.log import Log
from dledger.log.scan import Found, SegmentWalk, Stop
from dledger.log.segment import SegmentMap
from dledger.log.segment_recovery import UnitsFound
from dledger.runtime.env import SyncFailedError
from dledger_wire.errors import NotLeaderError
from dledger_wire.tasks import BackgroundTasks
from tests.sim.disk import MountedDisk, SimFile


def answers_leave_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    execute = Driver._execute

    def hasty(self: Driver, effect: Effect) -> None:
        execute(self, replace(effect, after_sync=False, after_promise=False) if isinstance(effect, Send) else effect)

    patch.setattr(Driver, "_execute", hasty)


def term_and_vote_not_saved(patch: pytest.MonkeyPatch) -> None:
    async def forgetful(self: HardStateFile, state: Any) -> None:
        self.state = state

    patch.setattr(HardStateFile, "save", forgetful)


def flush_without_sync(patch: pytest.MonkeyPatch) -> None:
    flush = Log.flush

    async def lazy(self: Log, *, sync: bool = True, max_bytes: int | None = None) -> Any:
        return await flush(self, sync=False, max_bytes=max_bytes)

    patch.setattr(Log, "flush", lazy)
    patch.setattr(Log, "flush_now", lambda _self: None)


def failed_sync_ignored(patch: pytest.MonkeyPatch) -> None:
    """As if every sync had succeeded; the kernel has forgotten the pages all the same."""
    synced = SimFile._synced

    def deaf(self: SimFile, count: int) -> None:
        try:
            synced(self, count)
        except SyncFailedError:
            return

    patch.setattr(SimFile, "_synced", deaf)


def new_names_not_synced(patch: pytest.MonkeyPatch) -> None:
    """The folder's own sync is missing after a file was made."""
    change_names = MountedDisk._change_names

    async def careless(self: MountedDisk, change: Any, *, syncs: int = 1) -> None:
        durable = dict(self.disk.durable_names)
        await change_names(self, change, syncs=syncs)
        if syncs == 1:
            self.disk.durable_names = durable

    patch.setattr(MountedDisk, "_change_names", careless)


def cut_not_written(patch: pytest.MonkeyPatch) -> None:
    execute = Driver._execute

    def forgetful(self: Driver, effect: Effect) -> None:
        if not isinstance(effect, CutTail):
            execute(self, effect)

    patch.setattr(Driver, "_execute", forgetful)


def producers_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forgetful(*_: Any) -> store.state.sequences.Verdict:
        return store.state.sequences.FRESH

    patch.setattr(store.state.sequences, "judge", forgetful)


def segments_cut_front_to_back(patch: pytest.MonkeyPatch) -> None:
    cut = SegmentMap.cut
    patch.setattr(SegmentMap, "cut", lambda self, from_index: cut(self, from_index)[::-1])


def checksums_ignored_on_recovery(patch: pytest.MonkeyPatch) -> None:
    async def trusting(self: SegmentWalk, head: memoryview) -> Found | Stop:
        header = Header.unpack(head)
        if header_fault(header, self._end_limit - self.pos) is not None:
            return await entry(self, head)
        place = EntryPlace(header.index, header.term, self.pos, header.size, EntryKind(header.magic))
        self.step_to(place.end_pos, header.index + 1, header.term, header.chain_crc)
        return Found(place, header.chain_crc)

    entry = SegmentWalk._entry
    patch.setattr(SegmentWalk, "_entry", trusting)


def log_cut_at_the_first_bad_checksum(patch: pytest.MonkeyPatch) -> None:
    """Whatever the index units prove."""
    judge = dledger.log.segment_recovery.verdict

    def torn(stop: Stop, good: int, units: UnitsFound, next_start: int | None, content_behind: bool) -> Any:
        if next_start is None:
            return None
        return judge(stop, good, units, next_start, content_behind)

    patch.setattr(dledger.log.segment_recovery, "verdict", torn)


def unreadable_hard_state_taken_for_none(patch: pytest.MonkeyPatch) -> None:
    async def forgiving(file: Any) -> list[SlotCopy]:
        copies = await read_copies(file)
        if any(copy.record is None and not copy.blank for copy in copies):
            first = Record(1, HardState())
            return [SlotCopy(copy.pos, first if copy.pos >= SLOT_BYTES else None, blank=copy.pos < SLOT_BYTES) for copy in copies]
        return copies

    patch.setattr(dledger.log.hard_state, "read_copies", forgiving)


def stepping_down_reports_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dledger.replica.proposals, "OutcomeUnknownError", NotLeaderError)


# Roles


def services_without_waiting(patch: pytest.MonkeyPatch) -> None:
    begin = ServiceLease.begin

    async def impatient(self: ServiceLease) -> None:
        self._elected_ms -= self._lease_ms + self._lease_ms
        await begin(self)

    patch.setattr(ServiceLease, "begin", impatient)


def services_without_asking(patch: pytest.MonkeyPatch) -> None:
    async def sure(self: ServiceLease, timeout_s: float) -> bool:
        await asyncio.sleep(0)
        self._until_ms = self._clock.monotonic_ms() + self._lease_ms
        return True

    patch.setattr(ServiceLease, "_ask", sure)


def tasks_of_services_go_on(patch: pytest.MonkeyPatch) -> None:
    cancel = BackgroundTasks.cancel

    def spare_services(self: BackgroundTasks) -> None:
        if " in term " not in self._name:
            cancel(self)

    async def spare_and_leave(self: BackgroundTasks) -> None:
        self.cancel()

    patch.setattr(BackgroundTasks, "cancel", spare_services)
    patch.setattr(BackgroundTasks, "stop", spare_and_leave)
