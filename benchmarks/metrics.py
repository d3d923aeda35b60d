"""What being scraped costs: producing with every node scraped once a second against not at all, by turns on one cluster.

    python -m benchmarks.metrics [--messages 100000] [--size 1KiB] [--rounds 6] [--topics 0]

Two ratios of each pair: of messages a second, and of what a message costs the three nodes in CPU, which other load on the machine changes
less.  ``--topics`` makes so many other topics with traffic first, and adds what a scrape takes and how large it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import yaml

from dledger_cli.local.ports import free_ports
from dledger_cli.local.private_cluster import PrivateCluster
from dledger_client import Admin, Message, Producer

ROOT = Path(__file__).resolve().parent.parent
EVERY_S = 1.0


class Scraper:
    """Asks all addresses every second, while it is on."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.took_ms: list[float] = []
        self.size_bytes = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(address,), daemon=True) for address in addresses]

    def __enter__(self) -> Scraper:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, address: str) -> None:
        while not self._ended.is_set():
            began_s = time.perf_counter()
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
                self.size_bytes = len(answer.read())
            self.took_ms.append((time.perf_counter() - began_s) * 1000)
            self._ended.wait(EVERY_S)


def with_ports(cluster: PrivateCluster) -> list[str]:
    """Give every node a port for its metrics."""
    content = yaml.safe_load(cluster.local.file.read_text(encoding="utf-8"))
    nodes = [node for group in content["groups"] for node in group["nodes"]]
    for node, port in zip(nodes, free_ports(len(nodes)), strict=True):
        node["metrics"] = f"127.0.0.1:{port}"
    cluster.local.file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return [node["metrics"] for node in nodes]


def cpu_s(cluster: PrivateCluster) -> float:
    """What the nodes have used so far."""
    times = [psutil.Process(process.pid).cpu_times() for process in cluster.processes.values()]
    return sum(each.user + each.system for each in times)


def produce(cluster: PrivateCluster, messages: int, size: str) -> tuple[float, float]:
    """Messages a second, and microseconds of the nodes' CPU for each."""
    command = [str(ROOT / ".venv/bin/dledger"), "bench", "produce", "--no-read-back", "--config", str(cluster.local.file), "--json"]
    before_s = cpu_s(cluster)
    done = subprocess.run([*command, "--messages", str(messages), "--size", size], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"dledger bench produce: {done.stderr}")
    used_s = cpu_s(cluster) - before_s
    return float(json.loads(done.stdout)["messages_per_s"]), used_s / messages * 1e6


def fill(cluster: PrivateCluster, topics: int) -> None:
    """Topics of one queue with a message each."""
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, "fill") as producer:
        for number in range(topics):
            admin.create_topic(f"other-{number}", queues=1)
            producer.send_async(Message(f"other-{number}", b"x"))
        producer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", default="1KiB")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--topics", type=int, default=0)
    arguments = parser.parse_args()
    rates, costs, took_ms = [], [], []
    with tempfile.TemporaryDirectory(prefix="dledger-metrics-") as folder, PrivateCluster(Path(folder)) as cluster:
        addresses = with_ports(cluster)
        cluster.start()
        fill(cluster, arguments.topics)
        produce(cluster, arguments.messages, arguments.size)  # files and memory are there from now on
        for number in range(arguments.rounds):
            found: dict[bool, tuple[float, float]] = {}
            for scraped in (False, True) if number % 2 == 0 else (True, False):
                with Scraper(addresses if scraped else []) as scraper:
                    found[scraped] = produce(cluster, arguments.messages, arguments.size)
                took_ms += scraper.took_ms
            rates.append(found[True][0] / found[False][0])
            costs.append(found[True][1] / found[False][1])
            shown = {"round": number, "without": round(found[False][0]), "with": round(found[True][0]), "ratio": round(rates[-1], 3)}
            print(json.dumps({**shown, "cpu_ratio": round(costs[-1], 3)}), flush=True)
        with Scraper(addresses) as scraper:
            time.sleep(3 * EVERY_S)
    idle_ms = statistics.median(scraper.took_ms)
    medians = {"median_ratio": round(statistics.median(rates), 3), "median_cpu_ratio": round(statistics.median(costs), 3)}
    scrapes = {"scrape_ms": round(statistics.median(took_ms), 1), "idle_scrape_ms": round(idle_ms, 1), "bytes": scraper.size_bytes}
    print(json.dumps(medians | scrapes))


if __name__ == "__main__":
    main()
