"""The commands of ``dledger`` by name, each imported and built when it is asked for: no process pays for commands that it does not run.

Owns which module has which command, and the options that commands have in common.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperCommand

from dledger_cli.connection import LOGIN, CaOption, CertOption, KeyOption, PasswordFileOption, UserOption
from dledger_cli.context import BootstrapOption, ConfigOption
from dledger_cli.help_page import HelpCommand, HelpGroup, declared_options, write_connection_options
from dledger_wire.errors import ConfigError

COMMANDS = "dledger_cli.commands"
# In the order of the help: what does one thing, then groups of commands.
TABLE = {
    "demo": "dledger_cli.demo.command",
    "up": f"{COMMANDS}.updown",
    "down": f"{COMMANDS}.updown",
    "node": f"{COMMANDS}.node",
    "console": f"{COMMANDS}.console",
    "status": f"{COMMANDS}.status",
    "top": "dledger_cli.top.command",
    "route": f"{COMMANDS}.route",
    "produce": f"{COMMANDS}.produce",
    "consume": f"{COMMANDS}.consume",
    "expire": f"{COMMANDS}.expire",
    "backup": f"{COMMANDS}.backup",
    "restore": f"{COMMANDS}.restore",
    "verify": f"{COMMANDS}.verify",
    "dump": f"{COMMANDS}.dump",
    "drill": "dledger_drill.command.command",
    "nameserver": f"{COMMANDS}.nameserver",
    "topic": f"{COMMANDS}.topic",
    "message": f"{COMMANDS}.message",
    "group": f"{COMMANDS}.group",
    "dlq": f"{COMMANDS}.dlq",
    "transaction": f"{COMMANDS}.transaction",
    "leader": f"{COMMANDS}.leader",
    "log": f"{COMMANDS}.log",
    "member": f"{COMMANDS}.member",
    "cluster": f"{COMMANDS}.cluster",
    "certs": f"{COMMANDS}.certs",
    "user": f"{COMMANDS}.user",
    "security": f"{COMMANDS}.security",
    "acl": f"{COMMANDS}.acl",
    "audit": f"{COMMANDS}.audit",
    "bench": "dledger_drill.bench.commands",
    "spark": f"{COMMANDS}.spark",
}
# Commands of packages that are distributions of their own: a node holds no fault injector (docs/adr/0047).
ELSEWHERE = {name: module.partition(".")[0] for name, module in TABLE.items() if not module.startswith("dledger_cli.")}
LOGIN_ONLY = ("up", "down", "drill")  # these need a cluster file, or have one
ASK_NO_CLUSTER = ("node", "certs", "restore", "spark")  # the jobs of Spark have options of their own


class RootGroup(HelpGroup):
    """The commands of the table whose package is installed.  Names are known without an import: for the shell's completion and for what was
    misspelt."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        absent = {name for name, package in ELSEWHERE.items() if find_spec(package) is None}
        self.commands = _BuiltLater(dict.fromkeys(name for name in TABLE if name not in absent))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """ConfigError names the distribution to install for a command whose package is not there."""
        if cmd_name in ELSEWHERE and cmd_name not in self.commands and not ctx.resilient_parsing:
            distribution = ELSEWHERE[cmd_name].replace("_", "-")
            raise ConfigError(f"dledger {cmd_name} needs the package {distribution}: pip install {distribution}")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        super().format_commands(ctx, formatter)
        write_connection_options(ctx, formatter, declared_options(_connection))


def _connection(
    config: ConfigOption = None,
    bootstrap: BootstrapOption = None,
    login_user: UserOption = None,
    login_password_file: PasswordFileOption = None,
    login_ca: CaOption = None,
    login_cert: CertOption = None,
    login_key: KeyOption = None,
) -> None:
    """The options by which commands connect to a cluster.  They declare --config themselves."""


class _BuiltLater(UserDict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _built(name)
        return self.data[name]


def _built(name: str) -> Any:
    root = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    root.callback()(lambda: None)  # one command alone would be the root itself
    import_module(TABLE[name]).register(root)
    _set_class(root)
    built = typer.main.get_group(root).commands[name]
    if name not in ASK_NO_CLUSTER:
        for command in getattr(built, "commands", {name: built}).values():
            _connect(command, login_only=name in LOGIN_ONLY)
    return built


def _set_class(commands: typer.Typer) -> None:
    for nested in commands.registered_groups:
        if nested.typer_instance is not None:
            _set_class(nested.typer_instance)
    for command in commands.registered_commands:
        if command.cls is TyperCommand:
            command.cls = HelpCommand


def _connect(command: Any, *, login_only: bool) -> None:
    """Every command that takes a cluster file to find a running cluster takes addresses as well, and a user to log in as."""
    own = {param.name for param in command.params} & {"config"}
    if not own and not login_only:
        return
    added = {*LOGIN} if login_only else {"bootstrap", *LOGIN}
    command.params += [option for option in declared_options(_connection) if option.name in added]
    command.connection = {*own, *added}
