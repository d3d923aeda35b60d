"""Every client, used with asyncio."""

from __future__ import annotations

import asyncio

from dledger_client.aio import (
    Action,
    Admin,
    AsyncSendFuture,
    ConsumeContext,
    LogicalQueueReader,
    LogicalQueueWriter,
    Message,
    NotSentError,
    NumberedMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    TransactionOutcome,
    TransactionProducer,
    TransactionState,
)

ADDRESS = "127.0.0.1:10911"


async def produce() -> int:
    async with Producer(ADDRESS, "orders", retry_times=3) as producer:
        result: SendResult = await producer.send(Message("orders", b"one"), queue_key="o-1")
        future: AsyncSendFuture = producer.send_async(Message("orders", b"two"))
        try:
            result = await future
        except NotSentError as error:
            print(error.retriable, error.details)
        await producer.flush()
        return result.queue_offset


async def read() -> list[bytes]:
    async with PullConsumer(ADDRESS, "g", replica="n1") as consumer:
        chunks = [chunk async for chunk in consumer.read_chunks("orders", 0, 0, 100, tags="created")]
        found = await consumer.fetch("orders", 0, 0, sql="amount > 10")
        return [message.body for message in found] + [body.body for chunk in chunks for body in chunk.messages()]


async def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
    await asyncio.sleep(0)
    return Action.COMMIT


async def push() -> str:
    consumer = PushConsumer(ADDRESS, "g", listener, broadcast=True, consume_from_where="last", offset_folder="offsets")
    consumer.subscribe("orders", sql="amount > 10")
    async with consumer:
        return consumer.client_id


async def transact() -> TransactionOutcome:
    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK

    async with TransactionProducer(ADDRESS, "payments", check) as producer:
        return (await producer.send_in_transaction(Message("t", b""), lambda message, argument: TransactionState.COMMIT)).outcome


async def logical_queue() -> list[NumberedMessage]:
    async with LogicalQueueWriter(ADDRESS, "ledger") as writer, LogicalQueueReader(ADDRESS, "ledger") as reader:
        await writer.send(Message("ledger", b"first"))
        return await reader.read()


async def administrate() -> list[str]:
    async with Admin(ADDRESS) as admin:
        return [topic.topic for topic in await admin.list_topics()]
