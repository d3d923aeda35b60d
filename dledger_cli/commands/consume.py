"""``dledger consume``: the messages of a topic as lines, from all its queues, until a limit or an interrupt."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dledger_cli.commands import completion
from dledger_cli.connection import connection
from dledger_cli.context import bootstrap_of, check_reachable, run, time_ms
from dledger_cli.help_page import AskingCommand
from dledger_cli.message_text import LineFormat, body_line, consumed_json
from dledger_cli.output import end_if_unread, json_wanted, note, print_json
from dledger_cli.queue_readers import Place, QueueReaders

if TYPE_CHECKING:
    from dledger_client.aio import PullConsumer
    from dledger_client.fetch.records import QueueOffsets, ReceivedMessage

FORMAT_HELP = (
    "How to print a message: %t topic, %q queue, %o offset, %i id, %k keys, %g tags, %s stored at (ms), %p properties (JSON), %b body, "
    "%% percent sign; \\n, \\t. Nothing is appended."
)
_Queue = tuple[str, str, int]  # (topic, replica group, queue id)

POLL_MS = 500
COMMIT_EVERY_S = 1.0


def register(app: typer.Typer) -> None:
    app.command("consume", cls=AskingCommand)(consume)


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
    raw: Annotated[bool, typer.Option("--raw", help="Print bytes as they are to a terminal, too: escape sequences take effect.")] = False,
) -> None:
    """Print message bodies, one a line.  With --json every field.  The messages of a queue are printed in order.

    A terminal gets control characters escaped (\\x1b) unless --raw is given; a pipe or a file gets the bytes as they are.

    With --group the offset after the last printed message is committed every second and at the end. Queues that are added to the topic
    while the command runs, in any replica group, are read from their first message.
    """
    from dledger_wire.names import check_group, check_topic

    check_topic(topic)
    if group:
        check_group(group)
    if json_wanted() and line_format is not None:
        raise typer.BadParameter("--format and --json are mutually exclusive", param_hint="--format")
    selection = _Selection(topic, _Start.of(start), queue, tag, sql)
    bootstrap = bootstrap_of()
    printer = _Printer(most, line=_line_format(line_format), escaped=sys.stdout.isatty() and not raw)
    try:
        run(_consume(bootstrap, group, selection, "follower" if follower else "leader", connection().timeout_s, idle_exit, printer))
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
            return cls(before_end=int(text[1:])) if int(text[1:]) else cls("last")
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

    def __init__(self, most: int, line: LineFormat | None = None, escaped: bool = False) -> None:
        self.count = 0
        self.positions: dict[_Queue, tuple[int, str]] = {}  # offset after the last printed message, and the epoch of its topic
        self._most = most
        self._line = line
        self._escaped = escaped

    @property
    def done(self) -> bool:
        return bool(self._most) and self.count >= self._most

    def show(self, messages: list[ReceivedMessage]) -> None:
        if self._most:
            messages = messages[: self._most - self.count]
        if json_wanted():
            for message in messages:
                print_json(consumed_json(message))
                self._written([message])
            return
        out = sys.stdout.buffer
        if self._line is not None:
            out.write(b"".join(self._line.of(message, escaped=self._escaped) for message in messages))
        else:
            out.write(b"".join(body_line(message, escaped=self._escaped) for message in messages))
        out.flush()
        self._written(messages)

    def _written(self, messages: list[ReceivedMessage]) -> None:
        """Only what has left the buffers counts: positions are committed also when a write fails, and must not be past it."""
        self.count += len(messages)
        self.positions |= {
            (message.topic, message.replica_group, message.queue_id): (message.queue_offset + 1, message.topic_epoch)
            for message in messages
        }


async def _consume(
    bootstrap: str, group: str, selection: _Selection, read_from: str, timeout_s: float, idle_exit_s: float, printer: _Printer
) -> None:
    from dledger_client.aio import PullConsumer

    await check_reachable(bootstrap, timeout_s)
    wait_ms = min(POLL_MS, int(idle_exit_s * 1000)) or POLL_MS
    async with PullConsumer(bootstrap, group, read_from=read_from, timeout_ms=int(timeout_s * 1000)) as consumer:
        found = await consumer.offsets(selection.topic, selection.start.at_ms, partial=True)
        places = _Places(consumer, selection, await _without_answer(consumer, selection.topic, found))
        readers = QueueReaders(consumer, selection.topic, tags=selection.tags, sql=selection.sql, wait_ms=wait_ms)
        readers.read(await places.at_begin(found))
        if selection.queue < 0:
            readers.follow(places.of_added)
        committing = _Committing(consumer, printer) if group else None
        idle = _Idle(idle_exit_s)
        try:
            while not printer.done:
                answer = await readers.next()
                if not answer.messages:
                    end_if_unread()
                    if answer.at_end and idle.nothing_at(answer.queue, readers.queues):
                        break
                    continue
                idle.messages_came()
                printer.show(answer.messages)
                if committing is not None:
                    await committing.at_intervals()
        finally:
            if committing is not None:
                await committing.all()
            await readers.close()
        if places.missing and not printer.done:
            raise typer.Exit(1)  # not everything was read


class _Places:
    """Where reading begins in each queue.  ``missing``: replica groups that have not answered since the start."""

    def __init__(self, consumer: PullConsumer, selection: _Selection, missing: set[str]) -> None:
        self._consumer, self._selection, self.missing = consumer, selection, missing
        self._begun_ms = consumer._router.clock.wall_ms()

    async def at_begin(self, found: Mapping[Place, QueueOffsets]) -> dict[Place, int]:
        """In the queues that there are: where the options say."""
        return await self._at(self._selection.start, found)

    async def _at(self, start: _Start, found: Mapping[Place, QueueOffsets]) -> dict[Place, int]:
        selection = self._selection
        if selection.queue >= 0:
            found = {place: held for place, held in found.items() if place[1] == selection.queue} or _no_queue(selection, found)
        committed = await self._committed()
        offsets = {}
        for place, held in found.items():
            offset = committed.get(place, start.offset(held))
            offsets[place] = min(max(offset, held.min_offset), held.max_offset)
        return offsets

    async def of_added(self, found: Mapping[Place, QueueOffsets]) -> dict[Place, int]:
        """In queues that were added: the group's position, else the first message.  Those that did not answer are read as at the start."""
        late = {place: held for place, held in found.items() if place[0] in self.missing}
        start = self._selection.start
        if start.word == "last":  # the end has moved since
            start = _Start(at_ms=self._begun_ms)
        if late and start.at_ms is not None:
            late |= await self._consumer.offsets(self._selection.topic, start.at_ms, partial=True)
        offsets = await self._at(start, {place: held for place, held in late.items() if place in found}) if late else {}
        committed = await self._committed()
        offsets |= {place: max(committed.get(place, 0), held.min_offset) for place, held in found.items() if place not in late}
        for group in sorted({group for group, _ in found} & self.missing):
            self.missing.discard(group)
            note(f"replica group {group} answers now; reading its queues")
        return offsets

    async def _committed(self) -> dict[Place, int]:
        from_group = self._consumer.group and self._selection.start == _Start()
        return await self._consumer.committed(self._selection.topic, partial=True) if from_group else {}


async def _without_answer(consumer: PullConsumer, topic: str, found: Collection[tuple[str, int]]) -> set[str]:
    """The replica groups that may have queues of the topic and do not answer; a line on stderr for each."""
    from dledger_client.cluster.missing_parts import find_parts

    parts = await find_parts(consumer._router, topic, consumer._deadline_ms())
    missing = {part.replica_group for part in parts.queues if part.read_queues} - {group for group, _ in found}
    missing.update(parts.missing)
    for group in sorted(missing):
        note(f"replica group {group} did not answer; its queues are not read")
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
        from dledger_wire.errors import TopicNotFoundError

        by_group: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
        for (topic, group, queue_id), (offset, epoch) in self._printer.positions.items():
            by_group.setdefault((group, epoch), {})[topic, queue_id] = offset
        for (group, epoch), offsets in by_group.items():
            with contextlib.suppress(TopicNotFoundError):  # nothing is to be kept of a topic that is gone
                await self._consumer.commit(offsets, replica_group=group, topic_epoch=epoch)
        self._printer.positions.clear()  # only now: an interrupt ends a commit that is under way, and those at the end are all that is left


class _Idle:
    """Whether all queues had nothing more for ``seconds``.  One whose replicas do not answer, or that is not read to its end, may have."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._clock = asyncio.get_running_loop().time
        self.messages_came()

    def messages_came(self) -> None:
        self._since = self._clock()
        self._quiet: set[Place] = set()  # queues that had nothing more since

    def nothing_at(self, queue: Place, queues: set[Place]) -> bool:
        """Note a queue that has nothing more; True when none of ``queues`` had for long enough."""
        self._quiet.add(queue)
        return bool(self._seconds) and self._quiet >= queues and self._clock() - self._since >= self._seconds
