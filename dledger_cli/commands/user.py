"""``dledger user`` and ``dledger security init``: who may come in, and the first administrator."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.context import ConfigOption, JsonOption, TimeoutOption, ask, confirm
from dledger_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from dledger_client.admin.security import SecurityChange

PASSWORD_BYTES = 24
MAX_PASSWORD = 1024

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user: letters, digits and . _ @ -")]
PasswordFileOption = Annotated[
    str, typer.Option("--new-password-file", metavar="FILE", help="File with its password. Default: asked for, or the first line of stdin.")
]
NoPasswordOption = Annotated[bool, typer.Option("--no-password", help="Only a certificate of its name counts.")]


def register(root: typer.Typer) -> None:
    users = typer.Typer(help="Users of the cluster.", no_args_is_help=True, rich_markup_mode=None)
    users.command("create", epilog="Example: dledger user create billing")(create)
    users.command("update", epilog="Example: dledger user update billing --new-password-file new")(update)
    users.command("delete", epilog="Example: dledger user delete billing --yes")(delete)
    users.command("list", epilog="Example: dledger user list")(list_users)
    root.add_typer(users, name="user")
    security = typer.Typer(help="Turn security on.", no_args_is_help=True, rich_markup_mode=None)
    security.command(
        "init",
        epilog="Examples: dledger security init admin --password-file admin.password | dledger security init --certs certs >> cluster.yaml",
    )(init)
    root.add_typer(security, name="security")


def create(
    name: NameArgument,
    new_password_file: PasswordFileOption = "",
    no_password: NoPasswordOption = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Create a user; it has no rights until dledger acl allow gives it some."""
    password = _password(name, new_password_file, no_password=no_password)
    _show(ask(config, timeout, lambda admin: admin.create_user(name, password)), f"created user {name}", as_json=as_json)


def update(
    name: NameArgument,
    new_password_file: PasswordFileOption = "",
    no_password: NoPasswordOption = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Give a user another password; users may do so for themselves."""
    password = _password(name, new_password_file, no_password=no_password)
    _show(ask(config, timeout, lambda admin: admin.update_user(name, password)), f"changed the password of user {name}", as_json=as_json)


def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    config: ConfigOption = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Delete a user and its rules; its connections end."""
    confirm(f"Delete user {name} and its rules?", yes)
    _show(ask(config, timeout, lambda admin: admin.delete_user(name)), f"deleted user {name}", as_json=as_json)


def list_users(config: ConfigOption = None, timeout: TimeoutOption = 10.0, as_json: JsonOption = False) -> None:
    """Show the users, with the administrators that the cluster file names."""
    found = ask(config, timeout, lambda admin: admin.list_users())
    if as_json:
        rows = [{"name": user.name, "has_password": user.has_password, "in_cluster_file": user.in_cluster_file} for user in found]
        print_json({"users": rows})
        return
    shown = [
        (user.name, "password" if user.has_password else "certificate", "cluster file" if user.in_cluster_file else "-") for user in found
    ]
    print_table(("USER", "COMES-IN-WITH", "ADMINISTRATOR-OF"), shown)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the first administrator.")] = "admin",
    password_file: Annotated[str, typer.Option("--password-file", metavar="FILE", help="New file for its password, which is drawn.")] = "",
    secret_file: Annotated[str, typer.Option("--secret-file", metavar="FILE", help="New file for a secret of the cluster.")] = "",
    certs: Annotated[str, typer.Option("--certs", metavar="DIR", help="Turn TLS on, with the files of dledger certs create DIR.")] = "",
) -> None:
    """Make the first administrator: writes a password that is drawn to a file, and prints what the cluster file needs."""
    from broker.config.security import verifier_text
    from dledger_wire.security.principal import is_user_name
    from dledger_wire.security.scram import password_verifier

    if not is_user_name(name):
        raise typer.BadParameter(f"{name!r}: expected letters, digits and . _ @ - (1 to 127)", param_hint="NAME")
    file = password_file or f"{name}.password"
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    _write_new(file, password)
    if secret_file:
        _write_new(secret_file, secrets.token_urlsafe(PASSWORD_BYTES))
    note(f"the password of {name} is in {file}; put this into the cluster file:")
    print("security:")
    if certs:
        print(f'  tls: {{ca: "{certs}/ca.crt", cert: "{certs}/{{id}}.crt", key: "{certs}/{{id}}.key"}}')
    if secret_file:
        print(f"  cluster_secret_file: {secret_file}")
    print("  users:")
    print("    administrators:")
    print(f'      {name}: "{verifier_text(password_verifier(name, password))}"')


def _write_new(file: str, text: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text + "\n")


def _password(name: str, file: str, *, no_password: bool) -> str | None:
    """None for a user without one.  It is never taken from the command line, where everybody on the machine can see it."""
    from dledger_wire.security.credentials import read_secret

    if no_password and file:
        raise typer.BadParameter("give either a file with a password or --no-password", param_hint="--no-password")
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


def _show(change: SecurityChange, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"version": change.version, "waiting": list(change.waiting)})
    else:
        note(done)
    if change.waiting:
        note(f"replica groups that have not confirmed it yet: {', '.join(change.waiting)}; they take it over as soon as they can")
