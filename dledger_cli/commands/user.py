"""``dledger user``: users and their credentials."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import YesOption, ask, confirm
from dledger_cli.help_page import AskingCommand, command_group
from dledger_cli.output import note, print_answer, report
from dledger_cli.watching import reading_command

if TYPE_CHECKING:
    from dledger_client.admin.security import SecurityChange

MAX_PASSWORD = 1024

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user: letters, digits and . _ @ -")]
PasswordFileOption = Annotated[
    str, typer.Option("--new-password-file", metavar="FILE", help="File with the password. Default: prompt, or the first line of stdin.")
]
NoPasswordOption = Annotated[bool, typer.Option("--no-password", help="The user logs in with a certificate only.")]


def register(root: typer.Typer) -> None:
    users = command_group(root, "user")
    users.command("create", cls=AskingCommand)(create)
    users.command("update", cls=AskingCommand)(update)
    users.command("secret", cls=AskingCommand)(secret)
    users.command("delete", cls=AskingCommand)(delete)
    reading_command(users, "list")(list_users)


def create(name: NameArgument, new_password_file: PasswordFileOption = "", no_password: NoPasswordOption = False) -> None:
    """Create a user without permissions.  dledger acl allow grants some."""
    password = _password(name, new_password_file, no_password=no_password)
    show_change(ask(lambda admin: admin.create_user(name, password)), f"created user {name}")


def update(name: NameArgument, new_password_file: PasswordFileOption = "", no_password: NoPasswordOption = False) -> None:
    """Set a new password for a user.  Users may change their own."""
    password = _password(name, new_password_file, no_password=no_password)
    show_change(ask(lambda admin: admin.update_user(name, password)), f"changed the password of user {name}")


def secret(
    name: NameArgument, revoke: Annotated[bool, typer.Option("--revoke", help="Take its secret away.")] = False, yes: YesOption = False
) -> None:
    """Show a new secret for RocketMQ clients.  The name of the user is their access key.  The old secret counts no more."""
    confirm(f"Clients that sign as user {name} are refused without the new secret. Go on?", yes)
    change = ask(lambda admin: admin.set_user_secret(name, revoke=revoke))
    if revoke:
        show_change(change, f"revoked the secret of user {name}")
        return
    answer = {"version": change.version, "waiting": list(change.waiting), "access_key": name, "secret": change.secret}
    print_answer(answer, ("ACCESS-KEY", "SECRET"), [(name, change.secret)])


def delete(name: NameArgument, yes: YesOption = False) -> None:
    """Delete a user and its rules.  Its connections are closed."""
    confirm(f"Delete user {name} and its rules?", yes)
    show_change(ask(lambda admin: admin.delete_user(name)), f"deleted user {name}")


def list_users() -> None:
    """Show users, and the administrators of the cluster file."""
    found = ask(lambda admin: admin.list_users())
    shown = [
        (user.name, "password" if user.has_password else "certificate", "cluster file" if user.in_cluster_file else "-") for user in found
    ]
    print_answer({"users": [asdict(user) for user in found]}, ("USER", "COMES-IN-WITH", "ADMINISTRATOR-OF"), shown)


def _password(name: str, file: str, *, no_password: bool) -> str | None:
    """None for a user without one.  It is never taken from the command line, where every user of the machine can see it."""
    from dledger_wire.security.credentials import read_secret

    if no_password and file:
        raise typer.BadParameter("--new-password-file and --no-password are mutually exclusive", param_hint="--no-password")
    if no_password:
        return None
    if file:
        return read_secret(str(Path(file)), "a password")
    if sys.stdin.isatty():
        given: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return given
    given = sys.stdin.readline(MAX_PASSWORD + 1).rstrip("\r\n")
    if not given or len(given) > MAX_PASSWORD:
        raise typer.BadParameter(f"expected a password of 1 to {MAX_PASSWORD} characters in the first line of stdin")
    return given


def show_change(change: SecurityChange, *done: str) -> None:
    """The lines ``done``, or JSON; then which replica groups have not confirmed it."""
    report({"version": change.version, "waiting": list(change.waiting)}, *done)
    if change.waiting:
        note(f"replica groups that have not confirmed it yet: {', '.join(change.waiting)}; they apply it as soon as they can")
