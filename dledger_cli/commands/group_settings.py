"""``dledger group settings`` and ``update``: what a consumer group may do, and how often its messages are retried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, bootstrap_of, load_config, run
from dledger_cli.output import print_json, print_table

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_wire._pb import retry_pb2

FIELDS = ("name", "retry_max_times", "retry_queue_nums", "consume_enable")


def register(app: typer.Typer) -> None:
    app.command("settings", epilog="Example: dledger group settings audit")(settings)
    app.command("update", epilog="Example: dledger group update audit --retry-max-times 5")(update)


def settings(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Consumer group; all that were configured when none is named.")] = "",
    group: Annotated[str, typer.Option("--group", "-g", metavar="G", help="Replica group to ask.")] = "",
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Show the settings of consumer groups; the defaults of one that nobody has configured."""
    _show(run(_settings(load_config(config), name, group, timeout)), as_json=as_json)


def update(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    retry_max_times: Annotated[int | None, typer.Option("--retry-max-times", metavar="N", min=0, help="Then it is a dead letter.")] = None,
    retry_queue_nums: Annotated[int | None, typer.Option("--retry-queue-nums", metavar="N", min=1)] = None,
    consume_enable: Annotated[bool | None, typer.Option("--consume/--no-consume", help="Whether the group may read at all.")] = None,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Change the settings of a consumer group; what is not given stays."""
    given = {
        "retry_max_times": retry_max_times,
        "retry_queue_nums": retry_queue_nums,
        "consume_enable": consume_enable,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("give at least one setting to change")
    _show([run(_update(bootstrap_of(config), name, changes, timeout))], as_json=as_json)


def _show(found: list[retry_pb2.GroupSettings], *, as_json: bool) -> None:
    if as_json:
        print_json({"groups": [{field: getattr(each, field) for field in FIELDS} for each in found]})
        return
    header = ("CONSUMER-GROUP", "RETRIES", "RETRY-QUEUES", "CONSUME")
    rows = [tuple(_cell(getattr(each, field)) for field in FIELDS) for each in found]
    print_table(header, rows, right=("RETRIES", "RETRY-QUEUES"))


def _cell(value: Any) -> Any:
    return ("yes" if value else "no") if isinstance(value, bool) else value


async def _settings(cluster: ClusterConfig, name: str, group: str, timeout_s: float) -> list[retry_pb2.GroupSettings]:
    from dledger_cli.commands.group_members import check_known
    from dledger_client.aio import Admin

    async with Admin(cluster.bootstrap(), timeout_ms=int(timeout_s * 1000)) as admin:
        configured = await admin.group_settings(group=group)
        if not name:
            return configured
        if name not in [each.name for each in configured]:
            await check_known(cluster, name, timeout_s, "dledger group update configures a new one")
        return await admin.group_settings(name, group=group)


async def _update(bootstrap: str, name: str, changes: dict[str, Any], timeout_s: float) -> retry_pb2.GroupSettings:
    from dledger_client.aio import Admin

    async with Admin(bootstrap, timeout_ms=int(timeout_s * 1000)) as admin:
        return await admin.update_group(name, **changes)
