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
# Module and summary, in the order of the help: what does one thing, then groups of commands.  A list of them needs no import.
TABLE = {
    "demo": ("dledger_cli.demo.command", "Show that a cluster loses its leader and no message."),
    "up": (f"{COMMANDS}.updown", "Start all nodes and name servers in the background."),
    "down": (f"{COMMANDS}.updown", "Stop all nodes and name servers of the data folder."),
    "node": (f"{COMMANDS}.node", "Run one node in the foreground."),
    "console": (f"{COMMANDS}.console", "Serve the web console."),
    "status": (f"{COMMANDS}.status", "Show role, term, log indexes, lag and disk of every node."),
    "top": ("dledger_cli.top.command", "Show a running cluster live."),
    "route": (f"{COMMANDS}.route", "Show how clients route a topic."),
    "produce": (f"{COMMANDS}.produce", "Send each line of stdin (or of a file) as one message."),
    "consume": (f"{COMMANDS}.consume", "Print message bodies, one a line."),
    "expire": (f"{COMMANDS}.expire", "Delete old messages."),
    "backup": (f"{COMMANDS}.backup", "Back up all replica groups."),
    "restore": (f"{COMMANDS}.restore", "Create data folders of a new cluster from a backup."),
    "import-rocketmq": (f"{COMMANDS}.import_rocketmq", "Import the store of a RocketMQ broker."),
    "verify": (f"{COMMANDS}.verify", "Check logs, index units and queues offline, or backups."),
    "dump": (f"{COMMANDS}.dump", "Print the entries, units or records of a store file."),
    "drill": ("dledger_drill.command.command", "Inject faults into a private cluster and check guarantees."),
    "nameserver": (f"{COMMANDS}.nameserver", "Run a name server, or show all of them."),
    "topic": (f"{COMMANDS}.topic", "Create, change, list, describe and delete topics."),
    "message": (f"{COMMANDS}.message", "Find and trace single messages."),
    "group": (f"{COMMANDS}.group", "Consumer groups: positions and lag."),
    "dlq": (f"{COMMANDS}.dlq", "Dead letters of consumer groups."),
    "transaction": (f"{COMMANDS}.transaction", "Transactions of producers."),
    "leader": (f"{COMMANDS}.leader", "Leadership of a replica group."),
    "connections": (f"{COMMANDS}.connections", "Show the connections of nodes, which are held up, and why."),
    "log": (f"{COMMANDS}.log", "The logs of nodes and name servers."),
    "member": (f"{COMMANDS}.member", "Members of a replica group: learners and voters."),
    "cluster": (f"{COMMANDS}.cluster", "Replica groups of a cluster: add, drain, remove, upgrade."),
    "certs": (f"{COMMANDS}.certs", "Create certificates, and list when they expire."),
    "user": (f"{COMMANDS}.user", "Users of the cluster."),
    "security": (f"{COMMANDS}.security", "Prepare the security settings of a cluster."),
    "acl": (f"{COMMANDS}.acl", "Permissions of users: rules that allow and deny."),
    "quota": (f"{COMMANDS}.quota", "Quotas: how much may be sent and read a second."),
    "audit": (f"{COMMANDS}.audit", "The audit log: administrative actions and refusals."),
    "bench": ("dledger_drill.bench.commands", "Measure: produce, consume, latency, failover, overload."),
    "spark": (f"{COMMANDS}.spark", "Spark jobs over the log."),
}
# Commands of packages that are distributions of their own: a node holds no fault injector (docs/adr/0047).
ELSEWHERE = {name: module.partition(".")[0] for name, (module, _) in TABLE.items() if not module.startswith("dledger_cli.")}
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
        with formatter.section("Commands"):
            formatter.write_dl([(name, TABLE[name][1]) for name in self.commands])
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
    import_module(TABLE[name][0]).register(root)
    _set_class(root)
    built = typer.main.get_group(root).commands[name]
    if hasattr(built, "commands"):
        built.help = TABLE[name][1]
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
