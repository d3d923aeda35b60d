"""A node is asked before it is added: one that would never follow is refused with what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.membership.member_changes import refuse_other_log
from dledger_wire._pb import admin_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.rpc import methods
from dledger_wire.rpc.transport import CallContext
from tests.unit.dledger.raft_rig import MemoryNetwork

OURS, OTHER = "ab" * 16, "cd" * 16


def ask(**found: Any) -> None:
    """Add n1, which answers this, to a group of n0."""

    async def scenario() -> None:
        net = MemoryNetwork()
        server = net.process("n1").serve("n1:1")

        async def status(_request: admin_pb2.Empty, _context: CallContext) -> admin_pb2.NodeStatusReply:
            return admin_pb2.NodeStatusReply(**{"id": "n1", "group": "g0", "role": "follower"} | found)

        methods.NODE_STATUS.serve(server, status)
        await server.start()
        await refuse_other_log(net.process("n0"), "n1", "n1:1", lineage=OURS, members=("n0",))
        await refuse_other_log(net.process("n0"), "n1", "n7:1", lineage=OURS, members=("n0",))  # nobody answers

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"role": "leader", "leader": "n1", "term": 7, "lineage": OURS}, "n1 leads a replica group g0 of its own, in term 7"),
        ({"leader": "n2", "last_index": 9, "lineage": OURS}, "n1 follows n2, which is no member of this replica group g0"),
        ({"last_index": 9, "lineage": OTHER}, "n1 has the log of lineage cdcdcdcd, this replica group that of lineage abababab"),
        ({"last_index": 9}, "n1 has the log of the first lineage, this replica group that of lineage abababab"),
    ],
)
def test_a_node_that_cannot_follow_is_refused(found: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        ask(**found)
    remedy = "stop it, move its data folder away, start it with an empty one and spare: true, then dledger member add --id n1"
    assert refused.value.message == f"{text}: {remedy}"


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"last_index": 9, "lineage": OURS},  # it was removed, and comes back
        {"leader": "n0", "last_index": 9, "lineage": OURS},
        {"id": "n8", "role": "leader"},  # another node at that address: it is refused when it is dialled
    ],
)
def test_others_are_taken(found: dict[str, Any]) -> None:
    ask(**found)
