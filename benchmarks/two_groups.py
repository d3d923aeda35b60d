"""Producing into two replica groups on this machine against one, by turns: messages a second, and the ratio of each pair.

    python -m benchmarks.two_groups [--messages 300000] [--size 1KiB] [--rounds 5]

Every measurement has a cluster of its own, three nodes a group, and one producing process with the same number of queues.  On two cores
twice as many processes share the same processors: what is wanted is that spreading costs little, a ratio not below 0.9.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from dledger_cli.local.private_cluster import PrivateCluster

ROOT = Path(__file__).resolve().parent.parent
QUEUES = 8


def produce(groups: int, messages: int, size: str) -> float:
    """Messages a second that a fresh cluster of so many groups acknowledges."""
    with tempfile.TemporaryDirectory(prefix="dledger-two-groups-") as folder, PrivateCluster(Path(folder), groups=groups) as cluster:
        cluster.start()
        command = [str(ROOT / ".venv/bin/dledger"), "bench", "produce", "--no-read-back", "--config", str(cluster.local.file), "--json"]
        options = ["--messages", str(messages), "--size", size, "--queues", str(QUEUES)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"dledger bench produce: {done.stderr}")
        figures = json.loads(done.stdout)
        return float(figures["messages_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", default="1KiB")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ratios = []
    for number in range(arguments.rounds):
        order = (1, 2) if number % 2 == 0 else (2, 1)
        rates = {groups: produce(groups, arguments.messages, arguments.size) for groups in order}
        ratios.append(rates[2] / rates[1])
        print(json.dumps({"round": number, "one": round(rates[1]), "two": round(rates[2]), "ratio": round(ratios[-1], 3)}), flush=True)
    print(json.dumps({"median_ratio": round(statistics.median(ratios), 3)}))


if __name__ == "__main__":
    main()
