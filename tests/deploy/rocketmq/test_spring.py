"""rocketmq-spring, unmodified: what its template sends, its listeners get."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.rocketmq import RocketmqCluster
from tests.deploy.rocketmq.clients import spring_client
from tests.waiting import LIMIT_S

SHOWN = {"sync", "async", "batch", "delayed", "timed", "orderly", "transactions", "retry", "tags"}


def test_the_template_sends_and_listeners_receive(cluster: RocketmqCluster, tmp_path: Path) -> None:
    for topic in ("orders", "steps"):
        cluster.cli_ok("topic", "create", topic, "--queues", "4")
    settings = [f"--rocketmq.name-server={';'.join(cluster.name_servers)}", "--rocketmq.producer.group=spring"]
    command = spring_client(tmp_path).command("shop.Shop", *settings)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3 * LIMIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "bad "))]
    assert not [line for line in lines if line.startswith("bad ")], done.stdout
    assert {line.removeprefix("ok ") for line in lines} == SHOWN, f"{done.stdout}\n{done.stderr}"
