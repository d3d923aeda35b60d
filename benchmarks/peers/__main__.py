"""dledger beside Kafka and NATS JetStream on this machine: three nodes each on loopback, one client process, by one command.

    python -m benchmarks.peers [--only dledger,kafka,nats] [--messages 500000] [--sizes 100,1024,512-1536] [--rounds 3] [--json FILE]

Produces distinct bodies that do not compress and looks at every acknowledgement; reads all of them back, counts which numbers came, and
compares every 997th body whole; sends one message at a time; kills the leader (kill -9) under a steady load and accounts for every
acknowledged message.  One system runs at a time.  All clients warm up for the same time, since a virtual machine needs it.  Bodies are
made before the clock starts, which takes --messages times their size of memory.  TMPDIR needs room for all that a system stores, some 11 GB
by default; that is looked at first.

Kafka comes from Maven Central (needs Java 17 and mvn), nats-server from Debian's package, their Python clients from PyPI, each into a
folder below ~/.cache/dledger-benchmarks.  What cannot be fetched is skipped, with the reason.  The table is printed as Markdown at the end;
the exit status is 1 when a system failed, or a message was lost, doubled or changed anywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.bodies import parse_size
from benchmarks.machine import machine
from benchmarks.peers.fetched import UnavailableError
from benchmarks.peers.figures import Figure
from benchmarks.peers.measure import Plan, WorkerError, measure
from benchmarks.peers.systems import SYSTEMS, System
from benchmarks.peers.table import Column, markdown
from benchmarks.peers.worker import WARM_RATE, WARM_SIZE
from dledger_wire.errors import DledgerError

REPLICAS = 3
FRAME_BYTES = 200  # of dledger's files a message, beside its body
SPARE_BYTES = 2 << 30  # below 1 GiB free, dledger refuses messages; files are made ahead


def names(text: str) -> list[str]:
    found = text.split(",")
    if unknown := set(found) - set(SYSTEMS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    return found


def sizes(text: str) -> tuple[str, ...]:
    for part in text.split(","):
        try:
            parse_size(part)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return tuple(part.strip() for part in text.split(","))


def positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number above 0")
    return int(text)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names, default=list(SYSTEMS), metavar="NAMES", help="systems, with commas between them")
    parser.add_argument("--messages", type=positive, default=500_000)
    parser.add_argument("--sizes", type=sizes, default=("100", "1024", "512-1536"), help="of bodies in bytes; a range: mixed")
    parser.add_argument("--latency-messages", type=positive, default=5_000)
    parser.add_argument("--rounds", type=positive, default=1, help="the whole, so many times; the table has medians and spreads")
    parser.add_argument("--failovers", type=int, default=3, help="kills in each round; 0: none")
    parser.add_argument("--rate", type=positive, default=2_000, help="messages a second while the leader is killed")
    parser.add_argument("--warm-up", type=float, default=12.0, help="seconds, of each configuration")
    parser.add_argument("--json", metavar="FILE", help="write every single figure there, too")
    return parser.parse_args(arguments)


def bytes_stored(options: argparse.Namespace) -> int:
    """What the system that keeps most has stored at the end: three replicas of everything, produced in two ways, and of the warm-up."""
    means = [sum(parse_size(size)) // 2 for size in options.sizes]
    warm = options.warm_up * WARM_RATE * (int(WARM_SIZE) + FRAME_BYTES)
    return int(REPLICAS * (2 * sum(options.messages * (mean + FRAME_BYTES) for mean in means) + warm))


def prepare(wanted: list[str]) -> tuple[list[tuple[System, Path, str]], dict[str, str]]:
    """What can be measured, with the client's interpreter and the versions; and why the others cannot."""
    ready, skipped = [], {}
    for name in wanted:
        try:
            ready.append((SYSTEMS[name], *SYSTEMS[name].prepare()))
        except UnavailableError as error:
            skipped[name] = str(error)
            print(f"{name} is skipped: {error}", file=sys.stderr, flush=True)
    return ready, skipped


def run(options: argparse.Namespace, ready: list[tuple[System, Path, str]]) -> tuple[list[Figure], dict[str, str]]:
    """All figures; and which systems failed, with the reason.  Their figures until then are there."""
    plan = Plan(options.messages, options.sizes, options.latency_messages, options.failovers, options.rate, options.warm_up)
    figures: list[Figure] = []
    failed: dict[str, str] = {}
    for _ in range(options.rounds):
        for system, python, _ in ready:
            if system.name in failed:
                continue
            try:
                figures += measure(system, python, plan)
            except (WorkerError, RuntimeError, DledgerError) as error:
                failed[system.name] = str(error)
                print(f"{system.name} failed: {error}", file=sys.stderr, flush=True)
    return figures, failed


def main() -> None:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts end what runs
    free, needed = shutil.disk_usage(tempfile.gettempdir()).free, bytes_stored(options) + SPARE_BYTES
    if free < needed:
        sys.exit(f"{tempfile.gettempdir()} has {free >> 20} MiB free and {needed >> 20} are needed: fewer --messages, or another TMPDIR")
    about = machine()
    ready, skipped = prepare(options.only)
    figures, failed = run(options, ready)
    columns = [
        Column(variant.name, variant.durability, variant.synced, versions, system.ways)
        for system, _, versions in ready
        for variant in system.variants
    ]
    print(
        f"{about['cpu']}, {about['memory_gib']} GiB, Linux {about['kernel']}, {about['date']}, load before the run {about['load_before']}"
    )
    print(f"command: python -m benchmarks.peers {' '.join(sys.argv[1:])}\n")
    if figures:
        print(markdown(figures, columns))
        print("A system with one way to produce or consume has its figure in both lines.  Several rounds: median (lowest-highest).")
    for name, why in skipped.items():
        print(f"{name} was skipped: {why}")
    for name, why in failed.items():
        print(f"{name} failed, its figures are not whole: {why}")
    if options.json:
        whole = {"machine": about, "arguments": sys.argv[1:], "versions": {column.name: column.versions for column in columns}}
        whole |= {"durability": {column.name: column.durability for column in columns}, "skipped": skipped, "failed": failed}
        Path(options.json).write_text(json.dumps(whole | {"figures": [figure.as_json() for figure in figures]}, indent=1) + "\n")
    sys.exit(bool(failed) or any(figure.problem() for figure in figures))


if __name__ == "__main__":
    main()
