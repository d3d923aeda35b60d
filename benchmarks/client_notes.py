"""What metrics and traces cost clients: CPU of the client a message, and messages a second, against a client without them, by turns.

    python -m benchmarks.client_notes [--rounds 5] [--messages 300000] [--size 512-1536] [--modes plain prometheus] [--before FOLDER]

Each turn is a process of its own that produces, or consumes with a listener (32 messages a call, then one), from a private cluster.
``--before``: the folder of an older checkout, whose client takes part as ``before``.

    plain         neither metrics nor traces; nothing of their libraries is imported
    prometheus    metrics in a registry of prometheus-client
    otel          metrics by a meter of OpenTelemetry
    unsampled     a tracer provider that records nothing: messages carry their context
    spans         every message has spans, which nobody exports
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPIC, QUEUES = "notes", 8
WITHOUT = ("plain", "before")
MODES = ("plain", "prometheus", "otel", "unsampled", "spans")


# The client's side: a process for each turn


def install(mode: str) -> None:
    if mode == "prometheus":
        from dledger_client import metrics
        from dledger_client.metrics.prometheus import PrometheusMetrics

        metrics.install(PrometheusMetrics())
    elif mode == "otel":
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        from dledger_client import metrics
        from dledger_client.metrics.otel import OtelMetrics

        metrics.install(OtelMetrics(MeterProvider([InMemoryMetricReader()])))
    elif mode not in WITHOUT:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

        trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_ON if mode == "spans" else ALWAYS_OFF))


def produce(bootstrap: str, messages: int, size: str) -> None:
    from bodies import Bodies  # type: ignore[import-not-found]  # beside this file: a checkout that is on the path may have none

    from dledger_client import Message, Producer

    bodies = Bodies(size).many(0, messages)
    with Producer(bootstrap, group="notes") as producer:
        producer.send(Message(TOPIC, bodies[0]))
        began_s, cpu_s = time.perf_counter(), time.process_time()
        futures = [producer.send_async(Message(TOPIC, body)) for body in bodies]
        producer.flush()
        told(messages, began_s, cpu_s)
        if any(future.exception() is not None for future in futures):
            raise SystemExit("a message failed")


def consume(bootstrap: str, messages: int, batch: str) -> None:
    from dledger_client import Action, ConsumeContext, PushConsumer, ReceivedMessage

    lock, done, seen = threading.Lock(), threading.Event(), [0]

    def listener(given: list[ReceivedMessage], _context: ConsumeContext) -> Action:
        with lock:
            seen[0] += len(given)
            if seen[0] >= messages:
                done.set()
        return Action.COMMIT

    group = f"notes-{os.getpid()}"
    consumer = PushConsumer(bootstrap, group, listener, consume_message_batch_max_size=int(batch), consume_threads=4)
    consumer.subscribe(TOPIC)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    with consumer:
        done.wait()
        told(messages, began_s, cpu_s)


def told(messages: int, began_s: float, cpu_s: float) -> None:
    cpu_us = 1e6 * (time.process_time() - cpu_s) / messages
    print(json.dumps({"cpu_us": cpu_us, "messages_per_s": messages / (time.perf_counter() - began_s)}))


# The side that compares


def turn(mode: str, work: str, bootstrap: str, messages: int, number: str, folder: Path) -> dict[str, float]:
    """One process; ``number``: sizes of messages, or messages a call."""
    line = [sys.executable, str(ROOT / "benchmarks" / "client_notes.py"), "--child", mode, work, bootstrap, str(messages), number]
    done = subprocess.run(line, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{mode} {work}: {done.stderr}")
    return dict(json.loads(done.stdout))


def by_turns(bootstrap: str, work: str, number: str, arguments: argparse.Namespace) -> None:
    modes = [*arguments.modes, *(["before"] if arguments.before else [])]
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for round_ in range(arguments.rounds):
        for mode in modes if round_ % 2 == 0 else reversed(modes):
            folder = Path(arguments.before) if mode == "before" else ROOT
            found[mode].append(turn(mode, work, bootstrap, arguments.messages, number, folder))
    for mode, turns in found.items():
        pairs = list(zip(found["plain"], turns, strict=True))
        line = {"work": work, "number": number, "mode": mode, "cpu_us": round(statistics.median(each["cpu_us"] for each in turns), 2)}
        line["plain_cpu_by_its_cpu"] = round(statistics.median(plain["cpu_us"] / each["cpu_us"] for plain, each in pairs), 3)
        line["its_rate_by_plain_rate"] = round(
            statistics.median(each["messages_per_s"] / plain["messages_per_s"] for plain, each in pairs), 3
        )
        print(json.dumps(line), flush=True)


def main() -> None:
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", default="512-1536")
    parser.add_argument("--before", default="")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="plain comes first")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dledger-notes-") as made, PrivateCluster(Path(made) / "cluster") as cluster:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        by_turns(cluster.bootstrap, "produce", arguments.size, arguments)
        for batch in ("32", "1"):
            by_turns(cluster.bootstrap, "consume", batch, arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        mode, work, bootstrap, messages, number = sys.argv[2:]
        install(mode)
        {"produce": produce, "consume": consume}[work](bootstrap, int(messages), number)
    else:
        main()
