"""RocketMQ's own Java client on dledger, beside the same client on RocketMQ itself, on this machine.

    python -m benchmarks.rocketmq [--only dledger,rocketmq-dledger,rocketmq-controller] [--messages 40000] [--rounds 3]

One client process sends random bodies of 1 KiB: one after the other, by 64 threads, asynchronously with 1000 on their way, and in
batches of 32; then a push consumer reads them.  For each failover a new cluster gets a steady load, its leader is killed (kill -9), and
every acknowledged message is accounted for.  One system runs at a time, three nodes each.  dledger syncs what it acknowledges to two of
three disks; RocketMQ's modes, by their defaults, sync none of it.

RocketMQ comes from Maven Central (needs Java 17 with javac, and mvn).  The exit status is 1 when a system failed or lost an acknowledged
message.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.machine import machine
from benchmarks.peers.fetched import UnavailableError
from benchmarks.rocketmq.servers import VERSION, Dledger, Measured, Rocketmq, compiled, create_topic, fetch, leader

PROGRAM = Path(__file__).parent / "Measure.java"
TOPIC, QUEUES = "sent", "4"
BEFORE_S, FAILOVER_S, LIMIT_S = 5.0, 60.0, 900.0
# An answer that the killed leader had sent already arrives within this time.
ON_ITS_WAY_MS = 10
SYSTEMS: dict[str, Callable[[Path], Measured]] = {
    "dledger": Dledger,
    "rocketmq-dledger": lambda folder: Rocketmq(folder, "dledger"),
    "rocketmq-controller": lambda folder: Rocketmq(folder, "controller"),
}
LINES = {
    "one": ("one after the other, msg/s", 0),
    "one_p50_ms": ("p50 ms", 2),
    "one_p99_ms": ("p99 ms", 2),
    "threads": ("64 threads, msg/s", 0),
    "async": ("asynchronous, msg/s", 0),
    "batches": ("batches of 32, msg/s", 0),
    "consume": ("push consumer, msg/s", 0),
    "failover_s": ("kill -9 of the leader to the next acknowledged send, s", 2),
}


@dataclass
class Measures:
    """Of one system: the values of each figure, and what went wrong."""

    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    failed: str = ""


@contextlib.contextmanager
def running(name: str) -> Iterator[Measured]:
    """The system with the topic, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"dledger-{name}-"))
    system = SYSTEMS[name](folder)
    try:
        system.start()
        create_topic(system.name_servers, leader(system.name_servers), TOPIC, QUEUES)
        yield system
    finally:
        system.end()
        shutil.rmtree(folder, ignore_errors=True)


def rates(name: str, program: list[str], options: argparse.Namespace, found: Measures) -> None:
    with running(name) as system:
        arguments = ("rates", system.name_servers, TOPIC, str(options.messages), str(options.warm_up))
        done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"the client failed: {(done.stderr or done.stdout).strip()[-300:]}")
        for line in done.stdout.splitlines():
            figure, _, value = line.partition(" ")
            if figure in LINES or figure.endswith("_failed"):  # the client's log is there, too
                found.values[figure].append(float(value))
                print(f"{name}: {line}", file=sys.stderr, flush=True)


def failover(name: str, program: list[str], found: Measures) -> None:
    with running(name) as system:
        command = [*program, "failover", system.name_servers, TOPIC, str(FAILOVER_S)]
        lines: list[list[str]] = []
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        reading = threading.Thread(target=keep, args=[process.stdout, lines])
        reading.start()
        try:
            time.sleep(BEFORE_S)
            first = leader(system.name_servers)
            killed_ms = time.time() * 1000
            system.kill(first)
            gone_ms = time.time() * 1000
            process.wait(LIMIT_S)
        finally:
            process.kill()
            reading.join()
        if process.returncode:
            raise RuntimeError(f"the client failed: {lines[-3:]}")
        account(lines, killed_ms, gone_ms, found)
        print(f"{name}: failover {found.values['failover_s'][-1]:.2f} s", file=sys.stderr, flush=True)


def keep(output: IO[str], lines: list[list[str]]) -> None:
    lines.extend(line.split() for line in output if line.strip())


def account(lines: list[list[str]], killed_ms: float, gone_ms: float, found: Measures) -> None:
    """Adds one failover: RuntimeError when no send was acknowledged before the kill or none after it."""
    acknowledged = {words[1]: float(words[3]) for words in lines if words[0] == "acknowledged"}
    read = Counter(words[1] for words in lines if words[0] == "read")
    after = [at for at in acknowledged.values() if at > gone_ms + ON_ITS_WAY_MS]
    if not after or len(after) == len(acknowledged):
        raise RuntimeError(f"{len(acknowledged)} sends were acknowledged, {len(after)} of them after the leader was gone")
    found.values["failover_s"].append((min(after) - killed_ms) / 1000)
    found.acknowledged += len(acknowledged)
    found.lost += len(acknowledged.keys() - read.keys())
    found.doubled += sum(times > 1 for times in read.values())


def table(found: dict[str, Measures]) -> str:
    names = list(found)
    rows = [["", *names], ["---"] * (len(names) + 1)]
    for figure, (words, digits) in LINES.items():
        rows.append([words, *(cell(each.values[figure], digits) for each in found.values())])
    rows.append(["of the acknowledged messages lost", *(f"{each.lost} of {each.acknowledged}" for each in found.values())])
    rows.append(["stored twice", *(str(each.doubled) for each in found.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def cell(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    text = f"{statistics.median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.rocketmq", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SYSTEMS), metavar="NAMES", help="systems, with commas between them")
    parser.add_argument("--messages", type=int, default=40_000, help="of each way to send")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=3, help="of the rates")
    parser.add_argument("--failovers", type=int, default=3)
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(SYSTEMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    return options


def main() -> None:
    options, about = parse(sys.argv[1:]), machine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts end what runs
    found = {name: Measures() for name in options.only}
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = compiled(PROGRAM, fetch(), Path(folder))
        except UnavailableError as error:
            sys.exit(str(error))
        for _ in range(options.rounds):
            for name, measures in found.items():
                attempt(name, measures, lambda name, measures: rates(name, program, options, measures))
        for _ in range(options.failovers):
            for name, measures in found.items():
                attempt(name, measures, lambda name, measures: failover(name, program, measures))
    print(f"{about['cpu']}, {about['memory_gib']} GiB, {about['date']}, load before the run {about['load_before']}, RocketMQ {VERSION}")
    print(f"command: python -m benchmarks.rocketmq {' '.join(sys.argv[1:])}\n\n{table(found)}")
    for name, measures in found.items():
        if measures.failed:
            print(f"{name} failed, its figures are not whole: {measures.failed}")
    sys.exit(any(measures.failed or measures.lost for measures in found.values()))


def attempt(name: str, measures: Measures, work: Callable[[str, Measures], None]) -> None:
    """After its first failure a system is left out."""
    if measures.failed:
        return
    try:
        work(name, measures)
    except (RuntimeError, OSError, subprocess.SubprocessError, UnavailableError) as error:
        measures.failed = str(error)
        print(f"{name} failed: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
