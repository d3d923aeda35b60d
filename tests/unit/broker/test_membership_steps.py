"""Members and what clients are told of them: bad names and addresses are refused, and do no harm when the log holds them already."""

from __future__ import annotations

import pytest

from broker.membership.membership_steps import check_new_member
from dledger_client.aio import Message
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from tests.unit.client.sim_rig import Rig

CHANGE_MEMBER = methods.CHANGE_MEMBER
OTHERS = {"n0": "10.0.0.1:10911", "n1": "broker-1.example:10911", "n2": "[fe80::2]:1"}


@pytest.mark.parametrize("node", ["", "x/../y", "n 9", "n9\n", "a" * 65, "ä", "n.9"])
def test_an_id_that_is_none_is_refused(node: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"node id .*: expected letters, digits, _ and -, at most 64"):
        check_new_member(node, "10.0.0.9:10911", OTHERS)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("junk", "expected host:port, got 'junk'"),
        ("", "expected host:port, got ''"),
        (":1", "expected host:port"),
        ("host:0", "expected a port from 1 to 65535"),
        ("host:99999", "expected a port from 1 to 65535"),
        ("a b:1", "expected host:port with a host name"),
        ("0.0.0.0:1", "is a wildcard"),
        ("[::]:1", "is a wildcard"),
        ("BROKER-1.example:10911", "is the address of n1"),
        ("[fe80::2]:1", "is the address of n2"),
    ],
)
def test_an_address_nobody_could_use_is_refused(address: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check_new_member("n9", address, OTHERS)
    assert text in str(refused.value)
    assert str(refused.value).startswith("address of n9: ")


def test_a_good_member_is_taken_and_one_may_keep_its_own_address() -> None:
    check_new_member("n9", "10.0.0.9:10911", OTHERS)
    check_new_member("n1", "broker-1.example:10911", OTHERS)


def test_a_mistyped_member_is_refused_before_it_is_proposed() -> None:
    async def scenario(rig: Rig) -> None:
        router = rig.router()
        await router.ensure_group("g0", router.clock.monotonic_ms() + 5000)
        addresses = {node_id: host.address for node_id, host in rig.cluster.hosts.items()}
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        before = node.raft.log.last.index
        wishes = [
            admin_pb2.MemberRequest(action="add", id="n9", address="junk"),
            admin_pb2.MemberRequest(action="add", id="n9"),
            admin_pb2.MemberRequest(action="add", id="x/../y", address="10.9.9.9:1"),
            admin_pb2.MemberRequest(action="add", id="n9", address=addresses["n1"]),
            admin_pb2.MemberRequest(action="replace", id="n9", replaces="n2", address=addresses["n1"]),
            admin_pb2.MemberRequest(action="promote", id="x/../y"),
        ]
        for wish in wishes:
            with pytest.raises(InvalidArgumentError):
                await router.call_leader("g0", CHANGE_MEMBER, wish, deadline_ms=router.clock.monotonic_ms() + 5000)
        assert node.raft.log.last.index == before
        assert set(node.raft.membership.voters) == set(addresses)
        assert not node.raft.membership.learners
        await router.close()

    Rig().run(scenario)


def test_a_log_that_holds_a_mistyped_member_serves_everybody_and_loses_it_again() -> None:
    async def scenario(rig: Rig) -> None:
        node = rig.cluster.hosts[rig.master].node
        assert node is not None
        await node.raft.change_members(node.raft.membership.voters, ["n9", "x/../y"], {"n9": "junk", "x/../y": ""}, 10.0)
        await rig.topic("t")
        async with rig.producer() as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"a"))
            assert [each.body for each in await consumer.fetch("t", 0, 0)] == [b"a"]
        router = rig.router()
        await router.ensure_group("g0", router.clock.monotonic_ms() + 5000)
        for bad in ("n9", "x/../y"):
            wish = admin_pb2.MemberRequest(action="remove", id=bad)
            await router.call_leader("g0", CHANGE_MEMBER, wish, deadline_ms=router.clock.monotonic_ms() + 5000)
        assert not node.raft.membership.learners
        await router.close()

    Rig().run(scenario)
