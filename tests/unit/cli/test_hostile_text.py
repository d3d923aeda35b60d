"""Text from outside does nothing to a terminal: what servers say, and what stands in messages, is shown escaped by every command."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import click
import numpy as np
import pytest
import typer.main
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import dledger_cli.app
from dledger_cli import output
from dledger_cli.commands.consume import _Printer
from dledger_cli.message_text import LineFormat, show_traces
from dledger_client.admin.message_trace import Trace, TracedCopy
from dledger_client.fetch.records import Chunk, ReceivedMessage
from dledger_wire._pb import types_pb2
from dledger_wire.errors import DledgerError, InvalidArgumentError
from dledger_wire.frames.frame import Frame, encode_frame
from dledger_wire.printable import printable, printable_body, printable_json
from dledger_wire.rpc import methods
from dledger_wire.rpc.error_detail import from_detail
from dledger_wire.rpc.transport import ByteStream, CallContext
from dledger_wire.tcp.network import TcpNetwork

HOSTILE = "x\x1b[31mred\x1b]0;title\x07\x9b2J\r\ndledger: all is well\x7f\u202egnp.exe\u2066[red]\u2028end"
ALLOWED = {"\n", "\u00a0"}


def assert_harmless(text: str) -> None:
    """No control characters but the ends of the lines that a command itself begins."""
    bad = sorted({character for character in text if not character.isprintable() and character not in ALLOWED})
    assert not bad, f"{bad} in {text!r}"
    assert not any(line.startswith("dledger: all is well") for line in text.splitlines())


# -- the functions


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 日本 😀 a\u00a0b", "größe 日本 😀 a\u00a0b"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J\x7f\x00", "\\x9b2J\\x7f\\x00"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\u202eexe.gnp\u2066\u200f\u061c", "\\u202eexe.gnp\\u2066\\u200f\\u061c"),
        ("\u2028\u2029\u200b\ufeff", "\\u2028\\u2029\\u200b\\ufeff"),
        ("\ud800\U000e0001", "\\ud800\\U000e0001"),
        ("[red]x[/]", "[red]x[/]"),
    ],
)
def test_what_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert json.loads(printable_json({text: [text]})) == {text: [text]}
    assert_harmless(printable_json({text: [text]}))


def test_bodies_keep_their_lines() -> None:
    assert printable_body(b"a\n\tb\r\x1b[0m\xff\xc2\x9b") == "a\n\tb\\r\\x1b[0m\\xff\\x9b"


def test_every_way_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("A", "B"), [(HOSTILE, 1), (None, HOSTILE)])
    output.print_line(HOSTILE)
    output.note(HOSTILE)
    output.error_line(printable(HOSTILE))
    output.print_json({HOSTILE: HOSTILE})
    with pytest.raises(SystemExit):
        output.note_unanswered({HOSTILE: DledgerError(HOSTILE)})
    shown = capsys.readouterr()
    assert_harmless(shown.out)
    assert_harmless(shown.err)
    assert "\\x1b[31mred" in shown.out
    assert "\\x1b[31mred" in shown.err


def test_an_error_that_a_server_tells_is_one_line_of_bounded_length() -> None:
    told = from_detail(types_pb2.ErrorDetail(code="BUSY", message=HOSTILE + "x" * 100_000, details={"k" * 500: "v" * 5000, "message": "m"}))
    assert_harmless(told.message)
    assert "\n" not in told.message
    assert len(told.message) < 4000
    assert told.details == {"k" * 100: "v" * 1500, "message": "m"}


# -- messages


def received(body: bytes = HOSTILE.encode()) -> ReceivedMessage:
    properties = {
        "KEYS": HOSTILE,
        "TAGS": HOSTILE,
        "UNIQ_KEY": HOSTILE,
        "RETRY_TOPIC": HOSTILE,
        "ORIGIN_MESSAGE_ID": HOSTILE,
        "REAL_TOPIC": HOSTILE,
        "TIMER_OUT_MS": HOSTILE,
        HOSTILE: HOSTILE,
    }
    frame = encode_frame(Frame(0, 5, 4096, body, "t", properties, born_timestamp=1))
    chunk = Chunk("t", HOSTILE, 0, HOSTILE, np.array([5]), np.array([len(frame)]), frame, 6, 6)
    return chunk.messages()[0]


class Terminal(io.StringIO):
    """Standard output with its bytes; ``isatty`` is what a terminal says."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.bytes = io.BytesIO()
        self._terminal = terminal

    @property
    def buffer(self) -> io.BytesIO:
        return self.bytes

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("line", [None, LineFormat("%t %q %o %i %k %g %s %p %b%%\\n")])
def test_consume_shows_a_terminal_what_it_can_bear_and_a_pipe_everything(line: LineFormat | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for escaped in (True, False):
        stdout = Terminal(terminal=escaped)
        monkeypatch.setattr(sys, "stdout", stdout)
        _Printer(0, line=line, escaped=escaped).show([received(b"\xff\x1b[31m body")])
        shown = stdout.bytes.getvalue()
        if escaped:
            assert_harmless(shown.decode())
            assert b"\\xff\\x1b[31m body" in shown
        else:
            assert b"\xff\x1b[31m body" in shown


def test_a_trace_is_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    copies = [TracedCopy(received(), kind, HOSTILE, [], []) for kind in ("message", "retry", "delayed", "half message")]
    show_traces(Trace(copies, True, {}))
    shown = capsys.readouterr().out
    assert_harmless(shown)
    assert shown.count("\n") == 4 * 4 + 2, "what waits has a line more"


# -- a server whose every text is hostile, and all commands

COMMANDS = {
    "status": "",
    "top": "--once",
    "route": "t",
    "produce": "t --count 2",
    "consume": "t --max 1 --idle-exit 0.2",
    "expire": "--yes",
    "verify": "--online",
    "nameserver status": "",
    "topic create": "t",
    "topic update": "t --queues 8",
    "topic list": "",
    "topic describe": "t",
    "topic locate": "t k",
    "topic delete": "t --yes",
    "message query": "t --key k",
    "message trace": "t --key k",
    "group list": "",
    "group describe": "g",
    "group reset-offset": "g --topic t --to first",
    "group delete": "g --yes",
    "group settings": "",
    "group update": "g --retry-max-times 3",
    "dlq list": "",
    "dlq open": "g",
    "dlq redrive": "g",
    "transaction list": "",
    "transaction commit": "A --yes",
    "transaction rollback": "A --yes",
    "leader transfer": "--to n1",
    "leader history": "",
    "connections": "--node n1",
    "log tail": "--node n1",
    "member add": "--id n4 --address 127.0.0.1:9",
    "member promote": "--id n1",
    "member remove": "--id n1 --yes",
    "member replace": "--id n4 --replaces n1 --yes",
    "cluster status": "",
    "cluster drain": "g0",
    "cluster remove-group": "g0 --yes",
    "cluster upgrade-check": "",
    "cluster upgrade-finish": "--yes",
    "backup": "--to memory://hostile",
    "user update": "alice --no-password",
    "user secret": "alice --yes",
    "user delete": "alice --yes",
    "user list": "",
    "acl allow": "alice read --topic t",
    "acl deny": "alice read --topic t",
    "acl list": "",
    "quota set": "topic t --produce-messages 1",
    "quota list": "",
    "quota delete": "topic t",
    "cluster limits": "",
    "audit tail": "",
    "acl check": "alice read --topic t",
}
# They ask no cluster, run nodes or Spark, read files of this machine, or print figures only.
OTHERS = {
    "up",
    "down",
    "node",
    "console",
    "demo",
    "drill",
    "dump",
    "restore",
    "import-rocketmq",
    "certs create",
    "certs list",
    "security init",
    "cluster add-group",
    "member unsafe-recover",
    "cluster apply",
    "user create",
}
OTHERS |= {f"bench {name}" for name in ("produce", "consume", "latency", "failover", "overload")}
OTHERS |= {f"spark {name}" for name in ("archive", "audit", "stats", "replay", "finish")}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """The names of all commands, and the options they take."""
    if isinstance(command, click.Group) or hasattr(command, "commands"):
        for name, nested in command.commands.items():
            yield from leaves(nested, (*path, name))
    else:
        yield " ".join(path), {option for parameter in command.params for option in parameter.opts}


def test_no_command_is_forgotten() -> None:
    found = {name for name, _ in leaves(typer.main.get_command(dledger_cli.app.app))}
    assert found == set(COMMANDS) | OTHERS


NAMES = {"TopicInfo": "t", "TopicRoute": "t", "GroupInfo": "g0", "GroupRoute": "g0", "RegisteredGroup": "g0"}


def filled(kind: type[Message], address: str, *, names: bool) -> Message:
    """A message whose texts are hostile, one element in each list.  ``names``: those by which clients find things are as they expect."""
    made = kind()
    for field in made.DESCRIPTOR.fields:
        if field.containing_oneof is not None or field.name in ("error", "payload", "header_size"):
            continue
        repeated = field.is_repeated
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            inner = filled(cast(Any, field.message_type)._concrete_class, address, names=names)
            target = getattr(made, field.name)
            target.add().CopyFrom(inner) if repeated else target.CopyFrom(inner)
        else:
            value = _value(field, address, made.DESCRIPTOR.name, names=names)
            getattr(made, field.name).append(value) if repeated else setattr(made, field.name, value)
    return made


def _value(field: FieldDescriptor, address: str, owner: str, *, names: bool) -> object:
    if field.type == FieldDescriptor.TYPE_STRING:
        if "address" in field.name:
            return address
        expected = {"topic": "t", "group": "g0", "leader_id": "n0", "id": "n0", "state": "active", "consumer_group": "g"}
        if names and field.name == "name":
            return NAMES.get(owner, HOSTILE)
        return expected.get(field.name, HOSTILE) if names else HOSTILE
    if field.type == FieldDescriptor.TYPE_BYTES:
        return HOSTILE.encode()
    if field.type == FieldDescriptor.TYPE_BOOL:
        return field.name != "unchanged"
    return 6 if field.name == "perm" else 1


@contextmanager
def hostile_server(*, names: bool, refuses: bool) -> Iterator[str]:
    """A node that answers every call; ``refuses``: all but what tells of the cluster with an error."""
    address: list[str] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()

    def answering(method: Any) -> Callable[[bytes, CallContext], Awaitable[bytes]]:
        async def answer(_request: bytes, _context: CallContext) -> bytes:
            if refuses and method is not methods.METADATA:
                raise InvalidArgumentError(HOSTILE)
            return filled(method.response, address[0], names=names).SerializeToString()

        return answer

    def streaming(method: Any) -> Callable[[ByteStream, CallContext], Awaitable[None]]:
        async def stream(stream: ByteStream, _context: CallContext) -> None:
            await stream.read()
            if not refuses:
                await stream.write(filled(method.response, address[0], names=names).SerializeToString())
            raise InvalidArgumentError(HOSTILE)

        return stream

    async def serve() -> None:
        server = TcpNetwork().serve("127.0.0.1:0")
        for path, method in methods.METHODS.items():
            if isinstance(method, methods.UnaryMethod):
                server.add_unary(path, answering(method))
            else:
                server.add_stream(path, streaming(method))
        await server.start()
        address.append(f"127.0.0.1:{server.port}")
        ready.set()
        await stop.wait()
        await server.stop(0)

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="hostile server")
    thread.start()
    ready.wait(30)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.mark.parametrize(("names", "refuses"), [(True, False), (False, False), (True, True)])
def test_no_command_lets_a_server_write_to_the_terminal(
    names: bool, refuses: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dledger_cli.app, "end_quietly_at_closed_pipe", lambda: None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # what main puts there goes with this test
    escaped, takes = 0, dict(leaves(typer.main.get_command(dledger_cli.app.app)))
    with hostile_server(names=names, refuses=refuses) as address:
        for command, rest in COMMANDS.items():
            bounded = ["--timeout", "0.3"] if "--timeout" in takes[command] else []
            for as_json in ([], ["--json"])[: 1 + ("--json" in takes[command] and names and not refuses)]:
                arguments = [*command.split(), *rest.split(), "--bootstrap", address, *bounded, *as_json]
                monkeypatch.setattr(sys, "argv", ["dledger", *arguments])
                with pytest.raises(SystemExit):
                    dledger_cli.app.main()
                shown = capsys.readouterr()
                assert_harmless(shown.out)
                assert_harmless(shown.err)
                assert "internal error" not in shown.err, (command, shown.err)
                assert "Usage:" not in shown.err, (command, shown.err)
                escaped += "\\x1b[31mred" in shown.out + shown.err or "\\u001b[31mred" in shown.out
    assert escaped >= 10, "the server's texts were hardly shown at all"
