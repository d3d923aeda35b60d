"""Commands as the command line makes them: their connection to a cluster, and their help page.

Owns how options and their defaults are shown, for ``--help`` and for the reference page of the documentation, and that a command runs with
the ``Connection`` that its options describe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dledger_cli.connection import Connection, checked_bootstrap, use_connection
from dledger_cli.context import CHANGE_S, LONG_S, READ_S, ConfigOption, JsonOption, TimeoutOption

CONNECTION = "Connection options"


@cache
def examples() -> Mapping[str, list[str]]:
    """By command, without ``dledger``: the examples that its help shows."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("examples.toml").read_text(encoding="utf-8"))


def command_group(root: typer.Typer, name: str, *, no_args_is_help: bool = True) -> typer.Typer:
    """A group of commands.  Its summary is the one in ``command_table``."""
    group = typer.Typer(cls=HelpGroup, no_args_is_help=no_args_is_help, rich_markup_mode=None)
    root.add_typer(group, name=name)
    return group


def declared_options(declaration: Callable[..., None]) -> list[Any]:
    """The options that a function declares by its parameters, for commands that get them in addition to their own."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(declaration)
    return list(typer.main.get_command(app).params)


class HelpPage:
    """Options of the connection are named in one line, since ``dledger --help`` describes them; examples stand one a line."""

    connection: Collection[str] = ()  # parameters that say which cluster is asked, and as which user

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        pieces = [self.options_metavar or ""]
        return pieces + [usage(param) for param in self.get_params(ctx) if param.param_type_name == "argument"]

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        shown = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        arguments = [param for param in shown if param.param_type_name == "argument"]
        connection = [param for param in shown if param.name in self.connection]
        options = [param for param in shown if param not in arguments and param not in connection]
        for title, params in (("Arguments", arguments), ("Options", options)):
            if params:
                with formatter.section(title):
                    formatter.write_dl([record(param, ctx) for param in params])
        if connection:
            with formatter.section(f"{CONNECTION} (see dledger --help)"):
                formatter.write(f"  {' '.join(map(long_name, connection))}\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if lines := examples().get(ctx.command_path.removeprefix(f"{ctx.find_root().command_path} ")):
            with formatter.section("Examples" if len(lines) > 1 else "Example"):
                formatter.write("".join(f"  {line}\n" for line in lines))


class HelpCommand(HelpPage, TyperCommand):
    """A command.  It does not get options of its connection, which are in ``connection()`` while it runs."""

    given_by_connection: tuple[str, ...] = ()  # of the common options: those that it takes, and its function does not declare
    timeout_s = CHANGE_S

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for option in declared_options(_common) if self.given_by_connection else ():
            if option.name in self.given_by_connection:
                option.default = self.timeout_s if option.name == "timeout" else option.default
                self.params.append(option)

    def invoke(self, ctx: Any) -> Any:
        root = ctx.find_object(Connection) or Connection()
        used = Connection(dict(root.given), config=ctx.params.get("config"), timeout_s=ctx.params.get("timeout", 0.0))
        options = {name: ctx.params.pop(name) for name in self.connection if name != "config"}
        if bootstrap := options.get("bootstrap"):
            if ctx.params.get("config"):
                raise typer.BadParameter("--bootstrap and --config are mutually exclusive", param_hint="--bootstrap")
            used.bootstrap = checked_bootstrap(bootstrap, "--bootstrap")
        if options:
            used.log_in(options)
        with use_connection(used, options.get("login_user") or ""):
            return self.run(ctx)

    def run(self, ctx: Any) -> Any:
        ctx.params = {name: value for name, value in ctx.params.items() if name not in self.given_by_connection}
        return super().invoke(ctx)


def _common(config: ConfigOption = None, timeout: TimeoutOption = CHANGE_S, as_json: JsonOption = False) -> None:
    """The options of commands that ask a cluster."""


class JsonCommand(HelpCommand):
    """Takes ``--json``."""

    given_by_connection: tuple[str, ...] = ("as_json",)


class FileCommand(HelpCommand):
    """Takes ``--config`` and ``--json``."""

    given_by_connection: tuple[str, ...] = ("config", "as_json")


class AskingCommand(HelpCommand):
    """Takes ``--config``, ``--timeout`` and ``--json``: ``ask`` and ``json_wanted`` heed them."""

    given_by_connection: tuple[str, ...] = ("config", "timeout", "as_json")


class LongCommand(AskingCommand):
    timeout_s = LONG_S


class ReadingCommand(AskingCommand):
    timeout_s = READ_S


class HelpGroup(HelpPage, TyperGroup):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), self.subcommand_metavar]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def write_connection_options(ctx: Any, formatter: Any, options: Iterable[Any]) -> None:
    """The page of the root describes them once for all commands."""
    with formatter.section(f"{CONNECTION} of commands that ask a cluster"):
        formatter.write_dl([record(option, ctx) for option in options])


def long_name(param: Any) -> str:
    return str(next(name for name in param.opts if name.startswith("--")))


def argument_name(param: Any) -> str:
    return str(param.metavar or param.name.upper()).strip("[]")


def usage(param: Any) -> str:
    """An argument in the line of usage."""
    name = argument_name(param) + ("..." if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def record(param: Any, ctx: Any) -> tuple[str, str]:
    """Name and meaning of an argument or option.  A default that stands for "not given" is left out."""
    if param.param_type_name == "argument":
        return argument_name(param), param.help or ""
    name, _ = param.get_help_record(ctx)
    facts = [f"default: {_text(param.default)}"] if _is_shown(param) else []
    if limits := _limits(param):
        facts.append(limits)
    if param.required:
        facts.append("required")
    meaning = param.help or ""
    return name, f"{meaning}  [{'; '.join(facts)}]" if facts else meaning


def _is_shown(param: Any) -> bool:
    default = param.default
    if param.is_flag or not param.show_default or callable(default):
        return False
    return default > 0 if isinstance(default, int | float) else isinstance(default, str) and default not in ("", "0")


def _text(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def _limits(param: Any) -> str:
    """Only ranges with both ends: that a number is not below zero goes without saying."""
    low, high = getattr(param.type, "min", None), getattr(param.type, "max", None)
    return f"{low:g} to {high:g}" if low is not None and high is not None else ""
