"""``dledger drill``: a private cluster is broken on purpose, and what survived is proved."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import load_config, nodes_of, parse_duration_option
from dledger_cli.credentials import takes_credentials
from dledger_cli.output import note, print_table
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.security.variables import CA, CERT, KEY, PASSWORD_FILE, USER

if TYPE_CHECKING:
    from dledger_drill.cluster.cluster import Cluster
    from dledger_drill.plan.model import DrillOptions, Need
    from dledger_drill.report.model import Report
    from dledger_drill.run.runner import Drill

EXAMPLES = "Examples: dledger drill | dledger drill --faults kill,partition --rounds 10 --report drill.html | dledger drill --faults list"
ALL, LIST = "all", "list"
BROKEN, STOPPED, INTERRUPTED = 1, 3, 130
SHOWN_VIOLATIONS = 5
DEFAULT_ROUNDS = 20


def register(app: typer.Typer) -> None:
    app.command("drill", epilog=EXAMPLES)(takes_credentials(drill))


def drill(
    faults: Annotated[str, typer.Option("--faults", metavar="F,...|list", help="Faults or families of them; list shows all.")] = ALL,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", min=1, help=f"How many (default {DEFAULT_ROUNDS}).")] = None,
    duration: Annotated[str, typer.Option("--duration", metavar="TIME", help="Begin no round after this time, such as 30m.")] = "",
    workloads: Annotated[str, typer.Option("--workloads", metavar="W,...", help="Workloads (default: all but Spark's).")] = "",
    seed: Annotated[int | None, typer.Option("--seed", metavar="S", min=0, help="Rounds follow from it (default: one drawn).")] = None,
    only_round: Annotated[int | None, typer.Option("--only-round", metavar="N", min=1, help="Run this round alone.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Nodes of each replica group: 3 or 5.")] = 3,
    groups: Annotated[int, typer.Option("--groups", metavar="N", min=1, max=4, help="Replica groups.")] = 2,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", help="Whether nodes speak TLS (default: if a fault needs it).")] = None,
    settings: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings of the private cluster: blocks store, raft, broker ...")
    ] = None,
    against: Annotated[
        str, typer.Option("--against", metavar="CLUSTER.yaml", help="Drill a cluster in use, with faults that do it no harm.")
    ] = "",
    restart_command: Annotated[
        str,
        typer.Option(
            "--restart-command", metavar="LINE", help="With --against: shell line that restarts node $DLEDGER_NODE, for rolling-restart."
        ),
    ] = "",
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write the report as a page.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as a JSON document.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="Keep logs, data and history in this new folder.")] = None,
) -> None:
    """Start a private cluster, break it on purpose round after round, and prove from the history of its clients what survived.

    Exit status 1: something was lost, doubled, changed or reordered, or another promise was broken; 3: the drill could not go on.
    """
    from dledger_drill.plan.model import DrillOptions

    if faults == LIST:
        _list()
        return
    asked = _Asked(faults, settings, against, restart_command, report, json_file, keep)
    asked.check(nodes, {"--nodes": nodes != 3, "--groups": groups != 2, "--config": settings, "--tls": tls is not None})
    names = _faults(faults, against)
    duration_s = parse_duration_option(duration, "--duration") / 1000 if duration else None
    options = DrillOptions(
        faults=names,
        workloads=_workloads(workloads),
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        rounds=DEFAULT_ROUNDS if rounds is None and duration_s is None else rounds,
        duration_s=duration_s,
        only_round=_one_round(only_round, rounds, duration),
        nodes=nodes,
        groups=groups,
        tls=_needs_tls(names) if tls is None else tls,
        settings=_settings(settings),
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
            raise typer.BadParameter("expected together with --against", param_hint="--restart-command")
        wrong = next((option for option, given in private.items() if given and self.against), None)
        if wrong is not None:
            raise typer.BadParameter("is for a private cluster; --against names one that is there", param_hint=wrong)
        for option, file in (("--report", self.report), ("--json", self.json_file)):
            if file is not None:
                _check_writable(file, option)


def _check_writable(file: Path, option: str) -> None:
    """Before the drill, which may take a night."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder}: no such folder", param_hint=option)
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder; expected the name of a file", param_hint=option)
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"{folder}: no file can be written there", param_hint=option)


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

    folder = _folder(asked.keep)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was run is judged and reported
    keep = asked.keep is not None
    try:
        make, missing = _cluster(options, folder, asked)
        with _shown() as shown:
            drill_ = _made(lambda: Drill(options, folder, partial(_command, options, asked), shown, make, missing))
            keep = True
            found = drill_.run()
        keep = asked.keep is not None or found.broken or bool(found.problem)
        _write(found, asked)
    finally:
        if keep:
            note(f"logs and histories: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def _made(make: Callable[[], Drill]) -> Drill:
    try:
        return make()
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--faults") from None


def _faults(text: str, against: str) -> tuple[str, ...]:
    """The faults that ``text`` names.  Of a cluster in use, those that do it no harm; others are refused when they are named."""
    from dledger_drill.faults.catalogue import CATALOGUE, families, harmless
    from dledger_drill.plan.options import chosen

    possible = tuple(harmless() if against else CATALOGUE)
    if text == ALL:
        return possible
    try:
        names = chosen(text, CATALOGUE, families(), "fault")
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--faults") from None
    refused = [name for name in names if name not in possible]
    if refused:
        told = f"{', '.join(refused[:3])}{' ...' if len(refused) > 3 else ''}: not on a cluster in use; expected {', '.join(possible)}"
        raise typer.BadParameter(told, param_hint="--faults")
    return names


def _workloads(text: str) -> tuple[str, ...]:
    from dledger_drill.plan.options import chosen
    from dledger_drill.workloads.spec import DEFAULT_WORKLOADS, WORKLOADS

    try:
        return chosen(text, WORKLOADS, {}, "workload") if text else DEFAULT_WORKLOADS
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--workloads") from None


def _needs_tls(faults: Sequence[str]) -> bool:
    from dledger_drill.faults.catalogue import CATALOGUE
    from dledger_drill.plan.model import Need

    return any(Need.TLS in CATALOGUE[name].needs for name in faults)


def _cluster(options: DrillOptions, folder: Path, asked: _Asked) -> tuple[Callable[[], Cluster], Mapping[Need, str]]:
    """How to make the cluster, and what faults need that it or this machine does not have."""
    from dledger_drill.cluster.existing import ExistingCluster
    from dledger_drill.cluster.private import PrivateCluster
    from dledger_drill.hosts.capabilities import probe
    from dledger_drill.plan.model import Need

    if asked.against:
        if os.environ.get(USER) and not os.environ.get(PASSWORD_FILE):
            raise typer.BadParameter("expected --password-file: the workloads are a process of their own", param_hint="--user")
        nodes = nodes_of(load_config(asked.against))
        without = {} if asked.restart_command else {Need.RESTART: "takes --restart-command"}
        return lambda: ExistingCluster(nodes, asked.restart_command), without
    for variable in (CA, CERT, KEY, USER, PASSWORD_FILE):  # of another cluster
        os.environ.pop(variable, None)
    capabilities = probe()
    missing = dict(capabilities.why_not)
    if options.nodes < 5:
        missing[Need.FIVE_NODES] = "takes --nodes 5"
    if not options.tls:
        missing[Need.TLS] = "takes --tls"
    return lambda: PrivateCluster(folder / "cluster", options, capabilities), missing


def _list() -> None:
    from dledger_drill.faults.catalogue import CATALOGUE, impossible
    from dledger_drill.hosts.capabilities import probe
    from dledger_drill.plan.model import Need

    missing = impossible(CATALOGUE, dict(probe().why_not) | {Need.FIVE_NODES: "takes --nodes 5"})
    rows = [(fault.name, fault.family, fault.help, missing.get(fault.name, "")) for fault in CATALOGUE.values()]
    print_table(("FAULT", "FAMILY", "WHAT IT DOES", "NOT POSSIBLE HERE"), rows)


def _settings(file: Path | None) -> dict[str, Any]:
    import yaml

    if file is None:
        return {}
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--config") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file}: {' '.join(str(error).split())}", param_hint="--config") from None
    if not isinstance(content, dict) or {"groups", "name_servers", "cluster"} & content.keys():
        told = f"{file}: expected blocks of settings such as store and raft; nodes and addresses are the drill's own"
        raise typer.BadParameter(told, param_hint="--config")
    return content


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="dledger-drill-"))
    try:
        keep.mkdir(parents=True)
    except FileExistsError:
        raise typer.BadParameter(f"{keep} exists already", param_hint="--keep") from None
    except OSError as error:
        raise typer.BadParameter(f"{keep}: {error.strerror}", param_hint="--keep") from None
    return keep.absolute()


def _command(options: DrillOptions, asked: _Asked, only_round: int | None) -> str:
    """What repeats this drill, or one round of it."""
    from dledger_drill.workloads.spec import DEFAULT_WORKLOADS

    parts = ["dledger", "drill", "--seed", str(options.seed)]
    parts += ["--faults", asked.faults] if asked.faults != ALL else []
    parts += ["--workloads", ",".join(options.workloads)] if options.workloads != DEFAULT_WORKLOADS else []
    parts += ["--nodes", str(options.nodes)] if options.nodes != 3 else []
    parts += ["--groups", str(options.groups)] if options.groups != 2 else []
    parts += ["--config", str(asked.settings)] if asked.settings is not None else []
    parts += ["--tls" if options.tls else "--no-tls"] if options.tls != _needs_tls(options.faults) else []
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
    """The files that were asked for, and the verdict, which is told also when a file cannot be written."""
    from dledger_drill.report.document import write_document
    from dledger_drill.report.page import write_page
    from dledger_drill.report.statistics import verdict

    for name, why in found.impossible.items():
        note(f"not possible here: {name}: {why}")
    if found.not_reached:
        note(f"not reached: {len(found.not_reached)} of {len(found.wanted)} faults; more rounds have them")
    violations = [*found.violations, *(each for round_ in found.rounds for each in round_.violations)]
    for each in violations[:SHOWN_VIOLATIONS]:
        note(f"{each.kind}: {each.text}")
    try:
        if asked.json_file is not None:
            write_document(found, asked.json_file)
        if asked.report is not None:
            write_page(found, asked.report)
    finally:
        typer.echo(f"{verdict(found)}{f'; report {asked.report}' if asked.report is not None else ''}")
