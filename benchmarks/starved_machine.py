"""Elections of live leaders on a machine that has too little processor time, and nothing else wrong: real processes beside busy loops.

    python -m benchmarks.starved_machine --before FOLDER [--rounds 3] [--quiet 65] [--seconds 60] [--loops 6] [--rate 500]

Each turn has a cluster of its own that is left in peace first (a group that has just started waits for a silent leader as long as it is
configured to; see docs/adr/0031) and then shares the processors with the loops.  Prints by how much the term rose meanwhile: nothing
failed, so every election was one too many.  ``--before``: the folder of an older checkout, which takes turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BODY_BYTES = 1024


def measure(quiet_s: float, busy_s: float, loops: int, rate: float) -> dict[str, Any]:
    """One turn, with whatever is imported."""
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin, Producer
    from dledger_drill.bench.bodies import Bodies
    from dledger_drill.bench.failover import QUEUES, TOPIC, _Load

    with tempfile.TemporaryDirectory(prefix="dledger-starved-") as made, PrivateCluster(Path(made) / "cluster") as cluster:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        with Producer(cluster.bootstrap, group="bench", send_timeout_ms=30_000) as producer:
            load = _Load(producer, Bodies(BODY_BYTES, BODY_BYTES), rate)
            time.sleep(quiet_s)
            terms = [_term(cluster)]
            begun_with = len(load.acknowledged)
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
            load.longest_gap_s = 0.0
            try:
                time.sleep(busy_s)
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
            terms.append(_term(cluster))
            load.stop()
        acknowledged = len(load.acknowledged) - begun_with
        return {"elections": terms[1] - terms[0], "acknowledged": acknowledged, "longest_gap_ms": round(load.longest_gap_s * 1000)}


def _term(cluster: Any) -> int:
    term: int = max(status.term for status in cluster.statuses().values())
    return term


def turn(folder: Path, arguments: list[str]) -> dict[str, Any]:
    line = [sys.executable, str(ROOT / "benchmarks" / "starved_machine.py"), "--child", *arguments]
    done = subprocess.run(line, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{folder}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet", default="65", help="seconds before the loops begin")
    parser.add_argument("--seconds", default="60", help="beside the loops")
    parser.add_argument("--loops", default="6")
    parser.add_argument("--rate", default="500", help="messages a second")
    parser.add_argument("--before", default="")
    arguments = parser.parse_args()
    folders = {"now": ROOT} | ({"before": Path(arguments.before).resolve()} if arguments.before else {})
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in folders}
    for number in range(arguments.rounds):
        for name in folders if number % 2 == 0 else reversed(folders):
            values = turn(folders[name], [arguments.quiet, arguments.seconds, arguments.loops, arguments.rate])
            found[name].append(values)
            print(json.dumps({"round": number, "which": name} | values), flush=True)
    for name, turns in found.items():
        elections = sum(each["elections"] for each in turns)
        print(f"{name}: {elections} elections in {len(turns)} turns, median longest gap {statistics.median(_gaps(turns)):.0f} ms")


def _gaps(turns: list[dict[str, Any]]) -> list[int]:
    return [each["longest_gap_ms"] for each in turns]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        quiet, seconds, busy_loops, messages = sys.argv[2:6]
        print(json.dumps(measure(float(quiet), float(seconds), int(busy_loops), float(messages))))
    else:
        main()
