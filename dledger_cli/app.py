"""The root of the command line: options before a command, and the exit codes.

Exit codes: 0 success, 1 an operating error in one line on stderr (with --json one object), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from dledger_cli.command_table import RootGroup
from dledger_cli.connection import Connection
from dledger_cli.contexts import variables_of
from dledger_cli.given import not_empty, value_of
from dledger_cli.output import end_quietly_at_closed_pipe, error_line, show_log_lines, use_json
from dledger_client.runtime.allocator import keep_large_blocks
from dledger_wire.printable import printable, printable_lines
from dledger_wire.version import installed_version

VERBOSE = "DLEDGER_VERBOSE"

app = typer.Typer(
    name="dledger",
    cls=RootGroup,
    help="Replicated message storage: run nodes, send and read messages, administer a cluster.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"dledger {installed_version()}")
        raise typer.Exit


@app.callback()
def _root(
    command: typer.Context,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            help="Cluster and user of ~/.config/dledger/NAME.yaml, or of a path. Default: $DLEDGER_CONTEXT.",
            callback=not_empty,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    connection = command.ensure_object(Connection)
    if verbose:
        connection.given[VERBOSE] = "1"
    if named := context or value_of("DLEDGER_CONTEXT"):
        connection.given |= variables_of(named)
    use_json(False)  # until the command says otherwise


def main() -> None:
    """Entry point of ``dledger``."""
    end_quietly_at_closed_pipe()
    show_log_lines()
    keep_large_blocks()
    connection = Connection()
    try:
        try:
            app(obj=connection)
        finally:
            sys.stdout.flush()  # here, where a failure becomes an error line
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - one line for users, a traceback on demand
        if connection.given.get(VERBOSE) or os.environ.get(VERBOSE):
            from traceback import format_exc

            print(printable_lines(format_exc()), end="", file=sys.stderr)
        error_line(_text_of(error), error)
        sys.exit(1)


def _text_of(error: BaseException) -> str:
    """One line: the text of an operating error; for any other error its class too, since that is a bug."""
    from dledger_wire.errors import ConfigError, DledgerError

    if isinstance(error, ConfigError):
        return error.message  # a line for each mistake
    if isinstance(error, DledgerError):
        return printable(error.message)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} (internal error; re-run with --verbose for the traceback)"
