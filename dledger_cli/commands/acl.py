"""``dledger acl``: what users may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

import typer

from dledger_cli.commands.user import show_change
from dledger_cli.context import ask
from dledger_cli.help_page import AskingCommand, ReadingCommand, command_group
from dledger_cli.output import fields_of, json_wanted, print_answer, print_json, print_line
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.security import AccessRule, Action, ResourceType

Actions = Literal["read", "write", "create", "describe", "administer"]
ACTIONS: tuple[str, ...] = get_args(Actions)
NO_RULE = "no rule allows it"

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="A user, or '*' for all users.")]
ActionsArgument = Annotated[str, typer.Argument(metavar="ACTION,...", help="read, write, create, describe, administer.")]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", metavar="T", help="Topic, or a prefix followed by *.")]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="G", help="Consumer or producer group, or a prefix followed by *.")
]
ProducerOption = Annotated[list[str] | None, typer.Option("--producer", metavar="P", help="Producer id, or a prefix followed by *.")]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
RemoveOption = Annotated[bool, typer.Option("--remove", help="Remove these rules.")]


Effect = Literal["allow", "deny"]
EFFECTS: dict[Effect, str] = {
    "allow": "Grant permissions to a user.  Default: deny.",
    "deny": "Deny permissions to a user, whatever other rules allow.",
}


def register(root: typer.Typer) -> None:
    app = command_group(root, "acl")
    for effect, text in EFFECTS.items():
        app.command(effect, cls=AskingCommand, help=text)(_changing(effect))
    reading_command(app, "list")(list_rules)
    app.command("check", cls=ReadingCommand)(check)


def _changing(effect: Effect) -> Callable[..., None]:
    """The command that adds rules of one effect, and takes them away."""

    def change_rules(
        user: UserArgument,
        actions: ActionsArgument,
        topic: TopicOption = None,
        group: GroupOption = None,
        producer: ProducerOption = None,
        cluster: ClusterOption = False,
        remove: RemoveOption = False,
    ) -> None:
        rules = _rules(effect, user, actions, _named(topic, group, producer, cluster=cluster))
        change = ask(lambda admin: admin.change_rules([], rules) if remove else admin.change_rules(rules))
        show_change(change, *(f"{'removed' if remove else 'added'}: {rule}" for rule in rules))

    return change_rules


def list_rules(
    user: Annotated[str, typer.Argument(metavar="[USER]", help="Only rules that apply to this user. Default: all.")] = "",
) -> None:
    """Show the rules."""
    _show_rules(ask(lambda admin: admin.list_rules(user)))


def check(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user.")],
    action: Annotated[str, typer.Argument(metavar="ACTION", help="read, write, create, describe or administer.")],
    topic: TopicOption = None,
    group: GroupOption = None,
    producer: ProducerOption = None,
    cluster: ClusterOption = False,
) -> None:
    """Check whether a user has a permission.  Shows the rules that decide it.  Exits with 1 if it has not."""
    named = _named(topic, group, producer, cluster=cluster)
    if action not in ACTIONS or len(named) != 1:
        raise typer.BadParameter("expected one action, and one of --topic, --group, --producer, --cluster")
    ((resource, name),) = named
    kind, what = cast("ResourceType", resource), cast("Action", action)
    found = ask(lambda admin: admin.check_access(user, what, kind, name))
    if json_wanted():
        print_json({"allowed": found.allowed, "rules": [str(rule) for rule in found.rules]})
    else:
        print("allowed" if found.allowed else "denied")
        for rule in found.rules or (NO_RULE,):
            print_line(str(rule))
    if not found.allowed:
        raise typer.Exit(1)


def _named(topics: list[str] | None, groups: list[str] | None, producers: list[str] | None, *, cluster: bool) -> list[tuple[str, str]]:
    found = [("topic", name) for name in topics or ()] + [("group", name) for name in groups or ()]
    found += [("producer", name) for name in producers or ()] + ([("cluster", "*")] if cluster else [])
    if not found:
        raise typer.BadParameter("expected at least one of --topic, --group, --producer, --cluster")
    return found


def _rules(effect: Effect, user: str, actions: str, named: list[tuple[str, str]]) -> list[AccessRule]:
    from dledger_client.admin.security import AccessRule

    wanted = [action.strip() for action in actions.split(",")]
    unknown = [action for action in wanted if action not in ACTIONS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}: expected {', '.join(ACTIONS)}", param_hint="ACTION")
    return [
        AccessRule(user, effect, cast("ResourceType", resource), name, cast("Action", action))
        for resource, name in named
        for action in wanted
    ]


def _show_rules(rules: list[AccessRule]) -> None:
    fields = ("effect", "user", "action", "resource", "pattern")
    answer = {"rules": [fields_of(rule, *fields) for rule in rules]}
    print_answer(answer, tuple(field.upper() for field in fields), [tuple(getattr(rule, field) for field in fields) for rule in rules])
