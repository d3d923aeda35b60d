"""What reads old data gives way to writes: readers, followers that catch up, copies."""

from __future__ import annotations

import asyncio

import pytest

from dledger.core.config import CoreConfig
from dledger.log import bulk_turns
from dledger.log.bulk_turns import FOLLOWING, LOOK_S, MOST_S, QUEUE_S, TURN_BYTES, BulkTurns
from tests.unit.dledger.raft_rig import Cluster, run
from tests.unit.dledger.test_copy import SMALL, lagging, numbers, write

PIECE = TURN_BYTES


class Writes:
    """What a node writes, as a test has it."""

    def __init__(self, *, writes_wait: bool = False, commit_s: float = 0.0) -> None:
        self.writes_wait, self.commit_s, self.end_pos = writes_wait, commit_s, 0


class Reader:
    """Takes one piece after the other."""

    def __init__(self, turns: BulkTurns, name: str, log: list[str], size: int = PIECE) -> None:
        self._turns, self._name, self._log, self._size = turns, name, log, size
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            await self._turns.take(self._size)
            self._log.append(self._name)
            await asyncio.sleep(0.0001)


async def read(turns: BulkTurns, readers: int, for_s: float, size: int = PIECE) -> list[str]:
    """Which readers took a piece, in order, within that time."""
    log: list[str] = []
    started = [Reader(turns, f"r{number}", log, size) for number in range(readers)]
    await asyncio.sleep(for_s)
    for reader in started:
        reader.task.cancel()
    await asyncio.gather(*(reader.task for reader in started), return_exceptions=True)
    return log


def test_a_reader_goes_at_its_own_pace_while_nothing_is_written() -> None:
    async def scenario() -> None:
        assert len(await read(BulkTurns(Writes()), 1, 0.01005)) == 101

    run(scenario())


def test_a_piece_is_taken_once_no_write_waits() -> None:
    async def scenario() -> None:
        writes = Writes()
        turns = BulkTurns(writes)
        await turns.take(PIECE)
        writes.writes_wait = True
        piece = asyncio.ensure_future(turns.take(PIECE))
        await asyncio.sleep(3 * LOOK_S)
        assert (turns.taken, piece.done()) == (1, False)
        writes.writes_wait = False
        await asyncio.sleep(1.1 * LOOK_S)
        assert (turns.taken, piece.done()) == (2, True)

    run(scenario())


@pytest.mark.parametrize(
    ("writes", "most", "why"),
    [
        (Writes(writes_wait=True), 10, "no reader starves, though writes always wait"),
        (Writes(commit_s=0.005), 40, "beside writes one turn a commit"),
        (Writes(commit_s=3.0), 10, "however long that takes"),
    ],
)
def test_turns_beside_writes(writes: Writes, most: int, why: str) -> None:
    async def scenario() -> None:
        turns = BulkTurns(writes)
        log = await read(turns, 4, 10 * MOST_S)
        assert most * 0.8 <= turns.taken <= most + 1, why
        assert log[:8] == ["r0", "r1", "r2", "r3"] * 2, "all take turns together"

    run(scenario())


def test_small_pieces_share_a_turn() -> None:
    async def scenario() -> None:
        turns = BulkTurns(Writes(writes_wait=True))
        for _ in range(7):
            await turns.take(PIECE // 16)
        assert turns.taken == 0
        await turns.take(PIECE // 16)
        assert turns.taken == 1

    run(scenario())


def test_among_many_no_piece_waits_for_as_long_as_its_reader_would_take_the_node_for_silent() -> None:
    async def scenario() -> None:
        loop, turns = asyncio.get_running_loop(), BulkTurns(Writes(writes_wait=True))
        took: list[float] = []

        async def reader() -> None:
            for _ in range(5):
                asked_s = loop.time()
                await turns.take(PIECE)
                took.append(loop.time() - asked_s)

        await asyncio.gather(*(reader() for _ in range(300)))
        assert len(took) == 1500
        assert QUEUE_S - MOST_S < max(took) < QUEUE_S + LOOK_S

    run(scenario())


def test_readers_may_follow_what_is_written() -> None:
    """Else a reader that fell behind while much is written would never catch up."""

    async def scenario() -> None:
        writes = Writes(writes_wait=True, commit_s=0.01)
        turns = BulkTurns(writes)
        await turns.take(PIECE)
        for _ in range(50):
            writes.end_pos += PIECE // FOLLOWING
            await turns.take(PIECE)
        assert turns.taken == 1
        for _ in range(5):
            await turns.take(PIECE)
        assert turns.taken == 6, "what was not used is not kept"

    run(scenario())


def test_a_piece_that_is_given_up_keeps_no_other_waiting() -> None:
    async def scenario() -> None:
        turns = BulkTurns(Writes(writes_wait=True))
        await turns.take(PIECE)
        first, second = (asyncio.ensure_future(turns.take(PIECE)) for _ in range(2))
        await asyncio.sleep(LOOK_S)
        first.cancel()
        await second
        assert turns.taken == 2

    run(scenario())


def turns_of(cluster: Cluster) -> int:
    return sum(node.bulk.taken for node in cluster.nodes.values())


@pytest.fixture
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_turns, "TURN_BYTES", 1024)


@pytest.mark.usefixtures("small_turns")
def test_a_follower_that_catches_up_is_sent_old_entries_in_turns() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL, core=CoreConfig(max_append_bytes=2048))
        await cluster.start()
        leader = await cluster.leader()
        await write(leader, 0, 40)
        assert turns_of(cluster) == 0
        late = cluster.followers(leader)[0].identity.node_id
        await cluster.kill(late)
        await write(leader, 40, 80)
        await cluster.start_one(late)
        await cluster.until(lambda: numbers(cluster, late) == list(range(80)))
        assert leader.bulk.taken > 0
        await cluster.stop()

    run(scenario())


@pytest.mark.usefixtures("small_turns")
def test_a_copy_of_a_log_goes_in_turns() -> None:
    async def scenario() -> None:
        cluster = Cluster(log=SMALL)
        _leader, victim = await lagging(cluster)
        assert turns_of(cluster) == 0
        await cluster.start_one(victim)
        await cluster.until(lambda: numbers(cluster, victim) == list(range(80)))
        assert turns_of(cluster) > 0
        await cluster.stop()

    run(scenario())
