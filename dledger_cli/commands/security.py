"""``dledger security init``: the first administrator, and the block ``security`` of a cluster file."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from dledger_cli.help_page import command_group
from dledger_cli.output import note

PASSWORD_BYTES = 24
FILE_MODE = 0o600


def register(root: typer.Typer) -> None:
    security = command_group(root, "security")
    security.command("init")(init)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the first administrator.")] = "admin",
    password_file: Annotated[str, typer.Option("--password-file", metavar="FILE", help="New file for the random password.")] = "",
    secret_file: Annotated[str, typer.Option("--secret-file", metavar="FILE", help="New file for the random secret of the cluster.")] = "",
    certs: Annotated[str, typer.Option("--certs", metavar="DIR", help="Enable TLS, with the files of dledger certs create DIR.")] = "",
) -> None:
    """Create the first administrator.  Writes a random password to a file, and prints the settings for the cluster file."""
    from broker.config.security import verifier_text
    from dledger_wire.security.credentials import write_new, write_new_pair
    from dledger_wire.security.principal import USER_NAME, is_user_name
    from dledger_wire.security.scram import password_verifier

    if not is_user_name(name):
        raise typer.BadParameter(f"{name!r}: expected {USER_NAME}", param_hint="NAME")
    file = password_file or f"{name}.password"
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    drawn = file, f"{password}\n".encode(), FILE_MODE
    if secret_file:
        write_new_pair(drawn, (secret_file, f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode(), FILE_MODE))
    else:
        write_new(*drawn)
    note(f"the password of {name} is in {file}; put this into the cluster file:")
    print("security:")
    if certs:
        print(f'  tls: {{ca: "{certs}/ca.crt", cert: "{certs}/{{id}}.crt", key: "{certs}/{{id}}.key"}}')
    if secret_file:
        print(f"  cluster_secret_file: {secret_file}")
    print("  users:")
    print("    administrators:")
    print(f'      {name}: "{verifier_text(password_verifier(name, password))}"')
