"""``dledger spark NAME``: the jobs of pyspark_dledger, with the cluster file's addresses filled in.

The arguments are the job's own (``dledger spark NAME --help``), the same as those of its script for spark-submit.
"""

from __future__ import annotations

from importlib import import_module

import typer

from dledger_cli.connection import connection
from dledger_cli.context import ConfigOption, bootstrap_of
from dledger_cli.help_page import command_group

JOBS = {
    "archive": "Append new messages to a Parquet archive by date and hour.",
    "audit": "Compare the replicas of topics.  Exits with 1 at the first difference.",
    "stats": "Volume, size and latency of topics, by tag and hour.",
    "replay": "Send a range of messages, or dead letters, to another topic.",
    "finish": "Complete writes whose driver died during the commit.",
}
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(root: typer.Typer) -> None:
    app = command_group(root, "spark")
    for name, text in JOBS.items():
        app.command(name, help=text, context_settings=_PASSED_ON)(_run)


def _run(context: typer.Context, config: ConfigOption = None) -> None:
    from dledger_wire.errors import InvalidArgumentError

    name, arguments = context.info_name or "", list(context.args)
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
    try:
        from pyspark_dledger.jobs import common

        job = import_module(f"pyspark_dledger.jobs.{name}")
    except ModuleNotFoundError as error:
        from dledger_wire.extras import install_command

        missing = f"{error.name} is not installed: {install_command('spark')}"
        if wants_help:
            print(f"usage: dledger spark {name} [options]\n\n{JOBS[name]}\n\nIts options cannot be shown: {missing}")
            return
        raise InvalidArgumentError(missing) from None
    if not wants_help:
        options = {argument.partition("=")[0] for argument in arguments}
        if "--bootstrap" not in options:
            arguments += ["--bootstrap", bootstrap_of(config)]
        given = connection().given  # of --context and the cluster file
        for option, variable, *_ in common.CREDENTIALS:
            if option not in options and given.get(variable):
                arguments += [option, given[variable]]
    common.run_program(job.main, arguments)
