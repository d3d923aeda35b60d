"""``dledger drill``: a private cluster is broken on purpose, and what survived is proved."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import parse_duration_option
from dledger_cli.local.signals import ended_as_by_ctrl_c
from dledger_cli.output import note, print_table
from dledger_drill.command.choices import ALL, check_writable, faults_of, need_tls, settings_in, workloads_of
from dledger_drill.command.cluster import DrillFolder, cluster_in_use, missing, private_cluster
from dledger_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from dledger_drill.plan.model import DrillOptions
    from dledger_drill.report.model import Report
    from dledger_drill.run.runner import Drill

LIST = "list"
BROKEN, STOPPED, INTERRUPTED = 1, 3, 130
DEFAULT_ROUNDS = 20


def register(app: typer.Typer) -> None:
    app.command("drill")(drill)


def drill(
    faults: Annotated[str, typer.Option("--faults", metavar="F,...|list", help="Faults or families of faults; list shows all.")] = ALL,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", min=1, help=f"Number of rounds (default {DEFAULT_ROUNDS}).")
    ] = None,
    duration: Annotated[str, typer.Option("--duration", metavar="TIME", help="Begin no round after this time, such as 30m.")] = "",
    workloads: Annotated[str, typer.Option("--workloads", metavar="W,...", help="Workloads (default: all but Spark's).")] = "",
    seed: Annotated[int | None, typer.Option("--seed", metavar="S", min=0, help="Seed of the rounds (default: random).")] = None,
    only_round: Annotated[int | None, typer.Option("--only-round", metavar="N", min=1, help="Run this round alone.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Nodes of each replica group: 3 or 5.")] = 3,
    groups: Annotated[int, typer.Option("--replica-groups", metavar="N", min=1, max=4, help="Number of replica groups.")] = 2,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", help="Whether nodes speak TLS (default: if a fault needs it).")] = None,
    settings: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings of the private cluster: blocks store, raft, broker ...")
    ] = None,
    against: Annotated[
        str, typer.Option("--against", metavar="CLUSTER.yaml", help="Drill a cluster in use, with harmless faults only.")
    ] = "",
    restart_command: Annotated[
        str, typer.Option("--restart-command", metavar="LINE", help="With --against: shell command that restarts node $DLEDGER_NODE.")
    ] = "",
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write the report as a page.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as a JSON document.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="Keep logs, data and history in this new folder.")] = None,
) -> None:
    """Inject faults into a private cluster and check guarantees.  Runs in rounds, under load, and checks the history of its clients.

    Exits with 1 if a message was lost, duplicated, changed or reordered, or another guarantee was violated; with 3 if it stopped early.
    """
    from dledger_drill.plan.model import DrillOptions

    asked = _Asked(faults, settings, against, restart_command, report, json_file, keep)
    asked.check(nodes, {"--nodes": nodes != 3, "--replica-groups": groups != 2, "--config": settings, "--tls": tls is not None})
    if faults == LIST:
        _list(asked, nodes=nodes, tls=tls is not False)
        return
    names = faults_of(faults, against)
    duration_s = parse_duration_option(duration, "--duration") / 1000 if duration else None
    options = DrillOptions(
        faults=names,
        workloads=workloads_of(workloads),
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        rounds=DEFAULT_ROUNDS if rounds is None and duration_s is None else rounds,
        duration_s=duration_s,
        only_round=_one_round(only_round, rounds, duration),
        nodes=nodes,
        groups=groups,
        tls=need_tls(names) if tls is None else tls,
        settings=settings_in(settings),
    )
    if status := _status(_run(options, asked)):
        raise typer.Exit(status)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options that are not the drill's own."""

    faults: str
    settings: Path | None
    against: str
    restart_command: str
    report: Path | None
    json_file: Path | None
    keep: Path | None

    def check(self, nodes: int, private: Mapping[str, object]) -> None:
        """``private``: options of a private cluster, and whether they were given."""
        if nodes not in (3, 5):
            raise typer.BadParameter(f"{nodes}: expected 3 or 5", param_hint="--nodes")
        if self.restart_command and not self.against:
            raise typer.BadParameter("requires --against", param_hint="--restart-command")
        wrong = next((option for option, given in private.items() if given and self.against), None)
        if wrong is not None:
            raise typer.BadParameter("applies to a private cluster; expected without --against", param_hint=wrong)
        check_writable(self.report, "--report")
        check_writable(self.json_file, "--json")


def _one_round(number: int | None, rounds: int | None, duration: str) -> int | None:
    if number is not None and (rounds is not None or duration):
        raise typer.BadParameter("is one round; expected without --rounds and --duration", param_hint="--only-round")
    return number


def _status(found: Report) -> int:
    if found.broken:
        return BROKEN
    if found.interrupted:
        return INTERRUPTED
    return 0 if found.passed else STOPPED


def _run(options: DrillOptions, asked: _Asked) -> Report:
    """The drill, and its report in the files that were asked for."""
    from dledger_drill.run.runner import Drill

    folder = DrillFolder(asked.keep)
    try:
        with ended_as_by_ctrl_c():
            make = cluster_in_use(asked.against, asked.restart_command) if asked.against else private_cluster(options, folder.path)
            without = missing(asked.against, asked.restart_command, nodes=options.nodes, tls=options.tls)
            with _shown() as shown:
                drill_ = _made(lambda: Drill(options, folder.path, partial(_command, options, asked), shown, make, without))
                folder.kept = True
                found = drill_.run()
        folder.kept = asked.keep is not None or found.broken or bool(found.problem)
        _write(found, asked)
    finally:
        folder.close()
    return found


def _made(make: Callable[[], Drill]) -> Drill:
    try:
        return make()
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--faults") from None


def _list(asked: _Asked, *, nodes: int, tls: bool) -> None:
    """What a drill with these options could do."""
    from dledger_drill.faults.catalogue import CATALOGUE, impossible

    names = faults_of(ALL, asked.against)
    why_not = impossible(names, missing(asked.against, asked.restart_command, nodes=nodes, tls=tls))
    rows = [(name, CATALOGUE[name].family, CATALOGUE[name].help, why_not.get(name, "")) for name in names]
    print_table(("FAULT", "FAMILY", "WHAT IT DOES", "NOT POSSIBLE HERE"), rows)


def _command(options: DrillOptions, asked: _Asked, only_round: int | None) -> str:
    """What repeats this drill, or one round of it."""
    from dledger_drill.workloads.spec import DEFAULT_WORKLOADS

    parts = ["dledger", "drill", "--seed", str(options.seed)]
    parts += ["--faults", asked.faults] if asked.faults != ALL else []
    parts += ["--workloads", ",".join(options.workloads)] if options.workloads != DEFAULT_WORKLOADS else []
    parts += ["--nodes", str(options.nodes)] if options.nodes != 3 else []
    parts += ["--replica-groups", str(options.groups)] if options.groups != 2 else []
    parts += ["--config", str(asked.settings)] if asked.settings is not None else []
    parts += ["--tls" if options.tls else "--no-tls"] if options.tls != need_tls(options.faults) else []
    parts += ["--against", asked.against] if asked.against else []
    parts += ["--restart-command", asked.restart_command] if asked.restart_command else []
    number = options.only_round if only_round is None else only_round
    if number is not None:
        parts += ["--only-round", str(number)]
    elif options.rounds not in (None, DEFAULT_ROUNDS):
        parts += ["--rounds", str(options.rounds)]
    if number is None and options.duration_s is not None:
        parts += ["--duration", f"{options.duration_s:g}s"]
    return shlex.join(parts)


def _shown() -> Any:
    from rich.console import Console

    from dledger_drill.report.terminal import Lines, LiveView

    console = Console(stderr=True)
    return LiveView(console) if sys.stderr.isatty() else Lines(console)


def _write(found: Report, asked: _Asked) -> None:
    """The files that were asked for, and the verdict, which is printed also when a file cannot be written."""
    from dledger_drill.report.document import write_document
    from dledger_drill.report.page import write_page
    from dledger_drill.report.statistics import verdict
    from dledger_drill.report.terminal import closing_lines

    for line in closing_lines(found):
        note(line)
    try:
        if asked.json_file is not None:
            write_document(found, asked.json_file)
        if asked.report is not None:
            write_page(found, asked.report)
    finally:
        typer.echo(f"{verdict(found)}{f'; report {asked.report}' if asked.report is not None else ''}")
