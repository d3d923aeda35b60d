"""``dledger quota``: how much users, groups and topics may send and read a second."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dledger_cli.context import ask, parse_size_option
from dledger_cli.help_page import AskingCommand, command_group
from dledger_cli.output import json_wanted, note, note_unanswered, print_answer, report, unanswered_json
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.quotas import ClusterQuota

SHOWN_NAMES = 3

Kind = Literal["user", "producer-group", "consumer-group", "topic"]
KindArgument = Annotated[Kind, typer.Argument(metavar="KIND", help="user, producer-group, consumer-group or topic.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name, or '*' for each one without a quota of its own.")]


def register(root: typer.Typer) -> None:
    quotas = command_group(root, "quota")
    quotas.command("set", cls=AskingCommand)(set_quota)
    quotas.command("delete", cls=AskingCommand)(delete)
    reading_command(quotas, "list")(list_quotas)


def set_quota(
    kind: KindArgument,
    name: NameArgument,
    produce_bytes: Annotated[str, typer.Option("--produce-bytes", metavar="SIZE", help="Bytes that may be sent a second.")] = "",
    produce_messages: Annotated[
        int | None, typer.Option("--produce-messages", metavar="N", min=1, help="Messages that may be sent a second.")
    ] = None,
    fetch_bytes: Annotated[str, typer.Option("--fetch-bytes", metavar="SIZE", help="Bytes that may be read a second.")] = "",
    fetch_messages: Annotated[
        int | None, typer.Option("--fetch-messages", metavar="N", min=1, help="Messages that may be read a second.")
    ] = None,
    unacknowledged_bytes: Annotated[
        str, typer.Option("--unacknowledged-bytes", metavar="SIZE", help="Bytes that a user may have sent without an answer yet.")
    ] = "",
    connections: Annotated[
        int | None, typer.Option("--connections", metavar="N", min=1, help="Connections of a user to one node; more are refused.")
    ] = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="No limit: exempts NAME from the quota for '*'.")] = False,
) -> None:
    """Set a quota, in place of the one that the name has.  Who exceeds it is delayed; only connections are refused."""
    produce_size, fetch_size = _size(produce_bytes, "--produce-bytes"), _size(fetch_bytes, "--fetch-bytes")
    limits = {
        "produce_bytes": produce_size,
        "produce_messages": produce_messages,
        "fetch_bytes": fetch_size,
        "fetch_messages": fetch_messages,
        "unacknowledged_bytes": _size(unacknowledged_bytes, "--unacknowledged-bytes"),
        "connections": connections,
    }
    if unlimited is not all(limit is None for limit in limits.values()):
        raise typer.BadParameter("expected at least one limit, or else --unlimited")
    ask(lambda admin: admin.set_quota(kind, name, **limits))
    report({"kind": kind, "name": name, **limits}, f"set the quota for {kind} {name}")


def _size(given: str, option: str) -> int | None:
    size = parse_size_option(given, option) if given else None
    if size is not None and size < 1:
        raise typer.BadParameter(f"{given!r}: expected at least 1 byte", param_hint=option)
    return size


def delete(kind: KindArgument, name: NameArgument) -> None:
    """Delete a quota."""
    ask(lambda admin: admin.delete_quota(kind, name))
    report({"kind": kind, "name": name}, f"deleted the quota for {kind} {name}")


def list_quotas() -> None:
    """Show quotas, what is used of them, and who has to wait.  USED is of the busiest name; rates are those of a second."""
    found = ask(lambda admin: admin.list_quotas())
    answer = {"quotas": [asdict(quota) for quota in found]} | unanswered_json(found.unanswered)
    header = ("KIND", "NAME", "LIMIT", "VALUE", "USED", "WAITING", "THROTTLED")
    print_answer(answer, header, [row for quota in found for row in _rows(quota)], right=("VALUE", "USED"))
    for quota in found:
        if quota.missing_in and not json_wanted():
            note(f"replica groups without the quota for {quota.kind} {quota.name}: {', '.join(quota.missing_in)}; set it again")
    note_unanswered(found.unanswered)


def _rows(quota: ClusterQuota) -> list[tuple[object, ...]]:
    """A row a limit."""
    waiting: dict[str, float] = {}
    throttled_s = sum(use.throttled_s for use in quota.used)
    for use in quota.used:
        if use.waits_s:
            waiting[use.name] = max(waiting.get(use.name, 0.0), use.waits_s)
    names = [f"{name} {seconds:.1f} s" for name, seconds in list(waiting.items())[:SHOWN_NAMES]]
    more = [f"{len(waiting) - SHOWN_NAMES} more"] if len(waiting) > SHOWN_NAMES else []
    shown = ", ".join(names + more), f"{throttled_s:.1f} s" if throttled_s else None
    if not quota.limits:
        return [(quota.kind, quota.name, "unlimited", None, None, *shown)]
    return [
        (quota.kind, quota.name, limit.replace("_", "-"), value, _busiest(quota, limit), *shown)
        for limit, value in sorted(quota.limits.items())
    ]


def _busiest(quota: ClusterQuota, limit: str) -> int | None:
    """Of one name, at all leaders together."""
    by_name: dict[str, float] = {}
    for use in quota.used:
        by_name[use.name] = by_name.get(use.name, 0.0) + use.used.get(limit, 0.0)
    return round(max(by_name.values())) if by_name else None
