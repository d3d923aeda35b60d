"""Nodes that may use 512 MiB each, and producers with many times as much to send: all survive, none leads in place of another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.memory_group import MemoryGroup
from benchmarks.processes import largest_mb
from tests import needs
from tests.cluster.harness import ROOT, Cluster
from tests.waiting import LIMIT_S

LIMIT = 512 << 20
SHARE = 0.4  # of it a node may use by default, mapped files left out
# What the interpreter, threads and mapped files of a node take beside that, and messages that are on the way to the log.
BESIDE_MB = 100
LOAD = {"producers": 80, "size_bytes": 4 << 20, "depth": 2}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes, each in a cgroup of its own."""
    settings = {"store": {"mappedFileSizeCommitLog": "64MiB", "maxMessageSize": "4MiB"}}
    cluster, groups = Cluster(tmp_path / "data", settings=settings), list[MemoryGroup]()
    try:
        for node_id in cluster.local.node_ids():
            try:
                groups.append(MemoryGroup(f"dledger-test-{os.getpid()}-{node_id}", LIMIT))
            except OSError as error:
                needs.lacking(f"no cgroup with a limit of memory can be made here: {error}")
            with groups[-1].starting():
                cluster.start(node_id, wait=False)
        cluster.wait_healthy()
        yield cluster
    finally:
        cluster.end()
        for group in groups:
            group.remove()


def test_nodes_in_512_mib_survive_producers_that_have_more_to_send_than_they_may_use(small: Cluster) -> None:
    (found,) = small.group_statuses()
    before, pids = (found.leader_id, found.term), {node.id: node.pid for node in found.nodes}
    small.cli_ok("topic", "create", "heavy", "--queues", "8")
    command = [sys.executable, "-m", "benchmarks.overload", "--child", small.bootstrap, json.dumps(LOAD)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    counts = json.loads(done.stdout)
    (found,) = small.group_statuses()
    assert {node.id: node.pid for node in found.nodes} == pids, "none was killed for want of memory"
    assert (found.leader_id, found.term) == before
    most = {node_id: largest_mb(pid) for node_id, pid in pids.items()}
    assert max(most.values()) < SHARE * LIMIT / (1 << 20) + BESIDE_MB, most
    assert counts["stored"] > 0, counts
