"""Clients where things go wrong around them: nodes that answer nonsense or take nothing more, bugs, changed topics, forks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dledger_client
from dledger_client.aio import Message, Producer, PullConsumer
from dledger_client.cluster.router import Router
from dledger_client.producer.delivery_report import SendFuture
from dledger_client.producer.send_many import SendManyFuture
from dledger_client.producer.sender import Sender
from dledger_client.runtime.environment import use_environment
from dledger_client.runtime.loop_thread import LoopThread
from dledger_wire._pb import broker_pb2
from dledger_wire.errors import (
    ClientClosedError,
    DeadlineExceededError,
    DledgerError,
    InvalidArgumentError,
    NotSentError,
    OutcomeUnknownError,
    TopicNotFoundError,
    UnreachableError,
)
from dledger_wire.rpc import envelope, methods
from dledger_wire.rpc.transport import ByteStream, CallContext
from tests.sim.clock import SimClock
from tests.sim.cluster import SimCluster
from tests.sim.loop import Process
from tests.unit.client.sim_rig import CLIENT_IP, Rig, until

ADDRESS = "10.0.2.1:1"
JUNK = [b"", b"\xff" * 40, b"\x0d\xff\xff\xff\x7fabc", b"\x08\x96\x01" * 5]


class ScriptedNode:
    """One node that says it leads, and answers as the test has it."""

    def __init__(self, seed: int = 1) -> None:
        self._cluster = SimCluster(seed)
        self.loop = self._cluster.loop
        self._process, self._network = self._cluster.new_client(CLIENT_IP)
        self._around: dict[str, Any] = {"network": self._network, "clock": SimClock(self.loop), "random": random.Random(seed)}
        self.metadata = broker_pb2.MetadataResponse(
            cluster="c",
            groups=[
                broker_pb2.GroupInfo(
                    name="g0", term=1, leader_id="n0", leader_address=ADDRESS, nodes=[broker_pb2.NodeInfo(id="n0", address=ADDRESS)]
                )
            ],
            topics=[broker_pb2.TopicInfo(name="t", group="g0", read_queues=1, write_queues=1, perm=6, found=True)],
        ).SerializeToString()
        self.session = broker_pb2.InitProducerResponse(producer_id=1, epoch=0).SerializeToString()
        self.session_pause_s = 0.0
        self.registered = 0  # how often a producer was
        self.produce: Callable[[bytes], bytes] = lambda request: b""
        self.fetch: Callable[[bytes], bytes] = lambda request: b""
        self.produce_stream = self._answering("produce")
        self.seen = 0

    def producer(self, **settings: Any) -> Producer:
        with use_environment(**self._around):
            return Producer(ADDRESS, "tests", **settings)

    def consumer(self, **settings: int) -> PullConsumer:
        with use_environment(**self._around):
            return PullConsumer(ADDRESS, "tests", **settings)  # type: ignore[arg-type]

    def router(self) -> Router:
        return Router(ADDRESS, self._network, SimClock(self.loop), random.Random(1))

    def _answering(self, name: str) -> Callable[[ByteStream, CallContext], Awaitable[None]]:
        async def handler(stream: ByteStream, _context: CallContext) -> None:
            while (request := await stream.read()) is not None:
                self.seen += 1
                await stream.write(getattr(self, name)(request))

        return handler

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def metadata(_request: bytes, _context: CallContext) -> bytes:
            return self.metadata

        async def session(_request: bytes, _context: CallContext) -> bytes:
            await asyncio.sleep(self.session_pause_s)
            self.registered += 1
            return self.session

        async def serve() -> None:
            server = self._cluster.net.of(node).serve(ADDRESS)
            server.add_unary(methods.METADATA.path, metadata)
            server.add_unary(methods.INIT_PRODUCER.path, session)
            server.add_stream(methods.PRODUCE.path, self.produce_stream)
            server.add_stream(methods.FETCH.path, self._answering("fetch"))
            await server.start()

        async def main() -> None:
            await self.loop.spawn(node, serve(), "node")
            await self.loop.spawn(self._process, _as_coroutine(scenario), "scenario")

        node = Process("10.0.2.1", 1)
        try:
            self.loop.run_until_complete(asyncio.wait_for(main(), 120))
        finally:
            self.loop.close()


async def _as_coroutine(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()


def stored(request: bytes, first_offset: int = 0) -> broker_pb2.ProduceResponse:
    header, _ = envelope.decode(broker_pb2.ProduceRequest, request)
    return broker_pb2.ProduceResponse(request_id=header.request_id, results=[broker_pb2.BatchResult(first_queue_offset=first_offset)])


@pytest.mark.parametrize("number", range(len(JUNK)))
def test_nonsense_for_an_answer_is_a_broken_stream_and_the_batch_is_sent_again(number: int) -> None:
    node = ScriptedNode()
    node.produce = lambda request: JUNK[number] if node.seen <= 3 else stored(request, 7).SerializeToString()

    async def scenario() -> None:
        async with node.producer() as producer:
            assert (await producer.send(Message("t", b"a"))).queue_offset == 7
        assert node.seen == 4

    node.run(scenario)


def test_answers_to_no_request_or_with_too_many_results_store_nothing() -> None:
    node = ScriptedNode()

    def answer(request: bytes) -> bytes:
        response = stored(request)
        if node.seen == 1:
            response.request_id += 1000
        elif node.seen == 2:
            response.results.add()
        elif node.seen == 3:
            response.results[0].error.code = "NOT_LEADER"
            response.results[0].error.details["leader_address"] = "::: no address"
        return response.SerializeToString()

    node.produce = answer

    async def scenario() -> None:
        async with node.producer() as producer:
            await producer.send(Message("t", b"a"))
        assert node.seen == 4

    node.run(scenario)


def test_an_error_nobody_knows_fails_the_message_with_its_text() -> None:
    node = ScriptedNode()

    def answer(request: bytes) -> bytes:
        response = stored(request)
        response.results[0].error.code, response.results[0].error.message = "FROM_THE_FUTURE", "too early"
        response.results[0].error.details["first_bad"] = "many"
        return response.SerializeToString()

    node.produce = answer

    async def scenario() -> None:
        async with node.producer() as producer:
            with pytest.raises(DledgerError, match="too early"):
                await producer.send(Message("t", b"a"))

    node.run(scenario)


def test_nonsense_only_ends_at_the_deadline() -> None:
    node = ScriptedNode()
    node.produce = lambda request: JUNK[1]
    node.fetch = lambda request: JUNK[1]

    async def scenario() -> None:
        producer = node.producer(send_timeout_ms=1000)
        with pytest.raises(DeadlineExceededError):
            await producer.send(Message("t", b"a"))
        async with node.consumer(timeout_ms=1000) as consumer:
            with pytest.raises(UnreachableError, match=ADDRESS):
                await consumer.fetch("t", 0, 0)
            node.metadata = JUNK[1]
            assert [queues.topic for queues in await consumer.topic("t")] == ["t"]  # what is known serves
            with pytest.raises(UnreachableError, match="MetadataResponse"):
                await consumer.topic("other")

    node.run(scenario)


def test_nodes_that_cannot_be_called_are_left_out_with_one_log_line_each(caplog: pytest.LogCaptureFixture) -> None:
    """A mistyped member is told by every node for as long as it is one: clients go on with the others."""
    node = ScriptedNode()
    told = broker_pb2.MetadataResponse.FromString(node.metadata)
    bad = [("n7", "junk"), ("n8", ""), ("x/../y", "10.0.0.9:1"), ("", "10.0.0.8:1"), ("n9", "a b:1"), ("n6", "h:99999")]
    told.groups[0].nodes.extend(broker_pb2.NodeInfo(id=node_id, address=address, role="?") for node_id, address in bad)
    told.groups.add(name="g1", leader_id="n5", leader_address="nowhere", nodes=[broker_pb2.NodeInfo(id="n5", address="10.0.0.5:1")])
    node.metadata = told.SerializeToString()
    node.produce = lambda request: stored(request, 7).SerializeToString()

    async def scenario() -> None:
        async with node.producer() as producer, node.consumer() as consumer:
            assert (await producer.send(Message("t", b"a"), queue_id=0)).queue_offset == 7
            assert [queues.topic for queues in await consumer.topic("t")] == ["t"]
            router = producer._core.router
            assert [each.id for each in router.groups["g0"].nodes] == ["n0"]
            assert router.groups["g1"].leader_address == ""
            assert [each.id for each in router.groups["g1"].nodes] == ["n5"]
            caplog.clear()
            await router.survey(router.clock.monotonic_ms() + 1000)
            assert caplog.messages == []  # told once

    with caplog.at_level("WARNING", "dledger_client"):
        node.run(scenario)


def test_chunks_that_cannot_be_are_refused() -> None:
    """Sizes that do not add up, and offsets that go back: reading would not end, or give a message twice."""
    node = ScriptedNode()
    shapes = [
        broker_pb2.FetchResponse(count=3, first_offset=5, next_offset=8, end=True),
        broker_pb2.FetchResponse(count=1, first_offset=2, next_offset=3, end=True),
        broker_pb2.FetchResponse(count=1, first_offset=5, next_offset=5, end=True),
    ]
    payloads = [b"abc", bytes(4), bytes(4)]

    def answer(request: bytes) -> bytes:
        which = node.seen % len(shapes)
        response = broker_pb2.FetchResponse()
        response.CopyFrom(shapes[which])
        response.request_id = broker_pb2.FetchRequest.FromString(request).request_id
        return envelope.encode(response, [payloads[which]])

    node.fetch = answer

    async def scenario() -> None:
        async with node.consumer(timeout_ms=1000) as consumer:
            with pytest.raises(UnreachableError):
                await consumer.fetch("t", 0, 5)
            with pytest.raises(UnreachableError):
                await anext(consumer.read_chunks("t", 0, 5, 100))
        assert node.seen > len(shapes)

    node.run(scenario)


def test_a_master_that_takes_nothing_more_is_left_with_a_full_connection() -> None:
    """A paused master whose receive window is full holds the writer back; deadlines and the search for another go on."""

    async def scenario(rig: Rig) -> None:
        rig.cluster.net.settings.window_bytes = 1000
        await rig.topic()
        async with rig.producer(send_timeout_ms=20_000, batch_bytes=2000) as producer, rig.consumer() as consumer:
            await producer.send(Message("t", b"first"))
            old = rig.cluster.hosts[rig.master]
            assert old.process is not None
            rig.cluster.loop.pause(old.process)
            waiting = [producer.send_async(Message(topic="t", body=b"%04d" % number + bytes(500))) for number in range(100)]
            started = rig.cluster.loop.now_s
            results = [await future for future in waiting]
            assert rig.cluster.loop.now_s - started < 8
            rig.cluster.loop.resume(old.process)
            assert [result.queue_offset for result in results] == list(range(1, 101))
            found = await consumer.fetch("t", 0, 1, 1000)
            assert [message.body[:4] for message in found] == [b"%04d" % number for number in range(100)]

    Rig().run(scenario)


def test_a_bug_in_the_sender_fails_what_waits_instead_of_leaving_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic()
        async with rig.producer() as producer:
            await producer.send(Message("t", b"a"))

            def broken(link: Sender) -> bytes | None:
                raise ZeroDivisionError("for the test")

            monkeypatch.setattr(Sender, "_next_request", broken)
            with pytest.raises((NotSentError, OutcomeUnknownError), match="ZeroDivisionError: for the test"):
                await producer.send(Message("t", b"b"))
            with pytest.raises(ClientClosedError, match="closed"):
                await producer.send(Message("t", b"c"))

    Rig().run(scenario)


def test_queues_that_come_and_go_are_noticed() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.topic(queues=1)
        async with rig.producer() as producer, rig.admin() as admin:
            await producer.send(Message("t", b"a"))
            await admin.update_topic("t", read_queues=3, write_queues=3)
            await asyncio.sleep(40)
            assert {(await producer.send(Message("t", b"b"))).queue_id for _ in range(6)} == {0, 1, 2}
            await admin.update_topic("t", write_queues=1)
            refused = [producer.send_async(Message("t", b"c"), queue_id=2), producer.send_async(Message("t", b"d"), queue_id=2)]
            await producer.flush()
            assert all(future.exception() is not None for future in refused)
            await asyncio.sleep(1)
            with pytest.raises(InvalidArgumentError, match="queue 2 takes no messages; expected one of 0"):
                await producer.send(Message("t", b"e"), queue_id=2)
            assert {(await producer.send(Message("t", b"f"))).queue_id for _ in range(6)} == {0}
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError):
                await producer.send(Message("t", b"g"))
            await until(lambda: not producer._core.accumulator.knows("t"))

    Rig().run(scenario)


@pytest.mark.parametrize("topics", [1, 5])
def test_what_was_refused_fails_in_time_though_no_node_tells_of_other_queues(topics: int) -> None:
    """The topics of the producer are looked up again meanwhile, one after the other, and nobody answers."""
    timeout_ms = 2_000

    async def scenario(rig: Rig) -> None:
        names = [f"t{number}" for number in range(topics)]
        for name in names:
            await rig.topic(name, queues=2)
        async with rig.producer(send_timeout_ms=timeout_ms) as producer, rig.admin() as admin:
            for name in names:
                await producer.send(Message(name, b"a"))
            placed = {key: (await producer.send(Message("t0", b"b"), queue_key=key)).queue_id for key in "abcdef"}
            redispatcher = producer._core.redispatcher
            told = redispatcher.refused

            def refused(*args: Any) -> Any:
                for host in rig.cluster.hosts.values():
                    assert host.process is not None
                    rig.cluster.loop.pause(host.process)
                return told(*args)

            redispatcher.refused = refused  # type: ignore[assignment, method-assign]
            await admin.update_topic("t0", write_queues=1)
            start_s = rig.cluster.loop.now_s
            with pytest.raises(DledgerError):
                await producer.send(Message("t0", b"c"), queue_key=next(key for key in placed if placed[key] == 1))
            assert redispatcher.orphaned() == []
            assert rig.cluster.loop.now_s - start_s < timeout_ms / 1000 + 0.1

    Rig().run(scenario)


def test_a_forked_child_has_a_loop_of_its_own_and_cannot_use_its_parents_clients() -> None:
    producer = dledger_client.Producer("127.0.0.1:1", send_timeout_ms=100)
    thread = LoopThread.shared()
    report = producer._accumulator.detached_report("t")
    waiting = [SendFuture(report, 0), SendManyFuture(report, 1)]
    with producer._accumulator._lock, producer._accumulator._settling:  # as threads of the parent may hold them
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends it, should it wait for one of the locks
            try:
                os._exit(_in_the_child(producer, thread, waiting))
            finally:
                os._exit(4)  # the child must not go on with the tests
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    producer.close()


async def _answer() -> int:
    return 42


def _in_the_child(producer: dledger_client.Producer, parents: LoopThread, waiting: list[Any]) -> int:
    """Exit code: 0 when everything is as it should be."""
    loop = LoopThread.shared()
    if loop is parents or loop.run(_answer(), 10) != 42:
        return 1
    try:
        producer.flush()
        return 2
    except RuntimeError:
        pass
    sends: tuple[Callable[[], object], ...] = (
        lambda: producer._accumulator.append(Message("t", b""), None, None),
        lambda: producer.send_oneway(Message("t", b"")),
    )
    for send in sends:
        try:
            send()
            return 3
        except ClientClosedError:
            pass
    for ask in (ask for future in waiting for ask in (future.result, future.exception)):
        try:
            ask(timeout=0.01)
            return 5
        except RuntimeError as error:  # TimeoutError says that the producer goes on, of which this process would never hear
            if "before the process forked" not in str(error):
                return 6
    accumulator = producer._accumulator
    own = accumulator.detached_report("t")
    refusing = threading.Thread(target=accumulator.refuse, args=(own, ClientClosedError("closed")), daemon=True)
    refusing.start()
    refusing.join(10)
    producer.close()
    return 0 if own.settled else 7


def test_a_node_that_says_nothing_at_the_start_of_a_session_keeps_nobody_beyond_the_deadline() -> None:
    """docs/reference/semantics, row P4."""
    node = ScriptedNode()
    node.session_pause_s = 60.0

    async def scenario() -> None:
        producer = node.producer(send_timeout_ms=300)
        start_s = node.loop.now_s
        with pytest.raises(NotSentError, match="could not be sent in time"):
            await producer.send(Message("t", b"x"))
        assert 0.3 <= node.loop.now_s - start_s < 0.4
        await producer.close()

    node.run(scenario)
