"""``dledger group settings`` and ``update``: whether a consumer group may read, and how often its messages are retried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ask, replica_group_of
from dledger_cli.help_page import AskingCommand
from dledger_cli.output import fields_of, print_answer
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.consumer_groups import ConsumerGroupSettings
    from dledger_client.aio import Admin

FIELDS = ("name", "retry_max_times", "retry_queue_nums", "consume_enable", "consume_in_order")


def register(app: typer.Typer) -> None:
    reading_command(app, "settings")(settings)
    app.command("update", cls=AskingCommand)(update)


def settings(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Consumer group. Default: all that are configured.")] = "",
    group: Annotated[str, typer.Option("--replica-group", "-g", metavar="G", help="Replica group to ask.")] = "",
) -> None:
    """Show the settings of consumer groups.  For a named group without settings, the defaults."""

    async def work(admin: Admin) -> list[ConsumerGroupSettings]:
        replica_group = await replica_group_of(admin, group)
        configured = await admin.group_settings(replica_group=replica_group)
        if not name:
            return configured
        if name not in [each.name for each in configured]:
            await _check_exists(admin, name)
        return await admin.group_settings(name, replica_group=replica_group)

    _show(ask(work))


def update(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Consumer group.")],
    retry_max_times: Annotated[
        int | None, typer.Option("--retry-max-times", metavar="N", min=0, help="Redeliveries before a message becomes a dead letter.")
    ] = None,
    retry_queue_nums: Annotated[
        int | None, typer.Option("--retry-queue-nums", metavar="N", min=1, help="Queues of the retry topic.")
    ] = None,
    consume_enable: Annotated[bool | None, typer.Option("--consume/--no-consume", help="Whether the group may consume.")] = None,
    consume_in_order: Annotated[
        bool | None, typer.Option("--in-order/--any-order", help="The order of messages that are acknowledged one by one.")
    ] = None,
) -> None:
    """Change the settings of a consumer group.  Settings that are not given stay unchanged."""
    if retry_max_times is None and retry_queue_nums is None and consume_enable is None and consume_in_order is None:
        raise typer.BadParameter("expected at least one setting to change")

    async def work(admin: Admin) -> ConsumerGroupSettings:
        return await admin.update_group(
            name,
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queue_nums,
            consume_enable=consume_enable,
            consume_in_order=consume_in_order,
        )

    _show([ask(work)])


def _show(found: list[ConsumerGroupSettings]) -> None:
    answer = {"groups": [fields_of(each, *FIELDS) for each in found]}
    header = ("CONSUMER-GROUP", "RETRIES", "RETRY-QUEUES", "CONSUME", "IN-ORDER")
    rows = [tuple(_cell(getattr(each, field)) for field in FIELDS) for each in found]
    print_answer(answer, header, rows, right=("RETRIES", "RETRY-QUEUES"))


def _cell(value: Any) -> Any:
    return ("yes" if value else "no") if isinstance(value, bool) else value


async def _check_exists(admin: Admin, name: str) -> None:
    from dledger_wire.errors import InvalidArgumentError

    try:
        await admin.describe_group(name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error.message} (dledger group update configures a new one)") from None
