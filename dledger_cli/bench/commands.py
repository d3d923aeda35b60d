"""``dledger bench``: figures of a cluster - produce, consume, latency, failover.

Without a cluster (no --config or --bootstrap, no ./data/cluster.yaml) a bench starts one of its own on this machine and ends it afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.bench.report import Figures, Progress, announce
from dledger_cli.context import SHIPPED_CONFIG, ConfigOption, JsonOption, config_path, given_bootstrap, load_config, parse_size_option, run
from dledger_cli.output import error_line

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

SAMPLE_EVERY = 997  # a prime: latencies of messages at changing places in their batches
# The client's loop thread takes turns with the sending one; at the default 5 ms each waits long for the other.
SWITCH_INTERVAL_S = 0.0005
# Messages come and go by the hundred thousand: at the default 700 the collector walks over those in flight again and again.
COLLECT_AFTER = 100_000

MessagesOption = Annotated[int, typer.Option("--messages", "-n", metavar="N", min=1, help="How many messages.")]
SizeOption = Annotated[str, typer.Option("--size", metavar="B", help="Size of each body.")]
TopicOption = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Topic to use; created when it does not exist.")]
QueuesOption = Annotated[int, typer.Option("--queues", metavar="N", min=1, max=1024, help="Queues of the bench topic.")]


def register(app: typer.Typer) -> None:
    bench = typer.Typer(help="Measure: produce, consume, latency, failover.", no_args_is_help=True, rich_markup_mode=None)
    bench.command("produce", epilog="Example: dledger bench produce --messages 1000000 --size 100")(produce)
    bench.command("consume", epilog="Example: dledger bench consume --follower")(consume)
    bench.command("latency", epilog="Example: dledger bench latency --messages 1000")(latency)
    bench.command("failover", epilog="Example: dledger bench failover --rounds 5")(failover)
    app.add_typer(bench, name="bench")


@contextlib.contextmanager
def _cluster(config: str | None) -> Iterator[tuple[ClusterConfig, Path | None]]:
    """The cluster to measure: the one given, or a private one for the time of the bench, with the folder of its data."""
    if config or given_bootstrap(config) or config_path(None) != str(SHIPPED_CONFIG):
        yield load_config(config), None
        return
    from dledger_cli.local.private_cluster import PrivateCluster

    folder = Path(tempfile.mkdtemp(prefix="dledger-bench-"))
    try:
        with PrivateCluster(folder) as cluster:
            cluster.start()
            yield cluster.config, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _body(size: str) -> bytes:
    size_bytes = parse_size_option(size)
    return bytes(range(256)) * (size_bytes // 256) + bytes(size_bytes % 256)


def _make_topic(bootstrap: str, topic: str, queues: int) -> None:
    from dledger_client import Admin

    with Admin(bootstrap) as admin:
        admin.create_topic(topic, queues=queues, if_not_exists=True)


def produce(
    messages: MessagesOption = 1_000_000,
    size: SizeOption = "1KiB",
    topic: TopicOption = "bench",
    queues: QueuesOption = 4,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send from one process without waiting, and check the acknowledgement of every message."""
    body = _body(size)
    with _cluster(config) as (cluster, folder):
        announce(cluster, f"{messages} messages of {len(body)} B, one process, send_async", folder)
        figures = _produce(cluster.bootstrap(), topic, body, messages, queues)
    figures.show("acknowledged", as_json=as_json, size=len(body))
    if figures.failed:
        raise typer.Exit(1)


def _tune_interpreter() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(COLLECT_AFTER, 20, 20)


def _produce(bootstrap: str, topic: str, body: bytes, messages: int, queues: int) -> Figures:
    from dledger_client import Message, Producer

    _tune_interpreter()
    figures = Figures()
    _make_topic(bootstrap, topic, queues)
    with Producer(bootstrap, group="dledger-bench", compress_type="none") as producer:
        producer.send(Message(topic, body))  # routes and session are known before the clock starts
        progress = Progress(messages, "messages")
        futures: deque[Any] = deque()
        send, add = producer.send_async, futures.append
        start = time.perf_counter()
        for first in range(0, messages, SAMPLE_EVERY):
            sampled = send(Message(topic, body))
            sampled.add_done_callback(_stopwatch(figures))
            add(sampled)
            for _ in range(min(SAMPLE_EVERY - 1, messages - first - 1)):
                add(send(Message(topic, body)))
            _check_done(futures, figures)
            progress.update(first, figures.acknowledged)
        producer.flush()
        figures.took_s = time.perf_counter() - start
        progress.end()
    _check_done(futures, figures)
    figures.failed += len(futures)  # neither stored nor refused: there are none after a flush
    figures.bytes = figures.acknowledged * len(body)
    return figures


def _check_done(futures: deque[Any], figures: Figures) -> None:
    """Look at the acknowledgements that are there, oldest first."""
    while futures and futures[0].done():
        error = futures.popleft().exception()
        if error is None:
            figures.acknowledged += 1
        else:
            figures.failed += 1
            if figures.failed == 1:
                error_line(str(error))


def _stopwatch(figures: Figures) -> Any:
    start = time.perf_counter()
    return lambda _future: figures.latencies_ms.append((time.perf_counter() - start) * 1e3)


def consume(
    messages: MessagesOption = 1_000_000,
    size: SizeOption = "1KiB",
    follower: Annotated[bool, typer.Option("--follower", help="Read from followers.")] = False,
    topic: TopicOption = "bench",
    queues: QueuesOption = 4,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch and decode messages in one process; missing ones are produced before the measurement."""
    body = _body(size)
    with _cluster(config) as (cluster, folder):
        bootstrap = cluster.bootstrap()
        _make_topic(bootstrap, topic, queues)
        missing = messages - run(_stored(bootstrap, topic))
        if missing > 0:
            _produce(bootstrap, topic, body, missing, queues)
        announce(cluster, f"{messages} messages, one process, decoded, from {'followers' if follower else 'the leader'}", folder)
        figures = run(_consume(bootstrap, topic, messages, "follower" if follower else "leader"))
    figures.show("consumed", as_json=as_json)


async def _stored(bootstrap: str, topic: str) -> int:
    from dledger_client.aio import PullConsumer

    async with PullConsumer(bootstrap) as consumer:
        return sum(held.max_offset - held.min_offset for held in (await consumer.offsets(topic)).values())


async def _consume(bootstrap: str, topic: str, messages: int, read_from: str) -> Figures:
    from dledger_client.aio import PullConsumer

    _tune_interpreter()
    figures = Figures()
    async with PullConsumer(bootstrap, "dledger-bench", read_from=read_from) as consumer:
        held = await consumer.offsets(topic)
        progress = Progress(messages, "messages")
        start = time.perf_counter()
        for (group, queue_id), offsets in held.items():
            left = messages - figures.acknowledged
            upto = min(offsets.max_offset, offsets.min_offset + left)
            async for chunk in consumer.read_chunks(topic, queue_id, offsets.min_offset, upto, replica_group=group):
                for message in chunk.messages():
                    figures.bytes += len(message.body)
                figures.acknowledged += chunk.count
                progress.update(figures.acknowledged, figures.acknowledged)
        figures.took_s = time.perf_counter() - start
        progress.end()
    return figures


def latency(
    messages: MessagesOption = 5_000,
    size: SizeOption = "1KiB",
    topic: TopicOption = "bench",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message at a time, each after the acknowledgement of the one before."""
    body = _body(size)
    with _cluster(config) as (cluster, folder):
        announce(cluster, f"{messages} messages of {len(body)} B, one at a time", folder)
        _make_topic(cluster.bootstrap(), topic, 4)
        figures = run(_latency(cluster.bootstrap(), topic, body, messages))
    figures.show("acknowledged", as_json=as_json, size=len(body))


async def _latency(bootstrap: str, topic: str, body: bytes, messages: int) -> Figures:
    from dledger_client.aio import Message, Producer

    figures = Figures()
    async with Producer(bootstrap, "dledger-bench", compress_type="none") as producer:
        for _ in range(max(100, messages // 10)):  # warm
            await producer.send(Message(topic, body), queue_id=0)
        progress = Progress(messages, "messages")
        begun = time.perf_counter()
        for number in range(messages):
            start = time.perf_counter()
            await producer.send(Message(topic, body), queue_id=0)
            figures.latencies_ms.append((time.perf_counter() - start) * 1e3)
            figures.acknowledged += 1
            progress.update(number, number)
        figures.took_s = time.perf_counter() - begun
        progress.end()
    figures.bytes = figures.acknowledged * len(body)
    return figures


def failover(
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="How often the leader is lost.")] = 20,
    fault: Annotated[str, typer.Option("--fault", metavar="F", help="kill, pause (SIGSTOP, 5 s), partition, or transfer.")] = "kill",
    size: SizeOption = "1KiB",
    rate: Annotated[float, typer.Option("--rate", metavar="R", min=1, help="Messages a second meanwhile.")] = 2000,
    as_json: JsonOption = False,
) -> None:
    """Fail the leader of a private cluster under load, round after round; exit 1 if an acknowledged message is lost or duplicated."""
    from dledger_cli.bench.failover import FAULTS, measure_failovers

    if fault not in FAULTS:
        raise typer.BadParameter(f"{fault!r}: expected one of {', '.join(FAULTS)}", param_hint="--fault")
    body = _body(size)
    result = measure_failovers(fault, rounds, body, rate)
    pauses = result.figures.latencies_ms
    if as_json:
        account = {"lost": result.lost, "duplicated": result.duplicated, "reordered": result.reordered}
        result.figures.show("", as_json=True, fault=fault, rounds=rounds, **account, pauses_ms=pauses)
    else:
        ordered = sorted(pauses)
        middle, late = ordered[len(pauses) // 2], ordered[min(len(pauses) - 1, len(pauses) * 99 // 100)]
        print(
            f"{fault} to the next acknowledged write, {rounds} rounds: "
            f"median {middle:.0f} ms  p99 {late:.0f} ms  worst {ordered[-1]:.0f} ms"
        )
        print(
            f"acknowledged {result.figures.acknowledged}  lost {result.lost}  duplicated {result.duplicated}  reordered {result.reordered}"
        )
    if result.lost or result.duplicated or result.reordered:
        raise typer.Exit(1)
