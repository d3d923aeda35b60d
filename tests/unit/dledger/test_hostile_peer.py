"""What comes on a Raft link from a peer that is broken, or none at all: it ends the link, never the node, and is counted in the status."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from dledger.core.messages import AppendRequest, Heartbeat
from dledger.core.types import EntryId, EntryKind, NodeId, Role
from dledger.log.entry import RawEntry, encode_entry
from dledger.membership.boot_history import BootHistory
from dledger.membership.handshake import Handshake
from dledger.node import RaftNode
from dledger.transport import codec
from dledger_wire.errors import InvalidArgumentError, UnreachableError
from dledger_wire.rpc import methods
from tests.unit.dledger.raft_rig import Cluster, Text, run

STRANGER = NodeId("n9")


def heartbeat(term: int) -> bytes:
    return codec.encode(Heartbeat(term=term, commit=0, round=1))


def entry_behind(node: RaftNode, prev: EntryId, *, chain_crc: int | None = None, gap: int = 0, kind: EntryKind = EntryKind.NORMAL) -> bytes:
    """An append request with one entry of the node's term behind ``prev``, which is in its log."""
    place = node.log.locate(prev.index)
    assert place is not None
    chain = node.log.chain_crc if chain_crc is None else chain_crc
    entry = encode_entry(prev.index + 1, node.term, kind, place.end_pos + gap, chain, (b"forged",))
    return appended(node.term, prev, entry)


def appended(term: int, prev: EntryId, *entries: RawEntry) -> bytes:
    request = AppendRequest(term=term, prev=prev, entries=tuple(entry.meta() for entry in entries), commit=prev.index)
    return codec.encode(request, entries)


async def say(cluster: Cluster, node: RaftNode, data: bytes, *, name: NodeId = STRANGER) -> bool:
    """Dial ``node`` as ``name`` and say ``data``; whether it ended the link for that."""
    own = node.identity
    channel = cluster.net.process(name).connect(own.address)
    metadata = {
        "dledger-cluster": own.cluster,
        "dledger-group": own.group,
        "dledger-to": own.node_id,
        "dledger-node": name,
        "dledger-hello": Handshake(f"store-{name}", 0, 0, 0, BootHistory()).encode(name).hex(),
    }
    stream = channel.open(methods.RAFT_LINK.path, metadata=metadata)
    try:
        await stream.read()
        await stream.write(data)
        return await stream.read() is None
    except (InvalidArgumentError, UnreachableError):
        return True
    finally:
        await channel.close()


def with_leader(follower_is_hit: bool) -> Callable[[Callable[[RaftNode], bytes]], None]:
    def attack(forge: Callable[[RaftNode], bytes]) -> None:
        async def scenario() -> None:
            cluster = Cluster()
            await cluster.start()
            leader = await cluster.leader()
            await leader.propose(Text("before"))
            await cluster.until(lambda: len({node.log.last for node in cluster.nodes.values()}) == 1, "equal logs")
            node, term = (cluster.followers(leader)[0] if follower_is_hit else leader), leader.term
            assert await say(cluster, node, forge(node))
            assert node.status().refused_messages == 1
            assert not node.failed.done()
            assert (leader.role, leader.term, node.term) == (Role.LEADER, term, term)
            entry = await leader.propose(Text("after"))
            await cluster.until(lambda: all(node.commit_index >= entry.index for node in cluster.nodes.values()), "goes on")
            await cluster.stop()

        run(scenario())

    return attack


@pytest.mark.parametrize("follower_is_hit", [False, True])
def test_a_second_leader_of_the_term(follower_is_hit: bool) -> None:
    with_leader(follower_is_hit)(lambda node: heartbeat(node.term))


@pytest.mark.parametrize("follower_is_hit", [False, True])
@pytest.mark.parametrize("term", [1 << 32, (1 << 63) - 1, (1 << 64) - 1])
def test_a_term_no_group_reaches(follower_is_hit: bool, term: int) -> None:
    with_leader(follower_is_hit)(lambda _node: heartbeat(term))


@pytest.mark.parametrize("bit", range(0, 8 * len(heartbeat(1)), 5))
def test_a_damaged_header(bit: int) -> None:
    def forge(node: RaftNode) -> bytes:
        data = bytearray(heartbeat(node.term + 1))
        data[bit // 8] ^= 1 << bit % 8
        return bytes(data)

    with_leader(False)(forge)


def leaderless(forge: Callable[[RaftNode], bytes]) -> None:
    """A follower that has just lost its leader believes whoever comes as one: what comes is still checked against its log."""

    async def scenario() -> None:
        cluster = Cluster(1)
        await cluster.start()
        node = await cluster.leader()
        await node.propose(Text("before"))
        await cluster.until(lambda: node.commit_index == node.log.last.index, "committed")
        node._replica.driver.received(STRANGER, "store-stranger", heartbeat(node.term + 1))
        assert node.role is Role.FOLLOWER
        last = node.log.last
        assert await say(cluster, node, forge(node))
        assert (node.log.last, node.status().refused_messages) == (last, 1)
        assert not node.failed.done()
        await cluster.leader()
        await node.propose(Text("after"))
        await cluster.stop()

    run(scenario())


def test_entries_whose_chain_does_not_continue_the_log() -> None:
    leaderless(lambda node: entry_behind(node, node.log.last, chain_crc=node.log.chain_crc ^ 1))


@pytest.mark.parametrize("gap", [1, 7, 1 << 40])
def test_entries_at_an_impossible_place(gap: int) -> None:
    leaderless(lambda node: entry_behind(node, node.log.last, gap=gap))


def test_an_entry_in_place_of_a_committed_one() -> None:
    leaderless(lambda node: entry_behind(node, EntryId(node.log.last.index - 1, 1)))


def test_a_configuration_that_is_none() -> None:
    leaderless(lambda node: entry_behind(node, node.log.last, kind=EntryKind.CONFIG))


def test_a_name_too_long_to_be_voted_for() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        assert await say(cluster, leader, heartbeat(leader.term + 1), name=NodeId("x" * 256))
        assert leader.role is Role.LEADER
        await cluster.stop()

    run(scenario())


def test_what_is_refused_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        for _ in range(20):
            assert await say(cluster, leader, heartbeat(leader.term))
        assert leader.status().refused_messages == 20
        await cluster.stop()

    with caplog.at_level(logging.WARNING, "dledger.transport.link"):
        run(scenario())
    assert len([record for record in caplog.records if "refused a link" in record.message]) == 1
