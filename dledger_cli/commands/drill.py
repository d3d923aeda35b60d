"""``dledger drill``: a private cluster is broken on purpose, and what survived is proved."""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import parse_duration_option
from dledger_cli.output import note, print_table
from dledger_wire.errors import ConfigError, InvalidArgumentError

if TYPE_CHECKING:
    from dledger_drill.plan.model import DrillOptions
    from dledger_drill.report.model import Report

EXAMPLES = "Examples: dledger drill | dledger drill --faults kill,partition --rounds 10 --report drill.html | dledger drill --faults list"
LIST = "list"
INTERRUPTED = 130
DEFAULT_ROUNDS = 20


def register(app: typer.Typer) -> None:
    app.command("drill", epilog=EXAMPLES)(drill)


def drill(
    faults: Annotated[str, typer.Option("--faults", metavar="F,...|list", help="Faults or families of them; list shows all.")] = "all",
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", min=1, help=f"How many (default {DEFAULT_ROUNDS}).")] = None,
    duration: Annotated[str, typer.Option("--duration", metavar="TIME", help="Begin no round after this time, such as 30m.")] = "",
    workloads: Annotated[str, typer.Option("--workloads", metavar="W,...", help="Workloads (default: all but Spark's).")] = "",
    seed: Annotated[int | None, typer.Option("--seed", metavar="S", min=0, help="Rounds follow from it (default: one drawn).")] = None,
    only_round: Annotated[int | None, typer.Option("--only-round", metavar="N", min=1, help="Run this round alone.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Nodes of each replica group: 3 or 5.")] = 3,
    groups: Annotated[int, typer.Option("--groups", metavar="N", min=1, max=4, help="Replica groups.")] = 2,
    settings: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings of the private cluster: blocks store, raft, broker ...")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write the report as a page.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as a JSON document.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="Keep logs, data and history in this new folder.")] = None,
) -> None:
    """Start a private cluster, break it on purpose round after round, and prove from the history of its clients what survived.

    Exit status 1: something was lost, doubled, changed or reordered, or another promise was broken.
    """
    from dledger_drill.hosts.capabilities import probe
    from dledger_drill.run.runner import Drill

    if faults == LIST:
        _list()
        return
    options = _options(faults, rounds, duration, workloads, seed, only_round, nodes, groups, settings)
    for file in (report, json_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise typer.BadParameter(f"{file.absolute().parent}: no such folder")
    folder = _folder(keep)
    try:
        with _shown() as shown:
            found = Drill(options, probe(), folder, _command(options, faults, settings), shown).run()
        _write(found, report, json_file)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not found.passed or not found.rounds:
        raise typer.Exit(1)


def _list() -> None:
    from dledger_drill.faults.catalogue import CATALOGUE, impossible
    from dledger_drill.hosts.capabilities import probe

    missing = impossible(CATALOGUE, probe().why_not)
    rows = [(fault.name, fault.family, fault.help, missing.get(fault.name, "")) for fault in CATALOGUE.values()]
    print_table(("FAULT", "FAMILY", "WHAT IT DOES", "NOT POSSIBLE HERE"), rows)


def _options(
    faults: str,
    rounds: int | None,
    duration: str,
    workloads: str,
    seed: int | None,
    only_round: int | None,
    nodes: int,
    groups: int,
    settings: Path | None,
) -> DrillOptions:
    from dledger_drill.faults.catalogue import CATALOGUE, families
    from dledger_drill.plan.model import DrillOptions
    from dledger_drill.plan.options import chosen
    from dledger_drill.workloads.spec import DEFAULT_WORKLOADS, WORKLOADS

    if nodes not in (3, 5):
        raise typer.BadParameter(f"{nodes}: expected 3 or 5", param_hint="--nodes")
    try:
        names = () if faults == "all" else chosen(faults, CATALOGUE, families(), "fault")
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--faults") from None
    try:
        works = chosen(workloads, WORKLOADS, {}, "workload") if workloads else DEFAULT_WORKLOADS
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--workloads") from None
    duration_s = parse_duration_option(duration, "--duration") / 1000 if duration else None
    if rounds is None and duration_s is None:
        rounds = DEFAULT_ROUNDS
    return DrillOptions(
        faults=names,
        workloads=works,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        rounds=rounds,
        duration_s=duration_s,
        only_round=only_round,
        nodes=nodes,
        groups=groups,
        settings=_settings(settings),
    )


def _settings(file: Path | None) -> dict[str, Any]:
    import yaml

    if file is None:
        return {}
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: {error}") from None
    if not isinstance(content, dict) or {"groups", "name_servers", "cluster"} & content.keys():
        raise ConfigError(f"{file}: expected blocks of settings such as store and raft; nodes and addresses are the drill's own")
    return content


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="dledger-drill-"))
    try:
        keep.mkdir(parents=True)
    except FileExistsError:
        raise typer.BadParameter(f"{keep} exists already", param_hint="--keep") from None
    return keep


def _command(options: DrillOptions, faults: str, settings: Path | None) -> str:
    """What repeats this drill; with ``--only-round N`` one round of it."""
    from dledger_drill.workloads.spec import DEFAULT_WORKLOADS

    parts = ["dledger", "drill", "--seed", str(options.seed)]
    parts += ["--faults", faults] if faults != "all" else []
    parts += ["--workloads", ",".join(options.workloads)] if options.workloads != DEFAULT_WORKLOADS else []
    parts += ["--nodes", str(options.nodes)] if options.nodes != 3 else []
    parts += ["--groups", str(options.groups)] if options.groups != 2 else []
    parts += ["--config", str(settings)] if settings is not None else []
    parts += ["--rounds", str(options.rounds)] if options.rounds not in (None, DEFAULT_ROUNDS) else []
    return shlex.join(parts)


def _shown() -> Any:
    from rich.console import Console

    from dledger_drill.report.terminal import Lines, LiveView

    console = Console(stderr=True)
    return LiveView(console) if sys.stderr.isatty() else Lines(console)


def _write(found: Report, report: Path | None, json_file: Path | None) -> None:
    from dledger_drill.report.document import write_document
    from dledger_drill.report.page import write_page
    from dledger_drill.report.statistics import verdict

    if report is not None:
        write_page(found, report)
    if json_file is not None:
        write_document(found, json_file)
    for name, why in found.impossible.items():
        note(f"not possible here: {name}: {why}")
    typer.echo(f"{verdict(found)}{f'; report {report}' if report is not None else ''}")
