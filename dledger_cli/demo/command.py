"""``dledger demo``: a cluster on this machine loses its leader and no message.

Owns the run: its temporary folder, and that nothing is left of it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from dledger_cli.local.signals import ended_as_by_ctrl_c
from dledger_cli.local.swept_folder import SweptFolder, swept_folder
from dledger_cli.output import note, print_line

NEXT = "next: dledger up starts a cluster that stays, with its files in ./data; dledger --help lists all commands"


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    spark: Annotated[bool, typer.Option("--spark", help="Let a Spark job read the messages, too. Needs pyspark and Java 17.")] = False,
    file: Annotated[str, typer.Option("--input", metavar="FILE", help="Send the lines of FILE instead of 2000 made ones.")] = "",
    json_lines: Annotated[
        bool,
        typer.Option("--json-lines", help="With --input: each line is JSON; of an object, body, tags and queue_key are taken."),
    ] = False,
) -> None:
    """Show that a cluster loses its leader and no message.

    Three nodes run on this machine, in a temporary folder. Their leader is killed while messages are sent, and all messages are read and
    compared. No process and no file is left, also after Ctrl-C. Exit status 1: a message was lost, duplicated, changed or reordered.
    """
    if json_lines and not file:
        raise typer.BadParameter("needs --input", param_hint="--json-lines")
    if spark:
        from dledger_cli.demo.spark import check_installed

        check_installed()
    began = time.monotonic()
    try:
        with ended_as_by_ctrl_c(), swept_folder("dledger-demo-") as folder:
            good = _run(folder, file, spark=spark, json_lines=json_lines)
    except KeyboardInterrupt:
        note("interrupted; the nodes were ended and their files removed")
        raise typer.Exit(130) from None
    if not good:
        note(f"logs are kept in {folder.path}")
        raise typer.Exit(1)
    print_line("")
    print_line(f"took {time.monotonic() - began:.1f} s; the nodes were ended and their files removed")
    print_line(NEXT)


def _run(folder: SweptFolder, file: str, *, spark: bool, json_lines: bool) -> bool:
    from dledger_cli.demo.load import read_lines, sample_lines
    from dledger_cli.demo.rehearsal import rehearse
    from dledger_cli.local.private_cluster import PrivateCluster

    lines = read_lines(Path(file), as_json=json_lines) if file else sample_lines()
    try:
        with PrivateCluster(folder.path / "data", settings={"store": {"mappedFileSizeCommitLog": "64MiB"}}) as cluster:
            good = rehearse(cluster, lines, file or "made here", folder.path, spark=spark)
    except Exception:
        folder.keep()
        note(f"logs are kept in {folder.path}")
        raise
    if not good:
        folder.keep()
    return good
