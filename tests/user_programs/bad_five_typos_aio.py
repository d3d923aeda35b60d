"""Five typos, five errors, with asyncio."""

from dledger_client.aio import Admin, Message, Producer, PullConsumer, PushConsumer


async def main() -> None:
    async with Admin("127.0.0.1:10911") as admin:
        await admin.create_topic("orders", if_not_exist=True)  # error: call-arg / reportCallIssue
    async with Producer("127.0.0.1:10911", sent_timeout_ms=3000) as producer:  # error: call-arg / reportCallIssue
        print((await producer.send(Message("orders", b"one"))).queue_ofset)  # error: attr-defined / reportAttributeAccessIssue
    async with PullConsumer("127.0.0.1:10911") as consumer:
        await consumer.fetch("orders", 0, 0, max_bites=3)  # error: call-arg / reportCallIssue
    PushConsumer("127.0.0.1:10911", "g", consume_thread=3)  # error: call-arg / reportCallIssue
