"""Three whole nodes (core, driver, links, log) over networks and disks in memory, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from dledger.core.events import Received
from dledger.core.messages import Heartbeat
from dledger.core.types import EntryId, Role
from dledger.node import RaftNode
from dledger_wire.errors import (
    AuthenticationFailedError,
    BusyError,
    DeadlineExceededError,
    DledgerError,
    InvalidArgumentError,
    MessageTooLargeError,
    NotLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageFailedError,
)
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import ByteStream
from tests.unit.dledger.raft_rig import Cluster, Recorder, Text, run

pytestmark = pytest.mark.usefixtures("both_ways_of_writing")


async def settled(cluster: Cluster, count: int) -> list[list[bytes]]:
    """The bodies every running node applied, once all have ``count``."""
    machines = [cluster.machines[name] for name in cluster.nodes]
    await cluster.until(lambda: all(len(machine.bodies) >= count for machine in machines), f"{count} entries everywhere")
    return [machine.bodies for machine in machines]


def test_a_leader_is_elected_and_every_replica_applies_what_is_proposed() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        payload = Text("hello")
        entry = await leader.propose(payload)
        assert entry.term == leader.term
        place = leader.log.locate(entry.index)
        assert place is not None
        assert payload.sealed == [(place.pos + 48, entry.index, entry.term)]
        assert cluster.machines[leader.identity.node_id].bodies == [b"hello"], "applied here before the future resolves"
        for bodies in await settled(cluster, 1):
            assert bodies == [b"hello"]
        states = [await node.log.read_bytes(0, node.log.end_pos) for node in cluster.nodes.values()]
        assert states[0] == states[1] == states[2], "replicas are byte-identical"
        await cluster.stop()

    run(scenario())


def test_the_first_payload_goes_at_once_and_those_behind_it_join_one_entry_in_order() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        payloads = [Text(f"<{number}>") for number in range(20)]
        entries = await asyncio.gather(*[leader.propose(payload) for payload in payloads])
        assert [entry.index - entries[0].index for entry in entries] == [0, *[1] * 19]
        for earlier, later in itertools.pairwise(payloads[1:]):
            assert later.sealed[0][0] == earlier.sealed[0][0] + earlier.size_bytes
        (bodies, *_others) = await settled(cluster, 2)
        assert bodies == [b"<0>", b"".join(f"<{number}>".encode() for number in range(1, 20))]
        await cluster.stop()

    run(scenario())


def test_what_arrives_during_a_round_joins_the_next_entry() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        first = leader.propose(Text("a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        later = [leader.propose(Text(letter)) for letter in "bcd"]
        await asyncio.sleep(0)
        later += [leader.propose(Text(letter)) for letter in "ef"]
        entries = await asyncio.gather(first, *later)
        assert [entry.index - entries[0].index for entry in entries] == [0, 1, 1, 1, 1, 1]
        (bodies, *_others) = await settled(cluster, 2)
        assert bodies == [b"a", b"bcdef"]
        await cluster.stop()

    run(scenario())


def test_large_payloads_do_not_wait_for_the_round_in_flight() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        before = leader.commit_index
        futures = [leader.propose(Text("x", 600 << 10)) for _ in range(1)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        futures += [leader.propose(Text("x", 600 << 10)) for _ in range(4)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert leader.commit_index == before
        assert leader.log.last.index > before + 1, "a second entry is in flight beside the first"
        await asyncio.gather(*futures)
        await cluster.stop()

    run(scenario())


def test_a_follower_refuses_with_the_leaders_address() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("x"))
        for follower in cluster.followers(leader):
            with pytest.raises(NotLeaderError) as caught:
                await follower.propose(Text("y"))
            assert caught.value.leader_address == leader.identity.address
        await cluster.stop()

    run(scenario())


def test_a_killed_leader_is_replaced_within_milliseconds_and_comes_back_as_follower() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        acknowledged = [f"m{number}".encode() for number in range(30)]
        for body in acknowledged:
            await old.propose(Text(body))
        name = old.identity.node_id
        loop = asyncio.get_running_loop()
        died_at = loop.time()
        await cluster.kill(name)
        new = await cluster.leader()
        assert new.term > old.term
        assert loop.time() - died_at < 0.2, "a broken connection is the signal, not the election timeout"
        await new.propose(Text("after"))
        await cluster.start_one(name)
        for bodies in await settled(cluster, 31):
            assert bodies == [*acknowledged, b"after"]
        assert cluster.nodes[name].role is Role.FOLLOWER
        await cluster.stop()

    run(scenario())


def test_everything_acknowledged_survives_a_power_failure_of_all_nodes() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        for number in range(10):
            await leader.propose(Text(f"m{number}"))
        for name in cluster.names:
            await cluster.kill(name)
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("again"))
        for bodies in await settled(cluster, 11):
            assert bodies == [*[f"m{number}".encode() for number in range(10)], b"again"]
        await cluster.stop()

    run(scenario())


def test_a_leader_cut_off_answers_unknown_and_its_entries_do_not_come_back() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        await old.propose(Text("before"))
        cluster.net.isolate(old.identity.node_id, cluster.names)
        lost = old.propose(Text("lost"))
        await asyncio.sleep(0.005)
        waiting = old.propose(Text("never in the log"))
        with pytest.raises(DledgerError) as answer:
            await lost
        assert isinstance(answer.value, OutcomeUnknownError)
        with pytest.raises(NotLeaderError):
            await waiting
        assert old.role is not Role.LEADER
        others = {name: node for name, node in cluster.nodes.items() if node is not old}
        new: RaftNode = await cluster.until(lambda: next((n for n in others.values() if n.is_confirmed_leader), None))
        await new.propose(Text("new"))
        cluster.net.heal()
        for bodies in await settled(cluster, 2):
            assert bodies == [b"before", b"new"]
        await cluster.stop()

    run(scenario())


def test_what_was_proposed_is_settled_when_it_is_applied_also_what_nobody_waits_for() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        machine = cluster.machines[leader.identity.node_id]
        proposals = []
        for text in ("in the log", "waits", "waits too"):
            proposals.append(leader.propose(Text(text)))
            await asyncio.sleep(0)
        proposals[0].cancel()
        await leader.drain_proposals(1.0)
        assert machine.bodies[0] == b"in the log"
        assert all(proposal.done() for proposal in proposals)
        await cluster.stop()

    run(scenario())


def test_a_write_replaced_by_another_leaders_entry_was_certainly_not_stored() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        await old.propose(Text("before"))
        cluster.net.isolate(old.identity.node_id, cluster.names)
        await asyncio.sleep(0.3)
        lost = old.propose(Text("lost"))
        others = [node for node in cluster.nodes.values() if node is not old]
        new: RaftNode = await cluster.until(lambda: next((node for node in others if node.is_confirmed_leader), None))
        await new.propose(Text("new"))
        cluster.net.heal()
        with pytest.raises(NotLeaderError):
            await lost
        await cluster.stop()

    run(scenario())


def test_a_write_that_the_next_leader_does_not_settle_is_answered_soon_after_that_one_is_known() -> None:
    """It was answered an election timeout after leadership was lost, whatever was known meanwhile."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        await old.propose(Text("before"))
        cluster.net.isolate(old.identity.node_id, cluster.names)
        lost = old.propose(Text("lost"))
        await asyncio.sleep(0.01)
        other = next(node for node in cluster.nodes.values() if node is not old)
        told = Received(other.identity.node_id, Heartbeat(term=old.term + 1, commit=0, round=1), "store-" + other.identity.node_id)
        old._replica.step(told)
        assert old.leader == other.identity.node_id
        begun = asyncio.get_running_loop().time()
        with pytest.raises(OutcomeUnknownError):
            await lost
        assert asyncio.get_running_loop().time() - begun <= 0.11
        cluster.net.heal()
        await cluster.stop()

    run(scenario())


def test_a_follower_that_was_away_catches_up() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        away = cluster.followers(leader)[0].identity.node_id
        await cluster.kill(away)
        for number in range(50):
            await leader.propose(Text(f"m{number}", 100 << 10))
        await cluster.start_one(away)
        bodies = await settled(cluster, 50)
        assert bodies[0] == bodies[1] == bodies[2]
        await cluster.stop()

    run(scenario())


def test_without_a_majority_nothing_is_acknowledged_and_the_group_recovers() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name = leader.identity.node_id
        for follower in cluster.followers(leader):
            await cluster.kill(follower.identity.node_id)
        lost = leader.propose(Text("lonely"))
        with pytest.raises((OutcomeUnknownError, NotLeaderError)):
            await lost
        assert cluster.machines[name].bodies == []
        for other in cluster.names:
            if other != name:
                await cluster.start_one(other)
        new = await cluster.leader()
        await new.propose(Text("together"))
        assert (await settled(cluster, 1))[0][-1] == b"together"
        await cluster.stop()

    run(scenario())


def test_leadership_moves_by_transfer_and_waiting_writes_are_not_lost() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        target = cluster.followers(old)[0].identity.node_id
        written = [old.propose(Text("before"))]
        taker = await old.transfer(target, 5)
        assert taker == target
        new = await cluster.leader()
        assert new.identity.node_id == target
        assert (await written[0]).term < new.term
        await new.propose(Text("after"))
        for bodies in await settled(cluster, 2):
            assert bodies == [b"before", b"after"]
        with pytest.raises(NotLeaderError):
            await old.transfer(None, 5)
        with pytest.raises(InvalidArgumentError):
            await new.transfer("n99", 5)
        await cluster.stop()

    run(scenario())


def test_a_stopping_leader_hands_over_first() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        await old.propose(Text("x"))
        loop = asyncio.get_running_loop()
        started = loop.time()
        await old.stop(hand_over=True)
        del cluster.nodes[old.identity.node_id]
        await cluster.leader()
        assert loop.time() - started < 0.3
        with pytest.raises(NotLeaderError):
            await old.propose(Text("y"))
        await cluster.stop()

    run(scenario())


def test_read_barriers_see_every_acknowledged_write_on_any_replica() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        for number in range(5):
            entry = await leader.propose(Text(f"m{number}"))
            for node in cluster.nodes.values():
                assert await node.read_barrier(1.0) >= entry.index
                assert cluster.machines[node.identity.node_id].bodies[-1] == f"m{number}".encode()
        cluster.net.isolate(leader.identity.node_id, cluster.names)
        with pytest.raises((NotReadyError, DeadlineExceededError)):
            await leader.read_barrier(0.3)
        await cluster.stop()

    run(scenario())


def test_a_failed_sync_ends_the_node_and_the_others_go_on() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        old = await cluster.leader()
        await old.propose(Text("before"))
        cluster.disks[old.identity.node_id].fail_sync = True
        outcome = old.propose(Text("during"))
        failure = await old.failed
        assert isinstance(failure, StorageFailedError)
        assert outcome.done()
        with pytest.raises(NotLeaderError):
            await old.propose(Text("after the end"))
        assert cluster.machines[old.identity.node_id].roles[-1].role is Role.FOLLOWER
        del cluster.nodes[old.identity.node_id]
        new = await cluster.leader()
        await new.propose(Text("after"))
        await old.stop(hand_over=False)
        await cluster.stop()

    run(scenario())


def test_a_full_disk_of_a_follower_does_not_stop_the_group_and_it_recovers_when_there_is_space() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name = cluster.followers(leader)[0].identity.node_id
        cluster.disks[name].full = True
        for number in range(10):
            await leader.propose(Text(f"m{number}"))
        assert cluster.nodes[name].status().disk_full
        assert not cluster.nodes[name].failed.done()
        cluster.disks[name].full = False
        for bodies in await settled(cluster, 10):
            assert bodies == [f"m{number}".encode() for number in range(10)]
        await cluster.until(lambda: not cluster.nodes[name].status().disk_full)
        await cluster.stop()

    run(scenario())


def test_a_leader_with_a_full_disk_counts_nobody_who_hears_no_answer() -> None:
    """As behind a firewall that lets connections through in one direction: who is asked for votes there would not be elected."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("stored"))
        one, other = cluster.followers(leader)
        await cluster.until(lambda: one.log.last == other.log.last == leader.log.last)
        own, near, far = leader.identity.node_id, one.identity.node_id, other.identity.node_id
        cluster.net.cut |= {(own, far), (far, own), (near, far)}
        for connection in cluster.net.connections:
            if connection.ends in cluster.net.cut:
                connection.break_up()
        cluster.disks[own].full = True
        with pytest.raises((ReadOnlyError, TimeoutError)):
            await asyncio.wait_for(leader.propose(Text("not stored")), 5)
        await cluster.until(lambda: bool(one._replica.core._core.elections.seekers()))
        await asyncio.sleep(20)
        assert leader.role is Role.LEADER
        await leader.read_barrier(5)
        cluster.disks[own].full = False
        cluster.net.heal()
        await cluster.stop()

    run(scenario())


def test_a_full_disk_of_the_leader_loses_nothing() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name = leader.identity.node_id
        acknowledged = []
        cluster.disks[name].full = True
        for number in range(5):
            node = await cluster.leader()
            body = f"m{number}".encode()
            try:
                await asyncio.wait_for(node.propose(Text(body)), 5)
                acknowledged.append(body)
            except (ReadOnlyError, NotLeaderError, OutcomeUnknownError, TimeoutError):
                await asyncio.sleep(0.5)
        cluster.disks[name].full = False
        node = await cluster.leader()
        await node.propose(Text("last"))
        await cluster.until(lambda: all(machine.bodies[-1:] == [b"last"] for machine in cluster.machines.values()))
        for machine in cluster.machines.values():
            assert [body for body in machine.bodies if body in acknowledged] == acknowledged
        await cluster.stop()

    run(scenario())


def test_async_flush_acknowledges_before_the_sync_and_syncs_soon_after() -> None:
    async def scenario() -> None:
        cluster = Cluster(sync_flush=False, flush_interval_ms=200)
        await cluster.start()
        leader = await cluster.leader()
        await asyncio.sleep(1)
        syncs = cluster.disks[leader.identity.node_id].syncs
        entry = await leader.propose(Text("fast"))
        assert cluster.disks[leader.identity.node_id].syncs == syncs, "acknowledged without a sync"
        await cluster.until(lambda: leader.log.durable.index >= entry.index, "durable", limit_s=1)
        entry = await leader.propose(Text("last"))
        assert leader.log.durable.index < entry.index
        await cluster.stop()
        assert leader.log.durable.index >= entry.index, "an orderly stop leaves something to lose"

    run(scenario())


def test_async_flush_lets_a_little_wait_for_the_thorough_sync() -> None:
    async def scenario() -> None:
        cluster = Cluster(sync_flush=False, flush_interval_ms=50, flush_least_bytes=16 << 10, flush_thorough_interval_ms=3000)
        await cluster.start()
        leader = await cluster.leader()
        little = await leader.propose(Text("little"))
        loop = asyncio.get_running_loop()
        before = loop.time()
        await cluster.until(lambda: leader.log.durable.index >= little.index, "durable", limit_s=3.2)
        for _ in range(2):
            little = await leader.propose(Text("little"))
            before = loop.time()
            await asyncio.sleep(1)
            assert leader.log.durable.index < little.index, "a little does not wait"
            await cluster.until(lambda index=little.index: leader.log.durable.index >= index, "durable", limit_s=2.2)
            assert 2.5 < loop.time() - before < 3.2
            much = await leader.propose(Text("much", 17 << 10))
            before = loop.time()
            await cluster.until(lambda index=much.index: leader.log.durable.index >= index, "durable", limit_s=1)
            assert loop.time() - before < 0.2
            await asyncio.sleep(0)
        await cluster.stop()

    run(scenario())


def test_too_much_waiting_is_busy_and_too_large_is_refused() -> None:
    async def scenario() -> None:
        cluster = Cluster(max_pending_bytes=1 << 20, max_payload_bytes=512 << 10)
        await cluster.start()
        leader = await cluster.leader()
        with pytest.raises(MessageTooLargeError):
            await leader.propose(Text("x", 600 << 10))
        futures = [leader.propose(Text("x", 500 << 10)) for _ in range(4)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [EntryId, EntryId, EntryId, BusyError]  # the first one does not wait
        await leader.propose(Text("x", 500 << 10))
        await cluster.stop()

    run(scenario())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_bug_in_the_state_machine_stops_the_node_and_answers_everybody(at_once: bool) -> None:
    class Broken(Recorder):
        async def apply(self, entries: Any) -> None:
            raise ZeroDivisionError("a bug")

        applies_now = at_once

        def apply_now(self, entries: Any) -> None:
            raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        leader._replica.applier._machine = Broken()
        future = leader.propose(Text("x"))
        assert isinstance(await leader.failed, ZeroDivisionError)
        with pytest.raises(OutcomeUnknownError):
            await future
        await leader.stop(hand_over=False)
        del cluster.nodes[leader.identity.node_id]
        await cluster.leader()
        await cluster.stop()

    run(scenario())


def test_a_peer_of_another_cluster_or_with_another_folder_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("x"))
        name = cluster.followers(leader)[0].identity.node_id
        await cluster.kill(name)
        del cluster.disks[name].files["hardstate"]
        from tests.unit.dledger.raft_rig import MemoryDisk

        cluster.disks[name] = MemoryDisk()
        node = await cluster.start_one(name, store_id="wiped")
        await asyncio.sleep(5)
        assert node.leader is None
        assert node.log.last.index == 0, "a wiped voter gets nothing and votes for nobody"
        await leader.propose(Text("y"))
        await cluster.stop()

    run(scenario())
    assert any("comes with data folder wiped" in record.message for record in caplog.records)


def test_a_peer_that_cannot_prove_who_it_is_is_told_of_until_it_can() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name = cluster.followers(leader)[0].identity.node_id
        why = AuthenticationFailedError("certificate has expired")

        async def refuse(stream: ByteStream, context: object) -> None:
            raise why

        await cluster.kill(name)
        cluster.net.servers[cluster.addresses[name]] = (name, {methods.RAFT_LINK.path: refuse})

        def told() -> str:
            return next(peer.refused for peer in leader.status().peers if peer.node_id == name)

        await cluster.until(lambda: told() == why.message, "the leader tells why the member does not answer")
        del cluster.net.servers[cluster.addresses[name]]
        await cluster.start_one(name)
        await cluster.until(lambda: leader.is_connected(name) and not told(), "and no longer when it does")
        await cluster.stop()

    run(scenario())


def test_one_node_alone_is_a_group() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        await cluster.start()
        leader = await cluster.leader()
        await leader.propose(Text("x"))
        assert await leader.read_barrier(1) == leader.commit_index
        assert leader.status().last == leader.status().durable
        await cluster.stop()

    run(scenario())


def test_a_node_that_stops_leaves_no_file_open() -> None:
    async def scenario() -> None:
        cluster = Cluster(size=1)
        (name,) = cluster.names
        await cluster.start()
        await cluster.stop()
        assert not cluster.disks[name].open_files
        await cluster.stop()

    run(scenario())


def test_open_that_fails_half_way_leaves_no_file_open() -> None:
    async def scenario() -> None:
        cluster = Cluster(size=1)
        (name,) = cluster.names
        await cluster.start()
        await (await cluster.leader()).propose(Text("x"))
        await cluster.kill(name)
        cluster.disks[name].files[Recorder.STATE] = bytearray(b"not a state")
        with pytest.raises(ValueError, match="Expecting value"):
            await cluster.start()
        assert not cluster.disks[name].open_files

    run(scenario())
