"""Heartbeats of RocketMQ's clients: whom they make a member, and how much one client may say."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.remoting.clients import MAX_GROUPS, Clients
from broker.remoting.codes import Answer, Request
from broker.remoting.command import Command
from broker.remoting.connection import RemotingConnection
from dledger_wire.errors import InvalidArgumentError, InvalidNameError
from tests.unit.broker.remoting.rig import ask, content, leader_of, stranger
from tests.unit.client.sim_rig import Rig, node_of


def beat(client_id: str, *groups: str, **more: Any) -> bytes:
    """What a client says of itself."""
    wanted = [{"topic": "t", "subString": "a"}]
    rows = [{"groupName": group, "subscriptionDataSet": [*wanted, {"topic": f"%RETRY%{group}", "subString": "*"}]} for group in groups]
    return json.dumps({"clientID": client_id, "producerDataSet": [], "consumerDataSet": rows, **more}).encode()


@contextlib.asynccontextmanager
async def clients_at(rig: Rig, node_id: str) -> AsyncIterator[Clients]:
    async with leader_of(rig, node_id) as leader:
        clients = Clients(node_of(rig, node_id), leader)
        try:
            yield clients
        finally:
            clients.close()


async def say(clients: Clients, connection: RemotingConnection, body: bytes) -> Command:
    return await clients.heartbeat(Command(Request.HEART_BEAT, body=body), connection)


async def members(clients: Clients, group: str) -> list[str]:
    answer = await ask(clients.handlers(), Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    return sorted(content(answer)["consumerIdList"]) if answer.code == Answer.SUCCESS else []


def test_a_consumer_is_a_member_when_its_heartbeat_is_answered_and_until_it_says_otherwise() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with clients_at(rig, rig.master) as at_leader, clients_at(rig, rig.followers[0]) as at_follower:
            first, second = stranger(), stranger()
            assert (await say(at_leader, first, beat("c1", "audit"))).code == Answer.SUCCESS
            assert await members(at_leader, "audit") == ["c1"]
            await say(at_follower, stranger(), beat("c1", "audit"))  # RocketMQ's clients send heartbeats to every node
            await say(at_leader, second, beat("c2", "audit"))
            assert await members(at_follower, "audit") == ["c1", "c2"]
            assert node_of(rig, rig.master).store.topics.get("%RETRY%audit") is not None
            await at_leader.unregister(Command(Request.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "audit"}), first)
            second.connection_lost(None)
            await asyncio.sleep(2)  # a session without a stream keeps its locks for a while
            assert await members(at_leader, "audit") == []

    Rig().run(scenario)


def test_clients_in_cpp_leave_fields_out_and_write_numbers() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with clients_at(rig, rig.master) as clients:
            row = {"groupName": "audit", "consumeType": 1, "messageModel": 1, "consumeFromWhere": 0}
            body = {"clientID": "cpp", "consumerDataSet": [row | {"subscriptionDataSet": [{"topic": "t", "subVersion": "1"}]}]}
            connection = stranger()
            await say(clients, connection, json.dumps(body).encode())
            assert await members(clients, "audit") == ["cpp"]
            found = clients.subscription(connection, "audit", "t")
            assert found is not None
            assert (found.expression, found.kind) == ("*", "TAG")

    Rig().run(scenario)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"no json", InvalidArgumentError),
        (b"{}", InvalidArgumentError),
        (beat("c", consumerDataSet="x"), InvalidArgumentError),
        (beat("c", "not a name"), InvalidNameError),
        (beat("c", *(f"g{number}" for number in range(MAX_GROUPS + 1))), InvalidArgumentError),
    ],
)
def test_what_cannot_be_a_heartbeat_makes_no_member(body: bytes, error: type[Exception]) -> None:
    async def scenario(rig: Rig) -> None:
        async with clients_at(rig, rig.master) as clients:
            with pytest.raises(error):
                await say(clients, stranger(), body)
            assert await members(clients, "g0") == []

    Rig().run(scenario)


def test_a_client_cannot_be_in_more_groups_by_and_by() -> None:
    async def scenario(rig: Rig) -> None:
        async with clients_at(rig, rig.master) as clients:
            connection = stranger()
            await say(clients, connection, beat("c", *(f"a{number}" for number in range(MAX_GROUPS // 2))))
            await say(clients, connection, beat("c", *(f"b{number}" for number in range(MAX_GROUPS // 2))))
            with pytest.raises(InvalidArgumentError, match=f"a client of more than {MAX_GROUPS} consumer groups"):
                await say(clients, connection, beat("c", "one-more"))

    Rig().run(scenario)


@pytest.mark.parametrize(("expression", "code"), [("n > 1", Answer.SUCCESS), ("n >", Answer.SUBSCRIPTION_PARSE_FAILED)])
def test_a_consumer_learns_at_its_start_that_its_expression_is_none(expression: str, code: Answer) -> None:
    async def scenario(rig: Rig) -> None:
        async with clients_at(rig, rig.master) as clients:
            wanted = {"subscriptionData": {"expressionType": "SQL92", "subString": expression, "topic": "t"}}
            assert (await ask(clients.handlers(), Request.CHECK_CLIENT_CONFIG, json.dumps(wanted).encode())).code == code

    Rig().run(scenario)
