"""The hard state: never taken back, by a torn write or by damage to one block; lost means refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.types import HardState, NodeId
from dledger.log.hard_state import COPY_BYTES, FILE_BYTES, HardStateFile, Record, decode_record, encode_record
from dledger.log.report import DamageKind
from dledger.runtime.env import Disk
from dledger.runtime.folders import HARD_STATE_PATH
from dledger_wire.errors import StorageDamagedError
from tests.unit.log.crash_disk import CrashDisk, PowerLost
from tests.unit.log.log_rig import findings, run

A = HardState(5, NodeId("n1"))
B = HardState(6, None)


async def loaded(disk: Disk, *, log_is_empty: bool = False) -> HardState:
    file = await HardStateFile.open(disk, log_is_empty=log_is_empty)
    await file.close()
    return file.state


async def with_promises(disk: Disk, *states: HardState) -> None:
    file = await HardStateFile.open(disk, log_is_empty=True)
    for state in states:
        await file.save(state)
        assert file.state == state
    await file.close()


def test_the_newest_promise_is_found_again(disk: Disk) -> None:
    async def scenario() -> None:
        assert await loaded(disk, log_is_empty=True) == HardState()
        for count in range(1, 6):
            await with_promises(disk, HardState(count, NodeId(f"n{count}")))
            assert await loaded(disk) == HardState(count, NodeId(f"n{count}"))
        await with_promises(disk, HardState(9, None))
        assert await loaded(disk) == HardState(9, None)

    run(scenario)


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.one_of(st.none(), st.text(max_size=60)))
def test_a_record_is_read_as_written(generation: int, term: int, vote: str | None) -> None:
    record = Record(generation, HardState(term, NodeId(vote) if vote is not None else None))
    assert decode_record(encode_record(record) + bytes(100)) == record


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    decode_record(data)


def test_one_damaged_block_never_brings_an_older_promise_back() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        await with_promises(disk, A, B)
        whole = bytes(disk.files[HARD_STATE_PATH].current)
        assert len(whole) == FILE_BYTES
        for at in range(0, FILE_BYTES, 3):
            data = bytearray(whole)
            data[at] ^= 0x41
            assert await loaded(CrashDisk({HARD_STATE_PATH: bytes(data)})) == B
        for block in range(0, FILE_BYTES, COPY_BYTES):
            data = bytearray(whole)
            data[block : block + COPY_BYTES] = bytes(COPY_BYTES)
            assert await loaded(CrashDisk({HARD_STATE_PATH: bytes(data)})) == B

    run(scenario)


@pytest.mark.parametrize("ruin", [b"\xff" * COPY_BYTES, bytes(COPY_BYTES)], ids=["noise", "zeros"])
@pytest.mark.parametrize("saves", [1, 2, 3, 4])
def test_a_slot_without_a_readable_copy_may_have_held_the_newest_promise_and_is_refused(saves: int, ruin: bytes) -> None:
    """The older promise must not come back: the node could vote twice in the term of the lost one."""

    async def scenario() -> None:
        disk = CrashDisk()
        await with_promises(disk, *[HardState(term, NodeId("n1")) for term in range(1, saves + 1)])
        whole = bytes(disk.files[HARD_STATE_PATH].current)
        for slot in (0, 2 * COPY_BYTES):
            bad = CrashDisk({HARD_STATE_PATH: whole[:slot] + ruin * 2 + whole[slot + 2 * COPY_BYTES :]})
            if saves == 1 and slot == 0 and not any(ruin):
                continue  # as a slot never written to
            with pytest.raises(StorageDamagedError, match="neither copy of the record"):
                await HardStateFile.open(bad, log_is_empty=False)
            kinds = [(finding.kind, finding.pos) for finding in await findings(bad)]
            assert (DamageKind.HARD_STATE, slot) in kinds

    run(scenario)


def test_a_start_puts_single_damaged_copies_right_in_both_slots() -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        await with_promises(disk, A, B)
        whole = bytes(disk.files[HARD_STATE_PATH].current)
        bad = b"\xff" * COPY_BYTES
        hurt = CrashDisk({HARD_STATE_PATH: bad + whole[COPY_BYTES : 3 * COPY_BYTES] + bad})
        assert await loaded(hurt) == B
        assert hurt.files[HARD_STATE_PATH].current == whole

    run(scenario)


def test_power_lost_while_writing_leaves_the_old_or_the_new_promise() -> None:
    async def scenario() -> None:
        for seed in range(300):
            draw = random.Random(seed)
            disk = CrashDisk()
            await with_promises(disk, A)
            file = await HardStateFile.open(disk, log_is_empty=False)
            disk.crash_after = disk.operations + draw.randint(0, 2)
            stored = False
            try:
                await file.save(B)
                stored = True
            except PowerLost:
                pass
            state = await loaded(disk.after_power_loss(draw))
            assert state == B if stored else state in (A, B)

    run(scenario)


def test_a_lost_promise_is_refused_not_forgotten() -> None:
    async def scenario() -> None:
        with pytest.raises(StorageDamagedError, match="must not vote") as caught:
            await HardStateFile.open(CrashDisk(), log_is_empty=False)
        assert caught.value.details["file"] == "/crash/hardstate"
        for data in (b"", bytes(FILE_BYTES), b"\xff" * FILE_BYTES):
            for log_is_empty in (True, False):
                with pytest.raises(StorageDamagedError, match="no readable record"):
                    await HardStateFile.open(CrashDisk({HARD_STATE_PATH: data}), log_is_empty=log_is_empty)

    run(scenario)


def test_real_folder_holds_the_named_file(tmp_path: Path, disk: Disk) -> None:
    async def scenario() -> None:
        await with_promises(disk, A)
        assert await disk.list("") == [HARD_STATE_PATH]

    run(scenario)
