"""``dledger dlq``: dead letters - what there is, letting consumers read them, sending them to where they came from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, bootstrap_of, run
from dledger_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from dledger_client.admin.dead_letters import DeadLetters

OPENED, CLOSED = 6, 2
FIELDS = ("consumer_group", "group", "topic", "perm", "min_offset", "max_offset", "redriven_upto", "waiting")

NameArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.")]


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Dead letters of consumer groups.", no_args_is_help=True, rich_markup_mode=None)
    app.command("list", epilog="Example: dledger dlq list --json")(list_letters)
    app.command("open", epilog="Examples: dledger dlq open audit | dledger dlq open audit --close")(open_letters)
    app.command("redrive", epilog="Examples: dledger dlq redrive audit --rate 100 | dledger dlq redrive audit --max 10 --to-group")(redrive)
    root.add_typer(app, name="dlq")


def list_letters(
    name: Annotated[str, typer.Argument(metavar="[GROUP]", help="Consumer group; all when none is named.")] = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """List dead letters by consumer group: how many there are, and how many were not redriven yet."""
    found = run(_list(bootstrap_of(config), name, timeout))
    if as_json:
        print_json({"dead_letters": [{field: getattr(each, field) for field in FIELDS} for each in found]})
        return
    header = ("CONSUMER-GROUP", "REPLICA-GROUP", "MESSAGES", "WAITING", "READABLE")
    rows = [
        (each.consumer_group, each.group, each.max_offset - each.min_offset, each.waiting, "yes" if each.perm & 4 else "no")
        for each in found
    ]
    print_table(header, rows, right=("MESSAGES", "WAITING"))


def open_letters(
    name: NameArgument,
    close: Annotated[bool, typer.Option("--close", help="Take the permission to read them away again.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Let consumers read the dead letters of a group."""
    perm = CLOSED if close else OPENED
    topic = run(_open(bootstrap_of(config), name, perm, timeout))
    if as_json:
        print_json({"consumer_group": name, "topic": topic, "perm": perm})
    else:
        note(f"{topic}: {'closed' if close else 'open'} (permission {perm})")


def redrive(
    name: NameArgument,
    most: Annotated[int, typer.Option("--max", metavar="N", min=0, help="No more than that many; 0: all there are now.")] = 0,
    rate: Annotated[float, typer.Option("--rate", metavar="R", min=0.0, help="Messages a second; 0: no limit.")] = 1000.0,
    to_group: Annotated[bool, typer.Option("--to-group", help="To this group alone, in place of the original topic.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters to where they came from; made again it goes on, and sends none twice."""
    count = run(_redrive(bootstrap_of(config), name, most, rate, to_group, timeout))
    if as_json:
        print_json({"consumer_group": name, "redriven": count})
    else:
        note(f"{name}: {count} redriven")


async def _list(bootstrap: str, name: str, timeout_s: float) -> list[DeadLetters]:
    from dledger_client.aio import Admin

    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        return await admin.dead_letters(name)


def _some(name: str, found: list[DeadLetters]) -> list[DeadLetters]:
    from dledger_wire.errors import TopicNotFoundError

    if not found:
        raise TopicNotFoundError(f"consumer group {name!r} has no dead letters (dledger dlq list shows all)")
    return found


async def _open(bootstrap: str, name: str, perm: int, timeout_s: float) -> str:
    from dledger_client.aio import Admin

    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        found = _some(name, await admin.dead_letters(name))
        for letters in found:
            await admin.update_topic(letters.topic, perm=perm, group=letters.group)
    return found[0].topic


async def _redrive(bootstrap: str, name: str, most: int, rate: float, to_group: bool, timeout_s: float) -> int:
    from dledger_client.aio import Admin

    def told(count: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{count} redriven", end="", file=sys.stderr, flush=True)

    total = 0
    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        for letters in _some(name, await admin.dead_letters(name)):
            left = most - total
            if most and not left:
                break
            total += await admin.redrive(letters, count=left if most else 0, rate=rate, to_retry_topic=to_group, told=told)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return total
