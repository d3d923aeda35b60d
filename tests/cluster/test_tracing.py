"""Traces through synchronous clients and real nodes: spans are of the thread that calls, and an operator finds the trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Event

import pytest
from opentelemetry import trace

from dledger_client import (
    Action,
    Admin,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from dledger_wire.errors import TopicNotFoundError
from tests.cluster.harness import Cluster
from tests.cluster.test_transactions import QUICK
from tests.unit.client.tracing_rig import ids, of, parent, recorded
from tests.waiting import LIMIT_MS, wait_until


def test_a_trace_through_threads_and_processes(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(settings=QUICK)
    cluster.start()
    with Admin(cluster.bootstrap) as admin:
        for topic in ("orders", "invoices"):
            admin.create_topic(topic, queues=1)
    checked, billed = [], Event()

    def check(_message: ReceivedMessage) -> TransactionState:
        checked.append(trace.get_current_span().get_span_context())  # in a thread of the producer's pool
        return TransactionState.COMMIT

    with (
        recorded() as spans,
        TransactionProducer(cluster.bootstrap, "shop", check, send_timeout_ms=LIMIT_MS) as shop,
        Producer(cluster.bootstrap) as billing,
        PullConsumer(cluster.bootstrap) as reader,
    ):

        def bill(messages: list[ReceivedMessage], _context: object) -> Action:
            billing.send(Message("invoices", messages[0].body))
            if messages[0].body == b"asked":
                billed.set()
            return Action.COMMIT

        consumer = PushConsumer(cluster.bootstrap, "billing", bill)
        consumer.subscribe("orders")
        with consumer, spans.tracer.start_as_current_span("checkout"):
            result = shop.send_in_transaction(Message("orders", b"asked", keys="o-1"), lambda _message, _argument: TransactionState.UNKNOWN)
            with pytest.raises(TopicNotFoundError):
                shop.send(Message("nowhere", b"x"))
            assert [each.queue_offset for each in shop.send_batch([Message("invoices", b"a"), Message("invoices", b"b")])] == [0, 1]
            assert billed.wait(LIMIT_MS / 1000)
        wait_until(lambda: "process orders" in spans.names() and spans.named("check orders"), "the spans of listener and check")
        invoices = [message for message in reader.fetch("invoices", 0, 0, wait_ms=LIMIT_MS) if message.body == b"asked"]
    sent, processed = spans.one("send orders"), spans.one("process orders")
    assert parent(sent) == ids(spans.one("checkout"))
    assert parent(processed) == ids(sent)
    assert parent(spans.named("check orders")[0]) == ids(sent)
    assert spans.named("check orders")[0].get_span_context() == checked[0]
    (billed_span,) = [span for span in spans.named("send invoices") if parent(span) == ids(processed)]
    assert [of(message.trace_context) for message in invoices] == [ids(billed_span)]
    assert (spans.one("send nowhere").attributes or {})["error.type"] == "TopicNotFoundError"

    found = json.loads(cluster.cli_ok("message", "trace", "--id", result.msg_id, "--json"))["copies"]
    assert {copy["trace_id"] for copy in found} == {ids(sent)[0]}
    assert f"  trace     {ids(sent)[0]} span {ids(sent)[1]}" in cluster.cli_ok("message", "trace", "orders", "--key", "o-1").splitlines()
