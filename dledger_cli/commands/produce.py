"""``dledger produce``: lines of a file or of stdin, or generated messages, to a topic."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.commands import completion
from dledger_cli.connection import connection
from dledger_cli.context import (
    bootstrap_of,
    check_reachable,
    parse_duration_option,
    parse_size_option,
    run,
)
from dledger_cli.help_page import AskingCommand
from dledger_cli.message_input import READ_BYTES, GivenMessage, line_chunks, line_reader
from dledger_cli.output import clear_progress, error_line, json_wanted, note, print_json, show_progress, with_spaces

if TYPE_CHECKING:
    from dledger_client import Producer

JSON_LINES_HELP = (
    'Each line is a JSON object: {"body": "...", "keys": ["..."], "tags": "...", "properties": {...}, "queue_key": "..."}, or body_base64.'
)
WINDOW = 10_000
SHOWN_ERRORS = 5
MANY = 1000  # so many lines that are there at once are sent in batches; fewer one by one, so that they go to all queues
BATCH_LINES = 100  # at least
MAX_MANY_BYTES = 1 << 20  # a longer line is sent by itself: one that is too long must not fail others
GENERATED_AT_ONCE = 10_000
STICKY_MESSAGES = 1  # lines go to all queues in turn, so that the consumers of a group share even a few of them


def register(app: typer.Typer) -> None:
    app.command("produce", cls=AskingCommand)(produce)


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic.", autocompletion=completion.topics)],
    file: Annotated[str, typer.Option("--file", metavar="F", help="Read lines of F instead of stdin.")] = "",
    tag: Annotated[str, typer.Option("--tag", metavar="T", help="Tag of every message.")] = "",
    key: Annotated[str, typer.Option("--key", metavar="K", help="Keys of every message, separated by spaces.")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Property of every message. May be repeated.")
    ] = None,
    queue_key: Annotated[str, typer.Option("--queue-key", metavar="K", help="Send all messages to the queue of this key.")] = "",
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", min=0, help="Priority of all messages, in a topic with priorities.")
    ] = None,
    delay_level: Annotated[int, typer.Option("--delay-level", metavar="N", min=0, max=18, help="Deliver later, by level.")] = 0,
    delay: Annotated[str, typer.Option("--delay", metavar="D", help="Deliver after this delay (local clock), at most 40 days: 2h.")] = "",
    count: Annotated[int, typer.Option("--count", metavar="N", min=0, help="Generate N messages instead of reading.")] = 0,
    size: Annotated[str, typer.Option("--size", metavar="B", help="Size of each generated message (with --count). Default: 1KiB.")] = "",
    rate: Annotated[float, typer.Option("--rate", metavar="R", min=0, help="At most R messages a second.")] = 0,
    compress: Annotated[
        str, typer.Option("--compress", metavar="TYPE", help="zlib, lz4, zstd or none, for bodies over 4096 bytes. With --count: none.")
    ] = "",
    key_sep: Annotated[
        str, typer.Option("--key-sep", metavar="SEP", help="Each line is KEY, SEP, body: the key also chooses the queue.")
    ] = "",
    json_lines: Annotated[bool, typer.Option("--json-lines", help=JSON_LINES_HELP)] = False,
) -> None:
    """Send each line of stdin (or of a file) as one message.  Prints sent, failed and msgs/s.  A line ends with LF or CR LF."""
    from dledger_wire.names import check_topic

    check_topic(topic)
    if size and not count:
        raise typer.BadParameter("requires --count: only generated messages have a size", param_hint="--size")
    if bool(key_sep) + json_lines + bool(count) > 1:
        raise typer.BadParameter("--count, --key-sep and --json-lines are mutually exclusive")
    chunks = _generated(count, parse_size_option(size or "1KiB")) if count else _chunks(file)
    bootstrap = bootstrap_of()
    options = {"tags": tag, "keys": key, "delay_level": delay_level, "properties": _properties(properties or []), "priority": priority}
    if delay and delay_level:
        raise typer.BadParameter("--delay and --delay-level are mutually exclusive", param_hint="--delay")
    sending = _Sending(topic, options, queue_key or None, rate, count, parse_duration_option(delay, "--delay") if delay else 0)
    is_plain = not (key_sep or json_lines or delay or delay_level or properties or rate) and priority is None
    compress_type = compress or ("none" if count else "zlib")
    read = None if is_plain else line_reader(key_sep, as_json=json_lines)
    try:
        sending.send_all(bootstrap, chunks, read, connection().timeout_s, compress_type)
    except KeyboardInterrupt:
        sending.interrupted = True
    sending.report()
    if sending.interrupted:
        raise typer.Exit(130)
    if sending.failed:
        raise typer.Exit(1)


def _properties(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise typer.BadParameter(f"{pair!r}: expected NAME=VALUE", param_hint="--property")
    return dict((pair.partition("=")[0], pair.partition("=")[2]) for pair in pairs)


def _chunks(file: str) -> Iterator[list[bytes]]:
    with contextlib.ExitStack() as stack:
        stream: Any = stack.enter_context(open(file, "rb")) if file else sys.stdin.buffer
        yield from line_chunks(stream)


def _generated(count: int, size_bytes: int) -> Iterator[list[bytes]]:
    """Bodies that start with their number, padded with printable bytes."""
    filling = (bytes(range(33, 127)) * (size_bytes // 94 + 1))[:size_bytes]
    step = max(1, min(GENERATED_AT_ONCE, READ_BYTES // max(1, size_bytes)))
    for first in range(0, count, step):
        yield [(b"%d " % number + filling)[:size_bytes] for number in range(first, min(first + step, count))]


class _Sending:
    """One run: what was sent, acknowledged and refused.  Callbacks run on the client's thread, everything else on the main thread.

    ``bytes``: of what was acknowledged.
    """

    def __init__(self, topic: str, options: dict[str, Any], queue_key: str | None, rate: float, total: int, delay_ms: int) -> None:
        self.topic, self.options, self.queue_key, self.rate, self.total = topic, options, queue_key, rate, total
        self.delay_ms = delay_ms
        self.sent = self.acknowledged = self.failed = self.bytes = 0
        self.took_s = 0.0
        self.interrupted = False
        self._room = threading.Semaphore(WINDOW)
        self._lock = threading.Lock()
        self._shown_at = 0.0
        self._errors: set[str] = set()

    def send_all(
        self,
        bootstrap: str,
        chunks: Iterator[list[bytes]],
        read: Callable[[bytes], GivenMessage] | None,
        timeout_s: float,
        compress_type: str,
    ) -> None:
        """``read`` makes a message of a line; None: the line is the body, and all messages have the same options."""
        from dledger_client import Message, Producer

        Message(self.topic, b"", **self.options)  # keys, tags and properties of all messages: errors in them are reported once
        run(check_reachable(bootstrap, timeout_s))
        timeout_ms = int(timeout_s * 1000)
        with Producer(
            bootstrap, group="dledger-cli", send_timeout_ms=timeout_ms, compress_type=compress_type, sticky_messages=STICKY_MESSAGES
        ) as producer:
            start = time.monotonic()
            try:
                for chunk in chunks:
                    if read is None and len(chunk) >= MANY and max(map(len, chunk)) <= MAX_MANY_BYTES:
                        self._send_many(producer, chunk, start)
                    else:
                        self._send_each(producer, chunk, read or GivenMessage, start)
                producer.flush()
            finally:
                self.took_s = time.monotonic() - start

    def _send_each(self, producer: Producer, chunk: list[bytes], read: Callable[[bytes], GivenMessage], start: float) -> None:
        from dledger_client import Message
        from dledger_wire.errors import InvalidArgumentError

        for line in chunk:
            if self.rate and (ahead := start + self.sent / self.rate - time.monotonic()) > 0:
                time.sleep(ahead)
            self._room.acquire()
            self.sent += 1
            if self.delay_ms:
                self.options["deliver_at_ms"] = time.time_ns() // 1_000_000 + self.delay_ms
            try:
                given = read(line)
                message = Message(self.topic, given.body, **given.over(self.options))
            except (ValueError, InvalidArgumentError) as error:
                self._failed(self.sent, str(error))
                self._room.release()
                continue
            future = producer.send_async(message, queue_key=given.queue_key or self.queue_key)
            future.add_done_callback(functools.partial(self._done, self.sent, len(given.body)))
            self._progress(start)

    def _send_many(self, producer: Producer, chunk: list[bytes], start: float) -> None:
        """Lines that are there at once, in batches: several, so that all queues get some of them."""
        step = max(BATCH_LINES, len(chunk) // 32)
        for first in range(0, len(chunk), step):
            bodies, number = chunk[first : first + step], self.sent + 1
            self.sent += len(bodies)
            keys, tags = self.options["keys"], self.options["tags"]
            future = producer.send_many_async(self.topic, bodies, keys=keys, tags=tags, queue_key=self.queue_key)
            future.add_done_callback(functools.partial(self._many_done, number, bodies))
            self._progress(start)

    def _many_done(self, number: int, bodies: list[bytes], future: Any) -> None:
        for each in future.outcomes():
            if each.error is not None:
                self._failed(number + each.first, str(each.error), each.count)
            else:
                with self._lock:
                    self.acknowledged += each.count
                    self.bytes += sum(map(len, bodies[each.first : each.first + each.count]))

    def _done(self, number: int, size_bytes: int, future: Any) -> None:
        """Count the answer."""
        error = future.exception()
        if error is not None:
            self._failed(number, str(error))
        else:
            with self._lock:
                self.acknowledged += 1
                self.bytes += size_bytes
        self._room.release()

    def _failed(self, number: int, text: str, count: int = 1) -> None:
        """Count messages that failed; each error text is shown once, with its first line, and only the first few."""
        with self._lock:
            self.failed += count
            is_new = len(self._errors) < SHOWN_ERRORS and text not in self._errors
            self._errors |= {text} if is_new else set()
        if is_new:
            error_line(f"{'message' if self.total else 'line'} {number}: {text}")

    def _progress(self, start: float) -> None:
        """A progress line on a terminal, rewritten a few times a second."""
        now = time.monotonic()
        if now - self._shown_at < 0.2:
            return
        self._shown_at = now
        of = f"/{with_spaces(self.total)}" if self.total else ""
        per_s = with_spaces(self.acknowledged / max(now - start, 0.001))
        show_progress(f"acknowledged {with_spaces(self.acknowledged)}{of}  failed {self.failed}  {per_s} msgs/s")

    def report(self) -> None:
        clear_progress()
        per_s = self.acknowledged / self.took_s if self.took_s else 0.0
        unknown = self.sent - self.acknowledged - self.failed
        if json_wanted():
            figures = {"sent": self.sent, "acknowledged": self.acknowledged, "failed": self.failed, "unknown": unknown}
            print_json(figures | {"messages_per_s": per_s, "bytes_per_s": self.bytes / self.took_s if self.took_s else 0.0})
            return
        open_text = f"  unknown {with_spaces(unknown)}" if unknown else ""
        note(f"sent {with_spaces(self.acknowledged)}  failed {with_spaces(self.failed)}{open_text}  {with_spaces(per_s)} msgs/s")
