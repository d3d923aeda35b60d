"""Measures one system: starts its servers, then a client process for each measurement, and looks at the servers' processors meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.figures import Figure
from benchmarks.peers.servers import Servers
from benchmarks.peers.systems import ROOT, System, Variant

QUEUES = 4
SETTLE_S = 1.0
LATENCY_SIZE = "1024"


@dataclass(frozen=True, slots=True)
class Plan:
    messages: int
    sizes: tuple[str, ...]
    latency_messages: int
    failovers: int
    rate: float
    warm_s: float


class WorkerError(Exception):
    """A client process failed; the text has its last words."""


class Measurement:
    """One running system."""

    def __init__(self, system: System, python: Path, servers: Servers) -> None:
        self._system, self._python, self._servers = system, python, servers
        self._topics = 0
        self._warm_s = 0.0

    def all(self, plan: Plan) -> Iterator[Figure]:
        for variant in self._system.variants:
            self._warm_s = plan.warm_s
            for size in plan.sizes:
                yield from self._throughput(variant, plan.messages, size)
            yield self._work(variant, "latency", messages=plan.latency_messages, size=LATENCY_SIZE)
            for _ in range(plan.failovers):
                yield self._work(variant, "failover", rate=plan.rate, messages=0, size=LATENCY_SIZE)

    def _throughput(self, variant: Variant, messages: int, size: str) -> Iterator[Figure]:
        """Every way of producing, and reads what it left by the way of consuming that belongs to it."""
        reading = self._system.ways["consume"]
        for way in self._system.ways["produce"]:
            yield self._work(variant, "produce", way=way, messages=messages, size=size, warm_s=self._warm_s)
            self._warm_s = min(0.1, self._warm_s)  # the servers are warm by now; each client process is new
            same = way if way in reading else "single"
            yield self._work(variant, "consume", way=same, messages=messages, size=size, delete=True, again=True)

    def _work(self, variant: Variant, work: str, *, again: bool = False, **job: Any) -> Figure:
        """One client process; ``again``: with the topic of the one before."""
        self._topics += not again
        defaults = {"way": "single", "queues": QUEUES, "config": variant.topic_config, "warm_s": 0.0, "delete": False}
        given = {"client": self._system.client, "bootstrap": self._servers.bootstrap, "topic": f"peers-{self._topics}", "work": work}
        time.sleep(SETTLE_S)
        load = round(os.getloadavg()[0], 1)
        result = run_worker(self._python, self._servers, defaults | given | job)
        result.setdefault("messages", job["messages"])
        return Figure(system=variant.name, work=work, way=job.get("way", "single"), size=job["size"], load=load, **result)


def run_worker(python: Path, servers: Servers, job: dict[str, Any]) -> dict[str, Any]:
    """A client process, with the servers' processor seconds between its marks; kills the leader when it says so, and starts it again."""
    command = [str(python), "-m", "benchmarks.peers.worker", json.dumps(job)]
    killed, cpu_s = "", 0.0
    result: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                if told["event"] == "begin":
                    cpu_s = servers.cpu_s()
                elif told["event"] == "kill":
                    killed, since = servers.kill_leader(told["leader"])
                    print(json.dumps({"killed_at": since, "gone_at": time.monotonic()}), file=process.stdin, flush=True)
                elif told["event"] == "measured":
                    result["servers_cpu_s"] = servers.cpu_s() - cpu_s
                else:
                    result |= {name: value for name, value in told.items() if name != "event"}
            if process.wait() or "took_s" not in result:
                errors.seek(0)
                raise WorkerError(f"{job['work']}: {' '.join(errors.read().strip().splitlines()[-1:])}")
        finally:
            process.kill()
            process.communicate()  # closes its pipes
    if killed:
        servers.start_again(killed)
        result["servers_cpu_s"] = 0.0  # what the killed node used is not known
    return result


def measure(system: System, python: Path, plan: Plan) -> Iterator[Figure]:
    """All figures of a system, with servers of its own in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix=f"peers-{system.name}-") as folder, system.servers(Path(folder)) as servers:
        for figure in Measurement(system, python, servers).all(plan):
            tell(figure)
            yield figure


def tell(figure: Figure) -> None:
    """What is known so far, for the person who waits."""
    if figure.work == "latency":
        said = f"p50 {figure.p50_ms:.2f} ms, p99 {figure.p99_ms:.2f} ms"
    elif figure.work == "failover":
        said = f"{figure.pause_s:.2f} s" if figure.pause_s is not None else "not back"
    else:
        said = f"{figure.rate / 1e3:.1f} k msg/s"
    problem = f"  PROBLEM: {figure.problem()}" if figure.problem() else ""
    print(f"{figure.system}: {figure.work} {figure.way} {figure.size}: {said}{problem}", file=sys.stderr, flush=True)
