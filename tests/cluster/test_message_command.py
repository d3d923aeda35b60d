"""``dledger message`` on real processes: found by every way there is, traced over a failover, verified and dumped on disk."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.harness import Cluster


def query(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    found = json.loads(cluster.cli_ok("message", "query", *arguments, "--json"))
    assert found["complete"]
    return list(found["messages"])


def test_messages_are_found_and_traced(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "orders", "--queues", "1")
    for key in ("o-1", "o-2"):
        cluster.cli_ok(
            "produce", "orders", "--key", key, "--tag", "paid", stdin=b"".join(b"%d of %s\n" % (n, key.encode()) for n in range(3))
        )
    found = query(cluster, "orders", "--key", "o-2")
    assert [each["body"] for each in found] == ["2 of o-2", "1 of o-2", "0 of o-2"]
    one = found[1]
    assert (one["keys"], one["tags"], one["queue_offset"]) == ("o-2", "paid", 4)
    for way in (("--id", one["msg_id"]), ("--id", one["offset_msg_id"]), ("orders", "--queue", "0", "--offset", "4")):
        assert [each["physical_offset"] for each in query(cluster, *way)] == [one["physical_offset"]]
    assert len(query(cluster, "orders", "--from", str(found[2]["stored_at"]), "--to", "2100-01-01")) == 3
    assert len(query(cluster, "orders", "--key", "o-1", "--max", "2")) == 2
    table = cluster.cli_ok("message", "query", "orders", "--key", "o-1").splitlines()
    assert (len(table), table[0].split()[:3], table[1].split()[:3]) == (4, ["TOPIC", "REPLICA-GROUP", "QUEUE"], ["orders", "g0", "0"])
    cluster.cli_ok("consume", "orders", "--group", "audit", "--from", "first", "--max", "5", "--idle-exit", "3")
    cluster.wait_equal()  # a majority has them; the third may be behind when the leader goes
    cluster.kill(cluster.leader())
    cluster.leader()
    (copy,) = json.loads(cluster.cli_ok("message", "trace", "--id", one["msg_id"], "--json"))["copies"]
    assert copy["kind"] == "message"
    assert sorted(replica["state"] for replica in copy["replicas"]) == ["holds it", "holds it", "no answer"]
    (group,) = copy["consumers"]
    assert (group["group"], group["state"], group["committed"]) == ("audit", "consumed", 5)
    assert group["by"] >= one["stored_at"]
    text = cluster.cli_ok("message", "trace", "orders", "--key", "o-2")
    assert text.count("message: orders/0") == 3
    assert "audit: not yet, it is at offset 5" in text
    assert "audit: passed (its offset is past the message: processed, sent back or skipped), committed" in text


def test_nothing_found_and_files_on_disk(cluster: Cluster) -> None:
    cluster.cli_ok("topic", "create", "t")
    cluster.cli_ok("produce", "t", "--key", "k", stdin=b"one\n")
    cluster.wait_equal()  # n0 may be the one that is behind, and stopped before it has the message
    nothing = cluster.cli("message", "query", "t", "--key", "other")
    assert (nothing.returncode, "no such message" in nothing.stderr) == (1, True)
    missing = cluster.cli("message", "query", "nowhere", "--key", "k")
    assert (missing.returncode, "nowhere" in missing.stderr) == (1, True)
    cluster.stop()
    folder = cluster.data / "n0"
    (file,) = sorted((folder / "index").iterdir())
    assert file.stat().st_size == 420_000_040
    assert file.stat().st_blocks * 512 < 1 << 20
    rows = [json.loads(line) for line in cluster.cli_ok("dump", str(file), "--json").splitlines()]
    assert [row["what"] for row in rows] == ["index header", "index entry", "index entry"]
    assert cluster.cli("verify", "--data", str(folder)).returncode == 0
    with file.open("r+b") as opened:
        opened.seek(rows[2]["pos"] + 7)
        opened.write(b"\x55")
    damaged = cluster.cli("verify", "--data", str(folder))
    assert damaged.returncode == 1
    assert f"{file.name}: byte {rows[2]['pos']}: bad key index file: entry 2" in damaged.stdout
