"""A backlog that is not read: does memory stay flat, does sending stay fast, and how soon is a restarted node back?

    python -m benchmarks.backlog [--messages 10000000] [--size 512-1536] [--paused-follower]

Starts a private cluster and sends from one process, every acknowledgement checked; prints the rate and the nodes' anonymous memory for each
tenth of the run, then restarts a follower and the leader and times them.  10 million messages of 1 KiB take 36 GB on disk, deleted at the
end.  ``--paused-follower``: a follower is stopped (SIGSTOP) from the fifth tenth on and goes on at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from benchmarks.bodies import Bodies
from benchmarks.processes import anonymous_mb

TOPIC = "backlog"
IN_FLIGHT = 200_000
PARTS = 10


def send_part(producer: Any, bodies: Bodies, numbers: range) -> int:
    """Send and wait for every acknowledgement; how many there were."""
    from dledger_client import Message

    waiting: deque[Any] = deque()
    acknowledged = 0
    for number in numbers:
        waiting.append(producer.send_async(Message(TOPIC, bodies.body(number))))
        while len(waiting) > IN_FLIGHT or (waiting and waiting[0].done()):
            acknowledged += waiting.popleft().exception() is None
    producer.flush()
    return acknowledged + sum(future.exception() is None for future in waiting)


def restart(cluster: Any, node_id: str) -> dict[str, float]:
    """Seconds of a node from its start to taking part, after an orderly stop and after kill -9."""
    took = {}
    for how in ("stopped", "killed"):
        if how == "stopped":
            cluster.terminate(node_id)
        else:
            cluster.kill(node_id)
        start = time.perf_counter()
        cluster.start(node_id)
        took[how] = round(time.perf_counter() - start, 2)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", default="512-1536")
    parser.add_argument("--paused-follower", action="store_true")
    arguments = parser.parse_args()
    from dledger_cli.local.private_cluster import PrivateCluster
    from dledger_client import Admin, Producer

    sys.setswitchinterval(0.0005)
    work = Path(tempfile.mkdtemp(prefix="dledger-backlog-bench-"))
    bodies, each = Bodies(arguments.size), arguments.messages // PARTS
    try:
        with PrivateCluster(work / "data") as cluster:
            cluster.start()
            with Admin(cluster.bootstrap) as admin:
                admin.create_topic(TOPIC, queues=4)
            leader = cluster.leader()
            follower = next(node_id for node_id in cluster.local.node_ids() if node_id != leader)
            acknowledged = 0
            with Producer(cluster.bootstrap, compress_type="none") as producer:
                for part in range(PARTS):
                    if arguments.paused_follower and part == PARTS // 2:
                        cluster.pause(follower)
                    start = time.perf_counter()
                    done = send_part(producer, bodies, range(part * each, (part + 1) * each))
                    acknowledged += done
                    memory = {node_id: round(anonymous_mb(process.pid)) for node_id, process in cluster.processes.items()}
                    rate = round(done / (time.perf_counter() - start))
                    print(json.dumps({"part": part, "messages_per_s": rate, "anonymous_mb": memory}), flush=True)
            print(json.dumps({"acknowledged": acknowledged, "wanted": arguments.messages}), flush=True)
            if arguments.paused_follower:
                start = time.perf_counter()
                cluster.resume(follower)
                cluster.wait_equal(600)
                print(json.dumps({"follower_caught_up_s": round(time.perf_counter() - start, 1)}), flush=True)
            else:
                cluster.wait_equal(600)
                print(json.dumps({"restart_s": {"follower": restart(cluster, follower), "leader": restart(cluster, leader)}}), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
