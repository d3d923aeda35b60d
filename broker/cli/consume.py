"""``dledger consume``: the messages of a topic as lines, from all its queues, until told to stop."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from broker.cli.context import ConfigOption, JsonOption, TimeoutOption, load_config, run
from broker.cli.message_text import consumed_json
from broker.cli.output import note, print_json

if TYPE_CHECKING:
    from dledger_client.aio import PullConsumer
    from dledger_client.received import ReceivedMessage

BATCH = 1000
POLL_MS = 500
COMMIT_EVERY_S = 1.0
AHEAD = 8  # batches read and not printed yet


def register(app: typer.Typer) -> None:
    app.command("consume", epilog="Examples: dledger consume orders --group audit --from first --max 10 | dledger consume logs --follower")(
        consume
    )


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    group: Annotated[str, typer.Option("--group", metavar="G", help="Consumer group: its position is kept in the cluster.")] = "",
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="first, last, or ms since 1970. Default: the group's position, else first.")
    ] = "",
    most: Annotated[int, typer.Option("--max", metavar="N", min=0, help="Stop after N messages.")] = 0,
    idle_exit: Annotated[float, typer.Option("--idle-exit", metavar="S", min=0, help="Stop when nothing came for S seconds.")] = 0,
    follower: Annotated[bool, typer.Option("--follower", help="Read from followers.")] = False,
    tag: Annotated[str, typer.Option("--tag", metavar="EXPR", help="Only messages with these tags: a || b.")] = "*",
    sql: Annotated[
        str, typer.Option("--sql", metavar="EXPR", help="Only messages whose properties it is true of: amount > 10 AND region = 'eu'.")
    ] = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Print message bodies, one a line (with --json all there is to know), in order within each queue.

    With --group the position behind what was printed is committed every second and at the end.
    """
    if start not in ("", "first", "last") and not start.isdecimal():
        raise typer.BadParameter(f"{start!r}: expected first, last or milliseconds since 1970", param_hint="--from")
    bootstrap = load_config(config).bootstrap()
    printer = _Printer(most, as_json=as_json)
    try:
        run(_consume(bootstrap, topic, group, start, _Filter(tag, sql), "follower" if follower else "leader", timeout, idle_exit, printer))
    except KeyboardInterrupt:
        note(f"read {printer.count}")
        raise typer.Exit(130) from None


@dataclass(frozen=True, slots=True)
class _Filter:
    tags: str
    sql: str


class _Printer:
    """Writes messages to stdout; ``done`` once as many as wanted are written."""

    def __init__(self, most: int, *, as_json: bool) -> None:
        self.count = 0
        self.positions: dict[tuple[str, str, int], int] = {}  # (topic, replica group, queue) -> behind what was printed
        self._most = most
        self._as_json = as_json

    @property
    def done(self) -> bool:
        return bool(self._most) and self.count >= self._most

    def show(self, messages: list[ReceivedMessage]) -> None:
        if self._most:
            messages = messages[: self._most - self.count]
        self.count += len(messages)
        self.positions |= {(message.topic, message.group, message.queue_id): message.queue_offset + 1 for message in messages}
        if self._as_json:
            for message in messages:
                print_json(consumed_json(message))
            return
        out = sys.stdout.buffer
        out.write(b"".join(message.body + b"\n" for message in messages))
        out.flush()


async def _consume(
    bootstrap: str,
    topic: str,
    group: str,
    start: str,
    wanted: _Filter,
    read_from: str,
    timeout_s: float,
    idle_exit_s: float,
    printer: _Printer,
) -> None:
    from dledger_client.aio import PullConsumer

    async with PullConsumer(bootstrap, group, read_from=read_from, timeout_ms=int(timeout_s * 1000)) as consumer:
        found = await consumer.offsets(topic, int(start) if start.isdecimal() else None)
        committed = await consumer.committed(topic) if group and not start else {}
        batches: asyncio.Queue[list[ReceivedMessage]] = asyncio.Queue(AHEAD)
        readers = []
        for (replica_group, queue_id), held in found.items():
            offset = {"": held.min_offset, "first": held.min_offset, "last": held.max_offset}.get(start, held.at_time)
            if (replica_group, queue_id) in committed:
                offset = min(max(committed[replica_group, queue_id], held.min_offset), held.max_offset)
            work = _read_queue(consumer, topic, replica_group, queue_id, offset, wanted, batches)
            readers.append(asyncio.get_running_loop().create_task(work, name=f"{topic}/{queue_id}"))
        committing = _Committing(consumer, printer) if group else None
        try:
            while not printer.done:
                batch = await _next_batch(batches, readers, idle_exit_s)
                if batch is None:
                    return
                printer.show(batch)
                if committing is not None:
                    await committing.now_and_then()
        finally:
            if committing is not None:
                await committing.all()
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)


class _Committing:
    """Commits what was printed, a second after the last time or at the end."""

    def __init__(self, consumer: PullConsumer, printer: _Printer) -> None:
        self._consumer, self._printer = consumer, printer
        self._last = asyncio.get_running_loop().time()

    async def now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._last >= COMMIT_EVERY_S:
            self._last = now
            await self.all()

    async def all(self) -> None:
        positions, self._printer.positions = self._printer.positions, {}
        by_group: dict[str, dict[tuple[str, int], int]] = {}
        for (topic, group, queue_id), offset in positions.items():
            by_group.setdefault(group, {})[topic, queue_id] = offset
        for group, offsets in by_group.items():
            await self._consumer.commit(offsets, group_name=group)


async def _next_batch(
    batches: asyncio.Queue[list[ReceivedMessage]], readers: list[asyncio.Task[None]], idle_exit_s: float
) -> list[ReceivedMessage] | None:
    """The next messages of any queue; None when nothing came for ``idle_exit_s``; raises what a reader failed with."""
    getting = asyncio.get_running_loop().create_task(batches.get(), name="next batch")
    try:
        await asyncio.wait([getting, *readers], timeout=idle_exit_s or None, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            return getting.result()
        for reader in readers:
            if reader.done():
                reader.result()
        return None
    finally:
        getting.cancel()


async def _read_queue(
    consumer: PullConsumer,
    topic: str,
    group: str,
    queue_id: int,
    offset: int,
    wanted: _Filter,
    batches: asyncio.Queue[list[ReceivedMessage]],
) -> None:
    """Read one queue for ever.  With a filter, an answer without messages may still have moved on: the chunks tell how far."""
    while True:
        chunks = await consumer.fetch_chunks(
            topic, queue_id, offset, BATCH, group_name=group, wait_ms=POLL_MS, tags=wanted.tags, sql=wanted.sql
        )
        for chunk in chunks:
            offset = chunk.next_offset
            messages = consumer.with_tags(chunk, wanted.tags)
            if messages:
                await batches.put(messages)
