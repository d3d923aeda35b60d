"""``dledger spark NAME``: the jobs of pyspark_dledger, with the cluster file's addresses filled in.

Owns the way there only: arguments are the job's own (``dledger spark NAME --help``), the same as of its script for spark-submit.
"""

from __future__ import annotations

import importlib

import typer

from dledger_cli.context import ConfigOption, bootstrap_of

JOBS = {
    "archive": "Add what is new in topics to a Parquet archive by date and hour.",
    "audit": "Compare what the replicas hold of topics; exit 1 and the first difference.",
    "stats": "Volume, size and latency of topics, by tag and hour.",
    "replay": "Send a range of messages, or dead letters, to another topic.",
    "finish": "Store the rest of writes whose driver died in the commit.",
}
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def register(root: typer.Typer) -> None:
    app = typer.Typer(help="Spark jobs over the log.", no_args_is_help=True, rich_markup_mode=None)
    app.callback()(lambda: None)
    for name, text in JOBS.items():
        app.command(name, help=text, context_settings=_PASSED_ON)(_run)
    root.add_typer(app, name="spark")


def _run(context: typer.Context, config: ConfigOption = None) -> None:
    from dledger_wire.errors import InvalidArgumentError

    name, arguments = context.info_name or "", list(context.args)
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
    try:
        job = importlib.import_module(f"pyspark_dledger.jobs.{name}")
        common = importlib.import_module("pyspark_dledger.jobs.common")
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed; expected pip install 'dledger[spark]'"
        if wants_help:
            print(f"usage: dledger spark {name} [options]\n\n{JOBS[name]}\n\nIts options are told when it can run: {missing}")
            return
        raise InvalidArgumentError(missing) from None
    if not wants_help and not any(argument.partition("=")[0] == "--bootstrap" for argument in arguments):
        arguments += ["--bootstrap", bootstrap_of(config)]
    common.run_program(job.main, arguments)
