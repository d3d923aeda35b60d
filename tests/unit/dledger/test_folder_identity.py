"""A voter is its data folder, which the log names: old folders, empty ones, older copies, and whoever calls himself a member (M21)."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import random
from dataclasses import replace

import pytest

from dledger.core.types import Membership, NodeId, Role
from dledger.membership.boot_history import KEPT, Boot, BootHistory, record_boot
from dledger.membership.configuration import Configuration
from dledger.membership.handshake import Handshake, decode
from dledger.membership.peer_stores import PeerStores
from dledger.node import RaftNode
from dledger.transport.link import IN_USE_S
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.rpc import methods
from tests.unit.dledger.raft_rig import Cluster, MemoryDisk, Text, run
from tests.unit.dledger.test_replace_member import change, wiped

QUIET_S = 5  # long enough for several elections, in virtual time


def named_everywhere(cluster: Cluster) -> dict[NodeId, str]:
    found = [dict(node.membership.stores) for node in cluster.nodes.values()]
    assert all(names == found[0] for names in found)
    return found[0]


async def caught_up(cluster: Cluster, *names: NodeId) -> None:
    leader = await cluster.leader()
    await cluster.until(lambda: all(cluster.nodes[name].commit_index == leader.log.last.index for name in names or cluster.nodes))


def test_M21_the_first_members_are_named_by_the_log_as_soon_as_they_have_met() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start(*cluster.names[:2])
        leader = await cluster.leader()
        assert dict(leader.membership.stores) == {name: f"store-{name}" for name in cluster.names[:2]}
        await cluster.start_one(cluster.names[2])
        await cluster.until(lambda: len(leader.membership.stores) == 3, "the last one is named when it comes")
        await caught_up(cluster)
        assert named_everywhere(cluster) == {name: f"store-{name}" for name in cluster.names}
        await cluster.stop()

    run(scenario())


async def old_folder_scene() -> tuple[Cluster, NodeId, NodeId, MemoryDisk]:
    """Five voters: C's folder is exchanged while B is cut off, and E never meets the new one; an entry is committed by A, C and D."""
    cluster = Cluster(5)
    await cluster.start()
    leader = await cluster.leader()
    a = leader.identity.node_id
    b, c, d, e = (name for name in cluster.names if name != a)
    await caught_up(cluster)
    cluster.net.isolate(b, cluster.names)
    await cluster.kill(c)
    old = cluster.disks[c]
    await change(leader, cluster, [a, b, d, e], [])
    cluster.disks[c] = MemoryDisk()
    for one, other in ((c, e), (e, c)):
        cluster.net.cut.add((one, other))
    await cluster.start_one(c, store_id="new folder")
    await change(leader, cluster, [a, b, d, e], [c])
    await change(leader, cluster, [a, b, c, d, e], [])
    await caught_up(cluster, a, c, d, e)
    assert cluster.nodes[e].membership.store_of(c) == "new folder"
    cluster.net.isolate(e, cluster.names)
    await leader.propose(Text("acknowledged"))
    for name in (a, c, d):
        await cluster.kill(name)
    return cluster, c, e, old


@pytest.mark.parametrize("peers", ["as they are", "never written", "damaged"])
def test_M21_the_old_folder_of_a_replaced_member_elects_nobody(peers: str) -> None:
    async def scenario() -> None:
        cluster, c, e, old = await old_folder_scene()
        if peers != "as they are":
            for name in list(cluster.nodes):
                await cluster.kill(name)
                del cluster.disks[name].files["peers.json"]
                cluster.disks[name].synced.pop("peers.json", None)
                if peers == "damaged":
                    await cluster.disks[name].write_atomic("peers.json", b'{"stores": ["n1"')
                await cluster.start_one(name)
        new, cluster.disks[c] = cluster.disks[c], old
        node = await cluster.start_one(c)
        cluster.net.heal()
        await asyncio.sleep(QUIET_S)
        assert all(each.role is not Role.LEADER for each in cluster.nodes.values())
        assert "new folder" in next(peer.refused for peer in cluster.nodes[e].status().peers if peer.node_id == c)
        assert node.log.last.index < cluster.nodes[e].log.last.index
        await cluster.kill(c)
        cluster.disks[c] = new
        await cluster.start_one(c, store_id="new folder")
        await cluster.until(lambda: cluster.machines[e].bodies == [b"acknowledged"], "with the folder named all is there")
        await cluster.stop()

    run(scenario())


def test_M21_a_wiped_voter_counts_nowhere_also_at_a_replica_that_never_met_it() -> None:
    """B was away from the start on and has only the log; with the wiped C it would be a majority without what A and C have."""

    async def scenario() -> None:
        cluster = Cluster()
        a, b, c = cluster.names
        for one, other in ((b, c), (c, b)):
            cluster.net.cut.add((one, other))
        await cluster.start()
        leader = await cluster.leader()
        if leader.identity.node_id != a:
            await leader.transfer(a, 5)
        leader = await cluster.until(lambda: cluster.nodes[a] if cluster.nodes[a].is_confirmed_leader else None)
        await cluster.until(lambda: len(cluster.nodes[b].membership.stores) == 3)
        await caught_up(cluster)
        cluster.net.isolate(b, cluster.names)
        await leader.propose(Text("acknowledged"))
        await cluster.kill(a)
        await wiped(cluster, c)
        node = await cluster.start_one(c, store_id="wiped")
        cluster.net.heal()
        await asyncio.sleep(QUIET_S)
        assert cluster.nodes[b].role is not Role.LEADER
        assert (node.leader, node.log.last.index) == (None, 0)
        await cluster.stop()

    run(scenario())


def test_M21_answers_of_another_folder_do_not_count_even_when_the_link_lets_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_check(*_facts: object, **_named: object) -> None:
        return

    async def scenario() -> None:
        cluster, c, _e, old = await old_folder_scene()
        for node in cluster.nodes.values():
            monkeypatch.setattr(node._replica, "check_handshake", no_check)
        cluster.disks[c] = old
        node = await cluster.start_one(c)
        monkeypatch.setattr(node._replica, "check_handshake", no_check)
        cluster.net.heal()
        await asyncio.sleep(QUIET_S)
        assert all(each.role is not Role.LEADER for each in cluster.nodes.values())
        await cluster.stop()

    run(scenario())


async def call(cluster: Cluster, node: RaftNode, name: NodeId, said: Handshake, host: str = "stranger") -> Handshake | str:
    """Open a link to ``node`` as ``name``, say nothing, and go; the answer, or why there was none."""
    own = node.identity
    metadata = {"dledger-cluster": own.cluster, "dledger-group": own.group, "dledger-to": own.node_id, "dledger-node": name}
    channel = cluster.net.process(NodeId(host)).connect(own.address)
    stream = channel.open(methods.RAFT_LINK.path, metadata=metadata | {"dledger-hello": said.encode(name).hex()})
    try:
        return decode(await stream.read() or b"")[1]
    except DledgerError as error:
        return error.message
    finally:
        await channel.close()


def test_a_stranger_learns_nothing_with_which_to_speak_for_a_member() -> None:
    """Without certificates anybody can call; what it takes to be taken for a member is sent to members only, and made for each."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.leader()
        await caught_up(cluster)
        one, other, third = cluster.names
        node, folder = cluster.nodes[one], f"store-{third}"
        found = await call(cluster, node, NodeId("n9"), Handshake("any", 0, 0, 0, BootHistory()))
        assert isinstance(found, Handshake)
        assert (found.boots, found.key) == (BootHistory(), "")
        told = cluster.nodes[third]._replica.handshake(other, dials=True)  # what third sends to another member
        assert told.key
        many, none = BootHistory(1 << 40, (7,) * KEPT), Handshake(folder, 1, 1, 1, BootHistory())
        for said in (told, replace(told, key=""), replace(told, boots=many), none):
            assert f"{third} comes with data folder {folder}, but without its key" in str(await call(cluster, node, third, said))
        ours = cluster.nodes[third]._replica.handshake(one, dials=True)
        assert ours.boots.drawn != told.boots.drawn
        assert isinstance(await call(cluster, node, third, ours, host=third), Handshake)
        await cluster.stop()

    run(scenario())


def test_a_link_in_use_is_not_replaced_from_another_host() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        await caught_up(cluster)
        name = cluster.followers(leader)[0].identity.node_id
        said = cluster.nodes[name]._replica.handshake(leader.identity.node_id, dials=True)
        found = await call(cluster, leader, name, said, host="elsewhere")
        assert found == f"link: {name} sends from {name}, and comes from elsewhere as well: stop one of both"
        await cluster.kill(name)
        await asyncio.sleep(IN_USE_S)
        assert isinstance(await call(cluster, leader, name, said, host="elsewhere"), Handshake), "it moved"
        await cluster.stop()

    run(scenario())


def test_a_key_is_kept_over_restarts_and_forgotten_with_its_folder() -> None:
    async def scenario() -> None:
        disk, other = MemoryDisk(), MemoryDisk()
        boots = [await record_boot(disk, random.Random(start), 0) for start in range(2)]
        assert boots[0].key_for("n1") == boots[1].key_for("n1") != boots[0].key_for("n2")
        assert (await record_boot(other, random.Random(7), 0)).key_for("n1") != boots[0].key_for("n1")
        stores = PeerStores(disk, NodeId("n1"))
        n0 = NodeId("n0")
        said = Handshake("folder", 0, 0, 0, boots[1].shown_to("n1"), key=boots[1].key_for("n1"))
        await stores.met(n0, said, "")
        again = PeerStores(disk, NodeId("n1"))
        await again.load()
        again.check(n0, said, "", 0, dialled=False)
        again.check(n0, replace(said, boots=BootHistory(), key=""), "", 0, dialled=True)
        with pytest.raises(InvalidArgumentError, match="without its key"):
            again.check(n0, replace(said, key="0" * 32), "", 0, dialled=True)
        again.settle(Membership((n0,)).with_stores({n0: "another"}))
        again.check(n0, replace(said, store_id="another", key="0" * 32), "", 0, dialled=False)

    asyncio.run(scenario())


@pytest.mark.parametrize("named", [True, False])
def test_a_stranger_under_a_members_name_locks_nobody_out(named: bool) -> None:
    """With any folder, any configuration and any number of starts; also while the log names nobody yet, and over restarts."""

    async def scenario() -> None:
        cluster = Cluster()
        first, second, third = cluster.names
        await cluster.start(*([first, second, third] if named else [first]))
        if named:
            await caught_up(cluster)
            await cluster.kill(third)
        for claimed in ("stranger", f"store-{third}"):
            said = Handshake(claimed, 1 << 40, 1 << 20, 1 << 40, BootHistory(1 << 40, (7,) * KEPT))
            for node in list(cluster.nodes.values()):
                await call(cluster, node, third, said)
        for name in list(cluster.nodes):
            await cluster.kill(name)
            await cluster.start_one(name)
        await cluster.start_one(third)
        if not named:
            await cluster.start_one(second)
        leader = await cluster.leader()
        await leader.propose(Text("x"))
        await cluster.until(lambda: all(machine.bodies == [b"x"] for machine in cluster.machines.values()), "all three take part")
        await cluster.stop()

    run(scenario())


def test_a_folder_put_back_from_an_older_copy_is_refused_and_its_node_stops(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name, other = (follower.identity.node_id for follower in cluster.followers(leader))
        await caught_up(cluster)
        await cluster.kill(name)
        older = copy.deepcopy(cluster.disks[name].files)
        await cluster.start_one(name)
        await leader.propose(Text("later"))
        await caught_up(cluster)
        await cluster.until(lambda: leader._replica.admission.stores._boots[name].start == 2)
        await cluster.kill(name)
        for voter in (leader.identity.node_id, other):  # what they have in memory is gone, what they have written is not
            await cluster.kill(voter)
            await cluster.start_one(voter)
        cluster.disks[name].files = older
        node = await cluster.start_one(name)
        error = await asyncio.wait_for(asyncio.shield(node.failed), 30)
        text = f"{name}: its data folder is older than what it acknowledged (its start 2 was a different one): replace it as a member"
        assert text in str(error)
        for _ in range(3):  # it does not get in by trying again
            await cluster.kill(name)
            node = await cluster.start_one(name)
            await asyncio.wait_for(asyncio.shield(node.failed), 30)
        await cluster.kill(name)
        leader = await cluster.leader()
        own = leader.identity.node_id
        await change(leader, cluster, [own, next(voter for voter in cluster.nodes if voter != own)], [])
        cluster.disks[name] = MemoryDisk()
        await cluster.start_one(name, store_id="new folder")
        await change(leader, cluster, [*leader.membership.voters], [name])
        await cluster.until(lambda: cluster.machines[name].bodies == [b"later"])
        await change(leader, cluster, [*leader.membership.voters, name], [])
        await cluster.stop()

    with caplog.at_level(logging.WARNING):
        run(scenario())


def test_an_older_copy_is_refused_by_those_who_apply_again_that_its_member_was_out_once() -> None:
    """What a start applies again are configurations of the past: who came back since is known by its newest start all the same."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name, other = (follower.identity.node_id for follower in cluster.followers(leader))
        await caught_up(cluster)
        for voters, learners in (([leader.identity.node_id, other], []), ([leader.identity.node_id, other], [name]), (cluster.names, [])):
            await change(leader, cluster, list(voters), learners)
        await caught_up(cluster)
        await cluster.kill(name)
        older = copy.deepcopy(cluster.disks[name].files)
        await cluster.start_one(name)
        await leader.propose(Text("later"))
        await caught_up(cluster)
        voters = [leader.identity.node_id, other]
        await cluster.until(lambda: all(cluster.nodes[each]._replica.admission.stores._boots[name].start == 2 for each in voters))
        await cluster.kill(name)
        for voter in voters:
            await cluster.nodes[voter].stop(hand_over=False)
            await cluster.kill(voter)
            node = await cluster.start_one(voter)
        await cluster.leader()
        await caught_up(cluster, *voters)
        cluster.disks[name].files = older
        node = await cluster.start_one(name)
        error = await asyncio.wait_for(asyncio.shield(node.failed), 30)
        assert "its data folder is older than what it acknowledged" in str(error)
        await cluster.stop()

    run(scenario())


def test_a_folder_taken_back_without_a_start_in_between_is_known_by_what_it_acknowledged() -> None:
    """As a machine is set back to a snapshot of its disk: the leader knows what it acknowledged."""

    async def scenario() -> None:
        cluster = Cluster()
        await cluster.start()
        leader = await cluster.leader()
        name = cluster.followers(leader)[0].identity.node_id
        await caught_up(cluster)
        snapshot = copy.deepcopy(cluster.disks[name].synced)
        await leader.propose(Text("later"))
        await caught_up(cluster)
        await cluster.kill(name)
        cluster.disks[name].files = {path: bytearray(data) for path, data in snapshot.items()}
        node = await cluster.start_one(name)
        error = await asyncio.wait_for(asyncio.shield(node.failed), 30)
        assert "and it acknowledged entry" in str(error)
        await cluster.stop()

    run(scenario())


def test_a_folder_of_before_folders_were_named_is_named_at_its_next_start() -> None:
    async def scenario() -> None:
        cluster = Cluster(1)
        await cluster.start()
        node = await cluster.leader()
        assert dict(node.membership.stores) == {cluster.names[0]: f"store-{cluster.names[0]}"}
        await cluster.stop()

    run(scenario())
    old = {"voters": ["n0", "n1"], "learners": ["n2"], "addresses": {"n0": "a:1", "n1": "b:1", "n2": "c:1"}, "since": {"n1": 7}}
    configuration = Configuration.decode(json.dumps(old).encode())
    assert configuration.membership == Membership((NodeId("n0"), NodeId("n1")), (NodeId("n2"),))
    named = Configuration(configuration.membership.with_stores({NodeId("n0"): "x", NodeId("n9"): "y"}), configuration.addresses)
    assert Configuration.decode(named.encode()) == named
    assert named.membership.stores == ((NodeId("n0"), "x"),)


def test_starts_are_told_apart() -> None:
    boots = BootHistory()
    for drawn in range(100, 100 + KEPT + 3):
        boots = boots.recorded(drawn)
    assert boots.starts == KEPT + 3
    assert boots.newest == Boot(KEPT + 3, 100 + KEPT + 2)
    assert boots.rollback_reason(Boot(KEPT, 100 + KEPT - 1)) is None
    assert "its start 34 was a different one" in str(boots.rollback_reason(Boot(34, 7)))
    assert "was started 35 times, and came with start 36 before" in str(boots.rollback_reason(Boot(36, 7)))
    assert boots.rollback_reason(Boot(1, 7)) is None, "too long ago to tell"
    assert BootHistory().rollback_reason(Boot(1, 7)) is not None


def test_a_node_restored_twice_is_known_by_its_first_start() -> None:
    """The oldest start that is kept counts like every other one; after the first start it is the only one."""
    assert BootHistory().recorded(5).rollback_reason(Boot(1, 5)) is None
    assert "its start 1 was a different one" in str(BootHistory().recorded(5).rollback_reason(Boot(1, 7)))
    boots = BootHistory()
    for drawn in range(100, 100 + KEPT + 3):
        boots = boots.recorded(drawn)
    assert "its start 4 was a different one" in str(boots.rollback_reason(Boot(4, 7)))
