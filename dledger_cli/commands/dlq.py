"""``dledger dlq``: dead letters - listed, opened to consumers, and sent to their original topics again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ask
from dledger_cli.help_page import AskingCommand, command_group
from dledger_cli.output import (
    clear_progress,
    fields_of,
    json_wanted,
    note,
    note_unanswered,
    print_answer,
    report,
    show_progress,
    unanswered_json,
)
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.calls import Listed
    from dledger_client.admin.dead_letters import DeadLetters
    from dledger_client.aio import Admin

NameArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]

POLL_S = 0.2


def register(root: typer.Typer) -> None:
    app = command_group(root, "dlq")
    reading_command(app, "list")(list_letters)
    app.command("open", cls=AskingCommand)(open_letters)
    app.command("redrive", cls=AskingCommand)(redrive)


def list_letters(
    name: Annotated[str, typer.Argument(metavar="[GROUP]", help="Consumer group. Default: all.")] = "",
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for a dead letter.")] = 0.0,
) -> None:
    """Count dead letters by consumer group.  Shows how many there are, and how many were not redriven yet."""
    found = ask(lambda admin: _listed(admin, name, wait))
    answer = {"dead_letters": [_json(each) for each in found]} | unanswered_json(found.unanswered)
    header = ("CONSUMER-GROUP", "REPLICA-GROUP", "MESSAGES", "WAITING", "READABLE")
    rows = [
        (each.consumer_group, each.replica_group, each.max_offset - each.min_offset, each.waiting, "yes" if each.readable else "no")
        for each in found
    ]
    print_answer(answer, header, rows, right=("MESSAGES", "WAITING"))
    if name and not found and not json_wanted():
        note(f"consumer group {name!r} has no dead letters")
    note_unanswered(found.unanswered)


async def _listed(admin: Admin, name: str, wait_s: float) -> Listed[DeadLetters]:
    """DeadlineExceededError when ``wait_s`` are over without a dead letter."""
    from dledger_wire.errors import DeadlineExceededError

    deadline = time.monotonic() + wait_s
    while True:
        found = await admin.dead_letters(name, partial=True)
        if found or not wait_s:
            return found
        if time.monotonic() > deadline:
            of = f"consumer group {name!r} has" if name else "there are"
            raise DeadlineExceededError(f"{of} no dead letters after {wait_s:g} s")
        await asyncio.sleep(POLL_S)


def open_letters(name: NameArgument, close: Annotated[bool, typer.Option("--close", help="Revoke read permission.")] = False) -> None:
    """Let consumers read the dead letters of a group."""
    from dledger_wire.status import Perm

    async def work(admin: Admin) -> list[DeadLetters]:
        return _some(name, await admin.open_dead_letters(name, readable=not close))

    topic = ask(work)[0].topic
    perm = int(Perm.WRITE if close else Perm.READ_WRITE)
    text = f"{topic}: {'closed' if close else 'open'} (permission {perm})"
    report({"consumer_group": name, "topic": topic, "perm": perm}, text)


def redrive(
    name: NameArgument,
    max_messages: Annotated[int, typer.Option("--max", metavar="N", min=0, help="At most N messages; 0: all that are waiting.")] = 0,
    rate: Annotated[float, typer.Option("--rate", metavar="R", min=0.0, help="Messages a second; 0: no limit.")] = 1000.0,
    to_group: Annotated[bool, typer.Option("--to-group", help="Deliver to this group alone, not to the original topic.")] = False,
) -> None:
    """Send dead letters to their original topic again.  If repeated, it continues and sends none twice."""
    sent = _Sent(name)

    async def work(admin: Admin) -> None:
        for letters in _some(name, await admin.dead_letters(name)):
            left = max_messages - sent.count
            if max_messages and not left:
                break
            count = left if max_messages else 0
            await admin.redrive(letters, count=count, rate=rate, to_retry_topic=to_group, on_progress=sent.of_next_group())

    try:
        ask(work)
    except BaseException:  # what was sent stays sent
        if sent.count:
            sent.report(" before it ended; repeated, it goes on behind them")
        raise
    sent.report()


class _Sent:
    """How many dead letters of a consumer group were sent so far, in all replica groups."""

    def __init__(self, name: str) -> None:
        self.count = 0
        self._name = name

    def of_next_group(self) -> Callable[[int], None]:
        """Takes how many there were of the next replica group, again and again."""
        before = self.count

        def progress(count: int) -> None:
            self.count = before + count
            show_progress(f"{self.count} redriven")

        return progress

    def report(self, how: str = "") -> None:
        clear_progress()
        report({"consumer_group": self._name, "redriven": self.count}, f"{self._name}: {self.count} redriven{how}")


def _some(name: str, found: list[DeadLetters]) -> list[DeadLetters]:
    from dledger_wire.errors import TopicNotFoundError

    if not found:
        raise TopicNotFoundError(f"consumer group {name!r} has no dead letters (dledger dlq list shows all)")
    return found


def _json(letters: DeadLetters) -> dict[str, Any]:
    names = ("consumer_group", "topic", "perm", "min_offset", "max_offset", "waiting")
    return fields_of(letters, *names, group="replica_group", redriven_upto="redriven_end")
