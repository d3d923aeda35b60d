"""No request makes the event loop of a node do more than a little in one turn: every RPC with its largest legal request, at one node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.message import Message as Request

from dledger.log.config import LogConfig
from dledger_client.aio import Message
from dledger_wire._pb import broker_pb2, pop_pb2, query_pb2, retry_pb2, routes_pb2, sessions_pb2, transaction_pb2
from dledger_wire.errors import DledgerError
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.methods import METHODS, StreamMethod
from store.queues.sql92 import MAX_TERMS
from store.state.pop import MAX_IN_FLIGHT
from store.state.pop_block import BLOCK
from tests.cluster.attack.requests import batch, request_for
from tests.cluster.attack.secured_cluster import GROUP, TOPIC
from tests.unit.broker.turns import Longest, measured
from tests.unit.client.sim_rig import Rig

ITEMS = 10_000
QUEUES = 8
MESSAGES = 1_000
FILTER = " OR ".join(f"number BETWEEN {term} AND {term}5" for term in range(MAX_TERMS))

WAYS_TO_RECEIVE: list[dict[str, Any]] = [{"sql": FILTER}, {"tag_hashes": range(1024)}, {"fifo": True}, {}]


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(ITEMS)]


def queue(number: int) -> dict[str, Any]:
    return {"topic": TOPIC, "queue_id": number % QUEUES}


def largest() -> dict[str, list[bytes]]:
    """By path."""
    refs = [broker_pb2.QueueRef(**queue(number), timestamp_ms=number) for number in range(ITEMS)]
    offsets = [broker_pb2.GroupOffset(**queue(number), offset=number % 100) for number in range(ITEMS)]
    ends = [transaction_pb2.TransactionEnd(half_offset=number, transaction_id=f"{number:032X}") for number in range(ITEMS)]
    places = [sessions_pb2.QueuePlace(**queue(number)) for number in range(20_000)]
    join = sessions_pb2.SessionJoin(group=GROUP, client_id="c", session_id="s", known_members=names("m"), queues=places)
    join.subscriptions.extend(sessions_pb2.SessionSubscription(topic=name, expression="*") for name in names("t")[:1000])
    known = [routes_pb2.KnownRoute(name=name) for name in names("t")]
    receive: dict[str, Any] = {"topic": TOPIC, "max_messages": 1024, "max_bytes": 256 << 20, "invisible_ms": 1_000}
    receipts = [pop_pb2.Receipt(queue_id=number % QUEUES, offset=number // QUEUES, lease=1 << 40) for number in range(1024)]
    of_messages: dict[str, Any] = {"group": GROUP, "topic": TOPIC, "receipts": receipts}
    requests: dict[str, list[Request]] = {
        methods.FETCH.path: [
            broker_pb2.FetchRequest(topic=TOPIC, max_bytes=256 << 20, sql=FILTER),
            broker_pb2.FetchRequest(topic=TOPIC, max_bytes=256 << 20, tag_hashes=range(1024)),
            broker_pb2.FetchRequest(topic=TOPIC, max_bytes=256 << 20, without_body=True),
            broker_pb2.FetchRequest(topic=TOPIC, max_bytes=256 << 20, in_place=True),
            broker_pb2.FetchRequest(topic=TOPIC, max_bytes=256 << 20, linearizable=True),
        ],
        methods.METADATA.path: [broker_pb2.MetadataRequest(topics=names("t")), broker_pb2.MetadataRequest(all_topics=True)],
        methods.QUEUE_OFFSETS.path: [broker_pb2.OffsetsRequest(queues=refs), broker_pb2.OffsetsRequest(topics=[TOPIC] * ITEMS)],
        methods.COMMIT_OFFSETS.path: [broker_pb2.CommitOffsetsRequest(group=GROUP, offsets=offsets)],
        methods.GROUP_OFFSETS.path: [broker_pb2.GroupOffsetsRequest(groups=names("g")), broker_pb2.GroupOffsetsRequest()],
        methods.SEND_BACK.path: [retry_pb2.SendBackRequest(group=GROUP, topic=TOPIC, offsets=range(4096))],
        methods.RECEIVE.path: [
            pop_pb2.ReceiveRequest(**receive, group=f"g{number}", **each) for number, each in enumerate(WAYS_TO_RECEIVE)
        ],
        methods.ACKNOWLEDGE.path: [pop_pb2.ReceiptsRequest(**of_messages)],
        methods.CHANGE_INVISIBLE.path: [pop_pb2.ChangeInvisibleRequest(**of_messages)],
        methods.MOVE_TO_DEAD_LETTERS.path: [pop_pb2.ReceiptsRequest(**of_messages)],
        methods.DEAD_LETTERS.path: [retry_pb2.DeadLettersRequest(groups=names("g"))],
        methods.DESCRIBE_MEMBERS.path: [sessions_pb2.DescribeMembersRequest(groups=names("g"))],
        methods.END_TRANSACTIONS.path: [transaction_pb2.EndTransactionsRequest(producer_group=GROUP, ends=ends)],
        methods.DESCRIBE_TRANSACTIONS.path: [transaction_pb2.DescribeTransactionsRequest(max_transactions=ITEMS)],
        methods.QUERY_MESSAGES.path: [
            query_pb2.QueryMessagesRequest(topic=TOPIC, key="k", max_messages=1024),
            query_pb2.QueryMessagesRequest(topic=TOPIC, key="k" * 32_767),
        ],
        methods.JOIN_GROUP.path: [sessions_pb2.MemberMessage(join=join)],
        methods.ROUTES.path: [routes_pb2.RoutesRequest(topics=known[:5000], groups=known[:5000])],
    }
    found = {path: [each.SerializeToString() for each in given] for path, given in requests.items()}
    good = batch(TOPIC)
    found[methods.PRODUCE.path] = [
        envelope.encode(broker_pb2.ProduceRequest(request_id=1), [good * ITEMS]),
        envelope.encode(broker_pb2.ProduceRequest(request_id=2), [bytes(4) + (4 << 20).to_bytes(4, "big") + bytes((4 << 20) - 8)]),
    ]
    return found


# Instructions of Python (``turns.py``), some 2 to 4 ms of an old core.
LIMIT = 150_000
# What takes longer, and why it does.
LONGER = {
    methods.PRODUCE.path: (4_000_000, "10 000 batches, proposed 200 in a turn, go to the log together: all their entries in one turn"),
    methods.FETCH.path: (400_000, "a chunk of messages, up to 1 MiB, is looked up in one turn"),
    methods.QUEUE_OFFSETS.path: (400_000, "the bounds of 10 000 queues are read of one moment"),
    methods.RECEIVE.path: (400_000, "the first filter of a process compiles the expressions of its grammar"),
    methods.COMMIT_OFFSETS.path: (300_000, "10 000 offsets are one command of the log"),
    methods.QUERY_MESSAGES.path: (400_000, "a key of 32 767 characters is hashed one by one; 1024 messages are written into one answer"),
    methods.JOIN_GROUP.path: (250_000, "the queues that a member consumes, up to 1 MiB of them, are read one by one"),
}


async def ask(rig: Rig, path: str, data: bytes) -> str:
    """Send it to the master; why it was refused, empty when it was not."""
    router = rig.router()
    channel = router.channel(rig.cluster.hosts[rig.master].address)
    try:
        if not isinstance(METHODS[path], StreamMethod):
            await channel.call(path, data, timeout_s=30)
            return ""
        stream = channel.open(path)
        await stream.write(data)
        async with asyncio.timeout(2):
            while await stream.read() is not None:
                pass
        return ""
    except TimeoutError:
        return ""
    except DledgerError as error:
        return f"{error.code}: {error.message}"
    finally:
        await router.close()


@pytest.mark.parametrize("service", sorted({path.split("/")[1] for path in METHODS}))
def test_no_request_holds_the_loop(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = Longest()
    over: list[str] = []

    async def scenario(rig: Rig) -> None:
        await rig.topic(TOPIC, queues=QUEUES)
        async with rig.producer() as producer:
            messages = [Message(TOPIC, b"x" * 100, keys="k", properties={"number": str(number)}) for number in range(MESSAGES)]
            await asyncio.gather(*(producer.send_batch(messages[first : first + 100]) for first in range(0, MESSAGES, 100)))
        requests = largest()
        for path in [each for each in METHODS if each.split("/")[1] == service]:
            for number, data in enumerate(requests.get(path, [request_for(path)])):
                limit = LONGER.get(path, (LIMIT, ""))[0]
                longest.begin(rig.cluster.hosts[rig.master].process)
                refused = await ask(rig, path, data)
                longest.end()
                assert path not in requests or "INVALID_ARGUMENT" not in refused, (path, refused)
                if longest.instructions > limit:
                    over.append(f"{path}, request {number}: {longest.instructions} instructions, at most {limit} expected; {longest.what}")

    with measured(monkeypatch, longest):
        Rig(log=LogConfig(segment_bytes=32 << 20, fill_window_bytes=0)).run(scenario)
    assert over == []


def test_a_million_messages_in_flight_are_counted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = Longest()

    async def scenario(rig: Rig) -> None:
        await rig.topic(TOPIC, queues=QUEUES)
        async with rig.consumer(GROUP) as consumer:
            await consumer.commit({(TOPIC, number): 0 for number in range(QUEUES)})
        master = rig.cluster.hosts[rig.master]
        assert master.node is not None
        store, due_ms = master.node.store, 1 << 60
        blocks = [[[BLOCK - 24, due_ms, 1, 2, 1], [24, 1, 1, 3, 1]], [[BLOCK, due_ms, 1, 1, 1]]]
        names = [f"{TOPIC}@{GROUP}@{number}" for number in range(QUEUES)]
        store.pop.load(
            {
                "spanTable": {name: [0, MAX_IN_FLIGHT] for name in names},
                "blockTable": {f"{name}@{number}": blocks[number % 2] for name in names for number in range(MAX_IN_FLIGHT // BLOCK)},
            }
        )
        router = rig.router()
        channel = router.channel(master.address)
        longest.begin(master.process)
        answer = await methods.GROUP_OFFSETS.call(channel, broker_pb2.GroupOffsetsRequest(groups=[GROUP], leases=True), timeout_s=30)
        longest.end()
        await router.close()
        found = [(row.leases.in_flight, row.leases.again, row.leases.attempts) for row in answer.groups[0].offsets]
        assert found == [(MAX_IN_FLIGHT - 512 * 24, 512 * 24, 3)] * QUEUES
        assert longest.instructions < 20_000, longest.what

    with measured(monkeypatch, longest):
        Rig().run(scenario)
