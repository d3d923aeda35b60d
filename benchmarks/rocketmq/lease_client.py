"""RocketMQ's Python client over gRPC: receives and acknowledges what is in a topic, and prints the messages a second.

Runs in an environment of its own that has the client.  Arguments: ENDPOINTS TOPIC MESSAGES GROUP THREADS.  Measured from a quarter
of the messages to nine tenths.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BATCH = 32


def consume(endpoints: str, topic: str, messages: int, group: str, threads: int) -> None:
    from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer  # type: ignore[import-not-found]

    consumer = SimpleConsumer(ClientConfiguration(endpoints, Credentials("", ""), request_timeout=30), group, await_duration=1)
    consumer.startup()
    consumer.subscribe(topic, FilterExpression())
    first, last = messages // 4, messages * 9 // 10
    times, pool = list[float](), ThreadPoolExecutor(BATCH)

    def acknowledge(message: Any) -> None:
        consumer.ack(message)
        times.append(time.monotonic())

    def work() -> None:
        while len(times) < last:
            try:
                list(pool.map(acknowledge, consumer.receive(BATCH, 60)))
            except Exception as error:  # noqa: BLE001 - a line for whatever the client raises
                print("failed", repr(error), flush=True)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    times.sort()
    print("rate", (last - first) / (times[last - 1] - times[first - 1]), flush=True)


if __name__ == "__main__":
    consume(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    sys.stdout.flush()
    os._exit(0)  # its threads do not all end
