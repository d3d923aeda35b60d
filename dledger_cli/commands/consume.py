"""``dledger consume``: the messages of a topic as lines, from all its queues, until a limit or an interrupt."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dledger_cli.commands import completion
from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, bootstrap_of, check_reachable, run, time_ms
from dledger_cli.message_text import LineFormat, consumed_json
from dledger_cli.output import note, print_json

if TYPE_CHECKING:
    from dledger_client.aio import PullConsumer
    from dledger_client.fetch.records import QueueOffsets, ReceivedMessage

FORMAT_HELP = (
    "How to print a message: %t topic, %q queue, %o offset, %i id, %k keys, %g tags, %s stored at (ms), %p properties (JSON), %b body, "
    "%% percent sign; \\n, \\t. Nothing is appended."
)
CONSUME_EXAMPLES = (
    "Examples: dledger consume orders --group audit --from first --max 10 | dledger consume logs --follower | "
    "dledger consume orders --from -5 --idle-exit 1 --format '%q %o %b\\n'"
)
BATCH = 1000
POLL_MS = 500
COMMIT_EVERY_S = 1.0
AHEAD = 8  # answers that are read and not printed yet


def register(app: typer.Typer) -> None:
    app.command("consume", epilog=CONSUME_EXAMPLES)(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.", autocompletion=completion.topics)],
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="G", help="Consumer group: its position is kept in the cluster.", autocompletion=completion.consumer_groups
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="first, last, -N (the N newest of each queue), or a time: ms since 1970, or ISO in UTC. "
            "Default: the group's position, else first.",
        ),
    ] = "",
    most: Annotated[int, typer.Option("--max", metavar="N", min=0, help="Stop after N messages.")] = 0,
    idle_exit: Annotated[float, typer.Option("--idle-exit", metavar="S", min=0, help="Stop after S seconds without new messages.")] = 0,
    follower: Annotated[bool, typer.Option("--follower", help="Read from followers.")] = False,
    tag: Annotated[str, typer.Option("--tag", metavar="EXPR", help="Only messages with these tags: a || b.")] = "*",
    sql: Annotated[
        str, typer.Option("--sql", metavar="EXPR", help="Only messages whose properties match: amount > 10 AND region = 'eu'.")
    ] = "",
    queue: Annotated[int, typer.Option("--queue", metavar="Q", min=-1, help="Only this queue.")] = -1,
    line_format: Annotated[str | None, typer.Option("--format", metavar="TEXT", help=FORMAT_HELP)] = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Print message bodies, one a line (with --json every field), in order within each queue.

    With --group the offset after the last printed message is committed every second and at the end.
    """
    from dledger_wire.names import check_group, check_topic

    check_topic(topic)
    if group:
        check_group(group)
    if as_json and line_format is not None:
        raise typer.BadParameter("give either --format or --json", param_hint="--format")
    selection = _Selection(topic, _Start.of(start), queue, tag, sql)
    bootstrap = bootstrap_of(config)
    printer = _Printer(most, as_json=as_json, line=_line_format(line_format))
    try:
        run(_consume(bootstrap, group, selection, "follower" if follower else "leader", timeout, idle_exit, printer))
    except KeyboardInterrupt:
        note(f"read {printer.count}")
        raise typer.Exit(130) from None


def _line_format(text: str | None) -> LineFormat | None:
    if text == "":
        raise typer.BadParameter("an empty text prints nothing; expected one such as '%b\\n'", param_hint="--format")
    try:
        return None if text is None else LineFormat(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


@dataclass(frozen=True, slots=True)
class _Start:
    """Where reading starts: first or last, a number of messages before the end, or a time."""

    word: str = ""
    before_end: int = 0
    at_ms: int | None = None

    @classmethod
    def of(cls, text: str) -> _Start:
        if text in ("", "first", "last"):
            return cls(text)
        if text.startswith("-") and text[1:].isdecimal():
            return cls(before_end=int(text[1:]))
        return cls(at_ms=time_ms(text, "--from"))

    def offset(self, held: QueueOffsets) -> int:
        if self.at_ms is not None:
            return held.at_time
        if self.before_end:
            return max(held.min_offset, held.max_offset - self.before_end)
        return held.max_offset if self.word == "last" else held.min_offset


@dataclass(frozen=True, slots=True)
class _Selection:
    """Which messages to read; ``queue`` -1 for those of all queues."""

    topic: str
    start: _Start
    queue: int
    tags: str
    sql: str


class _Printer:
    """Writes messages to stdout; ``done`` when the limit is reached."""

    def __init__(self, most: int, *, as_json: bool, line: LineFormat | None = None) -> None:
        self.count = 0
        self.positions: dict[tuple[str, str, int], int] = {}  # (topic, replica group, queue) -> offset after the last printed message
        self._most = most
        self._as_json = as_json
        self._line = line

    @property
    def done(self) -> bool:
        return bool(self._most) and self.count >= self._most

    def show(self, messages: list[ReceivedMessage]) -> None:
        if self._most:
            messages = messages[: self._most - self.count]
        self.count += len(messages)
        self.positions |= {(message.topic, message.replica_group, message.queue_id): message.queue_offset + 1 for message in messages}
        if self._as_json:
            for message in messages:
                print_json(consumed_json(message))
            return
        out = sys.stdout.buffer
        if self._line is not None:
            out.write(b"".join(self._line.of(message) for message in messages))
        else:
            out.write(b"".join(message.body + b"\n" for message in messages))
        out.flush()


async def _consume(
    bootstrap: str,
    group: str,
    selection: _Selection,
    read_from: str,
    timeout_s: float,
    idle_exit_s: float,
    printer: _Printer,
) -> None:
    from dledger_client.aio import PullConsumer

    await check_reachable(bootstrap, timeout_s)
    async with PullConsumer(bootstrap, group, read_from=read_from, timeout_ms=int(timeout_s * 1000)) as consumer:
        found = await consumer.offsets(selection.topic, selection.start.at_ms, partial=True)
        missing = await _without_answer(consumer, selection.topic, found)
        if selection.queue >= 0:
            found = {key: held for key, held in found.items() if key[1] == selection.queue} or _no_queue(selection, found)
        committed = await consumer.committed(selection.topic, partial=True) if group and selection.start == _Start() else {}
        answers: asyncio.Queue[_Answer] = asyncio.Queue(AHEAD)
        wait_ms = min(POLL_MS, int(idle_exit_s * 1000)) or POLL_MS
        readers = []
        for (replica_group, queue_id), held in found.items():
            offset = selection.start.offset(held)
            if (replica_group, queue_id) in committed:
                offset = min(max(committed[replica_group, queue_id], held.min_offset), held.max_offset)
            work = _read_queue(consumer, selection, (replica_group, queue_id), offset, wait_ms, answers)
            readers.append(asyncio.get_running_loop().create_task(work, name=f"{selection.topic}/{queue_id}"))
        committing = _Committing(consumer, printer) if group else None
        idle = _Idle(len(readers), idle_exit_s)
        try:
            while not printer.done:
                answer = await _next_answer(answers, readers)
                if not answer.messages:
                    if idle.nothing_at(answer.queue):
                        break
                    continue
                idle.messages_came()
                printer.show(answer.messages)
                if committing is not None:
                    await committing.at_intervals()
        finally:
            if committing is not None:
                await committing.all()
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        if missing and not printer.done:
            raise typer.Exit(1)  # not everything was read


async def _without_answer(consumer: PullConsumer, topic: str, found: Collection[tuple[str, int]]) -> set[str]:
    """The replica groups that may have queues of the topic and do not answer; a line on stderr for each."""
    from dledger_client.cluster.missing_parts import missing_parts

    parts = await consumer.topic(topic)
    missing = {part.replica_group for part in parts if part.read_queues} - {group for group, _ in found}
    missing.update(await missing_parts(consumer._router, topic, parts))
    for group in sorted(missing):
        note(f"replica group {group} did not answer, its queues are not read")
    return missing


def _no_queue(selection: _Selection, found: Collection[tuple[str, int]]) -> NoReturn:
    from dledger_wire.errors import InvalidArgumentError

    last = max(number for _, number in found)
    raise InvalidArgumentError(f"topic {selection.topic}: queue {selection.queue}, expected 0 to {last}")


class _Committing:
    """Commits the offsets of what was printed, at most once a second and at the end."""

    def __init__(self, consumer: PullConsumer, printer: _Printer) -> None:
        self._consumer, self._printer = consumer, printer
        self._last = asyncio.get_running_loop().time()

    async def at_intervals(self) -> None:
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
            await self._consumer.commit(offsets, replica_group=group)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Messages of a queue; none when it had nothing new."""

    queue: tuple[str, int]
    messages: list[ReceivedMessage]


class _Idle:
    """Whether all queues were empty for ``seconds``.  A queue whose replicas do not answer does not count as empty."""

    def __init__(self, queues: int, seconds: float) -> None:
        self._queues, self._seconds = queues, seconds
        self._clock = asyncio.get_running_loop().time
        self.messages_came()

    def messages_came(self) -> None:
        self._since = self._clock()
        self._quiet: set[tuple[str, int]] = set()  # queues that were empty since

    def nothing_at(self, queue: tuple[str, int]) -> bool:
        """Note an empty queue; True when all have been empty long enough."""
        self._quiet.add(queue)
        return bool(self._seconds) and len(self._quiet) == self._queues and self._clock() - self._since >= self._seconds


async def _next_answer(answers: asyncio.Queue[_Answer], readers: list[asyncio.Task[None]]) -> _Answer:
    """The next answer of any queue; raises the error of a reader that failed."""
    getting = asyncio.get_running_loop().create_task(answers.get(), name="next answer")
    try:
        await asyncio.wait([getting, *readers], return_when=asyncio.FIRST_COMPLETED)
        for reader in readers:
            if reader.done() and not getting.done():
                reader.result()
        return getting.result()
    finally:
        getting.cancel()


async def _read_queue(
    consumer: PullConsumer,
    selection: _Selection,
    queue: tuple[str, int],
    offset: int,
    wait_ms: int,
    answers: asyncio.Queue[_Answer],
) -> None:
    """Read one queue until cancelled.  With a filter, chunks without messages still advance the offset."""
    group, queue_id = queue
    while True:
        before = offset
        chunks = await consumer.fetch_chunks(
            selection.topic, queue_id, offset, BATCH, replica_group=group, wait_ms=wait_ms, tags=selection.tags, sql=selection.sql
        )
        for chunk in chunks:
            offset = chunk.next_offset
            messages = consumer.with_tags(chunk, selection.tags)
            if messages:
                await answers.put(_Answer(queue, messages))
        if offset == before:
            await answers.put(_Answer(queue, []))
