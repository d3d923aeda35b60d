"""Which cluster a command connects to, and as which user: options, variables of the environment, the context file, the cluster file.

Owns their order: options come before variables of the environment (``dledger_client/runtime/security.py``), these before the file of
``--context``, and this before the cluster file, whose block ``security`` names the authorities.  What a command is given stays in its
``Connection``, which ``ctx.obj`` carries from the root to the command: other commands of the process, and its environment, do not see it.
Processes that a command starts get it as variables (``given``); a password that was typed stays in this process.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from dledger_cli.given import not_empty, value_of
from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_wire.security.network_security import NetworkSecurity

UserOption = Annotated[str | None, typer.Option("--user", metavar="NAME", help=f"User to log in as. Default: ${USER}.", callback=not_empty)]
PasswordFileOption = Annotated[
    str | None,
    typer.Option(
        "--password-file", metavar="FILE", help=f"File with its password (mode 0600). Default: ${PASSWORD_FILE}.", callback=not_empty
    ),
]
CaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca", metavar="FILE", help=f"Authorities of the nodes, PEM. Default: ${CA}, the cluster file's.", callback=not_empty
    ),
]
CertOption = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help=f"Certificate of the user, PEM. Default: ${CERT}.", callback=not_empty)
]
KeyOption = Annotated[
    str | None, typer.Option("--tls-key", metavar="FILE", help=f"Its key (mode 0600). Default: ${KEY}.", callback=not_empty)
]
# Parameter -> variable of the environment.
LOGIN: Mapping[str, str] = {
    "login_user": USER,
    "login_password_file": PASSWORD_FILE,
    "login_ca": CA,
    "login_cert": CERT,
    "login_key": KEY,
}


@dataclass(slots=True)
class Connection:
    """Of one command.

    Attributes:
        given: Variables that stand in place of those of the environment; an empty one counts as not set.
        bootstrap: The addresses of ``--bootstrap``.
        config: The cluster file of ``--config``.
        timeout_s: Of ``--timeout``.
        uses_shipped: No cluster is named: the one that comes with dledger is used.
    """

    given: dict[str, str] = field(default_factory=dict)
    bootstrap: str = ""
    config: str | None = None
    timeout_s: float = 0.0
    uses_shipped: bool = False
    _member: tuple[ClusterConfig, NetworkSecurity | None] | None = None  # of the cluster file that was asked about last

    def variable(self, name: str) -> str:
        """A variable, as this command sees it."""
        return self.given[name] if name in self.given else value_of(name)

    def login(self) -> dict[str, str]:
        """The variables that say as which user the command connects."""
        return {variable: self.variable(variable) for variable in LOGIN.values()}

    def log_in(self, options: Mapping[str, str | None]) -> None:
        """Take the options.  Nothing is taken from the environment of what it says of another user."""
        before = self.login()
        user = options.get("login_user")
        if user and user != before[USER]:
            self._forget(PASSWORD_FILE, CERT, KEY)
        elif options.get("login_cert"):
            self._forget(USER, PASSWORD_FILE)
        self.given |= {variable: value for name, variable in LOGIN.items() if (value := options.get(name))}

    def _forget(self, *variables: str) -> None:
        self.given |= dict.fromkeys(variables, "")

    def member(self, config: ClusterConfig) -> NetworkSecurity | None:
        """That of a process of the cluster file of which this process may read the key."""
        if config.security is None:
            return None
        if self._member is None or self._member[0] is not config:
            self._member = config, _first_member(config)
        return self._member[1]


_used: ContextVar[Connection | None] = ContextVar("dledger_cli_connection", default=None)


def connection() -> Connection:
    """That of the command which runs; elsewhere what the environment says."""
    return _used.get() or Connection()


@contextlib.contextmanager
def use_connection(used: Connection, user: str = "") -> Iterator[None]:
    """Clients made inside of this context connect so.  Asks for the password of ``user``, of --user, where no file has it."""
    from dledger_client.runtime.security import use_variables

    token = _used.set(used)
    try:
        with use_variables(used.given), _typed_password(used, user):
            yield
    finally:
        _used.reset(token)


@contextlib.contextmanager
def _typed_password(used: Connection, user: str) -> Iterator[None]:
    if not user or used.variable(PASSWORD_FILE) or used.variable(CERT):
        yield
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("expected --password-file, or a certificate with --tls-cert and --tls-key", param_hint="--user")
    from dledger_client.runtime.security import use_password

    with use_password(user, typer.prompt(f"Password of {user}", hide_input=True, err=True)):
        yield


def checked_bootstrap(text: str, where: str) -> str:
    from dledger_client.cluster.channels import parse_bootstrap
    from dledger_wire.errors import InvalidArgumentError

    try:
        return ",".join(parse_bootstrap(text))
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint=where) from None


def take_authorities(config: ClusterConfig) -> None:
    """Those of the cluster file, where options and environment name none."""
    used = connection()
    used.given |= _authorities(used, config)


def _authorities(used: Connection, config: ClusterConfig) -> dict[str, str]:
    from broker.config.security import Step, own_path

    security = config.security
    if security is None or security.tls is None or security.tls.step is Step.OFFER or used.variable(CA):
        return {}
    return {CA: own_path(security.tls.ca, config.folder, "")}


@contextlib.contextmanager
def as_member(config: ClusterConfig, *, always: bool = False) -> Iterator[None]:
    """Clients made inside of this context connect as a node of the cluster file, if the options name no user (or ``always``) and this
    process may read the key of one: a node may see the cluster."""
    from dledger_client.runtime.security import use_security, use_variables

    used = connection()
    named = used.variable(USER) or used.variable(CERT)
    security = None if named and not always else used.member(config)
    # Not kept: a process that looks at several clusters asks each by its own authorities.
    with (
        use_variables(used.given | _authorities(used, config)),
        use_security(security) if security is not None else contextlib.nullcontext(),
    ):
        yield


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
