"""Who the command line is to a secured cluster: options of every command that asks one, the environment, the cluster file.

Owns their order: options come before variables of the environment (``dledger_client/runtime/security.py``), these before the cluster file,
whose block ``security`` names the authorities.  Options and the file's settings become variables of the environment
for the time of the command, so that processes it starts have them, too; a password that was typed stays in this process.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.given import not_empty, value_of
from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_wire.security.network_security import NetworkSecurity


def _option(name: str, variable: str, metavar: str, text: str) -> tuple[str, Any]:
    return variable, Annotated[str | None, typer.Option(name, metavar=metavar, help=f"{text}.", callback=not_empty)]


OPTIONS: Mapping[str, tuple[str, Any]] = {
    "login_user": _option("--user", USER, "NAME", f"User to log in as. Default: ${USER}"),
    "login_password_file": _option(
        "--password-file", PASSWORD_FILE, "FILE", f"File with its password (mode 0600). Default: ${PASSWORD_FILE}"
    ),
    "login_ca": _option("--tls-ca", CA, "FILE", f"Authorities of the nodes, PEM. Default: ${CA}, the cluster file's"),
    "login_cert": _option("--tls-cert", CERT, "FILE", f"Certificate of the user, PEM. Default: ${CERT}"),
    "login_key": _option("--tls-key", KEY, "FILE", f"Its key (mode 0600). Default: ${KEY}"),
}

_member: tuple[ClusterConfig, NetworkSecurity | None] | None = None  # of the cluster file that was asked about last


@contextlib.contextmanager
def credentials(given: Mapping[str, str | None]) -> Iterator[None]:
    """Clients made inside of this context are who the options say.  Asks for the password of --user where no file has it."""
    for variable, _ in OPTIONS.values():
        value_of(variable)
    before = {variable: os.environ.get(variable) for variable, _ in OPTIONS.values()}
    try:
        # Of what the environment says of another user nothing is taken.
        if given.get("login_user") and given["login_user"] != before[USER]:
            _forget(PASSWORD_FILE, CERT, KEY)
        elif given.get("login_cert"):
            _forget(USER, PASSWORD_FILE)
        for name, (variable, _) in OPTIONS.items():
            if value := given.get(name):
                os.environ[variable] = value
        with _typed_password(given.get("login_user") or ""):
            yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


def _forget(*variables: str) -> None:
    for variable in variables:
        os.environ.pop(variable, None)


@contextlib.contextmanager
def _typed_password(user: str) -> Iterator[None]:
    if not user or os.environ.get(PASSWORD_FILE) or os.environ.get(CERT):
        yield
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("expected --password-file, or a certificate with --tls-cert and --tls-key", param_hint="--user")
    from dledger_client.runtime.security import use_password

    with use_password(user, typer.prompt(f"Password of {user}", hide_input=True, err=True)):
        yield


def take_from(config: ClusterConfig) -> None:
    """What the cluster file says, where options and environment say nothing."""
    from broker.config.security import Step, own_path

    security = config.security
    if security is None:
        return
    if security.tls is not None and security.tls.step is not Step.OFFER and not os.environ.get(CA):
        os.environ[CA] = own_path(security.tls.ca, config.folder, "")


@contextlib.contextmanager
def as_member(config: ClusterConfig, *, whoever: bool = False) -> Iterator[None]:
    """Inside of this context clients come in as a node of the cluster file, where the options name nobody (or ``whoever`` they name) and
    this process may read the key of one: a node may see the cluster."""
    from dledger_client.runtime.security import use_security

    before = os.environ.get(CA)
    take_from(config)
    named = os.environ.get(USER) or os.environ.get(CERT)
    security = None if named and not whoever else _security_of_member(config)
    try:
        with use_security(security) if security is not None else contextlib.nullcontext():
            yield
    finally:
        if before is None:  # a process that looks at several clusters asks each by its own authorities
            os.environ.pop(CA, None)


def _security_of_member(config: ClusterConfig) -> NetworkSecurity | None:
    global _member
    if config.security is None:
        return None
    if _member is None or _member[0] is not config:
        _member = config, _first_member(config)
    return _member[1]


def _first_member(config: ClusterConfig) -> NetworkSecurity | None:
    from broker.security.setup import process_security
    from dledger_wire.errors import ConfigError
    from dledger_wire.security import principal

    members = [principal.node(config.cluster, group.name, node.id) for group, node in config.all_nodes()]
    members += [principal.name_server(config.cluster, server.id) for server in config.name_server_processes]
    for member in members:
        with contextlib.suppress(ConfigError):
            return process_security(config, member).network
    return None


def takes_credentials(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the options of who it is to the cluster."""

    @functools.wraps(command)
    def with_credentials(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name, None) for name in OPTIONS}
        with credentials(given):
            return command(*args, **options)

    signature = inspect.signature(command, eval_str=True)  # typer does not evaluate a signature that is given
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option) for name, (_, option) in OPTIONS.items()
    ]
    with_credentials.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    with_credentials.__annotations__ = command.__annotations__ | {name: option for name, (_, option) in OPTIONS.items()}
    return with_credentials
