"""``dledger import-rocketmq`` against real nodes: killed, started again, and read back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dledger_client import Admin, PullConsumer
from tests.cluster.harness import ROOT, Cluster
from tests.unit.cli.rocketmq.old_store import OldStore, unique_id
from tests.waiting import wait_until

COUNT = 60_000
BODY = b"x" * 1000


def begin(cluster: Cluster, *arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"DLEDGER_CONFIG": str(cluster.local.file), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-P", "-m", "dledger_cli", "import-rocketmq", *arguments], env=environment)


def test_a_store_is_imported_by_a_command_that_is_killed_and_repeated(cluster: Cluster, tmp_path: Path) -> None:
    store = OldStore(tmp_path / "store", topics={"orders": (4, 6), "%DLQ%audit": (1, 6)}, file_bytes=8 << 20)
    for number in range(COUNT):
        store.put("orders", number % 4, b"%d " % number + BODY, unique=unique_id(number), keys=f"o-{number}", tags="paid")
    store.put("%DLQ%audit", 0, b"dead", RETRY_TOPIC="orders", unique=unique_id(COUNT))
    store.offsets = {"orders@audit": {0: 100, 1: 200, 2: 300, 3: 400}}
    folder, state = str(store.write()), tmp_path / "store.import.json"
    shown = json.loads(cluster.cli_ok("import-rocketmq", folder, "--dry-run", "--json"))
    assert (shown["messages"], shown["groups"], shown["problem_count"]) == (COUNT + 1, ["audit"], 0)
    assert not state.exists()

    process = begin(cluster, folder)
    wait_until(lambda: process.poll() is not None or (state.exists() and b'"pos": 0,' not in state.read_bytes()), "a step is done")
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = json.loads(state.read_text())
    assert 0 < begun["pos"] < len(store.log)
    cluster.kill(cluster.leader())  # the import finds the next one
    done: dict[str, Any] = json.loads(cluster.cli_ok("import-rocketmq", folder, "--json"))
    assert 0 < done["imported"] < COUNT
    assert done["offsets"] == 4

    with PullConsumer(cluster.bootstrap) as reader, Admin(cluster.bootstrap) as admin:
        for queue in admin.topic_offsets("orders"):
            read = reader.read_chunks("orders", queue.queue_id, 0, queue.max_offset)
            numbers = [int(message.body.split()[0]) for chunk in read for message in chunk.messages()]
            assert numbers == list(range(queue.queue_id, COUNT, 4))
        positions = {each.queue_id: each.offset for each in admin.describe_group("audit").queues}
        assert positions == {0: 100, 1: 200, 2: 300, 3: 400}
        (letters,) = admin.dead_letters("audit")
        assert letters.waiting == 1
    assert json.loads(cluster.cli_ok("dlq", "redrive", "audit", "--json"))["redriven"] == 1


def test_a_damaged_store_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    store = OldStore(tmp_path / "store")
    for number in range(10):
        at = store.put("orders", 0, b"order %d" % number)
    file = store.write() / "commitlog" / f"{0:020d}"
    file.write_bytes(file.read_bytes()[: at + 20])
    refused = cluster.cli("import-rocketmq", str(store.root))
    assert refused.returncode == 1
    first, second, third = refused.stderr.splitlines()
    assert first == f"dledger: {file} at {at}: 20 bytes left, expected a message of at least 91"
    assert second.startswith("dledger: orders/0: the consume queue ends with message 9 at ")
    assert third == "dledger: nothing was imported: --skip-damaged leaves out what is damaged"
    assert json.loads(cluster.cli_ok("topic", "list", "--json"))["topics"] == []
    done = json.loads(cluster.cli_ok("import-rocketmq", str(store.root), "--skip-damaged", "--json"))
    assert done["imported"] == 9
