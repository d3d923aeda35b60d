"""Spark reading the same bytes from Kafka with Spark's own connector and from dledger, in one session, by turns.

    python -m benchmarks.spark_kafka [--messages 300000] [--sizes 1024,512-1536] [--rounds 4] [--json FILE]

Three nodes of each on loopback, topics of four partitions or queues with the same bodies, local[2], batch reads into the noop sink.  A
round reads from both, and which is first changes; the table has the best of all rounds.  Counts, distinct numbers and sums of lengths are
compared with what was sent.  Spark 4.2 runs in an environment of its own below ~/.cache/dledger-benchmarks: it is the newest whose Kafka
connector Maven Central has whole.  Skipped, with the reason and status 0, when something cannot be fetched.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.peers import servers_dledger, servers_kafka
from benchmarks.peers.__main__ import positive, sizes
from benchmarks.peers.fetched import UnavailableError, environment, jars, java
from benchmarks.peers.measure import run_worker
from benchmarks.peers.servers import Servers
from benchmarks.peers.systems import DLEDGER, KAFKA, ROOT, System

SPARK = "4.2.0"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}"
# What Spark's own distribution lacks; the rest of the connector's dependencies is there.
CONNECTOR_GROUPS = "org.apache.spark,org.apache.kafka,org.apache.commons"
CONNECTOR_PARTS = ("spark-sql-kafka-", "spark-token-provider-kafka-", "kafka-clients-", "commons-pool2-")
QUEUES = 4


def connector() -> list[Path]:
    found = [jar for jar in jars(f"spark-kafka-{SPARK}", CONNECTOR, groups=CONNECTOR_GROUPS) if jar.name.startswith(CONNECTOR_PARTS)]
    if len(found) != len(CONNECTOR_PARTS):
        raise UnavailableError(f"Spark's Kafka connector is not whole: {', '.join(jar.name for jar in found)}")
    return found


def spark_environment() -> Path:
    """Spark with what our source needs and the faster checksum (extra ``fast``), in the versions of the lock file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needs = project["tool"]["dledger"]["client-wheel"]["dependencies"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines(keepends=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(line for line in lock if not line.startswith(("pyspark", "#")))
        constraints.flush()
        return environment(f"spark-{SPARK}", f"pyspark=={SPARK}", "pyarrow", "psutil", "isal", *needs, constraints=Path(constraints.name))


def fill(system: System, servers: Servers, size: str, messages: int) -> None:
    """A topic named after the size, by the client that the benchmark of peers uses."""
    python, _ = system.prepare()
    job = {"client": system.client, "bootstrap": servers.bootstrap, "work": "produce", "way": "many", "size": size, "messages": messages}
    told = run_worker(python, servers, job | {"topic": f"spark-{size}", "queues": QUEUES, "config": {}, "warm_s": 0.0, "delete": False})
    if told["acknowledged"] != messages:
        raise RuntimeError(f"{system.name} acknowledged {told['acknowledged']} of {messages} messages")


def read(python: Path, parts: list[Path], job: dict[str, Any]) -> dict[str, Any]:
    """The session, in a process of the other environment."""
    told = os.environ | {"PYSPARK_SUBMIT_ARGS": f"--jars {','.join(map(str, parts))} pyspark-shell"}
    told["JAVA_HOME"] = str(java()[0].resolve().parents[1])
    command = [str(python), "-m", "benchmarks.spark_kafka_session", json.dumps(job)]
    done = subprocess.run(command, cwd=ROOT, env=told, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the Spark session ended with status {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def markdown(figures: list[dict[str, Any]]) -> str:
    """One line for each read; ``took_s`` has the seconds of all rounds."""
    text = f"| read | Kafka's connector, k rows/s | dledger, k rows/s | dledger against Kafka |\n{'| --- ' * 4}|\n"
    for figure in figures:
        kafka, ours = (figure["rows"] / min(figure["took_s"][name]) / 1e3 for name in ("kafka", "dledger"))
        ratio = f"{ours / kafka:.2f}"
        text += f"| {figure['what']} | {kafka:.0f} | {ours:.0f} | {'**loses**: ' if ours < kafka else ''}{ratio} |\n"
    return text


def measure(options: argparse.Namespace, python: Path, parts: list[Path]) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-kafka-")))
        (folder / "kafka").mkdir()
        kafka = stack.enter_context(servers_kafka.servers(folder / "kafka"))
        ours = stack.enter_context(servers_dledger.servers(folder / "dledger"))
        for size in options.sizes:
            fill(KAFKA, kafka, size, options.messages)
            fill(DLEDGER, ours, size, options.messages)
        ours.wait_equal()
        job = {"kafka": kafka.bootstrap, "dledger": ours.bootstrap, "sizes": options.sizes, "messages": options.messages}
        return read(python, parts, job | {"rounds": options.rounds, "work": str(folder)})


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.spark_kafka", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=positive, default=300_000)
    parser.add_argument("--sizes", type=sizes, default=("1024", "512-1536"))
    parser.add_argument("--rounds", type=positive, default=4)
    parser.add_argument("--json", metavar="FILE", help="write every single figure there, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts end what runs
    about = machine()
    try:
        versions = [KAFKA.prepare()[1], DLEDGER.prepare()[1], f"Spark {SPARK}"]
        parts, python = connector(), spark_environment()
    except UnavailableError as error:
        print(f"skipped: {error}")
        return
    found = measure(options, python, parts)
    print(
        f"{about['cpu']}, {about['memory_gib']} GiB, Linux {about['kernel']}, {about['date']}, load before the run {about['load_before']}"
    )
    print(f"{'; '.join(versions)}; {options.messages} messages, best of {options.rounds}")
    print(f"command: python -m benchmarks.spark_kafka {' '.join(sys.argv[1:])}\n\n{markdown(found['figures'])}")
    print(found["checked"])
    if options.json:
        Path(options.json).write_text(
            json.dumps({"machine": about, "versions": versions, "arguments": sys.argv[1:]} | found, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
