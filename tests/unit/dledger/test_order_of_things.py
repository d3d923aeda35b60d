"""What must come before what in a whole node: the disk before an acknowledgement, the state before a read's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dledger.core.messages import AppendResponse, Message, VoteRequest, VoteResponse
from dledger.core.types import EntryId, NodeId, Role
from dledger.log.config import LogConfig
from dledger.log.entry import RawEntry
from dledger.node import RaftNode
from dledger_wire.errors import DledgerError, NotLeaderError, OutcomeUnknownError
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Recorder, Text, run

pytestmark = pytest.mark.usefixtures("both_ways_of_writing")


def test_a_flush_in_pieces_lets_no_acknowledgement_out_before_the_last_piece() -> None:
    async def scenario() -> None:
        cluster = Cluster(join_bytes=1, log=LogConfig(segment_bytes=16 << 20, fill_window_bytes=0, flush_bytes=1))
        await cluster.start()
        leader = await cluster.leader()
        acknowledged = 0

        def watch(node: RaftNode) -> None:
            send = node._replica.send

            def watched(to: NodeId, message: Message) -> None:
                nonlocal acknowledged
                if isinstance(message, AppendResponse) and message.success:
                    assert message.match.index <= node.log.durable.index
                    acknowledged += 1
                send(to, message)

            node._replica.send = watched  # type: ignore[method-assign]

        for node in cluster.followers(leader):
            watch(node)
        await asyncio.gather(*[leader.propose(Text(f"<{number}>")) for number in range(60)])
        assert acknowledged
        await cluster.stop()

    run(scenario())


def test_votes_and_heartbeats_do_not_wait_for_a_sync_of_data() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        followers = cluster.followers(leader)
        for node in followers:
            cluster.disks[node.identity.node_id].writes_now = False
            cluster.disks[node.identity.node_id].sync_s["commitlog"] = 5.0
        writing = asyncio.ensure_future(leader.propose(Text("never acknowledged in time")))
        await cluster.until(lambda: all(node._replica.driver._flushing for node in followers), "both followers sync")
        await asyncio.sleep(1)
        assert leader.role is Role.LEADER, "it hears from both"
        await cluster.kill(leader.identity.node_id)
        await cluster.until(lambda: any(node.role is Role.LEADER for node in followers), "another leader while both still sync", 2)
        assert all(node._replica.driver._flushing for node in followers)
        writing.cancel()
        await cluster.leader()
        await cluster.stop()

    run(scenario())


def test_nothing_leaves_before_the_term_the_vote_and_the_entries_that_it_speaks_of() -> None:
    """Also where the hard state is slower than data, and the other way round."""

    async def scenario(hard_state_s: float, data_s: float) -> None:
        cluster = Cluster(5)
        for disk in cluster.disks.values():
            disk.writes_now, disk.sync_s = False, {"hardstate": hard_state_s, "commitlog": data_s}
        votes: set[tuple[NodeId, int, NodeId]] = set()

        def watch(node: RaftNode) -> None:
            send, name = node._replica.send, node.identity.node_id

            def watched(to: NodeId, message: Message) -> None:
                if not isinstance(message, VoteRequest | VoteResponse) or not message.pre_vote:
                    assert message.term <= node.log.saved.term
                if isinstance(message, VoteRequest) and not message.pre_vote:
                    votes.add((name, message.term, name))
                if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
                    assert message.term < node.log.saved.term or node.log.saved.vote == to
                    votes.add((name, message.term, to))
                if isinstance(message, AppendResponse) and message.success:
                    assert message.match.index <= node.log.durable.index
                send(to, message)

            node._replica.send = watched  # type: ignore[method-assign]

        for name in cluster.names:
            watch(await cluster.start_one(name))
        for number in range(3):
            leader = await cluster.leader()
            await asyncio.gather(*[leader.propose(Text(f"{number}.{each}")) for each in range(3)])
            await cluster.kill(leader.identity.node_id)
            watch(await cluster.start_one(leader.identity.node_id))
        assert len(votes) > 6
        assert len({(voter, term) for voter, term, _to in votes}) == len(votes), "one vote in a term"
        await cluster.stop()

    for hard_state_s, data_s in ((0.05, 0.0), (0.0, 0.1), (0.02, 0.02)):
        run(scenario(hard_state_s, data_s))


def test_a_linearizable_read_waits_until_its_index_is_applied() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        machine, gate = cluster.machines[leader.identity.node_id], asyncio.Event()
        apply = machine.apply

        async def slow(entries: Sequence[RawEntry]) -> None:
            await gate.wait()
            await apply(entries)

        machine.apply = slow  # type: ignore[method-assign]
        machine.applies_now = False
        writing = leader.propose(Text("seen"))
        await cluster.until(lambda: leader.commit_index == leader.log.last.index > machine.applied_index, "committed, not applied")
        reading = asyncio.ensure_future(leader.read_barrier(60))
        await asyncio.sleep(5)
        assert not reading.done()
        gate.set()
        assert await reading <= machine.applied_index
        assert machine.bodies == [b"seen"]
        await writing
        await cluster.stop()

    run(scenario())


def test_a_follower_that_writes_at_once_acknowledges_in_the_step_that_brought_the_entry() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("first"))
        follower = cluster.followers(leader)[0]
        receive, acknowledged = follower._replica.driver.received, []

        def watched(source: NodeId, store: str, data: bytes) -> None:
            before = follower.log.last.index
            receive(source, store, data)
            if follower.log.last.index > before:
                acknowledged.append(follower.log.durable == follower.log.last)

        follower._replica.driver.received = watched  # type: ignore[method-assign]
        for number in range(5):
            await leader.propose(Text(f"{number}"))
        await cluster.until(lambda: len(acknowledged) == 5)
        assert set(acknowledged) == {MemoryDisk.writes_now}
        await cluster.stop()

    run(scenario())


def test_pausing_waits_for_writes_whichever_way_they_go() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        driver = leader._replica.driver
        for number in range(5):
            writing = leader.propose(Text(f"{number}"))
            await driver.pause()
            assert leader.log.durable == leader.log.last
            driver.resume(leader.log)
            await writing
        await cluster.stop()

    run(scenario())


class Caller:
    """Waits for a proposal without a future; notes what it was told, and how much was applied then."""

    def __init__(self, machine: Recorder) -> None:
        self._machine = machine
        self.told: list[tuple[EntryId | DledgerError, list[bytes]]] = []

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return bool(self.told)

    def set_result(self, entry: EntryId, /) -> None:
        self.told.append((entry, list(self._machine.bodies)))

    def set_exception(self, error: DledgerError, /) -> None:
        self.told.append((error, list(self._machine.bodies)))


@pytest.mark.parametrize("applies_now", [True, False])
def test_a_caller_without_a_future_is_told_before_applying_only_if_that_is_done_at_once(applies_now: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        machine = cluster.machines[leader.identity.node_id]
        machine.applies_now = applies_now
        caller = Caller(machine)
        leader.propose_for(Text("a"), caller)
        await cluster.until(caller.done, "nothing was told")
        assert machine.bodies == [b"a"]  # whoever looks behind it finds it applied
        ((entry, applied),) = caller.told
        assert isinstance(entry, EntryId)
        assert applied == ([] if applies_now else [b"a"])
        await cluster.stop()

    run(scenario())


def test_a_caller_without_a_future_learns_what_became_of_a_lost_term() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        cluster.net.isolate(old.identity.node_id, cluster.names)
        machine = cluster.machines[old.identity.node_id]
        lost, waiting = Caller(machine), Caller(machine)
        old.propose_for(Text("lost"), lost)
        await asyncio.sleep(0.005)
        old.propose_for(Text("never in the log"), waiting)
        await cluster.until(lambda: lost.done() and waiting.done(), "nothing was told")
        assert [type(told) for caller in (lost, waiting) for told, _ in caller.told] == [OutcomeUnknownError, NotLeaderError]
        with pytest.raises(NotLeaderError):
            old.propose_for(Text("late"), lost)
        cluster.net.heal()
        await (await cluster.leader()).propose(Text("new"))
        assert [len(caller.told) for caller in (lost, waiting)] == [1, 1]
        await cluster.stop()

    run(scenario())
