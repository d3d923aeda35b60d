"""A member of a consumer group as a process of its own: every message becomes a line ``time_ms name queue epoch body`` of a file.

python -m tests.cluster.push_member BOOTSTRAP GROUP TOPIC NAME FILE [orderly|polled]
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from dledger_client import Action, ConsumeContext, Consumer, PushConsumer, ReceivedMessage


def main(bootstrap: str, group: str, topic: str, name: str, file: str, kind: str = "concurrent") -> None:
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if kind == "polled":
        poll(bootstrap, group, topic, name, out)
        return
    ended = threading.Event()

    def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> Action:
        now_ms = time.time_ns() // 1_000_000
        lines = [f"{now_ms} {name} {context.queue_id} {context.epoch} {message.body.decode()}\n" for message in messages]
        os.write(out, "".join(lines).encode())
        return Action.COMMIT

    consumer = PushConsumer(bootstrap, group, listener, client_id=name, orderly=kind == "orderly")
    consumer.subscribe(topic)
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with consumer:
        ended.wait()


def poll(bootstrap: str, group: str, topic: str, name: str, out: int) -> None:
    """The same with a consumer that is polled."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with Consumer(bootstrap, group, topic, client_id=name) as consumer:
        for message in consumer:
            os.write(out, f"{time.time_ns() // 1_000_000} {name} {message.queue_id} 0 {message.body.decode()}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
