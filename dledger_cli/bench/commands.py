"""``dledger bench``: figures of a cluster - produce, consume, latency, failover.

Without a cluster (no --config or --bootstrap, no ./data/cluster.yaml) a bench starts one of its own on this machine and ends it afterwards.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from dledger_cli.bench.account import ReadAccount, consumed_text, produced_text
from dledger_cli.bench.bodies import SMALLEST_BODY, Bodies
from dledger_cli.bench.produce import Produced, make_topic, produce_messages, queue_ends, read_back, tune_interpreter
from dledger_cli.bench.report import Figures, Progress, announce
from dledger_cli.context import SHIPPED_CONFIG, ConfigOption, JsonOption, config_path, given_bootstrap, load_config, parse_size_option, run

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig

MessagesOption = Annotated[int, typer.Option("--messages", "-n", metavar="N", min=1, help="How many messages.")]
SizeOption = Annotated[str, typer.Option("--size", metavar="B", help="Size of each body, or two for sizes between them: 512-1536.")]
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


def _bodies(size: str) -> Bodies:
    """``1KiB``, or ``512-1536`` for sizes in between."""
    low_text, mixed, high_text = size.partition("-")
    low = parse_size_option(low_text)
    high = parse_size_option(high_text) if mixed else low
    if not SMALLEST_BODY <= low <= high:
        expected = f"expected at least {SMALLEST_BODY} B (each body begins with its number), and of two sizes the smaller first"
        raise typer.BadParameter(f"{size!r}: {expected}", param_hint="--size")
    return Bodies(low, high)


def produce(
    messages: MessagesOption = 1_000_000,
    size: SizeOption = "1KiB",
    topic: TopicOption = "bench",
    queues: QueuesOption = 4,
    check: Annotated[bool, typer.Option("--read-back/--no-read-back", help="Afterwards, read back what was acknowledged.")] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send numbered bodies from one process without waiting, and check every acknowledgement.

    Then read the messages back, outside the measured time. Exit 1 if one was refused, or one that was acknowledged is lost or duplicated.
    """
    bodies = _bodies(size)
    with _cluster(config) as (cluster, folder):
        bootstrap = cluster.bootstrap()
        announce(cluster, f"{messages} messages of {bodies.text}, one process, send_async", folder)
        make_topic(bootstrap, topic, queues)
        before = queue_ends(bootstrap, topic)
        produced = produce_messages(bootstrap, topic, bodies, messages)
        seen = read_back(bootstrap, topic, before).runs[bodies.run] if check else None
    figures = produced.figures
    wrong = None if seen is None else (produced.acknowledged.missing_in(seen), seen.duplicated)
    account: dict[str, Any] = {} if wrong is None else {"lost": wrong[0], "duplicated": wrong[1]}
    checked = produced_text(figures.acknowledged, messages, wrong)
    figures.show("acknowledged", as_json=as_json, size=bodies.high, **account, checked=checked)
    if figures.failed or any(account.values()):
        raise typer.Exit(1)


def consume(
    messages: MessagesOption = 1_000_000,
    size: SizeOption = "1KiB",
    follower: Annotated[bool, typer.Option("--follower", help="Read from followers.")] = False,
    topic: TopicOption = "bench",
    queues: QueuesOption = 4,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch and decode messages in one process; missing ones are produced before the measurement.

    Every number in the bodies has to come once. Exit 1 if a message is lost or duplicated.
    """
    bodies = _bodies(size)
    with _cluster(config) as (cluster, folder):
        bootstrap = cluster.bootstrap()
        make_topic(bootstrap, topic, queues)
        missing = messages - sum(held.max_offset - held.min_offset for held in queue_ends(bootstrap, topic).values())
        # One less: the message that is sent before the clock starts is one of them.
        produced = produce_messages(bootstrap, topic, bodies, missing - 1) if missing > 0 else Produced()
        announce(cluster, f"{messages} messages, one process, decoded, from {'followers' if follower else 'the leader'}", folder)
        figures, account = run(_consume(bootstrap, topic, messages, "follower" if follower else "leader"))
    # Of what was there before, places in the queues are known; of what was sent now, numbers too.
    lost = max(messages - figures.acknowledged, produced.acknowledged.missing_in(account.runs[bodies.run]))
    checked = consumed_text(account, messages, lost)
    figures.show("consumed", as_json=as_json, distinct=account.distinct, lost=lost, duplicated=account.duplicated, checked=checked)
    if lost or account.duplicated or produced.figures.failed:
        raise typer.Exit(1)


async def _consume(bootstrap: str, topic: str, messages: int, read_from: str) -> tuple[Figures, ReadAccount]:
    from dledger_client.aio import PullConsumer

    tune_interpreter()
    figures, account = Figures(), ReadAccount()
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
                account.read(chunk)
                progress.update(figures.acknowledged, figures.acknowledged)
        figures.took_s = time.perf_counter() - start
        progress.end()
    return figures, account


def latency(
    messages: MessagesOption = 5_000,
    size: SizeOption = "1KiB",
    topic: TopicOption = "bench",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message at a time, each after the acknowledgement of the one before."""
    bodies = _bodies(size)
    with _cluster(config) as (cluster, folder):
        announce(cluster, f"{messages} messages of {bodies.text}, one at a time", folder)
        make_topic(cluster.bootstrap(), topic, 4)
        figures = run(_latency(cluster.bootstrap(), topic, bodies, messages))
    figures.show("acknowledged", as_json=as_json, size=bodies.high)


async def _latency(bootstrap: str, topic: str, bodies: Bodies, messages: int) -> Figures:
    from dledger_client.aio import Message, Producer

    figures = Figures()
    async with Producer(bootstrap, "dledger-bench", compress_type="none") as producer:
        for number in range(max(100, messages // 10)):  # warm
            await producer.send(Message(topic, bodies.make(messages + number)), queue_id=0)
        progress = Progress(messages, "messages")
        begun = time.perf_counter()
        for number in range(messages):
            message = Message(topic, bodies.make(number))
            start = time.perf_counter()
            await producer.send(message, queue_id=0)
            figures.latencies_ms.append((time.perf_counter() - start) * 1e3)
            figures.acknowledged += 1
            progress.update(number, number)
        figures.took_s = time.perf_counter() - begun
        progress.end()
    figures.bytes = bodies.bytes_in(np.arange(messages, dtype=np.uint64))
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
    bodies = _bodies(size)
    result = measure_failovers(fault, rounds, bodies, rate)
    pauses = result.figures.latencies_ms
    if as_json:
        account: dict[str, Any] = {"lost": result.lost, "duplicated": result.duplicated, "reordered": result.reordered}
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
