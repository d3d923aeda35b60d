"""Every client, used from threads."""

from __future__ import annotations

from dledger_client import (
    Action,
    Admin,
    Chunk,
    ConsumeContext,
    LogicalQueueReader,
    LogicalQueueWriter,
    Message,
    MessageQueue,
    NumberedMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueOffsets,
    ReceivedMessage,
    SendFuture,
    SendResult,
    SendStatus,
    TransactionOutcome,
    TransactionProducer,
    TransactionResult,
    TransactionState,
    by_hash,
)
from dledger_client.errors import DledgerError, NotLeaderError, OffsetOutOfRangeError

ADDRESS = "127.0.0.1:10911"


def produce() -> str:
    with Producer(ADDRESS, "orders", send_timeout_ms=5000, compress_type="lz4") as producer:
        result: SendResult = producer.send(Message("orders", b"one", tags="created", keys=["o-1"]), queue_key="o-1")
        future: SendFuture = producer.send_async(Message("orders", b"two", delay_level=3), by_hash(7))
        error: DledgerError | None = future.exception(timeout=1.0)
        producer.send_oneway(Message("orders", b"three", properties={"region": "eu"}))
        batch: list[SendResult] = producer.send_batch([Message("orders", b"four")], queue_id=1)
        stored: dict[tuple[str, int], int] = producer.stored("orders")
        producer.flush(timeout=2.0)
        assert result.status is SendStatus.SEND_OK
        return f"{result.replica_group}/{result.queue_id}@{result.queue_offset} {error} {len(batch)} {stored}"


def read() -> list[bytes]:
    with PullConsumer([ADDRESS], group="g", read_from="follower", timeout_ms=3000) as consumer:
        held: dict[tuple[str, int], QueueOffsets] = consumer.offsets("orders")
        try:
            found: list[ReceivedMessage] = consumer.fetch("orders", 0, 0, 100, replica_group="g0", wait_ms=50, tags="a || b")
        except OffsetOutOfRangeError as error:
            found = consumer.fetch("orders", 0, error.min_offset)
        chunk: Chunk
        for chunk in consumer.read_chunks("orders", 0, 0, held["g0", 0].max_offset):
            found += chunk.messages()
        consumer.commit({("orders", 0): 10})
        return [message.body for message in found if message.replica_group == "g0"]


def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
    return Action.COMMIT if context.attempts < 3 else Action.RECONSUME_LATER


def push() -> list[MessageQueue]:
    consumer = PushConsumer(ADDRESS, "g", listener, orderly=True, consume_threads=4, allocate_strategy="AVG_BY_CIRCLE")
    consumer.subscribe("orders", "created || paid")
    with consumer:
        return consumer.assigned()


def transact() -> TransactionOutcome:
    def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT if message.keys else TransactionState.UNKNOWN

    with TransactionProducer(ADDRESS, "payments", check, check_threads=2, send_timeout_ms=100) as producer:
        result: TransactionResult = producer.send_in_transaction(Message("t", b""), lambda message, argument: TransactionState.COMMIT)
        prepared = producer.prepare(Message("t", b"two"))
        assert prepared.half.msg_id != result.transaction_id
        return prepared.commit()


def logical_queue() -> list[NumberedMessage]:
    with LogicalQueueWriter(ADDRESS, "ledger", linger_ms=2) as writer:
        number: int = writer.send(Message("ledger", b"first"))
    with LogicalQueueReader(ADDRESS, "ledger", "g", read_from="any") as reader:
        reader.seek(number)
        return reader.read(10, wait_ms=100)


def administrate() -> str:
    try:
        with Admin(ADDRESS, timeout_ms=2000) as admin:
            created = admin.create_topic("orders", queues=4, if_not_exists=True)
            return f"{created.replica_group} {created.read_queues} {[node.role for node in admin.status()]}"
    except NotLeaderError as error:
        return error.leader_address
