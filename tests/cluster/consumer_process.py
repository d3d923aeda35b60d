"""A push consumer as a process of its own, to be killed: writes a line for every message its listener is given.

    python -m tests.cluster.consumer_process BOOTSTRAP GROUP TOPIC FILE [--orderly] [--broadcast] [--client-id ID] [--offsets DIR]

A line is ``monotonic ns, epoch, queue id, queue offset, times consumed before, body``.  The first time a message whose number ends in 7
comes, it is refused, so that it has to come again.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time

from dledger_client import Action, ConsumeContext, PushConsumer, ReceivedMessage


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "group", "topic", "file"):
        parser.add_argument(name)
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--broadcast", action="store_true")
    parser.add_argument("--client-id", default="")
    parser.add_argument("--offsets", default="")
    arguments = parser.parse_args()
    out = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    refused: set[bytes] = set()

    def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        action = Action.COMMIT
        for message in messages:
            body = bytes(message.body)
            numbers = (time.monotonic_ns(), context.epoch, message.queue_id, message.queue_offset, message.reconsume_times)
            os.write(out, b"%d %d %d %d %d %s\n" % (*numbers, body))
            again = body.endswith(b"7") and message.reconsume_times == 0 and context.attempts == 0 and not arguments.broadcast
            if again and body not in refused:
                refused.add(body)
                context.suspend_ms = 50
                action = Action.RECONSUME_LATER
        return action

    options = {"offset_folder": arguments.offsets} if arguments.offsets else {}
    consumer = PushConsumer(
        arguments.bootstrap,
        arguments.group,
        listener,
        orderly=arguments.orderly,
        broadcast=arguments.broadcast,
        client_id=arguments.client_id,
        consume_threads=4,
        **options,
    )
    consumer.subscribe(arguments.topic)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    consumer.start()
    print("started", flush=True)
    ended.wait()
    consumer.shutdown()


if __name__ == "__main__":
    main()
