"""The benches that ``commands.py`` has the options of: the cluster that is measured, the load, and what is printed.

Without a cluster (no --config or --bootstrap, no ./data/cluster.yaml) a bench starts one of its own on this machine and ends it afterwards.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from dledger_cli.context import SHIPPED_CONFIG, config_path, given_bootstrap, load_config, parse_size_option, run
from dledger_cli.local.swept_folder import swept_folder
from dledger_cli.output import print_json
from dledger_drill.bench.account import ReadAccount, consumed_text, produced_text
from dledger_drill.bench.bodies import SMALLEST_BODY, Bodies
from dledger_drill.bench.failover import FAULTS, measure_failovers
from dledger_drill.bench.overload import QUEUES, TOPIC, Overload, table
from dledger_drill.bench.produce import Produced, make_topic, produce_messages, queue_ends, read_back, tune_interpreter
from dledger_drill.bench.report import Figures, Progress, announce

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig


@contextlib.contextmanager
def _cluster(config: str | None) -> Iterator[tuple[ClusterConfig, Path | None]]:
    """The cluster to measure: the one given, or a private one for the time of the bench, with the folder of its data."""
    if config or given_bootstrap(config) or config_path(None) != str(SHIPPED_CONFIG):
        yield load_config(config), None
        return
    from dledger_cli.local.private_cluster import PrivateCluster

    with swept_folder("dledger-bench-") as folder, PrivateCluster(folder.path / "data") as cluster:
        cluster.start()
        yield cluster.config, folder.path


def bodies_of(size: str) -> Bodies:
    """``1KiB``, or ``512-1536`` for sizes in between."""
    low_text, mixed, high_text = size.partition("-")
    low = parse_size_option(low_text)
    high = parse_size_option(high_text) if mixed else low
    if not SMALLEST_BODY <= low <= high:
        expected = f"expected at least {SMALLEST_BODY} B (each body begins with its number), and of two sizes the smaller first"
        raise typer.BadParameter(f"{size!r}: {expected}", param_hint="--size")
    return Bodies(low, high)


def produce(messages: int, size: str, topic: str, queues: int, config: str | None, *, check: bool, as_json: bool) -> None:
    bodies = bodies_of(size)
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


def consume(messages: int, size: str, topic: str, queues: int, config: str | None, *, follower: bool, as_json: bool) -> None:
    bodies = bodies_of(size)
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


def latency(messages: int, size: str, topic: str, config: str | None, *, as_json: bool) -> None:
    bodies = bodies_of(size)
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


def failover(rounds: int, fault: str, size: str, rate: float, *, as_json: bool) -> None:
    if fault not in FAULTS:
        raise typer.BadParameter(f"{fault!r}: expected one of {', '.join(FAULTS)}", param_hint="--fault")
    bodies = bodies_of(size)
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
        account_text = f"lost {result.lost}  duplicated {result.duplicated}  reordered {result.reordered}"
        print(f"acknowledged {result.figures.acknowledged}  failed {result.figures.failed}  {account_text}")
    if result.lost or result.duplicated or result.reordered:
        raise typer.Exit(1)


def overload(size: str, connections: int, seconds: float, config: str | None, *, as_json: bool) -> None:
    with _cluster(config) as (cluster, folder):
        size_bytes = parse_size_option(size)
        announce(cluster, f"{connections} producers of {size}, {seconds:g} s for each load", folder)
        bootstrap = cluster.bootstrap()
        make_topic(bootstrap, TOPIC, QUEUES)
        before = _messages_in(bootstrap, TOPIC)
        result = run(Overload(bootstrap, size_bytes, connections, seconds).run())
        result.stored = _messages_in(bootstrap, TOPIC) - before
    if as_json:
        print_json(result.as_json())
    else:
        doubt = f"acknowledged {result.acknowledged}  in doubt {result.unknown}  stored {result.stored}"
        print("\n".join([*table(result), f"capacity {result.capacity_per_s / 1e6:.1f} MB/s  {doubt}"]))
    if not result.is_accounted:
        raise typer.Exit(1)


def _messages_in(bootstrap: str, topic: str) -> int:
    """How many its queues have got since it was made."""
    return sum(held.max_offset for held in queue_ends(bootstrap, topic).values())
