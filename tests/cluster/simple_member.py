"""A simple consumer as a process of its own: ``time_ms name what attempt body`` of each message that it got or acknowledged.

python -m tests.cluster.simple_member BOOTSTRAP GROUP TOPIC NAME FILE INVISIBLE_MS
"""

from __future__ import annotations

import os
import signal
import sys
import time

from dledger_client import LeasedMessage, SimpleConsumer


def main(bootstrap: str, group: str, topic: str, name: str, file: str, invisible_ms: str) -> None:
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, messages: list[LeasedMessage]) -> None:
        now_ms = time.time_ns() // 1_000_000
        os.write(out, "".join(f"{now_ms} {name} {what} {each.attempt} {each.body.decode()}\n" for each in messages).encode())

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with SimpleConsumer(bootstrap, group, topic, invisible_ms=int(invisible_ms), wait_ms=1_000, timeout_ms=60_000) as consumer:
        while True:
            messages = consumer.receive()
            note("got", messages)
            errors = consumer.ack(messages)
            note("acked", [message for message, error in zip(messages, errors, strict=True) if error is None])


if __name__ == "__main__":
    main(*sys.argv[1:])
